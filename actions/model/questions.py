"""When people were last asked about something of a pool that nobody has answered yet."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind, Finding


def asked_about(one: Finding | Decision) -> str:
    """What people are asked about at once: a rule in a pool."""
    return f"{one.rule}|{one.subject.pool}"


class Questions:
    """The last question about each rule in a pool: the key of the decision, and the instant; `known` is from before."""

    def __init__(self, known: Mapping[str, tuple[str, int]] | None = None) -> None:
        self.known: dict[str, tuple[str, int]] = dict(known or {})

    def ask(self, decision: Decision, at_ms: int) -> None:
        """A decision was made; only one that waits for people is a question."""
        if decision.action is not ActionKind.NOTIFY and decision.mode is Mode.PROPOSE:
            self.known[asked_about(decision)] = decision.key, at_ms

    def answer(self, decision: Decision) -> None:
        """It waits for nobody any more; where another was asked since, that one still does."""
        if self.known.get(asked_about(decision), ("", 0))[0] == decision.key:
            del self.known[asked_about(decision)]

    @property
    def asked_ms(self) -> dict[str, int]:
        """The instants, by `asked_about`."""
        return {about: at_ms for about, (_, at_ms) in self.known.items()}
