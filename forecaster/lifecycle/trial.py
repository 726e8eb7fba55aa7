"""A trial: does a challenger beat the rules and the model in service, on devices and days that it has not seen?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tocsin.domain.clock import HOUR, to_iso
from tocsin.forecaster.evaluation.engine import Engine, Local
from tocsin.forecaster.evaluation.figures import DRAWS, difference, population, standard
from tocsin.forecaster.evaluation.ranking import precision_recall
from tocsin.forecaster.evaluation.reliability import reliability_curve, reliability_table
from tocsin.forecaster.evaluation.result import Figure, ReportSection, ReportTable, Result
from tocsin.forecaster.evaluation.split import Split, check_instants, forward_splits
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import NotEnoughData, Scorer
from tocsin.forecaster.lifecycle.model_registry import ModelVersion

RULES, INCUMBENT = "rules", "in service"
FIGURE = "auprc"
"""Average precision decides: rare events, and no threshold to choose."""
LEADING = (
    "ecc_*", "remap_*", "retired_pages.*", "banks_worn.*", "row_remap_pending.*", "memory_failure.*",
    "repair_pending.*", "pcie_replay.*", "pcie_errors.*", "pcie_lanes_lost.*", "pcie_speed_lost.*",
    "nvlink_crc.*", "nvlink_replay.*",
    "nvlink_recovery.*", "nvlink_symbol.*", "links_down.*", "fabric_unhealthy.*", "thermal*", "temperature.vs_*",
    "temperature.score", "power_brake.*", "recovery_action.*", "driver_latency.*", "event.*", "burst.*", "others.*",
    "hardware_events.*", "reported.*", "frozen*", "flat_hours", "silent_hours", "family.*", "back_hours", "backs",
    "age_days", "energy.level", "utilization.level",
)  # fmt: skip
"""Features that are known to lead faults of memory, bus, NVLink, firmware, heat and power (facts in docs/features.md),
with the load beside them. A fleet has few faults: each feature that tells nothing costs some of what others tell."""
MIN_HISTORY_MS = 6 * HOUR
"""A GPU with a shorter past gets no score: changes over hours are what most faults are told by (own choice)."""
FEWEST_ONSETS = 5
"""Onsets that must fall into what the model in service has not learned from, for it to be judged as it stands."""


@dataclass(frozen=True, slots=True)
class TrialRecipe:
    """What is tried: a family with its settings, calibrated on a later slice. `folds` stretches of time are tested in
    turn, each on `devices` parts of the hosts."""

    family: str = registry.DEFAULT
    settings: Mapping[str, object] = field(default_factory=dict)
    folds: int = 3
    devices: int = 2
    seed: int = 0
    draws: int = DRAWS

    def build(self) -> Scorer:
        own = {"seed": self.seed, "min_history_ms": MIN_HISTORY_MS, "features": LEADING, **self.settings}
        return registry.build("calibrated", scorer=self.family, of=own, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Trial:
    """`wins` says whether the challenger may be promoted, `because` why or why not; `scores` float64[n] are its scores
    of the rows of `judged`, none of which it had learned from."""

    wins: bool
    because: tuple[str, ...]
    result: Result
    judged: Examples
    scores: Floats


@dataclass(frozen=True, slots=True)
class _TrialFold:
    build: Callable[[], Scorer]
    train: Examples
    test: Examples


def _fit_and_score(task: _TrialFold) -> Floats:
    scorer = task.build()
    try:
        scorer.fit(task.train)
    except NotEnoughData:
        return np.full(len(task.test), np.nan)
    return scorer.score(task.test)[:, -1]


def hold(
    examples: Examples, recipe: TrialRecipe, incumbent: ModelVersion | None = None, engine: Engine | None = None
) -> Trial:
    """Try `recipe` on `examples`, walking forward over devices and days.

    Raises InputError where the rows leak or span too little time, NotEnoughData where no fold has enough onsets.
    """
    check_instants(examples)
    horizon_ms = recipe.build().horizons_ms[-1]
    whole = examples.take(examples.label(horizon_ms)[1])
    splits, _ = forward_splits(whole, recipe.folds, horizon_ms, recipe.devices, recipe.seed)
    judged_rows = np.unique(np.concatenate([split.test for split in splits]))
    judged = whole.take(judged_rows)
    contestants: dict[str, Callable[[], Scorer]] = {
        recipe.family: recipe.build,
        RULES: partial(registry.build, RULES),
    }
    scores = _scores(whole, splits, contestants, horizon_ms, engine or Local())
    scores = {name: values[judged_rows] for name, values in scores.items()}
    if not np.isfinite(scores[recipe.family]).any():
        raise NotEnoughData(f"{recipe.family}: no fold of {len(splits)} has enough onsets to learn from")
    notes: list[str] = []
    if incumbent is not None:
        scores[INCUMBENT], note = _incumbent(incumbent, judged, horizon_ms)
        notes += [note] if note else []
    seen = np.isfinite(scores[recipe.family])
    judged, scores = judged.take(seen), {name: values[seen] for name, values in scores.items()}
    wins, because, margins = _decide(scores, judged, recipe, horizon_ms)
    result = _result(scores, judged, recipe, horizon_ms, margins, [*because, *notes])
    return Trial(wins, (*because, *notes), result, judged, scores[recipe.family])


def _scores(
    examples: Examples,
    splits: Sequence[Split],
    contestants: Mapping[str, Callable[[], Scorer]],
    horizon_ms: int,
    engine: Engine,
) -> dict[str, Floats]:
    parts = [split.parts(examples, horizon_ms) for split in splits]
    tasks = [_TrialFold(build, train, test) for build in contestants.values() for train, test in parts]
    answers = engine.map(_fit_and_score, tasks)
    found = {}
    for place, name in enumerate(contestants):
        scores = np.full(len(examples), np.nan)
        for split, answer in zip(splits, answers[place * len(splits) : (place + 1) * len(splits)], strict=True):
            scores[split.test] = answer
        found[name] = scores
    return found


def _incumbent(incumbent: ModelVersion, judged: Examples, horizon_ms: int) -> tuple[Floats, str]:
    """Scores of the model in service on what it has not learned from; NaN elsewhere, all over where that is little."""
    fresh = judged.at_ms > incumbent.card.trained_to_ms + horizon_ms
    onset, _ = judged.label(horizon_ms)
    onsets = np.unique(np.stack((judged.device, judged.event_ms), axis=1)[onset & fresh], axis=0)
    scores = np.full(len(judged), np.nan)
    if len(onsets) < FEWEST_ONSETS:
        until = to_iso(incumbent.card.trained_to_ms)
        return scores, (
            f"{incumbent.version} learned from what came up to {until}; {len(onsets)} onsets after it are too few to "
            f"compare with it ({FEWEST_ONSETS} needed), so the rules alone decide"
        )
    scores[fresh] = incumbent.scorer.score(judged.take(fresh))[:, -1]
    return scores, ""


def _decide(
    scores: Mapping[str, Floats], judged: Examples, recipe: TrialRecipe, horizon_ms: int
) -> tuple[bool, list[str], dict[str, Figure]]:
    """Whether the challenger is above every rival by more than the bootstrap noise."""
    mine = scores[recipe.family]
    because, margins, wins = [], {}, True
    for name, theirs in scores.items():
        both = np.isfinite(mine) & np.isfinite(theirs)
        if name == recipe.family or not both.any():
            continue
        if not judged.take(both).label(horizon_ms)[0].any():
            raise NotEnoughData(
                f"no onset among the {int(both.sum())} rows that {recipe.family} and {name} both scored"
            )
        margin = difference(
            mine[both], theirs[both], judged.take(both), horizon_ms, FIGURE, draws=recipe.draws, seed=recipe.seed
        )
        margins[name] = margin
        better = margin.low is not None and margin.low > 0.0
        wins &= better
        verb = "beats" if better else "does not beat"
        interval = "" if margin.low is None else f" ({margin.low:+.4f} to {margin.high:+.4f})"
        because.append(f"{recipe.family} {verb} {name}: average precision {margin.value:+.4f}{interval}")
    return wins and bool(margins), because, margins


def _result(
    scores: Mapping[str, Floats],
    judged: Examples,
    recipe: TrialRecipe,
    horizon_ms: int,
    margins: Mapping[str, Figure],
    notes: Sequence[str],
) -> Result:
    label, _ = judged.label(horizon_ms)
    stated = {name: values for name, values in scores.items() if np.isfinite(values).all()}
    rows = [(name, margin.value, margin.low, margin.high) for name, margin in margins.items()]
    section = ReportSection(
        title=f"Onsets within {horizon_ms / HOUR:g} h, walking forward over days and hosts",
        models=standard(stated, judged, horizon_ms, draws=recipe.draws, seed=recipe.seed),
        population=population(judged, horizon_ms),
        tables=[
            ReportTable(
                f"Average precision of {recipe.family} above that of", ("rival", "margin", "low", "high"), rows
            ),
            reliability_table(recipe.family, scores[recipe.family], label, judged.weight),
        ],
        curves=[
            precision_recall(stated, label, judged.weight),
            reliability_curve({recipe.family: scores[recipe.family]}, label, judged.weight),
        ],
        notes=tuple(notes),
    )
    others = "other hosts, " if min(recipe.devices, len(np.unique(judged.group))) > 1 else "what lies "
    protocol = (
        f"The past is cut into {recipe.folds + 1} equal stretches; each but the first is tested with models that "
        f"learned from {others}{horizon_ms / HOUR:g} h or more before it. A challenger must be above the rules "
        "and the model in service by more than the noise of a paired bootstrap by device (95 % interval above 0)."
    )
    return Result("trial", protocol, "telemetry and events of the fleet itself", [section], tuple(notes))
