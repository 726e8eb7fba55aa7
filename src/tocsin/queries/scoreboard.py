"""What would have been done, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.actions.model.experience import Tally
from tocsin.actions.model.status import DecisionStatus
from tocsin.client.models import ActionScore, HazardScore, PredictionScore, RuleScore, Scoreboard
from tocsin.domain.clock import HOUR, SECOND, to_iso
from tocsin.domain.decision import DecisionState, Mode, Ruling
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.subject import SubjectKind
from tocsin.rules.xid import xid
from tocsin.store.port import Series

HORIZON_MS = 48 * HOUR
"""A decision is confirmed where a hardware event follows on its subject within this."""

MODE_GUARDS = frozenset({"mode", "approval"})
"""Guards that hold because of the mode alone: in mode `act` they would not have."""

SeriesOf = Callable[[str, str, int, int], Series]
"""(gpu, metric, start_ms, end_ms) to the series."""


def is_hardware(event: Event) -> bool:
    """Whether an event says that hardware failed: a lost GPU, or an XID that is critical by sub-code or number."""
    if event.kind is EventKind.XID:
        return (event.severity or xid(event.code).severity) is Severity.CRITICAL
    return event.kind is EventKind.GPU_LOST


def _held_by(status: DecisionStatus) -> list[str]:
    return [verdict.guard for verdict in status.verdicts if verdict.ruling is not Ruling.ALLOW]


def _confirmation(status: DecisionStatus, events: Sequence[Event], now_ms: int) -> str:
    decision = status.decision
    for event in events:
        if not decision.at_ms < event.at_ms <= decision.at_ms + HORIZON_MS or not is_hardware(event):
            continue
        subject = decision.subject
        if event.gpu == subject.name or (subject.kind is SubjectKind.HOST and event.host == subject.name):
            return "confirmed"
    return "pending" if now_ms < decision.at_ms + HORIZON_MS else "unconfirmed"


def _score_rule(rule: str, mine: Sequence[DecisionStatus], events: Sequence[Event], now_ms: int) -> RuleScore:
    held = [_held_by(status) for status in mine]
    found = Counter(_confirmation(status, events, now_ms) for status in mine)
    return RuleScore(
        rule=rule,
        action=mine[0].decision.action,
        decisions=len(mine),
        would_have_acted=sum(MODE_GUARDS.issuperset(guards) for guards in held),
        executed=sum(status.outcome is not None for status in mine),
        held_by=dict(Counter(guard for guards in held for guard in guards)),
        confirmed=found["confirmed"],
        unconfirmed=found["unconfirmed"],
        pending=found["pending"],
    )


def is_ahead(prediction: Prediction) -> bool:
    """Whether a crossing is still to come: a threshold that is already passed is a finding, not a prediction."""
    return prediction.status is PredictionStatus.CROSSING and (prediction.lead_ms or 0) > 0


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
    for prediction in sorted((p for p in predictions if is_ahead(p)), key=lambda p: p.at_ms):
        key = (prediction.subject.key, prediction.target)
        end = prediction.at_ms + prediction.horizon_ms
        if prediction.at_ms < ends.get(key, 0) or prediction.threshold is None:
            continue
        ends[key] = end
        found.append(Crossing(prediction, _crossed_at(prediction, series_of, min(end, now_ms)), now_ms < end))
    return found


def score_predictions(predictions: Sequence[Prediction], series_of: SeriesOf, now_ms: int) -> PredictionScore:
    """All runs of crossing predictions together."""
    return _score_crossings(judge_crossings(predictions, series_of, now_ms), _silent(predictions))


def score_crossings(
    predictions: Sequence[Prediction], series_of: SeriesOf, now_ms: int
) -> tuple[PredictionScore, list[PredictionScore]]:
    """All runs of crossing predictions together, and by model and version."""
    judged = judge_crossings(predictions, series_of, now_ms)
    groups: dict[tuple[str, str], list[Crossing]] = {}
    for one in judged:
        groups.setdefault((one.prediction.model, one.prediction.model_version), []).append(one)
    silent: dict[tuple[str, str], list[Prediction]] = {}
    for prediction in predictions:
        if prediction.metric:
            silent.setdefault((prediction.model, prediction.model_version), []).append(prediction)
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
    hits = [(one.prediction, one.crossed_ms) for one in judged if one.crossed_ms is not None]
    pending = sum(one.crossed_ms is None and one.open for one in judged)
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
    groups: dict[tuple[str, ActionKind], list[DecisionStatus]] = {}
    for status in actions:
        groups.setdefault((status.decision.rule, status.decision.action), []).append(status)
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
        held_by=dict(Counter(guard for status in actions for guard in _held_by(status))),
        rules=rules,
        predictions=predictions,
        crossings=list(crossings),
        hazards=list(hazards),
        actions=[_action(action, tally) for action, tally in sorted((experience or {}).items())],
    )


def _action(action: ActionKind, tally: Tally) -> ActionScore:
    effects = {name: mean for name, (_, mean) in tally.effects.items()}
    return ActionScore(action=action, tried=tally.tried, worked=tally.worked, effects=effects)
