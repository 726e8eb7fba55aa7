"""Training: a trial, then the model itself, fitted on everything, with what it needs in the model registry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tocsin import __version__
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.engine import Engine
from tocsin.forecaster.evaluation.report import to_json
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.lifecycle.cases import CaseRecord
from tocsin.forecaster.lifecycle.drift import FeatureReference
from tocsin.forecaster.lifecycle.fault_kinds import FaultKinds
from tocsin.forecaster.lifecycle.gate import GateRecord, ModelGate, judge
from tocsin.forecaster.lifecycle.model_registry import ModelVersion
from tocsin.forecaster.lifecycle.trial import LEADING, Trial, TrialRecipe, hold


@dataclass(frozen=True, slots=True)
class Trained:
    """A model ready for the model registry, and the trial that it stood."""

    model: ModelVersion
    trial: Trial


def train(
    examples: Examples,
    recipe: TrialRecipe,
    version: str,
    now_ms: int,
    provenance: str,
    incumbent: ModelVersion | None = None,
    engine: Engine | None = None,
    *,
    also: Examples | None = None,
    simulated: bool = False,
) -> Trained:
    """Hold a trial of `recipe`, then fit it on all of `examples`, of which the later part calibrates it. `also` are
    rows before them that the fit gets, not the trial, whose scores are the model's record at the gate; `simulated`
    says whether any of the past was made up. Raises InputError and NotEnoughData as the trial does."""
    trial = hold(examples, recipe, incumbent, engine)
    scorer = recipe.build()
    learned = examples if also is None else joined((also, examples))
    scorer.fit(learned)
    kinds = FaultKinds.of(learned, scorer.horizons_ms[-1], LEADING, recipe.seed)
    card = ModelCard(
        name="risk",
        version=version,
        family=recipe.family,
        horizons_ms=tuple(scorer.horizons_ms),
        features=examples.names,
        provenance=provenance,
        data_hash=data_hash(learned),
        code_version=__version__,
        created_ms=now_ms,
        trained_from_ms=int(examples.at_ms.min()),
        trained_to_ms=int(examples.at_ms.max()),
        rows=len(learned),
        onsets=_onsets(learned, scorer.horizons_ms[-1]),
        report_digest=_digest(trial),
        notes=trial.because if kinds is None else (*trial.because, kinds.words),
    )
    cases = CaseRecord.of(trial.judged, trial.scores, scorer.horizons_ms[-1], recipe.seed)
    gate = ModelGate((_record(trial, scorer, recipe, version, simulated=simulated),))
    return Trained(ModelVersion(version, scorer, card, cases, FeatureReference.of(examples), kinds, gate), trial)


def _record(trial: Trial, scorer: Scorer, recipe: TrialRecipe, version: str, *, simulated: bool) -> GateRecord:
    """What the scores of the trial are worth at the gate."""
    return judge(
        trial.judged, trial.scores, scorer.horizons_ms[-1], data=f"the trial of {version}", simulated=simulated,
        scorer=scorer, draws=recipe.draws, seed=recipe.seed,
    )  # fmt: skip


def _digest(trial: Trial) -> str:
    report = json.dumps(to_json(trial.result), sort_keys=True, allow_nan=False)
    return hashlib.sha256(report.encode()).hexdigest()


def _onsets(examples: Examples, horizon_ms: int) -> int:
    onset, _ = examples.label(horizon_ms)
    pairs = np.stack((examples.device.astype(np.int64), examples.event_ms), axis=1)
    return len(np.unique(pairs[onset], axis=0))


def data_hash(examples: Examples) -> str:
    """sha256 over everything that a fit sees; the same rows in the same order, the same hash."""
    digest = hashlib.sha256()
    for one in fields(examples):
        value = getattr(examples, one.name)
        if isinstance(value, np.ndarray):
            digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, tuple):
            digest.update("\n".join(value).encode())
    sequences = examples.sequences
    if sequences is not None:
        for start in range(0, len(examples), 4_096):
            rows = np.arange(start, min(start + 4_096, len(examples)))
            digest.update(np.ascontiguousarray(sequences.take(rows)).tobytes())
    return digest.hexdigest()


def put_before(rows: Examples, others: Examples, horizon_ms: int) -> Examples:
    """`rows` at instants that end `horizon_ms` before those of `others`, at their rate of onsets.

    Recordings are kept around faults, so that their own rate says nothing: rows before an onset get as much of the
    weight as there. Where either has no such row, weights stay as they are.
    """
    moved = int(others.at_ms.min() - horizon_ms - 1 - rows.at_ms.max())
    struck = rows.event_ms != NEVER
    onset, known = rows.label(horizon_ms)
    theirs, theirs_known = others.label(horizon_ms)
    weight = rows.weight.copy()
    rate = float(others.weight[theirs].sum() / others.weight[theirs_known].sum())
    here, quiet = float(weight[onset].sum()), float(weight[known & ~onset].sum())
    if rate > 0 and here > 0:
        weight[onset] *= rate / (1 - rate) * quiet / here
    return replace(
        rows,
        at_ms=rows.at_ms + moved,
        seen_ms=rows.seen_ms + moved,
        until_ms=rows.until_ms + moved,
        event_ms=np.where(struck, rows.event_ms + moved, NEVER),
        weight=weight,
    )


def joined(parts: Sequence[Examples]) -> Examples:
    """Rows of several fleets as one, by instant. Features must agree; sequences are dropped where they are not alike.

    Raises InputError where the features differ.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.names != first.names:
            raise InputError("features", len(part.names), "not those of the other parts", "use one plan for all")
    devices = tuple(f"{place}:{name}" for place, part in enumerate(parts) for name in part.devices)
    groups = tuple(f"{place}:{name}" for place, part in enumerate(parts) for name in part.groups)
    of_device = np.cumsum([0, *(len(part.devices) for part in parts)])
    of_group = np.cumsum([0, *(len(part.groups) for part in parts)])
    moved = [
        replace(part, device=part.device + np.int32(of_device[place]), group=part.group + np.int32(of_group[place]))
        for place, part in enumerate(parts)
    ]
    arrays = {
        one.name: np.concatenate([getattr(part, one.name) for part in moved])
        for one in fields(first)
        if isinstance(getattr(first, one.name), np.ndarray)
    }
    whole = Examples(devices=devices, groups=groups, names=first.names, sequences=_sequences(parts), **arrays)
    return whole.take(np.argsort(whole.at_ms, kind="stable"))


def _sequences(parts: Sequence[Examples]) -> HeldSequences | None:
    """Those of all parts in memory; None where they are not alike."""
    held = [part.sequences for part in parts]
    shapes = {(one.channels, one.steps) for one in held if one is not None}
    if None in held or len(shapes) != 1:
        return None
    ((channels, _),) = shapes
    taken = [one.take(np.arange(len(part))) for one, part in zip(held, parts, strict=True) if one is not None]
    return HeldSequences(channels, np.concatenate(taken))
