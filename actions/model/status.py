"""Where decisions stand, as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.domain.decision import Decision, DecisionState, Outcome, Ruling, Verdict

FINAL = frozenset({DecisionState.DONE, DecisionState.FAILED, DecisionState.REJECTED, DecisionState.EXPIRED})
"""States that no decision leaves."""

WAITING = frozenset({DecisionState.HELD, DecisionState.APPROVED})
"""States in which guards are asked."""


@dataclass(frozen=True, slots=True)
class DecisionStatus:
    """One decision, what every guard last said of it, and how it ended.

    `reason` says in words why it stands where it does; empty where the verdicts say it. `updated_ms` is the instant of
    its last entry in the journal, `steps` are the numbers of its entries.
    """

    decision: Decision
    verdicts: tuple[Verdict, ...]
    overall: Ruling
    state: DecisionState
    outcome: Outcome | None
    approved_by: str
    updated_ms: int
    reason: str = ""
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; the tuples hold decision ids: `executed` was begun, of `concluded` the outcome is on record.

    `counts` are totals since the start of this process.
    """

    now_ms: int
    decisions: list[DecisionStatus]
    created: tuple[str, ...] = ()
    executed: tuple[str, ...] = ()
    concluded: tuple[str, ...] = ()
    notified: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
