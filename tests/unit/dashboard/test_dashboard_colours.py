"""Colours: contrast by WCAG 2.2, and distance for every kind of colour vision, as coloraide reckons them."""

from __future__ import annotations

from itertools import combinations

import pytest
from coloraide import Color

from tocsin.client.models import GpuState
from tocsin.dashboard import heatmap
from tocsin.dashboard.launch import command
from tocsin.dashboard.palette import DARK, LIGHT, SYMBOLS, Palette, ink, luminance, mix
from tocsin.domain.decision import Ruling

PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
VISION = pytest.mark.parametrize("vision", ["", "protan", "deutan", "tritan"])
APART = 12.0
"""Least distance of two states, CIEDE2000: from 10 on colours are told apart at a glance (own choice)."""
OPTIONS = dict(zip(command("h", 1)[5::2], command("h", 1)[6::2], strict=True))


def seen(colour: str, vision: str) -> Color:
    """What a dichromat sees of `colour`."""
    return Color(colour).filter(vision) if vision else Color(colour)


@PALETTES
@VISION
def test_states_stay_apart_for_every_kind_of_vision(palette: Palette, vision: str) -> None:
    close = {
        (one.value, other.value): distance
        for one, other in combinations(GpuState, 2)
        if (distance := seen(palette.states[one], vision).delta_e(seen(palette.states[other], vision), method="2000"))
        < APART
    }
    assert close == {}


@PALETTES
@VISION
def test_a_forecast_is_told_from_the_course_and_the_peers(palette: Palette, vision: str) -> None:
    for one, other in combinations([palette.line, palette.forecast, palette.peers], 2):
        assert seen(one, vision).delta_e(seen(other, vision), method="2000") >= APART


@PALETTES
def test_text_stands_out_from_every_ground(palette: Palette) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1, on the page and on the side bar."""
    kind = "light" if palette is LIGHT else "dark"
    grounds = [palette.background, OPTIONS[f"--theme.{kind}.secondaryBackgroundColor"]]
    texts = [palette.text, palette.muted, palette.forecast, palette.line, *palette.words.values()]
    texts += [palette.ruling(ruling) for ruling in Ruling]
    low = {(text, ground): contrast for text in texts for ground in grounds
           if (contrast := Color(text).contrast(ground)) < 4.5}  # fmt: skip
    assert low == {}


@PALETTES
def test_what_a_cell_says_can_be_read(palette: Palette) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    cells = [*palette.states.values()]
    for measure in heatmap.MEASURES.values():
        cells += measure.shades(palette) if measure is not None else []
    assert [cell for cell in cells if Color(cell).contrast(ink(cell)) < 4.5] == []


@PALETTES
def test_bars_of_throttling_and_lines_stand_out(palette: Palette) -> None:
    for colour in (*palette.throttle, palette.peers, palette.line):
        assert Color(colour).contrast(palette.background) >= 3.0


@pytest.mark.parametrize(("palette", "kind"), [(LIGHT, "light"), (DARK, "dark")])
def test_the_theme_is_the_palette_s(palette: Palette, kind: str) -> None:
    assert OPTIONS[f"--theme.{kind}.textColor"] == palette.text
    assert OPTIONS[f"--theme.{kind}.backgroundColor"] == palette.background
    assert Color(OPTIONS[f"--theme.{kind}.primaryColor"]).contrast("#ffffff") >= 4.5


def test_no_two_states_share_a_symbol() -> None:
    assert len(set(SYMBOLS.values())) == len(GpuState)


def test_luminance_is_that_of_wcag() -> None:
    for colour in ("#000000", "#ffffff", "#d1491b", "#0b6e8f"):
        assert luminance(colour) == pytest.approx(Color(colour).luminance(), abs=2e-4)
    assert mix("#000000", "#ff8000", 0.5) == "#804000"
