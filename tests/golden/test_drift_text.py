"""`tocsin drift` over a fleet of which all is known. `TOCSIN_WRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

from tocsin.cli.drift import lines
from tocsin_testing import fake_drift
from tocsin_testing.builders import T0

GOLDEN = Path(__file__).parent / "drift"


def same(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TOCSIN_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_all_groups() -> None:
    same("all.txt", "\n".join(lines(fake_drift.drift(T0, "", []))) + "\n")


def test_only_what_differs_or_is_on_its_way() -> None:
    same("odd.txt", "\n".join(lines(fake_drift.drift(T0, "", [], simulated=True), only_odd=True)) + "\n")
