"""What stands now, as metrics of the brain's page: states, decisions, controls and the most urgent predictions.

Made at the instant of a scrape, so that nothing that has ended is still shown. The number of series has a bound,
whatever the size of the fleet: of predictions only the most urgent have series of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tocsin.client.models import GpuState
from tocsin.client.models_rules import RuleRecord
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.finding import Severity, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.rule_records import rule_records
from tocsin.queries.views import gpu_state, waiting
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.expectations import WARNINGS
from tocsin.telemetry.metrics import OWN_METRICS, PREDICTION_LABELS

LISTED = 200
"""Predictions with series of their own: with five series each no more than a thousand (own choice)."""


class BrainPage(Collector):
    """Reads a brain; safe to use beside its evaluation."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not know the families beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family of `tocsin.telemetry.metrics.BRAIN_PAGE` that has something to say."""
        brain, now = self._brain, self._brain.clock.now_ms()
        readings = brain.memory.latest()
        yield _one("tocsin_evaluation_age_seconds", brain.clock.monotonic() - brain.evaluated_at)
        if readings:
            newest = max(reading.at_ms for reading in readings)
            yield _one("tocsin_newest_reading_age_seconds", max(0.0, (now - newest) / SECOND))
        yield self._states(readings, now)
        roots = Counter(incident.root.severity for incident in list(brain.incidents))
        yield _counted("tocsin_incidents_active", {each: roots[each] for each in Severity})
        yield from self._decisions()
        yield from self._controls()
        yield from _rules(rule_records(brain))
        yield from _predictions(brain.forecasts.current(now), {each.gpu.uuid: each.gpu for each in readings}, now)

    def _states(self, readings: Sequence[Reading], now_ms: int) -> Metric:
        by_gpu = grouped((finding.subject.name, finding) for finding in self._brain.active)
        fresh_ms = int(self._brain.settings.actions.fresh_seconds * SECOND)
        states = Counter(gpu_state(each, by_gpu.get(each.gpu.uuid, ()), now_ms, fresh_ms) for each in readings)
        return _counted("tocsin_fleet_gpus", {state: states[state] for state in GpuState})

    def _decisions(self) -> Iterator[Metric]:
        statuses = self._brain.statuses()
        states = Counter(status.state for status in statuses)
        yield _counted("tocsin_decisions_listed", {state: states[state] for state in DecisionState})
        yield _one("tocsin_decisions_approvable", waiting(statuses))

    def _controls(self) -> Iterator[Metric]:
        controls = self._brain.actions.controls()
        yield _one("tocsin_paused", controls.paused is not None)
        yield _one("tocsin_breaker_tripped", controls.breaker is not None)
        mode = self._brain.settings.actions.mode
        yield _counted("tocsin_mode", {each: int(each is mode) for each in Mode})


def _rules(records: Iterable[RuleRecord]) -> Iterator[Metric]:
    """Of a fleet of both worlds a rule acts where it does in either, and has the cases of both."""
    cases, acts = family("tocsin_rule_cases"), family("tocsin_rule_acts")
    for rule, mine in grouped((one.rule, one) for one in records).items():
        acts.add_metric([rule], float(any(one.mode is Mode.ACT for one in mine)))
        right, settled = sum(one.right for one in mine), sum(one.settled for one in mine)
        reached, measured = sum(one.reached for one in mine), sum(one.measured for one in mine)
        if settled or measured:
            counts = {"right": right, "wrong": settled - right}
            counts |= {"goal_reached": reached, "goal_missed": measured - reached}
            for outcome, count in counts.items():
                cases.add_metric([rule, outcome], count)
    yield from (cases, acts)


def _predictions(current: list[Prediction], gpus: Mapping[str, Gpu], now_ms: int) -> Iterator[Metric]:
    totals = family("tocsin_predictions_active")
    for (target, status), count in sorted(Counter((each.target, each.status) for each in current).items()):
        totals.add_metric([target, status], count)
    yield totals
    said = [each for each in current if each.status is not PredictionStatus.NOT_ENOUGH_DATA]
    listed = sorted(said, key=urgency)[:LISTED]
    yield _one("tocsin_predictions_unlisted", len(said) - len(listed))
    probability, lead = family("tocsin_prediction_probability_ratio"), family("tocsin_prediction_lead_seconds")
    warning, horizon = family("tocsin_prediction_warning"), family("tocsin_prediction_horizon_seconds")
    for each in listed:
        labels = labels_of(each, gpus)
        warning.add_metric(labels, float(each.status in WARNINGS and not each.muted))
        horizon.add_metric(labels, each.horizon_ms / SECOND)
        if each.probability is not None:
            probability.add_metric(labels, each.probability)
        for bound, at_ms in (("expected", each.eta_ms), ("earliest", each.eta_low_ms), ("latest", each.eta_high_ms)):
            if at_ms is not None:
                lead.add_metric([*labels, bound], max(0.0, (at_ms - now_ms) / SECOND))
    yield from (probability, warning, lead, horizon)


def urgency(prediction: Prediction) -> tuple[bool, float, float, str, str]:
    """Sorts warnings first, then the likeliest, then the soonest."""
    chance = -1.0 if prediction.probability is None else prediction.probability
    soon = float("inf") if prediction.eta_ms is None else float(prediction.eta_ms)
    quiet = prediction.muted or prediction.status not in WARNINGS
    return quiet, -chance, soon, prediction.subject.key, prediction.target


def labels_of(prediction: Prediction, gpus: Mapping[str, Gpu]) -> list[str]:
    """Values of `PREDICTION_LABELS`, those of a GPU as in its own metrics; of an MIG instance the parent's UUID."""
    subject = prediction.subject
    gpu = gpus.get(subject.name) if subject.kind is SubjectKind.GPU else None
    known = {
        "target": prediction.target,
        "gpu_uuid": _uuid(subject, gpu),
        "gpu_index": "" if gpu is None or gpu.index is None else str(gpu.index),
        "host": subject.name if subject.kind is SubjectKind.HOST else subject.host,
        "pool": subject.name if subject.kind is SubjectKind.POOL else subject.pool,
        "part": subject.name if gpu is not None and gpu.is_mig else subject.detail,
        "simulated": "true" if prediction.simulated else "",
    }
    return [known[name] for name in PREDICTION_LABELS]


def _uuid(subject: Subject, gpu: Gpu | None) -> str:
    if subject.kind is not SubjectKind.GPU:
        return ""
    return subject.name if gpu is None else gpu.parent or gpu.uuid


def family(name: str) -> GaugeMetricFamily:
    """An empty family of the table."""
    spec = OWN_METRICS[name]
    return GaugeMetricFamily(name, spec.help, labels=spec.labels)


def _one(name: str, value: float) -> Metric:
    made = family(name)
    made.add_metric([], float(value))
    return made


def _counted(name: str, counts: Mapping[str, int]) -> Metric:
    made = family(name)
    for value, count in counts.items():
        made.add_metric([str(value)], count)
    return made
