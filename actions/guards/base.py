"""What a guard is, and what all of them say of a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

import structlog

from tocsin.actions.model.catalogue import is_disruptive, is_recovery
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.domain.phrase import Phrase
from tocsin.plugins import Kind, load_all

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now, for a reason in plain words, by `say` where it is told in Chinese too.

    `until_ms` is when it ends by itself, None where something must change. `observed` and `limit` are the two figures
    that a guard compared, in one unit, where these alone decide.
    """

    reason: str | Phrase
    until_ms: int | None = None
    observed: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """Never, for this decision."""

    reason: str | Phrase


Check = Callable[[Decision, FleetView, int], Hold | Deny | None]
"""A guard's own question at an instant in milliseconds; None is a plain yes."""


class Applies(StrEnum):
    """Which decisions a guard is asked about; it allows all others."""

    EVERYTHING = "everything"
    ACTIONS = "every action but notify"
    FORWARD = "every action but notify, restore and uncordon"
    DISRUPTIVE = "disruptive actions"
    RECOVERY = "restore and uncordon"

    def covers(self, action: ActionKind) -> bool:
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
    """One guard: a pure question, and what its answer means to the loop.

    `stage` orders the list that people read. `counts_for_breaker` is True for a question about the fault itself and
    about what people allow: a disruptive decision that all of these allow would run if there were no limits, so that
    its root cause counts for the breaker. `denial_rejects` is False where the loop ends a denied decision in another
    way.
    """

    name: str
    stage: int
    applies: Applies
    check: Check
    counts_for_breaker: bool = False
    denial_rejects: bool = True

    def __call__(self, decision: Decision, view: FleetView, now_ms: int) -> Verdict:
        """The answer at `now_ms`; raises nothing and changes nothing. A guard of another package that breaks off holds:
        what was not answered is not allowed."""
        if not self.applies.covers(decision.action):
            return _not_asked(self.name, decision.action)
        try:
            answer = self.check(decision, view, now_ms)
            if not isinstance(answer, Hold | Deny | None):
                raise TypeError(f"it answered {answer!r} in place of None, Hold or Deny")
        except Exception as error:  # a stranger's code must not stop the loop
            log.exception("a guard broke off", guard=self.name, decision=decision.id)
            return Verdict(self.name, Ruling.HOLD, f"guard {self.name} broke off: {type(error).__name__}: {error}")
        if answer is None:
            return _allowed(self.name)
        said = answer.reason if isinstance(answer.reason, Phrase) else None
        if isinstance(answer, Deny):
            return Verdict(self.name, Ruling.DENY, str(answer.reason), said=said)
        figures = answer.observed, answer.limit
        return Verdict(self.name, Ruling.HOLD, str(answer.reason), answer.until_ms, *figures, said)


@lru_cache(maxsize=1024)
def _allowed(name: str, reason: str = "") -> Verdict:
    """One object for all that ask: nearly every answer is a yes."""
    return Verdict(name, Ruling.ALLOW, reason)


@cache
def _not_asked(name: str, action: ActionKind) -> Verdict:
    return _allowed(name, f"not asked for {action}")


def guard(
    name: str, stage: int, applies: Applies, *, counts_for_breaker: bool = False, denial_rejects: bool = True
) -> Callable[[Check], Guard]:
    """Make the decorated question a guard; `tocsin.plugins` finds it by its name."""
    return lambda check: Guard(name, stage, applies, check, counts_for_breaker, denial_rejects)


@cache
def guards() -> tuple[Guard, ...]:
    """Every guard, in the order in which an operator reads them.

    Raises what `load_all` raises, and InputError for what is no guard of its name. No guard is ever left out: with one
    missing, more would be allowed than the site wants.
    """
    found: dict[str, object] = load_all(Kind.GUARD)
    made = [each for name, each in found.items() if isinstance(each, Guard) and each.name == name]
    wrong = found.keys() - {each.name for each in made}
    if wrong:
        name = min(wrong)
        problem, remedy = f"{found[name]!r} is no Guard of that name", "make it with tocsin.actions.guards.base.guard"
        raise InputError("plugin guard", name, problem, remedy)
    return tuple(sorted(made, key=lambda each: (each.stage, each.name)))


def evaluate(decision: Decision, view: FleetView, now_ms: int) -> tuple[Verdict, ...]:
    """Every guard's verdict, also of those behind one that holds: the operator sees all that stands in the way."""
    return tuple(each(decision, view, now_ms) for each in guards())


_WORST_FIRST = (Ruling.DENY, Ruling.HOLD, Ruling.ALLOW)


def worst(verdicts: Iterable[Verdict]) -> Ruling:
    """Deny before hold before allow."""
    return min((verdict.ruling for verdict in verdicts), key=_WORST_FIRST.index, default=Ruling.ALLOW)
