"""`tocsin train`: a fleet's past, recordings or a simulated fleet to a model in the model registry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tocsin.collector.replay.source import read_recording
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import DAY, HOUR, MINUTE, Clock, to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.progress import work
from tocsin.forecaster.evaluation.engine import engine
from tocsin.forecaster.features.examples import HORIZONS_MS, NEVER, Examples, Mask
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import Rules, Span, StepData, Walk, examples_from, metrics_of
from tocsin.forecaster.lifecycle.gate import GateRecord, judge
from tocsin.forecaster.lifecycle.model_registry import PRIOR, ModelRegistry, ModelVersion
from tocsin.forecaster.lifecycle.train import Trained, joined, put_before, train
from tocsin.forecaster.lifecycle.trial import TrialRecipe
from tocsin.offline.backtest_fleet import PAST_MS, batches
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultClass
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenario import Scenario, default_scenario
from tocsin.sim.scenarios import load_scenario
from tocsin.sim.spec import Fault, FleetSpec, HardFault
from tocsin.store.factory import open_store

SIMULATED_START_MS = 20_089 * DAY
"""2025-01-01T00:00:00Z: the simulated past has no date of its own."""
WARM_UP_MS = 7 * DAY
"""Before the first decision, so that a GPU has a past to be compared with."""
SLOWER = 6
"""A simulated GPU decides this many times more seldom: its precursors last days."""
SAME_FAULT_MS = 5 * MINUTE
"""How far the first event of a fault may lie from its onset."""
QUIET_KEPT = 0.1
"""Share of the quiet rows that a fit gets, weighted ten times: they are nearly all, and nearly alike."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What to learn from: files, a simulated fleet of `gpus` over `days`, or, where neither is named, the store.

    `also` are recordings that take part in the final fit alone: too few faults to be judged by, or chosen around them.
    `start_ms` and `end_ms` bound the decisions (None: all of the files, the last 90 days of the store).
    """

    recipe: TrialRecipe
    version: str
    files: Sequence[Path] = ()
    also: Sequence[Path] = ()
    gpus: int = 0
    days: float = 45.0
    scale: float = 40.0
    scenario: Path | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    every_ms: int = HOUR
    engine: str = "local"
    address: str = ""
    promote: bool = False
    actor: str = "tocsin"


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What came of it; `promoted` says whether the version serves now: it has won its trial and passed the gate."""

    trained: Trained
    promoted: bool


def run_training(
    settings: Settings, wanted: TrainingRequest, clock: Clock, folder: Path | None = None
) -> TrainingOutcome:
    """Learn, hold the trial, and put the model into the model registry (`folder`, else that of the settings); it goes
    into service where it won and that was wanted.

    Raises InputError where there is nothing to learn from, NotEnoughData where there are too few onsets.
    """
    registry = ModelRegistry(folder or settings.forecast.models)
    if wanted.version in (*registry.versions(), PRIOR):
        raise InputError("version", wanted.version, "the name is taken", "give the version another name")
    parts, provenance, made_up = _parts(settings, wanted, clock)
    examples = parts[0] if len(parts) == 1 else joined(parts)
    if not len(examples):
        raise InputError("past", provenance, "no GPU has a reading to decide on", _NAME_A_PAST)
    also = None
    if wanted.also:
        also = put_before(_recorded(wanted.also, wanted), examples, HORIZONS_MS[-1])
        provenance += f"; beside it {_names(wanted.also)}, which the trial left out"
    now = clock.now_ms()
    with engine(wanted.engine, wanted.address) as running:
        trained = train(
            examples, wanted.recipe, wanted.version, now, provenance, _incumbent(registry), running, also=also,
            simulated=made_up,
        )  # fmt: skip
    registry.add(trained.model)
    heard = trained.model.gate.heard(simulated=made_up)
    promoted = wanted.promote and trained.trial.wins and heard
    if promoted:
        registry.promote(wanted.version, clock.now_ms(), wanted.actor)
    return TrainingOutcome(trained, promoted)


def judge_on_recordings(
    registry: ModelRegistry, version: str, files: Sequence[Path], *, draws: int, seed: int, every_ms: int = HOUR
) -> GateRecord:
    """The record of a version on recordings that it was not fitted on, one decision every `every_ms`; it is kept.

    Raises InputError for recordings that it was fitted on, and where nothing can be read.
    """
    one = registry.load(version)
    learned = [path.name for path in files if _is_named(path.name, one.card.provenance)]
    if _CUT_SHORT in one.card.provenance:
        remedy = "train it anew: this version names all of its files"
        raise InputError("version", version, "its card does not name all files that it was fitted on", remedy)
    if learned:
        raise InputError("paths", learned[0], f"{version} was fitted on it", "judge by recordings it has not seen")
    examples = _recorded(files, TrainingRequest(TrialRecipe(one.card.family), version, every_ms=every_ms))
    horizon_ms = one.scorer.horizons_ms[-1]
    scores = one.scorer.score(examples)[:, -1]
    record = judge(
        examples, scores, horizon_ms, data=_names(files), simulated=False, scorer=one.scorer, draws=draws, seed=seed
    )
    registry.record(version, record)
    return record


def _incumbent(registry: ModelRegistry) -> ModelVersion | None:
    version = registry.in_service
    return None if version is None else registry.load(version)


def _parts(settings: Settings, wanted: TrainingRequest, clock: Clock) -> tuple[list[Examples], str, bool]:
    """Rows, where they are from in words, and whether any of it was made up: that is no record for real GPUs."""
    parts, words, made_up = [], [], wanted.gpus > 0
    if wanted.gpus:
        parts.append(simulated(wanted))
        words.append(f"a simulated fleet of {wanted.gpus} GPUs over {wanted.days:g} days (abrupt faults left out)")
    if wanted.files:
        parts.append(_recorded(wanted.files, wanted))
        words.append(_names(wanted.files))
    if not parts:
        stored, made_up = _stored(settings, wanted, clock)
        if not len(stored):
            raise InputError("past", "the fleet's own store", "no GPU has a reading to decide on", _NAME_A_PAST)
        parts.append(stored)
        first, last = (
            to_iso(at)[:10] for at in (int(parts[0].at_ms.min(initial=0)), int(parts[0].at_ms.max(initial=0)))
        )
        words.append(f"the fleet's own store, {first} to {last}")
    return parts, "; ".join(words), made_up


_NAME_A_PAST = "name recorded files, use --simulated, or a configuration whose store has telemetry"
_CUT_SHORT = ", ..."
"""In cards of 0.1.0, after the fourth file."""


def _names(files: Sequence[Path]) -> str:
    return f"{len(files)} recorded files: {', '.join(path.name for path in files)}"


def _is_named(name: str, provenance: str) -> bool:
    return re.search(rf"(?:: |, ){re.escape(name)}(?:[,;]|$)", provenance) is not None


def _recorded(files: Sequence[Path], wanted: TrainingRequest) -> Examples:
    recording = read_recording(files)
    last = max(int(track.at_ms[-1]) for track in recording.tracks)
    span = Span(wanted.start_ms or recording.start_ms, wanted.end_ms or last, wanted.every_ms)
    return examples_from(batches(recording), [track.gpu for track in recording.tracks], span)


def _stored(settings: Settings, wanted: TrainingRequest, clock: Clock) -> tuple[Examples, bool]:
    """The rows, and whether a simulated GPU is among those that they are of."""
    now = clock.now_ms()
    span = Span(wanted.start_ms or now - PAST_MS, wanted.end_ms or now, wanted.every_ms)
    if settings.store.kind == StoreKind.SQLITE and not settings.store.path.exists():
        raise InputError("store.path", str(settings.store.path), "there is no store", _NAME_A_PAST)
    with closing(open_store(settings.store)) as store:
        gpus = store.gpus()
        return examples_from(store, gpus, span), any(gpu.simulated for gpu in gpus)


def simulated(wanted: TrainingRequest) -> Examples:
    """Rows of a simulated fleet, its hardware faults `scale` times as often as the scenario has them, labelled by its
    events and readings as a real one.

    Rows before a fault that strikes without a precursor are left out: nothing in them can tell, and the simulation
    knows that. Most of the quiet rows are left out too. Weights bring back those, and the rate of the scenario itself.
    """
    scenario = default_scenario() if wanted.scenario is None else load_scenario(wanted.scenario)
    plan = FeaturePlan()
    metrics = metrics_of(plan)
    spec = FleetSpec(
        wanted.gpus, wanted.recipe.seed, SIMULATED_START_MS, plan.step_ms, 1.0, sicker(scenario, wanted.scale)
    )
    fleet = SimulatedFleet(spec)
    end_ms = SIMULATED_START_MS + int(wanted.days * DAY)
    walk = Walk(plan, fleet.gpus, Span(SIMULATED_START_MS + WARM_UP_MS, end_ms, wanted.every_ms * SLOWER))
    with work("simulation", (end_ms - fleet.now_ms) // plan.step_ms) as bar:
        while fleet.now_ms < end_ms:
            columns, events = fleet.step_columns(metrics)
            walk.take((fleet.now_ms - 1) // plan.step_ms, StepData(columns, events))
            bar.advance()
    walk.close()
    examples = walk.examples(walk.onsets(), Rules())
    abrupt = before_abrupt(examples, fleet.faults, fleet.hard_faults)
    return thinned(examples.take(~abrupt), wanted.scale, wanted.recipe.seed)


def sicker(scenario: Scenario, scale: float) -> Scenario:
    """`scenario` with hardware faults `scale` times as often; all else as it was."""
    rates = {
        name: numbers.model_copy(update={"per_gpu_year": scenario.per_gpu_year(name) * scale, "interruptions": None})
        if fault_kinds()[name].fault_class is FaultClass.HARDWARE
        else numbers
        for name, numbers in scenario.fault.items()
    }
    return scenario.model_copy(update={"fault": rates})


def before_abrupt(examples: Examples, faults: Sequence[Fault], hard: Sequence[HardFault]) -> Mask:
    """Rows whose next onset is that of a fault without a precursor."""
    found = np.zeros(len(examples), np.bool_)
    number = {uuid: place for place, uuid in enumerate(examples.devices)}
    for uuid, first_ms, last_ms in _sudden(faults, hard):
        if uuid in number:
            within = (examples.event_ms >= first_ms) & (examples.event_ms <= last_ms) & (examples.event_ms != NEVER)
            found |= (examples.device == number[uuid]) & within
    return found


def _sudden(faults: Sequence[Fault], hard: Sequence[HardFault]) -> Iterator[tuple[str, int, int]]:
    """Each GPU that a fault without a precursor reaches, and between which instants its onset may lie: where it is told
    of, about when it strikes; of heat, until it is over."""
    places = {(one.kind, one.gpu, one.first_ms): one.places for one in hard}
    for one in faults:
        if not one.abrupt or one.onset_ms is None:
            continue
        if fault_kinds()[one.kind].heats:
            for uuid in sorted(places.get((one.kind, one.gpu, one.started_ms), ())):
                yield uuid, one.onset_ms, NEVER if one.ended_ms is None else one.ended_ms
        else:
            yield one.gpu, one.onset_ms - SAME_FAULT_MS, one.onset_ms + SAME_FAULT_MS


def thinned(examples: Examples, scale: float, seed: int) -> Examples:
    """All rows before an onset with a `scale`-th of their weight, and `QUIET_KEPT` of the others with as much more."""
    rng = np.random.default_rng(seed)
    telling = examples.label(HORIZONS_MS[-1])[0]
    kept = telling | (rng.random(len(examples)) < QUIET_KEPT)
    weight = np.where(telling, examples.weight / scale, examples.weight / QUIET_KEPT)
    return replace(examples, weight=weight).take(kept)
