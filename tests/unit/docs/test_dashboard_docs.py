"""The dashboard's page cannot lag behind it."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.dashboard import heatmap
from tocsin.dashboard.access import DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE
from tocsin.dashboard.app import PAGES
from tocsin.dashboard.boundary import REFRESH_SECONDS
from tocsin.dashboard.page_gpu import SPANS
from tocsin.dashboard.palette import SYMBOLS
from tocsin.dashboard.text import LANGUAGES, Text

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "dashboard.md").read_text()


def test_every_page_is_described_under_its_name() -> None:
    names = [Text("en")(f"page.{page}") for page in PAGES]
    assert re.findall(r"^- \*\*([^*]+)\*\*", TEXT, re.MULTILINE) == names


def test_variables_and_defaults_are_described() -> None:
    assert {URL_VARIABLE, TOKEN_VARIABLE} == set(re.findall(r"TOCSIN_DASHBOARD__\w+", TEXT))
    assert DEFAULT_URL in TEXT
    assert f"every {REFRESH_SECONDS:.0f} s" in TEXT


def test_parameters_of_links_are_described() -> None:
    for choices in (heatmap.MEASURES, SPANS):
        assert ", ".join(f"`{name}`" for name in choices) in TEXT


def test_symbols_and_languages_are_described() -> None:
    text = Text("en")
    for state, symbol in SYMBOLS.items():
        word = text.name("state", state.value)
        assert f"{symbol} {word if word.isupper() else word.lower()}" in TEXT
    assert "English and Chinese" in TEXT
    assert list(LANGUAGES) == ["en", "zh"]


def test_the_picture_is_there_and_small() -> None:
    assert 20_000 < (DOCS / "images" / "overview.png").stat().st_size < 300_000
