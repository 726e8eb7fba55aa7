"""What people were last asked about something of a pool and nobody has answered yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind, Finding


def asked_about(one: Finding | Decision) -> str:
    """What people are asked about at once: a rule in a pool."""
    return f"{one.rule}|{one.subject.pool}"


class Question(NamedTuple):
    """The key of a decision that waits for people, and when they were asked."""

    key: str
    at_ms: int


class Questions:
    """The last question about each rule in a pool, by `asked_about`; `known` is from before."""

    def __init__(self, known: Mapping[str, Question] | None = None) -> None:
        self.known: dict[str, Question] = dict(known or {})

    def ask(self, decision: Decision, at_ms: int) -> None:
        """A decision was made; only one that waits for people is a question."""
        if decision.action is not ActionKind.NOTIFY and decision.mode is Mode.PROPOSE:
            self.known[asked_about(decision)] = Question(decision.key, at_ms)

    def answer(self, decision: Decision) -> None:
        """A person decided it; where another was asked since, that one still waits."""
        last = self.known.get(asked_about(decision))
        if last is not None and last.key == decision.key:
            del self.known[asked_about(decision)]

    def give_back(self, cancelled: Collection[str], decisions: Iterable[Decision]) -> None:
        """A person stepped in for the findings `cancelled`: an answer to those of `decisions` that are about them."""
        for one in decisions if cancelled else ():
            if not set(cancelled).isdisjoint(one.findings):
                self.answer(one)
