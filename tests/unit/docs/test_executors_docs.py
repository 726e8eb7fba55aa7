"""docs/executors.md has every executor and the ladders that are in force."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.actions.executors.registry import executors
from tocsin.actions.model.ladder import LADDERS
from tocsin.domain.finding import ActionKind

TEXT = (Path(__file__).parents[3] / "docs" / "executors.md").read_text(encoding="utf-8")
WORDS = {ActionKind.RESET_GPU: "reset", ActionKind.REBOOT_NODE: "reboot", ActionKind.RMA_TICKET: "return ticket"}


def test_every_executor_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert rows == set(executors())


def test_the_ladders_are_those_of_the_code() -> None:
    written = dict(re.findall(r"^ {3}- (\w+): (.*)$", TEXT, re.MULTILINE))
    shown = {
        str(category): ", ".join(WORDS.get(rung, str(rung).replace("_", " ")) for rung in ladder)
        for category, ladder in LADDERS.items()
    }
    assert written == shown
