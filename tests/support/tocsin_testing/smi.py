"""A double of the program nvidia-smi that answers from files and constructions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tocsin.collector.smi_program import SmiAnswer

FOLDER = Path(__file__).parents[2] / "data" / "nvidia_smi"


def recorded(name: str) -> str:
    """The text of a file of ``tests/data/nvidia_smi``."""
    return (FOLDER / name).read_text()


class FakeSmi:
    """Answers by the first argument: ``-q`` (XML), ``--query-gpu`` (CSV), ``-L`` and ``nvlink -s``.

    None is a run that hangs."""

    def __init__(self, xml: SmiAnswer | None = None, csv: SmiAnswer | None = None, listing: str = "") -> None:
        self.xml = xml
        self.csv = csv
        self.listing = listing
        self.links = ""
        self.unknown_fields: set[str] = set()
        self.asked: list[list[str]] = []
        self.closed = 0

    def run(self, arguments: Sequence[str], seconds: float) -> SmiAnswer | None:
        """The scripted answer; a field of `unknown_fields` is refused as the program does it."""
        self.asked.append(list(arguments))
        if arguments[0] == "-q":
            return self.xml
        if arguments[0] == "nvlink":
            return SmiAnswer(0, self.links)
        if arguments[0] == "-L":
            return SmiAnswer(0, self.listing)
        fields = arguments[0].removeprefix("--query-gpu=").split(",")
        for name in fields:
            if name in self.unknown_fields:
                return SmiAnswer(2, f'Field "{name}" is not a valid field to query.\n\n')
        return self.csv

    def close(self) -> None:
        """Count the call."""
        self.closed += 1
