"""One decision in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.actions.status import FINAL, WAITING, DecisionStatus
from tocsin.domain.decision import Decision, DecisionState, Outcome, Ruling, Verdict
from tocsin.domain.finding import ActionKind


@dataclass(slots=True)
class Record:
    """The journal's account of a decision; only the ledger changes it.

    `counted` is True once the breaker has counted its cause. `executor`, `detail`, `attempts`, `lasting` and `changed`
    (anything in the world) are of the execution, `before` is what the subject's readings showed at its start, `effect`
    what was measured of it. `checked` is True once the post-check has said `seen`.
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

    @property
    def final(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in FINAL

    @property
    def waiting(self) -> bool:
        """Whether guards are still asked."""
        return self.state in WAITING

    @property
    def notice(self) -> bool:
        """Whether it is a notification."""
        return self.decision.action is ActionKind.NOTIFY

    def rulings(self) -> tuple[tuple[str, Ruling], ...]:
        """What the verdicts amount to, without their reasons, which may count seconds."""
        return tuple((verdict.guard, verdict.ruling) for verdict in self.verdicts)

    def status(self) -> DecisionStatus:
        """A snapshot."""
        return DecisionStatus(
            self.decision,
            self.verdicts,
            self.overall,
            self.state,
            self.outcome,
            self.approved_by,
            self.updated_ms,
            self.reason,
        )
