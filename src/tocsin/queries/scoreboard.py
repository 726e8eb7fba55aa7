"""What would have been done, what came of it, and how predictions turned out, by the figures of the backtest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.actions.model.controls import Tally
from tocsin.actions.model.ledger_entry import MODE_GUARDS, DecisionStatus, held_by
from tocsin.client.models import ActionScore, HazardScore, PredictionScore, ReliabilityBin, RuleScore, Scoreboard
from tocsin.domain.clock import DAY, HOUR, SECOND, to_iso
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.device_fault import BROKEN
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.interval import wilson
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu
from tocsin.forecaster.evaluation.figures import Panel
from tocsin.forecaster.evaluation.leads import about, starts, warned
from tocsin.forecaster.evaluation.reliability import EDGES, bin_of, reliability_bins
from tocsin.forecaster.features.examples import Codes, Examples, Floats, Ints, Mask
from tocsin.forecaster.features.onsets import Heat, label, onsets_of
from tocsin.rules.xid import xid
from tocsin.store.port import Series

STATES = frozenset({PredictionStatus.LIKELY, PredictionStatus.UNLIKELY})

Verdict = tuple[int, bool]
"""When a decision was made, and whether an operator approved it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What came after the predictions, `heat` by findings. `observed_ms` is the newest reading of each GPU by UUID; one
    that is not in it counts as observed until now."""

    events: Sequence[Event]
    statuses: Sequence[DecisionStatus]
    gpus: Sequence[Gpu]
    observed_ms: Mapping[str, int]
    now_ms: int
    heat: Heat = field(default_factory=dict)


def is_hazard(prediction: Prediction) -> bool:
    """Whether it states the probability of a hardware onset: about a GPU, and no crossing of a metric."""
    stated = prediction.probability is not None and prediction.status in STATES
    return stated and not prediction.metric and prediction.subject.kind is SubjectKind.GPU


def score_hazards(predictions: Sequence[Prediction], followed: Followed) -> list[HazardScore]:
    """A score for each version of a model, target and horizon."""
    stated = sorted(filter(is_hazard, predictions), key=lambda p: (p.at_ms, p.subject.key))
    groups = grouped(((p.model, p.model_version, p.target, p.horizon_ms), p) for p in stated)
    return [_score(groups[key], followed) for key in sorted(groups)]


def _score(mine: Sequence[Prediction], followed: Followed) -> HazardScore:
    first, table = mine[0], _table(mine, followed)
    _, known = table.examples.label(first.horizon_ms)
    # A fault is known at once, its absence only when the window is over: what counted the first sooner would be right
    # more often than it is.
    known = known & (table.examples.at_ms + first.horizon_ms <= followed.now_ms)
    approvals = [approved for _, approved in table.verdicts]
    score = HazardScore(
        model=first.model,
        model_version=first.model_version,
        target=first.target,
        horizon_s=first.horizon_ms / SECOND,
        predictions=int(known.sum()),
        pending=int((~known).sum()),
        left_out=len(mine) - len(table.examples),
        approved=sum(approvals),
        rejected=len(approvals) - sum(approvals),
        operator_precision=_share(approvals),
    )
    if not known.any():
        return score
    return score.model_copy(update={**_alarms(table, known), **_figures(table, known, first.horizon_ms)})


@dataclass(frozen=True, slots=True)
class _HazardTable:
    """Predictions as examples, weighted by days stood; `verdicts` are about GPUs that were warned of."""

    examples: Examples
    probability: Floats
    alarm: Mask
    verdicts: Sequence[Verdict]


def _table(mine: Sequence[Prediction], followed: Followed) -> _HazardTable:
    devices = tuple(sorted({p.subject.name for p in mine}))
    numbers = {name: number for number, name in enumerate(devices)}
    device = np.array([numbers[p.subject.name] for p in mine], dtype=np.int32)
    at_ms = np.array([p.at_ms for p in mine], dtype=np.int64)
    observed_ms = np.array([followed.observed_ms.get(name, followed.now_ms) for name in devices], dtype=np.int64)
    onsets = onsets_of(followed.events, followed.gpus, heat=followed.heat)
    labels = label(at_ms, device, devices, onsets, observed_ms)
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
    return _HazardTable(examples.take(chosen), stated[chosen], alarm[chosen], verdicts)


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


def _alarms(table: _HazardTable, known: Mask) -> dict[str, object]:
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


def _figures(table: _HazardTable, known: Mask, horizon_ms: int) -> dict[str, object]:
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


def _part(weight: Floats, true: Mask) -> float:
    total = float(weight.sum())
    return float(weight[true].sum()) / total if total > 0 else float("nan")


def _share(true: Sequence[bool] | Mask) -> float | None:
    return float(np.mean(true)) if len(true) else None


def _exists(value: float) -> float | None:
    return float(np.clip(value, 0.0, 1.0)) if np.isfinite(value) else None


HORIZON_MS = 48 * HOUR
"""A decision is confirmed where a hardware event follows on its subject within this."""

SeriesOf = Callable[[str, str, int, int], Series]
"""(gpu, metric, start_ms, end_ms) to the series."""


def is_hardware(event: Event) -> bool:
    """Whether an event says that hardware failed: a lost GPU, an XID that is critical by sub-code or number, a
    fault of AMD's or Ascend's that is broken hardware."""
    if event.kind is EventKind.XID:
        return (event.severity or xid(event.code).severity) is Severity.CRITICAL
    if event.kind is EventKind.DEVICE_FAULT:
        return event.code in BROKEN
    return event.kind is EventKind.GPU_LOST


def _held_by(status: DecisionStatus) -> frozenset[str]:
    """The guards that held it at any time. A checkpoint of before this was kept has the last verdicts alone."""
    return held_by(status.verdicts).union(status.held_by)


def _would_have_acted(status: DecisionStatus) -> bool:
    """Whether at any time nothing but the mode held it: what ends waiting is held by its end as well."""
    return status.was_ready or held_by(status.verdicts) <= MODE_GUARDS


def confirmation(status: DecisionStatus, events: Sequence[Event], now_ms: int) -> str:
    """Whether a hardware event followed on what a decision is about: `confirmed`, `unconfirmed`, or `pending`."""
    decision = status.decision
    if now_ms < decision.at_ms + HORIZON_MS:
        return "pending"
    for event in events:
        if not decision.at_ms < event.at_ms <= decision.at_ms + HORIZON_MS or not is_hardware(event):
            continue
        subject = decision.subject
        if event.gpu == subject.name or (subject.kind is SubjectKind.HOST and event.host == subject.name):
            return "confirmed"
    return "unconfirmed"


def _tally_of_guards(statuses: Iterable[DecisionStatus]) -> dict[str, int]:
    return dict(Counter(guard for status in statuses for guard in sorted(_held_by(status))))


def _score_rule(rule: str, mine: Sequence[DecisionStatus], events: Sequence[Event], now_ms: int) -> RuleScore:
    found = Counter(confirmation(status, events, now_ms) for status in mine)
    return RuleScore(
        rule=rule,
        action=mine[0].decision.action,
        decisions=len(mine),
        would_have_acted=sum(map(_would_have_acted, mine)),
        executed=sum(status.outcome is not None for status in mine),
        held_by=_tally_of_guards(mine),
        confirmed=found["confirmed"],
        unconfirmed=found["unconfirmed"],
        pending=found["pending"],
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """The first crossing prediction of a run; `crossed_ms` is None where its threshold was not crossed, `open` where
    there is still time."""

    prediction: Prediction
    crossed_ms: int | None
    open: bool


def judge_crossings(predictions: Sequence[Prediction], series_of: SeriesOf, now_ms: int) -> list[Crossing]:
    """What became of each run of crossing predictions; later ones within its horizon repeat it and do not count."""
    found: list[Crossing] = []
    ends: dict[tuple[str, str], int] = {}
    for prediction in sorted((p for p in predictions if p.is_ahead and not p.muted), key=lambda p: p.at_ms):
        key = (prediction.subject.key, prediction.target)
        end = prediction.at_ms + prediction.horizon_ms
        if prediction.at_ms < ends.get(key, 0) or prediction.threshold is None:
            continue
        ends[key] = end
        found.append(Crossing(prediction, _crossed_at(prediction, series_of, min(end, now_ms)), now_ms < end))
    return found


def score_crossings(
    predictions: Sequence[Prediction], series_of: SeriesOf, now_ms: int
) -> tuple[PredictionScore, list[PredictionScore]]:
    """All runs of crossing predictions together, and by model and version."""
    judged = judge_crossings(predictions, series_of, now_ms)
    groups = grouped(((one.prediction.model, one.prediction.model_version), one) for one in judged)
    silent = grouped(((p.model, p.model_version), p) for p in predictions if p.metric)
    parts = [
        _score_crossings(groups.get(key, []), _silent(silent.get(key, []))).model_copy(
            update={"model": key[0], "model_version": key[1]}
        )
        for key in sorted(groups.keys() | silent.keys())
    ]
    return _score_crossings(judged, _silent(predictions)), parts


def _silent(predictions: Sequence[Prediction]) -> int:
    return sum(p.status is PredictionStatus.NOT_ENOUGH_DATA for p in predictions)


def _score_crossings(judged: Sequence[Crossing], silent: int) -> PredictionScore:
    hits = [(one.prediction, one.crossed_ms) for one in judged if one.crossed_ms is not None and not one.open]
    pending = sum(one.open for one in judged)
    return PredictionScore(
        made=len(judged),
        hits=len(hits),
        misses=len(judged) - len(hits) - pending,
        pending=pending,
        not_enough_data=silent,
        lead_s=[(crossed - prediction.at_ms) / SECOND for prediction, crossed in hits],
        within_interval=sum(_within(prediction, crossed) for prediction, crossed in hits),
    )


def _within(prediction: Prediction, crossed_ms: int) -> bool:
    end = prediction.at_ms + prediction.horizon_ms
    return (prediction.eta_low_ms or prediction.at_ms) <= crossed_ms <= (prediction.eta_high_ms or end)


def _crossed_at(prediction: Prediction, series_of: SeriesOf, end_ms: int) -> int | None:
    series = series_of(prediction.subject.name, prediction.metric, prediction.at_ms, end_ms + 1)
    if series.values.size == 0 or prediction.threshold is None:
        return None
    column = series.values[:, 0]
    falling = prediction.value is not None and prediction.value > prediction.threshold
    beyond = column <= prediction.threshold if falling else column >= prediction.threshold
    where = np.flatnonzero(beyond)
    return int(series.at_ms[where[0]]) if where.size else None


def scoreboard(
    statuses: Sequence[DecisionStatus],
    events: Sequence[Event],
    predictions: PredictionScore,
    *,
    crossings: Sequence[PredictionScore] = (),
    hazards: Sequence[HazardScore] = (),
    experience: Mapping[ActionKind, Tally] | None = None,
    mode: Mode,
    simulated: bool,
    since_ms: int,
    now_ms: int,
) -> Scoreboard:
    """The whole board over everything but notifications, which are never held."""
    actions = [status for status in statuses if status.decision.action is not ActionKind.NOTIFY]
    groups = grouped(((status.decision.rule, status.decision.action), status) for status in actions)
    rules = [_score_rule(rule, mine, events, now_ms) for (rule, _), mine in sorted(groups.items())]
    return Scoreboard(
        since=to_iso(since_ms),
        until=to_iso(now_ms),
        mode=mode,
        simulated=simulated,
        decisions=len(actions),
        would_have_acted=sum(rule.would_have_acted for rule in rules),
        executed=sum(rule.executed for rule in rules),
        held=sum(status.state is DecisionState.HELD for status in actions),
        confirmed=sum(rule.confirmed for rule in rules),
        held_by=_tally_of_guards(actions),
        rules=rules,
        predictions=predictions,
        crossings=list(crossings),
        hazards=list(hazards),
        actions=[_action(action, tally) for action, tally in sorted((experience or {}).items())],
    )


def _action(action: ActionKind, tally: Tally) -> ActionScore:
    effects = {name: mean for name, (_, mean) in tally.effects.items()}
    measured = {name: count for name, (count, _) in tally.effects.items()}
    return ActionScore(action=action, tried=tally.tried, worked=tally.worked, effects=effects, measured=measured)
