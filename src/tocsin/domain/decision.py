"""What is done about it: decision, what the guards said, and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import ActionKind, Category, Severity, Subject
from tocsin.domain.parameters import (
    Count,
    Form,
    GpuHours,
    Instant,
    Megahertz,
    Names,
    Parameters,
    Text,
    Watts,
    choice,
    decode,
    encode,
    json_form,
)
from tocsin.domain.phrase import Phrase

# What each kind of action is told beside its subject: one record for each `ActionKind`. `parameters_of` and `encode`
# are the one way from and to the flat mapping that the API, webhooks and the journal have.

BY_HAND = "person"
"""Rule of the decisions that a person makes by hand, past the brain."""


class ThrottleKind(StrEnum):
    """What decides the limit of a GPU. A GPU can be under one throttle of each kind at a time."""

    HEAT = "heat"
    """The thermal controller of its node."""
    CAP = "cap"
    """A fixed number of watts or megahertz."""


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """One GPU of a job and the host whose agent has it."""

    host: str
    gpu: str


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU, or the MIG slice of it that begins at memory slot `start`."""

    gpu: str
    start: int | None = None


def _losses(document: Any) -> dict[ActionKind, float]:
    if not isinstance(document, dict):
        raise TypeError(document)
    return {ActionKind(name): float(loss) for name, loss in document.items()}


def _place(text: str) -> GpuPlace:
    gpu, sign, start = text.partition("@")
    return GpuPlace(gpu, int(start) if sign else None)


Ranks = Annotated[
    tuple[Rank, ...],
    json_form(
        "list of ranks",
        lambda document: tuple(Rank(str(host), str(gpu)) for host, gpu in document),
        lambda ranks: [[one.host, one.gpu] for one in ranks],
        compact=True,
    ),
]
"""The GPUs that a decision is for, where it is for more than its subject."""
Losses = Annotated[
    Mapping[ActionKind, float],
    json_form(
        "comparison of losses",
        _losses,
        lambda losses: {str(action): losses[action] for action in sorted(losses)},
        compact=False,
    ),
]
"""GPU-hours by action."""
Places = Annotated[
    tuple[GpuPlace, ...],
    Form(
        "list of GPUs",
        lambda text: tuple(_place(one) for one in text.split()),
        lambda places: " ".join(one.gpu if one.start is None else f"{one.gpu}@{one.start}" for one in places),
    ),
]
HostLists = Annotated[
    tuple[tuple[str, ...], ...],
    Form(
        "list of hosts",
        lambda text: tuple(tuple(part.split()) for part in text.split(",")),
        lambda lists: ",".join(" ".join(hosts) for hosts in lists),
    ),
]
"""For each piece of work the hosts that it would go to, none where it has to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """What was known about the subject when the decision was made; empty or None where it was not.

    `metric` is the one that went wrong. `pods` (``namespace/name``) and `jobs` (Slurm ids) hold the subject's GPUs.
    `deadline_ms` is the instant at which the machine is taken away. `prediction` is the id of the forecast, `eta_ms`
    the instant that it expects, `forecast_zh` its sentence in Chinese. `cause_zh` is that of the cause.
    """

    host: Text = ""
    pool: Text = ""
    metric: Text = ""
    pods: Names = ()
    jobs: Names = ()
    deadline_ms: Instant = None
    prediction: Text = ""
    eta_ms: Instant = None
    forecast_zh: Text = ""
    cause_zh: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommonParameters(Parameters):
    """What every action has. `cause` is the first idempotency key of its cause, by which renewals are counted.
    `expected_losses` are the GPU-hours that each choice was expected to lose, where they were compared."""

    action: ClassVar[ActionKind]

    context: DecisionContext = field(default_factory=DecisionContext)
    cause: Text = ""
    expected_losses: Losses = field(default_factory=dict)

    @property
    def throttle_kind(self) -> ThrottleKind:
        """Which kind of throttle it sets or gives back; HEAT for an action that does neither."""
        return ThrottleKind.HEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyParameters(_CommonParameters):
    """`intended` is the action that is meant to be taken, `proposes` the id of the decision that waits for a yes,
    `escalates` that of the one that failed, `sentence_zh` the sentence in Chinese, where there is one."""

    action: ClassVar = ActionKind.NOTIFY

    intended: Annotated[ActionKind | None, choice(ActionKind, "kind of action")] = None
    proposes: Text = ""
    escalates: Text = ""
    sentence_zh: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LimitParameters(_CommonParameters):
    """A limit that is set or given back. Without a number heat decides. `was_watts` is the limit before."""

    ranks: Ranks = ()
    power_limit_watts: Watts = None
    sm_clock_max_mhz: Megahertz = None
    was_watts: Watts = None

    @property
    def throttle_kind(self) -> ThrottleKind:
        heat = self.power_limit_watts is None and self.sm_clock_max_mhz is None
        return ThrottleKind.HEAT if heat else ThrottleKind.CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleParameters(_LimitParameters):
    """A lower power limit or SM clock, for `ranks` or the subject alone."""

    action: ClassVar = ActionKind.THROTTLE


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreParameters(_LimitParameters):
    """Limits as they were. `undoes` is the key of the decision that set them, empty where all there are are given back;
    `asked_by` the person who asked for it, though its cause may be there still."""

    action: ClassVar = ActionKind.RESTORE

    undoes: Text = ""
    asked_by: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceElsewhereParameters(_CommonParameters):
    """New work is kept off the subject."""

    action: ClassVar = ActionKind.PLACE_ELSEWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmentParameters(_CommonParameters):
    """`work` are the pieces of work that would move and `to_host` where to, one for each; `mig_config` is the layout
    that mig-manager is asked for, ``previous`` for the one before."""

    action: ClassVar = ActionKind.DEFRAGMENT

    ranks: Ranks = ()
    work: Names = ()
    to_host: HostLists = ()
    mig_config: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScaleParameters(_CommonParameters):
    """`nodes` or `gpus` to add or to take, or the `replicas` that there should be. `gpus_now` and `gpus_wanted` are
    what an outside autoscaler is told."""

    nodes: Count = None
    gpus: Count = None
    replicas: Count = None
    gpus_now: Count = None
    gpus_wanted: Count = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOutParameters(_ScaleParameters):
    """`before` is the key of the decision that waits for the new GPUs."""

    action: ClassVar = ActionKind.SCALE_OUT

    before: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInParameters(_ScaleParameters):
    """`node` is the host that is to go and `instance` its machine at the cloud; empty where the manager chooses."""

    action: ClassVar = ActionKind.SCALE_IN

    node: Text = ""
    instance: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointParameters(_CommonParameters):
    """The work on `ranks` is asked for a checkpoint."""

    action: ClassVar = ActionKind.CHECKPOINT

    ranks: Ranks = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateParameters(_CommonParameters):
    """`work` leaves GPUs (key `from`) for others (`to`), each piece for the hosts in `to_host`: what a plan would do,
    while the manager places it. Gain and cost in GPU-hours are those of this step and of the whole plan."""

    action: ClassVar = ActionKind.MIGRATE

    work: Names = ()
    source: Annotated[Places, "from"] = ()
    target: Annotated[Places, "to"] = ()
    to_host: HostLists = ()
    gain_gpu_hours: GpuHours = None
    cost_gpu_hours: GpuHours = None
    plan_gain_gpu_hours: GpuHours = None
    plan_cost_gpu_hours: GpuHours = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonGpuParameters(_CommonParameters):
    """The GPU alone takes no new work; the others of its node do."""

    action: ClassVar = ActionKind.CORDON_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonGpuParameters(_CommonParameters):
    """The GPU takes work again; `undoes` and `asked_by` as of a restore."""

    action: ClassVar = ActionKind.UNCORDON_GPU

    undoes: Text = ""
    asked_by: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonParameters(_CommonParameters):
    """The node takes no new work."""

    action: ClassVar = ActionKind.CORDON


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonParameters(_CommonParameters):
    """The node takes work again; `undoes` and `asked_by` as of a restore."""

    action: ClassVar = ActionKind.UNCORDON

    undoes: Text = ""
    asked_by: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainParameters(_CommonParameters):
    """The node takes no new work, and what runs there leaves."""

    action: ClassVar = ActionKind.DRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetGpuParameters(_CommonParameters):
    """`ranks` are reset, or the subject alone."""

    action: ClassVar = ActionKind.RESET_GPU

    ranks: Ranks = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootNodeParameters(_CommonParameters):
    """The node is rebooted."""

    action: ClassVar = ActionKind.REBOOT_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class RmaTicketParameters(_CommonParameters):
    """`evidence` is what the ticket shows, a line for each piece."""

    action: ClassVar = ActionKind.RMA_TICKET

    evidence: Text = ""


RecoveryParameters = RestoreParameters | UncordonParameters | UncordonGpuParameters
"""Of what gives back."""
ScaleParameters = ScaleOutParameters | ScaleInParameters
RankedParameters = (
    ThrottleParameters | RestoreParameters | DefragmentParameters | CheckpointParameters | ResetGpuParameters
)
"""Of what may be for several GPUs, each of them by its agent."""
ActionParameters = (
    NotifyParameters
    | ThrottleParameters
    | RestoreParameters
    | PlaceElsewhereParameters
    | DefragmentParameters
    | ScaleOutParameters
    | ScaleInParameters
    | CheckpointParameters
    | MigrateParameters
    | CordonGpuParameters
    | UncordonGpuParameters
    | CordonParameters
    | UncordonParameters
    | DrainParameters
    | ResetGpuParameters
    | RebootNodeParameters
    | RmaTicketParameters
)
"""The parameters of a decision."""

PARAMETERS: Mapping[ActionKind, type[ActionParameters]] = {kind.action: kind for kind in ActionParameters.__args__}
"""The record of each kind of action."""


def parameters_of(action: ActionKind, texts: Mapping[str, str]) -> ActionParameters:
    """The parameters of a decision for `action` from its flat mapping; see `decode`."""
    return decode(PARAMETERS[action], texts)


def ranks_in(parameters: ActionParameters) -> tuple[Rank, ...]:
    """The ranks that `parameters` name; none for an action that has none."""
    return parameters.ranks if isinstance(parameters, RankedParameters) else ()


def asked_by(parameters: ActionParameters) -> str:
    """The person who asked for a recovery; empty for what nobody asked for."""
    return parameters.asked_by if isinstance(parameters, RecoveryParameters) else ""


def undone_by(parameters: ActionParameters) -> str:
    """The key of the decision that is undone; empty for what undoes nothing in particular."""
    return parameters.undoes if isinstance(parameters, RecoveryParameters) else ""


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
    same cause may be decided anew. `observed` is the figure that the guard compared, `limit` what it may be at most or
    must be at least, in one unit; None where these alone do not decide, and in entries of before they were recorded.
    `said` is the reason as a phrase, for other languages; None where it is a text alone.
    """

    guard: str
    ruling: Ruling
    reason: str = ""
    until_ms: int | None = None
    observed: float | None = None
    limit: float | None = None
    said: Phrase | None = None


class GoalSense(StrEnum):
    """On which side of its target a figure is to be."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"


@dataclass(frozen=True, slots=True)
class ActionGoal:
    """What an action wants to change, by which it is judged: a figure, at most or at least `target` in `unit`.

    `measure` is a metric, or one of the names of `tocsin.actions.model.goals`.
    """

    measure: str
    sense: GoalSense
    target: float
    unit: str

    def met(self, value: float) -> bool:
        """Whether `value` is on the right side of the target."""
        return value <= self.target if self.sense is GoalSense.AT_MOST else value >= self.target


class DecisionState(StrEnum):
    """Where a decision stands; the last five are final."""

    HELD = "held"
    APPROVED = "approved"
    """A person said yes; guards are asked again before it runs."""
    EXECUTING = "executing"
    VERIFYING = "verifying"
    """Executed; the post-check waits for the settle time."""
    DONE = "done"
    GOAL_NOT_REACHED = "goal_not_reached"
    """It was done, and what it wanted to change did not come about."""
    FAILED = "failed"
    REJECTED = "rejected"
    """Denied by a guard or by a person."""
    EXPIRED = "expired"
    """Its cause ended, or its time box ran out, before it ran."""


@lru_cache(maxsize=16_384)
def id_of(key: str) -> str:
    """The id of the decision with idempotency key `key`."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Decision:
    """One intended action on one subject.

    `key` is the idempotency key: nothing runs twice under one key. `findings` are the ids of what caused it, `incident`
    the incident's. `expires_ms` ends its time box. `simulated` decisions never leave the simulator. `level` is that of
    the incident, None in entries of before there were levels; `hard_fault` says that something is broken now, which
    pages whatever the budget of pages. `goal` is what it is judged by; None where nothing would show it, and in entries
    of before there were goals.
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
    level: AlertLevel | None = None
    hard_fault: bool = False
    goal: ActionGoal | None = None

    @property
    def alert_level(self) -> AlertLevel:
        """How soon a person should hear of it."""
        return self.level or self.severity.level

    def __post_init__(self) -> None:
        # They are of the action's own kind, always: those of another kind, such as what an inverse inherits from the
        # action that it undoes, are read anew. What the new kind does not know is carried on as text.
        if self.parameters.action is not self.action:
            own = parameters_of(self.action, encode(self.parameters))
            object.__setattr__(self, "parameters", own)

    @property
    def id(self) -> str:
        """Stable 16-digit name made from the idempotency key."""
        return id_of(self.key)


class OutcomeStatus(StrEnum):
    """How an execution ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GOAL_NOT_REACHED = "goal_not_reached"
    """It ran, and its goal was not reached in the time that it had."""
    UNVERIFIED = "unverified"
    """The same in entries of before there were goals."""
    RESTORED = "restored"
    """The inverse ran."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exactly one is recorded for each executed decision; `effect` is what was measured of it, by name.

    `measured` is the figure of its goal in the goal's unit, None where nothing showed it; `next_step` says what
    follows. `detail_zh` and `next_step_zh` are the same in Chinese, empty where there is English alone.
    """

    decision: str
    status: OutcomeStatus
    executor: str
    at_ms: int
    detail: str = ""
    attempts: int = 1
    effect: Mapping[str, float] = field(default_factory=dict)
    measured: float | None = None
    next_step: str = ""
    detail_zh: str = ""
    next_step_zh: str = ""
