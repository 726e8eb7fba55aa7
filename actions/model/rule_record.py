"""What became of the cases in which a rule asked for an action, folded from the journal; the same entries, the same.

A case is one root cause on one subject, whatever was decided about it how often: renewals, rungs of the ladder and
tries of the same root count as one, and so does a cause that comes back on the subject within 24 hours of the first
time. Where they differ the worst counts. Cases of simulated GPUs are a record of their own.

A decision is settled by its end:

- `right`, the statement: True where a person approved it and it ran, where a person did the same by hand while it
  waited, or where it ran alone and its effect was seen. False where a person rejected it, and where a person gave the
  subject back within `EARLY_MS` of the end, or someone put its node back into service past Tocsin. None where it ran
  alone and no effect was seen, and where it failed: nobody knows, and an approval alone earns nothing.
- `reached`, the goal: True where it ended as done, False where it ended as goal_not_reached or failed. None where the
  action has a goal that nothing showed, and where a person did it by hand.

No case are: what expired or was denied by a guard, unless a person did it by hand; what was rejected by a person who
says that the statement was right; what changed nothing, such as a dry run or executor `journal_only`; notifications;
recoveries, which need no record; and a scale-out that only makes room for another decision of the same cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from tocsin.actions.model.catalogue import ACTIONS, Scope, is_recovery
from tocsin.actions.model.earning import RecordKey, RuleCase
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.model.scope import base_key
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import Decision, DecisionState, ScaleOutParameters
from tocsin.domain.finding import SubjectKind

KEEP_CASES = 100
"""Newest cases of a rule that count (own choice): old ones do not make up for many new mistakes."""
WINDOW_MS = 90 * DAY
"""How long a case counts (own choice): a quarter, in which drivers and fleets change."""
EARLY_MS = 4 * HOUR
"""A person who gives the subject back this soon disagrees with what was done (own choice); later it is routine."""
_AGAIN_MS = DAY


@dataclass(frozen=True, slots=True)
class Acting:
    """What the journal last said of a rule: from `at_ms` on it acted alone, or did not any more, and why."""

    acts: bool
    at_ms: int
    sentence: str
    sentence_zh: str = ""


class RuleRecords:
    """The records of all rules, at most `KEEP_CASES` cases each. `version` grows with each change.

    Only the ledger changes it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.acting: dict[RecordKey, Acting] = {}
        self._cases: dict[RecordKey, list[RuleCase]] = {}

    def window(self, now_ms: int) -> dict[RecordKey, tuple[RuleCase, ...]]:
        """The cases that count at `now_ms`, the oldest first, by rule and world; a rule without any is not in it."""
        found = {key: tuple(self._counting(cases, now_ms)) for key, cases in self._cases.items()}
        return {key: cases for key, cases in found.items() if cases}

    def changes_ms(self, now_ms: int) -> int | None:
        """The next instant at which a case ceases to count; None where none will."""
        ends = [one.at_ms + WINDOW_MS for cases in self._cases.values() for one in self._counting(cases, now_ms)]
        return min(ends, default=None)

    @staticmethod
    def _counting(cases: list[RuleCase], now_ms: int) -> Iterator[RuleCase]:
        return (one for one in cases if now_ms < one.at_ms + WINDOW_MS)

    def settle(self, entry: LedgerEntry, *, rejected: bool) -> None:
        """Take in a decision that has just ended; `rejected` where a person said no to the statement."""
        came = _came_of(entry, rejected)
        if came is None:
            return
        decision, at_ms = entry.decision, entry.updated_ms
        root = decision.findings[0] if decision.findings else decision.parameters.cause
        made = RuleCase(base_key(decision.subject), root, at_ms, at_ms, *came)
        cases = self._cases.setdefault((decision.rule, decision.simulated), [])
        place = next((n for n in reversed(range(len(cases))) if _same(cases[n], made)), None)
        if place is None:
            cases.append(made)
            del cases[:-KEEP_CASES]
        else:
            cases[place] = cases[place].joined(made)
        self.version += 1

    def given_back(self, roots: Collection[str], at_ms: int) -> None:
        """A person gave back what was done about the findings `roots`: soon after it, that says that it was wrong."""
        for cases in self._cases.values():
            for place, one in enumerate(cases):
                if one.root in roots and at_ms < one.last_ms + EARLY_MS:
                    cases[place] = replace(one, right=False)
                    self.version += 1

    def told(self, rule: str, simulated: bool, acting: Acting) -> None:
        """The journal says whether the rule acts alone."""
        self.acting[rule, simulated] = acting

    def as_json(self) -> dict[str, Any]:
        """All of it, for a checkpoint of the journal."""
        plain = _State(
            [(*key, cases) for key, cases in self._cases.items()], [(*key, one) for key, one in self.acting.items()]
        )
        dumped: dict[str, Any] = _STATE.dump_python(plain, mode="json")
        return dumped

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> RuleRecords:
        """The records whose `as_json` this was."""
        found, plain = cls(), _STATE.validate_python(state)
        found._cases = {(rule, simulated): cases for rule, simulated, cases in plain.cases}
        found.acting = {(rule, simulated): one for rule, simulated, one in plain.acting}
        return found


@dataclass(frozen=True, slots=True)
class _State:
    cases: list[tuple[str, bool, list[RuleCase]]]
    acting: list[tuple[str, bool, Acting]]


_STATE = TypeAdapter(_State)


def _same(case: RuleCase, made: RuleCase) -> bool:
    if case.subject != made.subject:
        return False
    return case.root == made.root or made.at_ms < case.at_ms + _AGAIN_MS


def _came_of(entry: LedgerEntry, rejected: bool) -> tuple[bool | None, bool | None] | None:
    """Whether the statement was right and the goal reached; None for what is no case."""
    decision = entry.decision
    helps = isinstance(decision.parameters, ScaleOutParameters) and bool(decision.parameters.before)
    if entry.notice or is_recovery(decision.action) or helps:
        return None
    if rejected:
        return False, None
    if entry.outcome is None:
        return (True, None) if entry.by_hand else None
    if not entry.changed:
        return None
    failed = entry.state is DecisionState.FAILED
    right = True if (entry.approved_by or entry.seen) and not failed else None
    return right, _reached(entry)


def _reached(entry: LedgerEntry) -> bool | None:
    if entry.state is not DecisionState.DONE:
        return False
    return True if entry.seen or entry.decision.goal is None else None


def is_by_hand(decision: Decision, action: str, kind: str, name: str) -> bool:
    """Whether a person who does `action` on the subject `kind` and `name` does what `decision` asks for."""
    if decision.action != action:
        return False
    of_host = ACTIONS[decision.action].scope is Scope.HOST and kind == SubjectKind.HOST
    return base_key(decision.subject) == f"{kind}:{name}" or (of_host and decision.subject.host == name)
