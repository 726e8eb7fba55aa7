"""What the view in a terminal shows, character by character, on 80 and on 160 columns, for 64 and for 10,000 GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tocsin.terminal.screen.app import TopApp
from tocsin_testing.screens import FakeFeed, on_screen, screen_text, settle

FOLDER = Path(__file__).parent / "terminal"
NARROW, WIDE = (80, 24), (160, 20)


@pytest.mark.parametrize(
    ("name", "hosts", "size", "keys"),
    [
        ("gpus_64_narrow", 8, NARROW, ""),
        ("attention_64_narrow", 8, NARROW, "2"),
        ("decisions_64_wide", 8, WIDE, "3"),
        ("nodes_64_narrow", 8, NARROW, "4"),
        ("approve_64_narrow", 8, NARROW, "3 a"),
        ("gpu_64_narrow", 8, NARROW, "down enter"),
        ("gpus_10000_wide", 1250, WIDE, "end"),
        ("keys_narrow", 8, NARROW, "question_mark"),
    ],
)
def test_a_screen(name: str, hosts: int, size: tuple[int, int], keys: str) -> None:
    async def play(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*keys.split())
        await settle(app, pilot)
        lines = screen_text(app)
        assert all(len(line) <= size[0] for line in lines)
        assert "\n".join(lines) + "\n" == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")

    on_screen(FakeFeed(hosts), play, size)
