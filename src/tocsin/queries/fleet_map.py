"""The fleet in columns, made once for each change and not once for each reader."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from tocsin.actions.model.ranks import work_on
from tocsin.actions.planning.facts import NodeState
from tocsin.client.models import FleetMap, GpuState, HostLabel
from tocsin.domain.clock import SECOND
from tocsin.domain.finding import Finding, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.versions import MISSING_LABEL
from tocsin.queries.cache import Cache
from tocsin.queries.heard import heard, least_heard
from tocsin.queries.live import LiveBrain
from tocsin.queries.views import gpu_state

T = TypeVar("T", Finding, Prediction)
UTILIZATION, MEMORY_USED = "gpu_utilization_ratio", "gpu_memory_used_ratio"
MOST_LABELS = 16
MOST_VALUES = 64
"""Values of a label by which a map is still told apart; one of more, such as a host's own name, is not sent."""
_Version = tuple[int, int, int, int]
"""Readings taken in, predictions made, evaluations finished, and the second of the clock."""


def _itself(made: FleetMap) -> FleetMap:
    return made


@dataclass(frozen=True)
class FleetMapSnapshot:
    """The fleet at one instant. `readings` are by rack, host and index; findings, predictions and jobs by GPU.

    Columns and jobs are made for who first asks for them: a summary needs neither. `kept` gives the columns as they are
    handed out.
    """

    now_ms: int
    readings: Sequence[Reading]
    states: Mapping[str, GpuState]
    findings: Mapping[str, Sequence[Finding]]
    warnings: Mapping[str, Sequence[Prediction]]
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    kept: Callable[[FleetMap], FleetMap] = _itself

    @cached_property
    def map(self) -> FleetMap:
        return self.kept(_columns(self.readings, self.states, self.warnings, self.jobs))

    @cached_property
    def jobs(self) -> Mapping[str, str]:
        return _jobs(self.readings, self.nodes)

    @cached_property
    def counts(self) -> Mapping[GpuState, int]:
        return Counter(self.states.values())


class FleetMapSource:
    """The newest snapshot: remade when something was taken in, judged or forecast, or a second has passed."""

    def __init__(self, brain: LiveBrain) -> None:
        self._brain = brain
        self._cache = Cache[_Version, FleetMapSnapshot](brain.clock.monotonic, lambda _took_s: math.inf, most=1)
        self._map: FleetMap | None = None
        self._least = least_heard(brain.ruleset)

    def look(self) -> FleetMapSnapshot:
        """The fleet now; safe from several threads, of which one does the work."""
        brain, now = self._brain, self._brain.clock.now_ms()
        version = (brain.memory.count, brain.forecasts.made, brain.evaluations, now // SECOND)
        return self._cache.get(version, lambda: self._snapshot(now))

    def _snapshot(self, now_ms: int) -> FleetMapSnapshot:
        brain = self._brain
        fresh_ms = int(brain.settings.actions.fresh_seconds * SECOND)
        # What no rule would speak of colours no GPU either.
        predictions = heard(brain.forecasts.current(now_ms), self._least)
        nodes = brain.managers.nodes()
        made = snapshot_of(brain.memory.latest(), brain.active, predictions, now_ms, fresh_ms, nodes)
        return replace(made, kept=self._kept)

    def _kept(self, made: FleetMap) -> FleetMap:
        """The very object of before tells readers that nothing has changed."""
        before = self._map
        self._map = before if before is not None and made == before else made
        return self._map


def snapshot_of(
    readings: Iterable[Reading],
    findings: Iterable[Finding],
    predictions: Iterable[Prediction],
    now_ms: int,
    fresh_ms: int,
    nodes: Mapping[str, NodeState] | None = None,
) -> FleetMapSnapshot:
    """The snapshot of a fleet at `now_ms`; readings older than `fresh_ms` are stale. `nodes` are by host, as their
    managers show them."""
    ordered = sorted(readings, key=_place)
    found, warned = _by_gpu(findings), _by_gpu(p for p in predictions if is_warning(p))
    states = {r.gpu.uuid: gpu_state(r, found.get(r.gpu.uuid, ()), now_ms, fresh_ms) for r in ordered}
    return FleetMapSnapshot(now_ms, ordered, states, found, warned, nodes or {})


def _jobs(readings: Iterable[Reading], nodes: Mapping[str, NodeState]) -> dict[str, str]:
    found = ((r.gpu.uuid, work_on(r.gpu.host, r.owners, nodes.get(r.gpu.host)).job) for r in readings if r.owners)
    return {uuid: job for uuid, job in found if job}


def is_warning(prediction: Prediction) -> bool:
    """Whether it tells of something still to come, with or without an instant."""
    return not prediction.muted and (prediction.is_ahead or prediction.status is PredictionStatus.LIKELY)


def _place(reading: Reading) -> tuple[str, str, int, str]:
    gpu = reading.gpu
    return gpu.rack, gpu.host, -1 if gpu.index is None else gpu.index, gpu.uuid


def _by_gpu(items: Iterable[T]) -> Mapping[str, Sequence[T]]:
    found: defaultdict[str, list[T]] = defaultdict(list)
    for item in items:
        if item.subject.kind is SubjectKind.GPU:
            found[item.subject.name].append(item)
    return found


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def ratios(readings: Iterable[Reading], metric: str) -> list[float | None]:
    """A ratio of each of `readings`, 0 to 1; None where it was not told."""
    return [_ratio(reading.values.get(metric)) for reading in readings]


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, max(0.0, value)), 3)


def _columns(
    ordered: Sequence[Reading],
    states: Mapping[str, GpuState],
    warned: Mapping[str, Sequence[Prediction]],
    of_gpu: Mapping[str, str],
) -> FleetMap:
    hosts: dict[tuple[str, str], int] = {}
    models: dict[str, int] = {}
    pools: list[str] = []
    labels: list[Mapping[str, str]] = []
    jobs = {job: place for place, job in enumerate(sorted(set(of_gpu.values())))}
    ranks = {state: state.rank for state in GpuState}
    for reading in ordered:
        if hosts.setdefault((reading.gpu.rack, reading.gpu.host), len(hosts)) == len(pools):
            pools.append(reading.gpu.pool)
            labels.append(reading.gpu.labels)
        models.setdefault(reading.gpu.model, len(models))
    values = [reading.values for reading in ordered]
    risks = (max((p.probability or 0.0 for p in warned.get(r.gpu.uuid, ())), default=None) for r in ordered)
    # Not validated: the columns come from here, and a fleet of 10,000 is remade each second.
    return FleetMap.model_construct(
        hosts=[host for _, host in hosts],
        racks=[rack for rack, _ in hosts],
        pools=pools,
        models=list(models),
        uuid=[reading.gpu.uuid for reading in ordered],
        host=[hosts[reading.gpu.rack, reading.gpu.host] for reading in ordered],
        model=[models[reading.gpu.model] for reading in ordered],
        index=[reading.gpu.index for reading in ordered],
        state=[ranks[states[reading.gpu.uuid]] for reading in ordered],
        temperature=[_rounded(each.get("gpu_temperature_celsius"), 1) for each in values],
        utilization=ratios(ordered, UTILIZATION),
        memory=ratios(ordered, MEMORY_USED),
        power=[_rounded(each.get("gpu_power_watts"), 0) for each in values],
        risk=[_ratio(risk) for risk in risks],
        jobs=list(jobs),
        job=[None if (job := of_gpu.get(reading.gpu.uuid)) is None else jobs[job] for reading in ordered],
        labels=_labels(labels),
    )


def _labels(of_hosts: Sequence[Mapping[str, str]]) -> dict[str, HostLabel]:
    """The labels by which hosts differ, those that most hosts have first where there are too many."""
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for labels in of_hosts:
        for key, value in labels.items():
            if key != MISSING_LABEL:
                values[key][value] += 1
    told = [key for key, seen in values.items() if 1 < len(seen) + (seen.total() < len(of_hosts)) <= MOST_VALUES]
    told = sorted(sorted(told, key=lambda key: (-values[key].total(), key))[:MOST_LABELS])
    found: dict[str, HostLabel] = {}
    for key in told:
        places = {value: place for place, value in enumerate(sorted({labels.get(key, "") for labels in of_hosts}))}
        of = [places[labels.get(key, "")] for labels in of_hosts]
        found[key] = HostLabel.model_construct(values=list(places), of=of)
    return found
