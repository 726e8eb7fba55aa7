"""How stated probabilities of hardware onsets turned out, by the figures of the backtest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.actions.model.status import DecisionStatus
from tocsin.client.models import HazardScore, ReliabilityBin
from tocsin.domain.clock import DAY, SECOND
from tocsin.domain.decision import DecisionState
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.forecaster.evaluation.figures import Panel
from tocsin.forecaster.evaluation.leads import about, starts, warned
from tocsin.forecaster.evaluation.reliability import EDGES, bin_of, reliability_bins
from tocsin.forecaster.features.examples import Codes, Examples, Floats, Ints, Mask
from tocsin.forecaster.features.labels import label
from tocsin.forecaster.features.onsets import onsets_of

STATES = frozenset({PredictionStatus.LIKELY, PredictionStatus.UNLIKELY})

Z95 = 1.959964
"""The two-sided 95 % point of the normal distribution."""

Verdict = tuple[int, bool]
"""When a decision was made, and whether an operator approved it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What came after the predictions. `observed_ms` is the newest reading of each GPU by UUID; one that is not in it
    counts as observed until now."""

    events: Sequence[Event]
    statuses: Sequence[DecisionStatus]
    gpus: Sequence[Gpu]
    observed_ms: Mapping[str, int]
    now_ms: int


def is_hazard(prediction: Prediction) -> bool:
    """Whether it states the probability of a hardware onset: about a GPU, and no crossing of a metric."""
    stated = prediction.probability is not None and prediction.status in STATES
    return stated and not prediction.metric and prediction.subject.kind is SubjectKind.GPU


def score_hazards(predictions: Sequence[Prediction], followed: Followed) -> list[HazardScore]:
    """A score for each version of a model, target and horizon."""
    groups: dict[tuple[str, str, str, int], list[Prediction]] = {}
    for prediction in sorted(predictions, key=lambda p: (p.at_ms, p.subject.key)):
        if is_hazard(prediction):
            key = (prediction.model, prediction.model_version, prediction.target, prediction.horizon_ms)
            groups.setdefault(key, []).append(prediction)
    return [_score(mine, followed) for _, mine in sorted(groups.items())]


def _score(mine: Sequence[Prediction], followed: Followed) -> HazardScore:
    first = mine[0]
    blank = HazardScore(
        model=first.model,
        model_version=first.model_version,
        target=first.target,
        horizon_s=first.horizon_ms / SECOND,
    )
    table = _table(mine, followed)
    judged = table.examples
    _, known = judged.label(first.horizon_ms)
    told = blank.model_copy(
        update={
            "predictions": int(known.sum()),
            "pending": int((~known).sum()),
            "left_out": len(mine) - len(judged),
            "approved": sum(approved for _, approved in table.verdicts),
            "rejected": sum(not approved for _, approved in table.verdicts),
            "operator_precision": _share([approved for _, approved in table.verdicts]),
        }
    )
    if not known.any():
        return told
    return told.model_copy(update={**_alarms(table, known), **_figures(table, known, first.horizon_ms)})


@dataclass(frozen=True, slots=True)
class _Table:
    """Predictions as examples, weighted by days stood; `verdicts` are about GPUs that were warned of."""

    examples: Examples
    probability: Floats
    alarm: Mask
    verdicts: Sequence[Verdict]


def _table(mine: Sequence[Prediction], followed: Followed) -> _Table:
    devices = tuple(sorted({p.subject.name for p in mine}))
    numbers = {name: number for number, name in enumerate(devices)}
    device = np.array([numbers[p.subject.name] for p in mine], dtype=np.int32)
    at_ms = np.array([p.at_ms for p in mine], dtype=np.int64)
    observed_ms = np.array([followed.observed_ms.get(name, followed.now_ms) for name in devices], dtype=np.int64)
    labels = label(at_ms, device, devices, onsets_of(followed.events, followed.gpus), observed_ms)
    horizon_ms = mine[0].horizon_ms
    rows = len(mine)
    examples = Examples(
        devices=devices,
        device=device,
        groups=("",),
        group=np.zeros(rows, dtype=np.int32),
        at_ms=at_ms,
        names=(),
        features=np.empty((rows, 0), dtype=np.float32),
        seen_ms=at_ms,
        history_ms=np.zeros(rows, dtype=np.int64),
        event_ms=labels.event_ms,
        until_ms=labels.until_ms,
        event_class=labels.event_class,
        weight=_stood(device, at_ms, observed_ms, horizon_ms) / DAY,
    )
    alarm = np.array([p.status is PredictionStatus.LIKELY for p in mine])
    examples, verdicts = _with_verdicts(examples, alarm, [p.subject for p in mine], followed.statuses, horizon_ms)
    chosen = np.flatnonzero(labels.keep)
    stated = np.array([p.probability for p in mine], dtype=np.float64)
    return _Table(examples.take(chosen), stated[chosen], alarm[chosen], verdicts)


def _stood(device: Codes, at_ms: Ints, observed_ms: Ints, most_ms: int) -> Floats:
    """How long each prediction stood, in milliseconds: until the next of its GPU, at most its horizon."""
    order = np.lexsort((at_ms, device))
    following = observed_ms[device].astype(np.int64)
    same = np.diff(device[order]) == 0
    following[order[:-1][same]] = at_ms[order[1:][same]]
    return np.asarray(np.clip(following - at_ms, 1, most_ms), dtype=np.float64)


def _with_verdicts(
    examples: Examples,
    alarm: Mask,
    subjects: Sequence[Subject],
    statuses: Sequence[DecisionStatus],
    horizon_ms: int,
) -> tuple[Examples, list[Verdict]]:
    """Where no onset followed, an approved action on the GPU stands for one, a rejected one settles that none came."""
    event_ms, until_ms = examples.event_ms.copy(), examples.until_ms.copy()
    verdicts: list[Verdict] = []
    names = np.array([one.name for one in subjects], dtype=np.str_)
    hosts = np.array([one.host for one in subjects], dtype=np.str_)
    for status in sorted(statuses, key=lambda one: one.decision.at_ms):
        approved = bool(status.approved_by)
        if not _is_verdict(status):
            continue
        made_ms = status.decision.at_ms
        open_ms = made_ms - examples.at_ms
        subject = status.decision.subject
        mine = (hosts if subject.kind is SubjectKind.HOST else names) == subject.name
        mine &= (open_ms >= 0) & (open_ms < horizon_ms)
        # Of a host, the verdict is on the GPUs that were warned of; the others are bystanders.
        mine &= np.isin(names, names[mine & alarm])
        if not mine.any():
            continue
        verdicts.append((made_ms, approved))
        without = mine & (event_ms > examples.at_ms + horizon_ms)
        if approved:
            event_ms[without] = np.maximum(made_ms, examples.at_ms[without] + 1)
        else:
            until_ms[without] = np.maximum(until_ms[without], examples.at_ms[without] + horizon_ms)
    return replace(examples, event_ms=event_ms, until_ms=until_ms), verdicts


def _is_verdict(status: DecisionStatus) -> bool:
    decision = status.decision
    if decision.category is not Category.HARDWARE or decision.action is ActionKind.NOTIFY:
        return False
    return bool(status.approved_by) or status.state is DecisionState.REJECTED


def _alarms(table: _Table, known: Mask) -> dict[str, object]:
    judged, alarm = table.examples.take(known), table.alarm[known]
    begun = starts(judged, alarm)
    false = int((~about(judged)[begun]).sum())
    days = float(judged.weight.sum())
    lead_ms = warned(judged, alarm).lead_ms
    recall = _share(lead_ms > 0)
    low, high = (None, None) if recall is None else wilson(recall, lead_ms.size)
    return {
        "gpu_days": days,
        "alarms": int(begun.size),
        "false_alarms": false,
        "false_alarms_per_1000_gpu_days": 1000.0 * false / days if days > 0 else None,
        "onsets": int(lead_ms.size),
        "onset_recall": recall,
        "onset_recall_low": low,
        "onset_recall_high": high,
        "onset_recall_24h": _share(lead_ms >= DAY),
        "onset_recall_48h": _share(lead_ms >= 2 * DAY),
        "lead_s": [float(one) / SECOND for one in lead_ms[lead_ms > 0]],
    }


def _figures(table: _Table, known: Mask, horizon_ms: int) -> dict[str, object]:
    judged = table.examples.take(known)
    stated, alarm = table.probability[known], table.alarm[known]
    found = Panel(judged, horizon_ms, draws=0).draws(stated)
    happened, _ = judged.label(horizon_ms)
    weight = judged.weight
    names = ("roc_auc", "auprc", "brier", "calibration_error")
    return {
        **{name: _exists(found[name][0]) for name in names},
        "base_rate": _exists(_part(weight, happened)),
        "precision": _exists(_part(weight[alarm], happened[alarm])),
        "recall": _exists(_part(weight[happened], alarm[happened])),
        "reliability": _reliability(stated, happened, weight, horizon_ms),
    }


def _reliability(stated: Floats, happened: Mask, weight: Floats, horizon_ms: int) -> list[ReliabilityBin]:
    counts = Counter(bin_of(float(one)) for one in stated)
    found = []
    for one in reliability_bins(stated, happened, weight):
        low, high = wilson(one.observed, one.weight * DAY / horizon_ms)
        found.append(
            ReliabilityBin(
                low=EDGES[one.index],
                high=EDGES[one.index + 1],
                gpu_days=one.weight,
                stated=one.stated,
                observed=one.observed,
                predictions=counts[one.index],
                observed_low=low,
                observed_high=high,
            )
        )
    return found


def wilson(share: float, trials: float) -> tuple[float, float]:
    """95 % interval of a share that was observed in so many trials (Wilson, JASA 22, 1927); 0 to 1 without any."""
    if trials < 1e-9:
        return 0.0, 1.0
    square = Z95**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def _part(weight: Floats, true: Mask) -> float:
    total = float(weight.sum())
    return float(weight[true].sum()) / total if total > 0 else float("nan")


def _share(true: Sequence[bool] | Mask) -> float | None:
    return float(np.mean(true)) if len(true) else None


def _exists(value: float) -> float | None:
    return float(np.clip(value, 0.0, 1.0)) if np.isfinite(value) else None
