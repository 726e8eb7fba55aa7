"""Wire models of what lies ahead: risks, capacity of pools, memory that runs full, fragmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.finding import ActionKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.usage import Money, Usage

# Wire models of what the fleet costs.

Hours = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOut(Usage):
    """One hour; `sampled` where only a part of its readings was looked at."""

    at_ms: int
    sampled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOut(Usage):
    """One model in one pool."""

    pool: str
    model: str
    gpu_hour: float | None = None
    """Price of a GPU-hour; null where none is set."""
    idle_cost: float | None = None
    """Held idle, stranded and free at that price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyOut(Money):
    """What usage costs at the prices of the settings."""

    currency: str = ""
    kwh_price: float | None = None
    pue: float = 1.0


class EarlyOut(Wire):
    """A fault that an action had been carried out for before it came."""

    decision: str
    action: ActionKind
    gpu: str
    host: str
    acted: Instant
    fault: Instant
    lead_s: float
    idle: bool | None = None
    """Whether the GPU did no work any more when the fault came; null where no reading tells."""
    sentence: str
    cause_zh: str = ""
    """What was wrong, in Chinese; empty where there is English alone."""
    effect: dict[str, float] = Field(default_factory=dict)
    """What was measured of the action."""
    simulated: bool = False


class LostOut(Wire):
    """Faults of the period, what they hit, and what had been done before. Only what events, readings and the journal
    show: no source tells how much work was lost since the last checkpoint."""

    faults: Count = 0
    """Hardware faults; those of one GPU within an hour count as one, and so do both ends of a link."""
    at_work: Count = 0
    """Those whose GPU was busy in the 15 minutes before."""
    at_rest: Count = 0
    untold: Count = 0
    """Those of which no reading tells."""
    gpus_hit: Count = 0
    """GPUs of the jobs on the GPUs of `at_work`: the GPU alone where no job is known."""
    looked_at: Count = 0
    """Of how many faults the readings were looked at: the newest ones."""
    hours_each: Hours = 0.0
    """What settings `actions.cost` assume that a job loses on each GPU: half of the time between checkpoints, and the
    restart."""
    early: list[EarlyOut] = Field(default_factory=list)
    early_total: Count = 0
    simulated: bool = False

    @property
    def hit(self) -> int:
        """GPUs that lost work; a service that does not tell of jobs tells of one each."""
        return max(self.gpus_hit, self.at_work)


class CostOut(Wire):
    """What the fleet was used for in whole hours from `start` to `end`; hours that are not read yet are in nothing."""

    now: Instant
    start: Instant
    end: Instant
    simulated: bool
    hours_wanted: Count
    hours_read: Count
    hours_empty: Count
    """Hours without a single reading."""
    usage: Wired[Usage]
    money: Wired[MoneyOut]
    groups: list[Wired[GroupOut]] = Field(default_factory=list)
    hours: list[Wired[HourOut]] = Field(default_factory=list)
    lost: LostOut


# Wire models of fragmentation, now and after a plan.

Planner = Literal["defragment", "mig", "place", "scale", "power"]


class FragmentOut(Wire):
    """Free GPUs, and what of them is of no use: F (fragmented) on average over the jobs that come, unusable for all."""

    gpus: Count
    free: float
    fragmented: float
    unusable: float
    stranded: float
    """Too few on their node for a job of a whole node, whatever jobs come; as usage and cost count them."""
    largest: Count = 0
    """Most free GPUs on one host."""


class PoolFragment(FragmentOut):
    """The same of one pool."""

    pool: str
    hosts: Count


class HostFragment(Wire):
    """A host with free GPUs that the next job is expected to be unable to use in part, or that are stranded."""

    host: str
    pool: str = ""
    gpus: Count
    free: Count
    fragmented: float
    unusable: float
    stranded: float


class TaskOut(Wire):
    """A kind of job that comes: GPUs on one node, and its share of all jobs."""

    gpus: float
    share: Ratio


class MigInstanceOut(Wire):
    """Instances of one profile; `start` is null where the layout is not known."""

    profile: str
    name: str
    """As the driver calls it."""
    start: int | None = None
    slices: Count
    """Memory slices that it takes."""


class MigGpuOut(Wire):
    """A GPU in MIG mode. `layouts` counts those that agree with what the driver says; the one shown is one of them."""

    gpu: str
    host: str
    index: int | None = None
    model: str = ""
    pool: str = ""
    slices: Count
    instances: list[MigInstanceOut] = Field(default_factory=list)
    free: list[int] | None = None
    """Free memory slices; null where the layout is not known."""
    free_slices: Count | None = None
    stranded: float | None = None
    """Free slices that the next instance is expected to be unable to use, every profile as likely as the others."""
    fragmentation: Ratio | None = None
    creatable: dict[str, Count] = Field(default_factory=dict)
    """Further instances by profile, as the driver says."""
    ruled_out: dict[str, Count] = Field(default_factory=dict)
    """What could be created beside that if the free slices lay together."""
    layouts: Count = 0


class FragmentationOut(Wire):
    """Fragmentation of the fleet now; lists hold the worst `limit`."""

    now: Instant
    simulated: bool
    fleet: FragmentOut
    mix: list[TaskOut] = Field(default_factory=list)
    """Jobs that free GPUs are measured by."""
    mix_from: Literal["settings", "running", "node"] = "node"
    """The settings name them, they are those that run now, or, where none is known, one of a whole node is meant."""
    pools: list[PoolFragment] = Field(default_factory=list)
    pools_total: Count = 0
    hosts: list[HostFragment] = Field(default_factory=list)
    hosts_total: Count = 0
    """Hosts with fragmented or stranded GPUs."""
    holes: list[tuple[Count, Count]] = Field(default_factory=list)
    """Hosts by number of free GPUs."""
    mig: list[MigGpuOut] = Field(default_factory=list)
    mig_gpus: Count = 0
    mig_slices: Count = 0
    mig_free_slices: Count = 0
    """Over GPUs whose layout is known."""
    mig_stranded_slices: float = 0.0
    mig_unknown: Count = 0
    """GPUs whose layout is not known."""


class StepOut(Wire):
    """One step of a plan; gain and cost in GPU-hours."""

    kind: str
    subject: str
    sentence: str
    sentence_zh: str = ""
    wait_s: float = 0.0
    asks: bool = False
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0


class RefusalOut(Wire):
    """What was left alone for one reason: the first, and how many."""

    reason: str
    reason_zh: str = ""
    first: str
    count: Count


class HostChange(Wire):
    """A host that the plan touches, and its free GPUs before and after."""

    host: str
    gpus: Count
    free_before: float
    free_after: float


class MigChange(Wire):
    """A MIG GPU that the plan touches: profile and start of its instances in use, before and after."""

    gpu: str
    host: str
    slices: Count
    before: list[tuple[str, int]]
    after: list[tuple[str, int]]


class PlanOut(Wire):
    """A plan, which was tried on a copy of the state and carries nothing out."""

    kind: str
    sentence: str
    sentence_zh: str = ""
    steps: list[StepOut] = Field(default_factory=list)
    steps_total: Count = 0
    refused: list[RefusalOut] = Field(default_factory=list)
    before: dict[str, float] = Field(default_factory=dict)
    after: dict[str, float] = Field(default_factory=dict)
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0
    horizon_h: float = 0.0
    hosts: list[HostChange] = Field(default_factory=list)
    mig: list[MigChange] = Field(default_factory=list)
    simulated: bool = False


class PlansOut(Wire):
    """What a planner would do; scaling may be several plans."""

    planner: Planner
    now: Instant
    at: Instant
    """Of the state that was planned for."""
    took_s: float
    plans: list[PlanOut] = Field(default_factory=list)


Curve = list[tuple[float, Ratio]]
"""Probability by horizon: seconds ahead, and the probability up to there."""


class RiskOut(Wire):
    """The risk of a hardware fault for one GPU."""

    gpu: str
    host: str
    index: int | None = None
    pool: str = ""
    model: str = ""
    status: PredictionStatus
    probability: Ratio
    curve: Curve
    classes: list[tuple[str, Ratio]] = Field(default_factory=list)
    """The probability split by class of fault, the likeliest first."""
    sentence: str
    sentence_zh: str = ""


class HostRiskOut(Wire):
    """The probability that at least one GPU of a host has a fault, taken as independent of each other."""

    host: str
    pool: str = ""
    gpus: Count
    probability: Ratio
    curve: Curve
    worst: str
    """UUID of its riskiest GPU."""
    worst_index: int | None = None


class RecordOut(Wire):
    """What came of such probabilities so far: those between `low` and `high`, which stood for `gpu_days`.

    `observed` of the situations were followed by a fault within the horizon; `observed_low` and `observed_high` are
    the Wilson interval of `coverage` around it, with one situation for each horizon that a GPU was observed.
    """

    low: Ratio
    high: Ratio
    gpu_days: float
    stated: Ratio
    observed: Ratio
    observed_low: Ratio
    observed_high: Ratio
    coverage: Ratio


class RiskCalendar(Wire):
    """Who is likely to fail, and by when; the worst `limit` GPUs and hosts."""

    model: str = ""
    """Name and version of the model; empty where none has spoken."""
    sentence: str = ""
    """Why no model speaks, or of which GPUs alone; empty where there is nothing to say."""
    sentence_zh: str = ""
    because: str = ""
    """What the record at the gate says of the model in service."""
    at: Instant | None = None
    """When it last spoke."""
    horizon_s: float = 0.0
    warn_from: Ratio | None = None
    """The probability from which on the model warns."""
    statuses: dict[PredictionStatus, Count] = Field(default_factory=dict)
    """GPUs by what the model says of them."""
    reasons: dict[str, Count] = Field(default_factory=dict)
    """Why nothing is said of GPUs, with how many."""
    reasons_zh: dict[str, str] = Field(default_factory=dict)
    """Of these reasons those that are told in Chinese too."""
    expected: list[tuple[float, float]] = Field(default_factory=list)
    """Faults expected in the fleet by horizon: seconds ahead, and the sum of the probabilities."""
    gpus: list[RiskOut] = Field(default_factory=list)
    hosts: list[HostRiskOut] = Field(default_factory=list)
    record: list[RecordOut] = Field(default_factory=list)


class FillingOut(Wire):
    """Memory that is expected to run full, or fragmentation to grow, with whose work it is."""

    prediction: Wired[Prediction]
    index: int | None = None
    owners: list[str] = Field(default_factory=list)
    """Jobs, pods or processes on the GPU."""


class ForecastOut(Wire):
    """What lies ahead, bounded: lists hold the most urgent, counts all."""

    now: Instant
    simulated: bool
    risk: RiskCalendar
    memory: list[FillingOut] = Field(default_factory=list)
    memory_statuses: dict[PredictionStatus, Count] = Field(default_factory=dict)
    fragmentation: list[FillingOut] = Field(default_factory=list)
    fragmentation_total: Count = 0


class CourseOut(Wire):
    """Hours past and coming of one figure: `known` ends with null where the future begins, the others are null before.

    `low` and `high` are the ends of the interval of `coverage`. Without a forecast `reason` says what is missing.
    """

    at: list[Instant] = Field(default_factory=list)
    """Starts of the hours."""
    known: list[float | None] = Field(default_factory=list)
    expected: list[float | None] = Field(default_factory=list)
    low: list[float | None] = Field(default_factory=list)
    high: list[float | None] = Field(default_factory=list)
    coverage: Ratio = 0.8
    weekly: bool = False
    """Whether the course of the week is in it, not of the day alone."""
    reason: str = ""
    reason_zh: str = ""


class PoolOutlook(Wire):
    """One pool: what is there, and what is expected of it."""

    pool: str
    gpus: Count
    """Whole GPUs."""
    in_service: Count
    """Those of them that are healthy and whose node takes work."""
    utilisation: CourseOut
    waiting: CourseOut | None = None
    """GPUs that work waits for; null where no scheduler tells."""
    statements: list[Wired[Prediction]] = Field(default_factory=list)


class CapacityOut(Wire):
    """Pools a week ahead, the largest first, and the fleet's fragmentation."""

    now: Instant
    at: Instant
    """When this was worked out."""
    simulated: bool
    horizon_s: Annotated[float, Field(ge=0)]
    pools: list[PoolOutlook] = Field(default_factory=list)
    pools_total: Count = 0
    fragmented: CourseOut = Field(default_factory=CourseOut)
    """F, free GPUs that the next job is expected to be unable to use."""
