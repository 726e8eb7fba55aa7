"""The onset clock: will a GPU show a new hardware XID within 48 h, judged on nodes that no model has seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR
from tocsin.domain.reading import Gpu
from tocsin.forecaster.anomaly.structural import NodeRecord, SignSettings, code_onsets
from tocsin.forecaster.evaluation.figures import standard
from tocsin.forecaster.evaluation.leak import leak_factor
from tocsin.forecaster.evaluation.result import Figure, ReportSection
from tocsin.forecaster.evaluation.split import Split, SplitKind
from tocsin.forecaster.evaluation.trivial import RECENCY, recency
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.features.onsets import onsets_of
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import Rules, Span, StepData, Walk
from tocsin.forecaster.hazard.registry import build
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.forecaster.lifecycle.gate import node_events
from tocsin.store.port import Columns
from tocsin_benchmarks.gwdg.tidy import canonical

HORIZON_MS = 48 * HOUR
EVERY_MS = HOUR
FAMILIES = ("hazard", "boosting", "isolation")
QUICK_FAMILIES = ("hazard",)
NO_BAR = "No bar is set: the onsets are too few for one. An onset within 72 h after another of its GPU has no rows."
ARRAYS = tuple(one.name for one in fields(Examples) if one.name not in ("devices", "groups", "names", "sequences"))
KEPT = ("roc_auc", "auprc", "auprc_x_base", "brier", "calibration_error")


def examples_of(records: Sequence[NodeRecord], plan: FeaturePlan | None = None) -> Examples:
    """A row for each GPU and hour, built by the features of the service, stretch by stretch; rows within 72 h after an
    onset, and of faulted GPUs, are left out. A node is a group; one without any GPU has no rows.

    Raises NotEnoughData where no node has a GPU."""
    plan = plan or FeaturePlan()
    parts = [part for record in records if record.gpus for part in _stretches(record, plan)]
    if not parts:
        raise NotEnoughData("no node of the recordings has GPU telemetry")
    return joined([part for part in parts if len(part)] or parts[:1])


def _stretches(record: NodeRecord, plan: FeaturePlan) -> Iterator[Examples]:
    gpus = [Gpu(name, record.node) for name in record.gpus]
    events = code_onsets(record)
    names, values = canonical(record)
    for first, end in record.stretches(SignSettings().pause_ms):
        at_ms = record.at_ms[first:end]
        here = [event for event in events if at_ms[0] <= event.at_ms <= at_ms[-1]]
        walk = Walk(plan, gpus, Span(int(at_ms[0]), int(at_ms[-1]), EVERY_MS))
        columns = _columns(record, names, values[first:end], at_ms)
        steps = (columns.at_ms - 1) // plan.step_ms
        for step in np.unique(steps).tolist():
            low, high = np.searchsorted(steps, [step, step + 1])
            own = [event for event in here if (event.at_ms - 1) // plan.step_ms == step]
            walk.take(step, StepData(_rows(columns, int(low), int(high)), own, gpus))
        walk.close()
        yield walk.examples(onsets_of(here, gpus), Rules())


def _columns(record: NodeRecord, names: tuple[str, ...], values: Floats, at_ms: npt.NDArray[np.int64]) -> Columns:
    """All readings of a stretch, one row per instant and GPU that reported."""
    order = np.argsort(np.asarray(record.gpus))
    gpus = tuple(record.gpus[place] for place in order)
    rows = values[:, order].reshape(at_ms.size * len(gpus), len(names))
    told = np.isfinite(rows).any(axis=1)
    number = np.tile(np.arange(len(gpus), dtype=np.int32), at_ms.size)
    return Columns(gpus, names, number[told], np.repeat(at_ms, len(gpus))[told], rows[told])


def _rows(columns: Columns, low: int, high: int) -> Columns:
    return Columns(
        columns.gpus, columns.metrics, columns.gpu[low:high], columns.at_ms[low:high], columns.values[low:high]
    )


def joined(parts: Sequence[Examples]) -> Examples:
    """Several examples of the same features as one; devices and groups are joined by name."""
    devices = tuple(sorted({name for part in parts for name in part.devices}))
    groups = tuple(sorted({name for part in parts for name in part.groups}))
    moved = []
    for part in parts:
        device = np.array([devices.index(name) for name in part.devices], np.int32)[part.device]
        group = np.array([groups.index(name) for name in part.groups], np.int32)[part.group]
        moved.append(replace(part, devices=devices, device=device, groups=groups, group=group, sequences=None))
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in moved]) for name in ARRAYS}
    return replace(moved[0], **arrays)


def node_splits(examples: Examples) -> list[Split]:
    """Each node in turn is the test; nodes of whose rows no label is known are no test."""
    _, known = examples.label(HORIZON_MS)
    rows = np.arange(len(examples))
    splits = []
    for group in np.unique(examples.group[known]).tolist():
        test = examples.group == group
        if (known & ~test).any():
            splits.append(Split(rows[known & ~test], rows[test], SplitKind.DEVICE))
    return splits


def fit_and_score(family: str, train: Examples, test: Examples, seed: int) -> Floats:
    """Scores float64[n of test]; all NaN where `train` holds too little to learn from."""
    if not len(train) or not len(test):
        return np.full(len(test), np.nan)
    scorer = build(family, horizons_ms=(HORIZON_MS,), min_onsets=1, seed=seed)
    try:
        scorer.fit(train)
    except NotEnoughData:
        return np.full(len(test), np.nan)
    return scorer.score(test)[:, -1]


def onset_sections(
    train: Sequence[NodeRecord], test: Sequence[NodeRecord] | None, *, seed: int, draws: int, quick: bool, leak: bool
) -> list[ReportSection]:
    """The onset clock, and what a leak would have claimed when asked; only why not, where no node has a GPU."""
    try:
        return _onset_sections(train, test, seed, draws, quick=quick, leak=leak)
    except NotEnoughData as error:
        return [ReportSection("Onset clock: new hardware XID within 48 h", {}, notes=(f"Not judged: {error}.",))]


def _onset_sections(
    train: Sequence[NodeRecord], test: Sequence[NodeRecord] | None, seed: int, draws: int, *, quick: bool, leak: bool
) -> list[ReportSection]:
    learnt = examples_of(train)
    families = QUICK_FAMILIES if quick else FAMILIES
    if test is not None:
        asked = examples_of(test)
        scores = {name: fit_and_score(name, learnt, asked, seed) for name in families}
        how = "learnt from the train folder"
    else:
        asked = learnt
        splits = node_splits(learnt)
        scores = {name: _left_out(name, learnt, splits, seed) for name in families}
        how = "leave one node out"
    sections = [_section(asked, scores, how, seed, draws)]
    if leak and test is None and splits:
        fit = _Fit("hazard", seed)
        sections.append(leak_factor(fit, learnt, splits, HORIZON_MS, seed=seed, draws=draws))
    return sections


class _Fit:
    """A family as the leak's judge wants it."""

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.seed = family, seed

    def __call__(self, train: Examples, test: Examples) -> Floats:
        return fit_and_score(self.family, train, test, self.seed)


def _left_out(family: str, examples: Examples, splits: Sequence[Split], seed: int) -> Floats:
    scores = np.full(len(examples), np.nan)
    for split in splits:
        train, test = split.parts(examples, HORIZON_MS)
        scores[split.test] = fit_and_score(family, train, test, seed)
    return scores


def _section(asked: Examples, scores: dict[str, Floats], how: str, seed: int, draws: int) -> ReportSection:
    label, known = asked.label(HORIZON_MS)
    events = {(int(group), int(at)) for group, at in zip(asked.group[label], asked.event_ms[label], strict=True)}
    population: dict[str, float | int | str] = {
        "rows": int(known.sum()),
        "positive_rows": int(label.sum()),
        "base_rate": float(label[known].mean()) if known.any() else float("nan"),
        "nodes": len(set(asked.group.tolist())),
        "node_events": len(events),
        "features": len(asked.names),
    }
    models: dict[str, dict[str, Figure]] = {}
    notes = [NO_BAR, "Intervals draw node events: all GPUs of a node up to the same onset are one."]
    able = {name: values for name, values in scores.items() if np.isfinite(values).any()}
    notes += [f"{name} had too little to learn from." for name in scores if name not in able]
    if known.any() and label[known].any() and not label[known].all():
        named = {**able, RECENCY: recency(asked)}
        told = standard(named, asked, HORIZON_MS, draws=draws, seed=seed, cluster=node_events(asked), ranks=(RECENCY,))
        models = {name: {key: one for key, one in row.items() if key in KEPT} for name, row in told.items()}
    else:
        notes.append("There is no onset to judge by, or nothing else.")
    return ReportSection(f"Onset clock: new hardware XID within 48 h, {how}", models, population, notes=tuple(notes))
