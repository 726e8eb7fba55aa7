"""One decision in the ledger, and where it stands as the API shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tocsin.domain.decision import Decision, DecisionState, Outcome, Ruling, Verdict
from tocsin.domain.finding import ActionKind

FINAL = frozenset(
    {
        DecisionState.DONE,
        DecisionState.GOAL_NOT_REACHED,
        DecisionState.FAILED,
        DecisionState.REJECTED,
        DecisionState.EXPIRED,
    }
)
"""States that no decision leaves."""

APPROVAL = "approval"
"""Name of the guard that asks for a person's yes."""

MODE_GUARDS = frozenset({"mode", APPROVAL})
"""Guards that hold because of the mode alone: in mode `act` they would not have."""

SILENCE = "silence"
"""Name of the guard that withholds a notification."""

SELECTION = "selection"
"""Name of the loop's own verdict: is this what the subject needs most."""

WAITING = frozenset({DecisionState.HELD, DecisionState.APPROVED})
"""States in which guards are asked."""


def held_by(verdicts: Iterable[Verdict]) -> frozenset[str]:
    """The guards that hold or deny."""
    return frozenset(verdict.guard for verdict in verdicts if verdict.ruling is not Ruling.ALLOW)


@dataclass(frozen=True, slots=True)
class DecisionStatus:
    """One decision, what every guard last said of it, and how it ended.

    `reason` says in words why it stands where it does, `reason_zh` in Chinese; empty where the verdicts say it.
    `updated_ms` is the instant of its last entry in the journal, `steps` are the numbers of its entries. `held_by` are
    the guards that ever held it, `was_ready` is True where at some time none but the mode did.
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
    reason_zh: str = ""
    held_by: tuple[str, ...] = ()
    was_ready: bool = False

    @property
    def waits_for_person(self) -> bool:
        """Whether a yes is all that is missing: what else is in the way is no decision for a person yet."""
        return self.state is DecisionState.HELD and held_by(self.verdicts) == {APPROVAL}


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; the tuples hold decision ids: `executed` was begun, of `concluded` the outcome is on record.
    `decisions` are those that it made, began, concluded or ended, as they stand.

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


MAX_STEPS = 200
"""Entries about one decision that are remembered: a drain that goes on for days has more."""


@dataclass(slots=True)
class LedgerEntry:
    """The journal's account of a decision; only the ledger changes it.

    `counted` is True once the breaker has counted its cause, `cause`, at `counted_ms`. `withheld` is True once a
    silence has held it back. `executor`, `detail`, `attempts`, `lasting` and `changed` (anything in the world) are of
    the execution, `before` is what the subject's readings showed at its start, `effect`
    what was measured of it. `started_ms` and `work`, the jobs that were there, are of its start, `measured` is the
    figure of its goal. `checked` is True once the post-check has said `seen`. `steps` are the numbers of its entries in
    the journal, the first `MAX_STEPS` of them. `by_hand` is True once a person did the same past Tocsin while
    it waited. `held_by` and `was_ready` are as in `DecisionStatus`: the last verdicts alone would tell how it ended.
    """

    decision: Decision
    updated_ms: int
    verdicts: tuple[Verdict, ...] = ()
    overall: Ruling = Ruling.HOLD
    state: DecisionState = DecisionState.HELD
    outcome: Outcome | None = None
    approved_by: str = ""
    reason: str = ""
    counted: bool = False
    executor: str = ""
    detail: str = ""
    attempts: int = 1
    lasting: bool = False
    changed: bool = True
    before: dict[str, float] = field(default_factory=dict)
    effect: dict[str, float] = field(default_factory=dict)
    checked: bool = False
    seen: bool | None = None
    steps: list[int] = field(default_factory=list)
    started_ms: int = 0
    work: tuple[str, ...] = ()
    measured: float | None = None
    by_hand: bool = False
    cause: str = ""
    counted_ms: int = 0
    withheld: bool = False
    detail_zh: str = ""
    reason_zh: str = ""
    held_by: tuple[str, ...] = ()
    was_ready: bool = False

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def waiting(self) -> bool:
        """Whether guards are still asked."""
        return self.state in WAITING

    @property
    def notice(self) -> bool:
        return self.decision.action is ActionKind.NOTIFY

    @property
    def silenced(self) -> bool:
        """Whether a silence holds it back now."""
        return any(one.guard == SILENCE and one.ruling is Ruling.HOLD for one in self.verdicts)

    def follow(self, seq: int) -> None:
        """Remember the number of an entry about it."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append(seq)

    def hear(self, verdicts: tuple[Verdict, ...], overall: Ruling) -> None:
        """Take in what the guards say at one evaluation."""
        self.verdicts, self.overall = verdicts, overall
        holding = held_by(verdicts)
        self.held_by += tuple(sorted(holding.difference(self.held_by)))
        self.was_ready = self.was_ready or (bool(verdicts) and holding <= MODE_GUARDS)

    def rulings(self) -> tuple[tuple[str, Ruling], ...]:
        """What the verdicts amount to, without their reasons, which may count seconds."""
        return tuple((verdict.guard, verdict.ruling) for verdict in self.verdicts)

    def status(self) -> DecisionStatus:
        return DecisionStatus(
            self.decision,
            self.verdicts,
            self.overall,
            self.state,
            self.outcome,
            self.approved_by,
            self.updated_ms,
            self.reason,
            tuple(self.steps),
            self.reason_zh,
            self.held_by,
            self.was_ready,
        )
