"""What a guard is, and the register that each guard's module enters itself into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tocsin.actions.model.catalogue import is_disruptive, is_recovery
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind

Answer = tuple[Ruling, str, int | None]
"""Ruling, reason, and the instant at which a hold ends by itself."""

Check = Callable[[Decision, FleetView, int], Answer | None]
"""A guard's own question; None is a plain yes."""


class Applies(StrEnum):
    """Which decisions a guard is asked about; it allows all others."""

    EVERYTHING = "everything"
    ACTIONS = "every action but notify"
    FORWARD = "every action but notify, restore and uncordon"
    DISRUPTIVE = "disruptive actions"
    RECOVERY = "restore and uncordon"

    def covers(self, action: ActionKind) -> bool:
        """Whether a decision for `action` is asked."""
        if self is Applies.EVERYTHING:
            return True
        if action is ActionKind.NOTIFY:
            return False
        if self is Applies.DISRUPTIVE:
            return is_disruptive(action)
        if self is Applies.RECOVERY:
            return is_recovery(action)
        return self is Applies.ACTIONS or not is_recovery(action)


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard. Calling it is pure and raises nothing; `stage` orders the list."""

    name: str
    stage: int
    applies: Applies
    check: Check

    def __call__(self, decision: Decision, view: FleetView, now_ms: int) -> Verdict:
        if not self.applies.covers(decision.action):
            return Verdict(self.name, Ruling.ALLOW, f"not asked for {decision.action}")
        answer = self.check(decision, view, now_ms)
        return Verdict(self.name, Ruling.ALLOW) if answer is None else Verdict(self.name, *answer)


REGISTER: dict[str, Guard] = {}
"""Guards by name, as far as their modules are loaded; `stages` loads all."""


def guard(name: str, stage: int, applies: Applies) -> Callable[[Check], Check]:
    """Enter the decorated function into the register as guard `name`."""

    def enter(check: Check) -> Check:
        REGISTER[name] = Guard(name, stage, applies, check)
        return check

    return enter


def hold(reason: str, until_ms: int | None = None) -> Answer:
    """Not now."""
    return Ruling.HOLD, reason, until_ms


def deny(reason: str) -> Answer:
    """Never."""
    return Ruling.DENY, reason, None
