"""The scoreboards of all cells as one: counts are added up, shares made of them anew or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from tocsin.client.models import ActionScore, PredictionScore, RuleScore, Scoreboard
from tocsin.client.models_rules import RuleRecord
from tocsin.client.whole import furthest
from tocsin.client.whole_hazards import whole_hazard

T = TypeVar("T")


def whole_scoreboard(answers: Mapping[str, Scoreboard]) -> Scoreboard:
    """The board over all cells; `answers` has at least one.

    What rules, actions and models of one name did is one row. The record of a kind of forecast stays each cell's: what
    it is judged by holds there, and its sentence names the cell where there are several.
    """
    every = [answers[name] for name in sorted(answers)]
    kinds = [
        kind.model_copy(update={"sentence": f"in cell {name}: {kind.sentence}"}) if len(answers) > 1 else kind
        for name in sorted(answers)
        for kind in answers[name].kinds
    ]
    hazards = [one for board in every for one in board.hazards]
    return Scoreboard(
        since=min(one.since for one in every),
        until=max(one.until for one in every),
        mode=furthest(one.mode for one in every),
        simulated=any(one.simulated for one in every),
        decisions=sum(one.decisions for one in every),
        would_have_acted=sum(one.would_have_acted for one in every),
        executed=sum(one.executed for one in every),
        held=sum(one.held for one in every),
        confirmed=sum(one.confirmed for one in every),
        held_by=_tallied(one.held_by for one in every),
        rules=_joined((one for board in every for one in board.rules), lambda one: (one.rule, one.action), _rule),
        predictions=_crossings([one.predictions for one in every]),
        crossings=_joined(
            (one for board in every for one in board.crossings),
            lambda one: (one.model, one.model_version),
            _crossings,
        ),
        hazards=_joined(hazards, lambda one: (one.model, one.model_version, one.target, one.horizon_s), whole_hazard),
        actions=_joined((one for board in every for one in board.actions), lambda one: one.action, _action),
        kinds=kinds,
    )


def whole_records(answers: Mapping[str, Sequence[RuleRecord]]) -> list[RuleRecord]:
    """The records of all cells, cell by cell, each with its cell before the rule where there are several: a rule earns
    to act in each by that cell's own cases."""
    return [
        one.model_copy(update={"rule": f"{name}/{one.rule}"}) if len(answers) > 1 else one
        for name in sorted(answers)
        for one in answers[name]
    ]


def _joined(found: Iterable[T], key: Callable[[T], Hashable], join: Callable[[Sequence[T]], T]) -> list[T]:
    """`found` with those of one key joined, in the order in which they first come."""
    groups: dict[Hashable, list[T]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return [join(members) for members in groups.values()]


def _tallied(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total)


_OF_RULES = ("decisions", "would_have_acted", "executed", "confirmed", "unconfirmed", "pending")


def _rule(members: Sequence[RuleScore]) -> RuleScore:
    told: dict[str, object] = {name: sum(getattr(one, name) for one in members) for name in _OF_RULES}
    return members[0].model_copy(update=told | {"held_by": _tallied(one.held_by for one in members)})


_OF_CROSSINGS = ("made", "hits", "misses", "pending", "not_enough_data", "within_interval")


def _crossings(members: Sequence[PredictionScore]) -> PredictionScore:
    told: dict[str, object] = {name: sum(getattr(one, name) for one in members) for name in _OF_CROSSINGS}
    return members[0].model_copy(update=told | {"lead_s": [lead for one in members for lead in one.lead_s]})


def _action(members: Sequence[ActionScore]) -> ActionScore:
    """An effect that several cells have without how often, which brains of the version before do not say, is left
    out."""
    if len(members) == 1:
        return members[0]
    effects = {}
    for name in dict.fromkeys(name for one in members for name in one.effects):
        known = [(one.effects[name], one.measured.get(name, 0)) for one in members if name in one.effects]
        if len(known) == 1:
            effects[name] = known[0][0]
        elif all(count for _, count in known):
            effects[name] = sum(mean * count for mean, count in known) / sum(count for _, count in known)
    measured = _tallied(one.measured for one in members)
    return ActionScore(
        action=members[0].action,
        tried=sum(one.tried for one in members),
        worked=sum(one.worked for one in members),
        effects=effects,
        measured={name: count for name, count in measured.items() if name in effects},
    )
