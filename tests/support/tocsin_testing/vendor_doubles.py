"""Doubles of AMD's library and of the program npu-smi, which answer from `tocsin_testing.vendor_facts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.collector.amdsmi.library import AmdEvent, AmdFailure, ErrorRecord, Status
from tocsin.collector.smi_program import SmiAnswer
from tocsin.domain.errors import Unavailable
from tocsin_testing.vendor_facts import Answers, Texts


class FakeAmd:
    """Implements `tocsin.collector.amdsmi.library.AmdSmi`. `asked` are the calls; `told` comes with the next look."""

    def __init__(self, cards: Sequence[Answers]) -> None:
        self.cards = list(cards)
        self.asked: list[tuple[int, str]] = []
        self.told: list[AmdEvent] = []
        self.log: dict[int, list[ErrorRecord]] = {}
        self.opened = 0
        self.closed = 0
        self.refuses = ""

    def open(self) -> int:
        if self.refuses:
            raise Unavailable(self.refuses)
        self.opened += 1
        return len(self.cards)

    def ask(self, card: int, call: str) -> Any:
        self.asked.append((card, call))
        answer = self.cards[card].get(call, {"error": int(Status.NOT_SUPPORTED)})
        if isinstance(answer, dict) and "error" in answer:
            raise AmdFailure(int(answer["error"]))
        return answer

    def records(self, card: int, cursor: int) -> tuple[list[ErrorRecord], int]:
        kept = self.log.get(card, [])
        return kept[cursor:], len(kept)

    def events(self) -> list[AmdEvent]:
        told, self.told = self.told, []
        return told

    def close(self) -> None:
        self.closed += 1


class FakeNpu:
    """Implements `tocsin.collector.smi_program.Program` as npu-smi would; an unknown question is refused as it does.

    `hangs` are the beginnings of arguments for which it never ends.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.hangs: tuple[str, ...] = ()
        self.status = 0
        self.asked: list[str] = []
        self.closed = 0

    def run(self, arguments: Sequence[str], seconds: float) -> SmiAnswer | None:
        line = " ".join(arguments)
        self.asked.append(line)
        if any(line.startswith(one) for one in self.hangs):
            return None
        if self.status:
            return SmiAnswer(self.status, "dcmi module initialize failed. ret is -8005\n")
        if line not in self.texts:
            return SmiAnswer(1, "Error parameter of -t\n")
        return SmiAnswer(0, self.texts[line])

    def close(self) -> None:
        self.closed += 1
