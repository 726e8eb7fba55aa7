"""What is done about it: decision, what the guards said, and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.domain.action_parameters import ActionParameters, NotifyParameters, encode, parameters_of
from tocsin.domain.finding import ActionKind, Category, Severity, Subject


class Mode(StrEnum):
    """How far a rule, or the whole service, may go."""

    OBSERVE = "observe"
    """Record what would be done."""
    PROPOSE = "propose"
    """Do it once a person approves."""
    ACT = "act"
    """Do it, if every guard allows."""


class Ruling(StrEnum):
    """What one guard, or all of them together, says."""

    ALLOW = "allow"
    HOLD = "hold"
    """Not now; it may be allowed later without any change to the decision."""
    DENY = "deny"
    """Never, for this decision."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A guard's answer.

    `until_ms` says when a hold ends by itself, None where something else must change; with a denial, from when on the
    same cause may be decided anew.
    """

    guard: str
    ruling: Ruling
    reason: str = ""
    until_ms: int | None = None


class DecisionState(StrEnum):
    """Where a decision stands; the last four are final."""

    HELD = "held"
    APPROVED = "approved"
    """A person said yes; guards are asked again before it runs."""
    EXECUTING = "executing"
    VERIFYING = "verifying"
    """Executed; the post-check waits for the settle time."""
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    """Denied by a guard or by a person."""
    EXPIRED = "expired"
    """Its cause ended, or its time box ran out, before it ran."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One intended action on one subject.

    `key` is the idempotency key: nothing runs twice under one key. `findings` are the ids of what caused it, `incident`
    the incident's. `expires_ms` ends its time box. `simulated` decisions never leave the simulator.
    """

    rule: str
    subject: Subject
    action: ActionKind
    mode: Mode
    severity: Severity
    category: Category
    at_ms: int
    expires_ms: int
    key: str
    sentence: str
    findings: tuple[str, ...] = ()
    incident: str = ""
    parameters: ActionParameters = field(default_factory=NotifyParameters)
    simulated: bool = False

    def __post_init__(self) -> None:
        # They are of the action's own kind, always: those of another kind, such as what an inverse inherits from the
        # action that it undoes, are read anew. What the new kind does not know is carried on as text.
        if self.parameters.action is not self.action:
            own = parameters_of(self.action, encode(self.parameters))
            object.__setattr__(self, "parameters", own)

    @property
    def id(self) -> str:
        """Stable 16-digit name made from the idempotency key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


class OutcomeStatus(StrEnum):
    """How an execution ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNVERIFIED = "unverified"
    """It ran, but the post-check did not see the effect."""
    RESTORED = "restored"
    """The inverse ran."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exactly one is recorded for each executed decision; `effect` is what was measured of it, by name."""

    decision: str
    status: OutcomeStatus
    executor: str
    at_ms: int
    detail: str = ""
    attempts: int = 1
    effect: Mapping[str, float] = field(default_factory=dict)
