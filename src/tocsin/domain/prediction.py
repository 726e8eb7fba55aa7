"""What models say: which subject, what, when, and how sure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Evidence, Subject
from tocsin.domain.metrics import split_variant

HARDWARE_FAULT, MODEL_DRIFT, MODEL_GATE = "hardware_fault", "model_drift", "model_gate"
"""Targets of what the risk model says: of a GPU, of the fleet it sees, and of whether it has earned a voice."""


class PredictionStatus(StrEnum):
    """Whether the prediction says anything."""

    CROSSING = "crossing"
    """The metric is expected to cross the threshold within the horizon."""
    LIKELY = "likely"
    """The event is likely enough within the horizon to warn of it; `threshold` is the probability from which on."""
    NO_CROSSING = "no_crossing"
    """It is not expected to cross within the horizon."""
    UNLIKELY = "unlikely"
    """It is not."""
    NOT_ENOUGH_DATA = "not_enough_data"
    """Nothing is claimed; `reason` says what is missing."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One statement about the future of one subject, made at `at_ms` for (`at_ms`, `at_ms` + `horizon_ms`].

    `probability` is that the event named by `target` falls in the horizon, 0 to 1. `eta_ms` is the expected instant of
    the crossing, `eta_low_ms` and `eta_high_ms` the ends of the interval of `coverage` (0.8 means that it should hold
    the truth 80 times in 100); None where there is no crossing, or for the far end where it lies beyond the horizon.
    `model` and `model_version` name what made it. `curve` has the probability by other horizons, as (milliseconds,
    probability), both rising. `classes` split the probability by class of fault, the likeliest first; they share it out
    alike at every horizon. `sentence` and `reason` are in English, `sentence_zh` and `reason_zh` the same in Chinese,
    empty where there is none.
    `raw` is the probability that the model gave before it was moved to what its record shows. A `muted` statement is
    made to be judged, and told to nobody: its kind was wrong too often.
    """

    subject: Subject
    target: str
    at_ms: int
    horizon_ms: int
    status: PredictionStatus
    model: str
    model_version: str
    sentence: str
    metric: str = ""
    threshold: float | None = None
    value: float | None = None
    probability: float | None = None
    eta_ms: int | None = None
    eta_low_ms: int | None = None
    eta_high_ms: int | None = None
    coverage: float | None = None
    reason: str = ""
    evidence: tuple[Evidence, ...] = field(default=())
    simulated: bool = False
    curve: tuple[tuple[int, float], ...] = ()
    sentence_zh: str = ""
    classes: tuple[tuple[str, float], ...] = ()
    raw: float | None = None
    muted: bool = False
    reason_zh: str = ""

    @property
    def kind(self) -> str:
        """The kind of statement that it is: its target and the model that says it."""
        return f"{self.target} by {self.model}"

    @property
    def id(self) -> str:
        """Stable 16-digit name."""
        text = f"{self.model}|{self.target}|{self.subject.key}|{self.at_ms}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def own_probability(self) -> float | None:
        """`probability` without what no sign foretells: the model's own word about a fault. What is done about one GPU
        and not another goes by it."""
        return self.probability if self.metric or self.raw is None else self.raw

    @property
    def own_curve(self) -> tuple[tuple[int, float], ...]:
        """`curve` as `own_probability` has it: by horizon (ms), one point where there is no curve."""
        curve = self.curve or ((self.horizon_ms, self.probability or 0.0),)
        if self.metric or self.raw is None or self.probability is None or self.probability >= 1.0:
            return curve
        left = (1.0 - self.probability) / (1.0 - self.raw)
        return tuple((ahead, max(0.0, 1.0 - (1.0 - p) / left ** (ahead / self.horizon_ms))) for ahead, p in curve)

    @property
    def alert_level(self) -> AlertLevel:
        """A warning at most: what has not happened wakes nobody."""
        return AlertLevel.WARNING if self.warns else AlertLevel.NOTE

    @property
    def warns(self) -> bool:
        """Whether it tells of something still to come, with or without an instant, and may be heard."""
        likely = self.status is PredictionStatus.LIKELY and self.eta_ms is None
        return (self.is_ahead or likely) and not self.muted

    @property
    def lead_ms(self) -> int | None:
        """Milliseconds from the prediction to the expected crossing."""
        return None if self.eta_ms is None else self.eta_ms - self.at_ms

    @property
    def is_ahead(self) -> bool:
        """Whether a crossing is still to come: a threshold that is already passed is a finding, not a prediction."""
        return self.status is PredictionStatus.CROSSING and (self.lead_ms or 0) > 0


def _urgency(one: Prediction) -> tuple[bool, int, float]:
    return one.eta_ms is None, one.eta_ms or 0, -(one.probability or 0.0)


def most_urgent(predictions: Iterable[Prediction]) -> Prediction | None:
    """The soonest, of those without an instant the most probable."""
    return min(predictions, key=_urgency, default=None)


def soonest_each(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The most urgent of those that speak of one metric of one subject, or of one target where there is no metric: what
    two models say of the same memory is one trouble to come. The most urgent first."""
    found: dict[tuple[str, str], Prediction] = {}
    for one in sorted(predictions, key=_urgency):
        found.setdefault((one.subject.key, split_variant(one.metric)[0] or one.target), one)
    return list(found.values())
