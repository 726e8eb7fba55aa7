"""Wire models of what lies ahead: risks, capacity of pools, memory that runs full, fragmentation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.prediction import Prediction, PredictionStatus

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
    at: Instant | None = None
    """When it last spoke."""
    horizon_s: float = 0.0
    warn_from: Ratio | None = None
    """The probability from which on the model warns."""
    statuses: dict[PredictionStatus, Count] = Field(default_factory=dict)
    """GPUs by what the model says of them."""
    reasons: dict[str, Count] = Field(default_factory=dict)
    """Why nothing is said of GPUs, with how many."""
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
