"""The risk of a hardware fault for every GPU, at every turn: features, score, reasons, past cases, a sentence."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.at_rest import blob
from tocsin.domain.atomic_file import atomic_file
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Evidence, Subject, SubjectKind, evidence_of
from tocsin.domain.phrase import Phrase, in_chinese, say, word_in_chinese
from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_DRIFT, MODEL_GATE, Prediction, PredictionStatus
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.builder import FeatureBuilder, restore, save
from tocsin.forecaster.features.examples import Examples, Floats, Ints
from tocsin.forecaster.features.feed import StoreFeed
from tocsin.forecaster.features.heat import slowed_at
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import examples_now
from tocsin.forecaster.hazard.scorer import short_history
from tocsin.forecaster.hazard.scorer_calibrated import Calibrated
from tocsin.forecaster.lifecycle.cases import Likeness
from tocsin.forecaster.lifecycle.drift import ALARM_SHARE, LEAST_GPUS, Shift, feature_shift
from tocsin.forecaster.lifecycle.gate import LEARNING, LEARNING_ZH, SIMULATED_ALONE, SIMULATED_ALONE_ZH, ModelGate
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry, ModelVersion
from tocsin.forecaster.live.mended import mended
from tocsin.forecaster.live.reasons import (
    UNLIKELY,
    Reason,
    likely_sentence,
    reasons,
    since_repair,
    unlikely_sentence,
    unwarned_sentence,
    why,
)
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.forecaster.live.unforeseen import beside
from tocsin.forecaster.trend.statements import where
from tocsin.store.factory import open_store
from tocsin.store.port import Store

EXPLAINED = 50
"""Rows that are explained in one turn, the riskiest first: a burst must not hold up the scores."""


Split = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class RiskWarning:
    """What is said of one GPU above the level."""

    reasons: tuple[Reason, ...] = ()
    likeness: Likeness | None = None


SLOWED = "hardware slowed it for heat, so that its past is one of a fault that is there"
"""Why nothing is said of such a GPU."""
Score = Callable[[ModelVersion, Examples], Floats]
"""Where the rows are scored: what `version.scorer.score` answers."""


def score_here(version: ModelVersion, rows: Examples) -> Floats:
    """In this process."""
    return version.scorer.score(rows)


class RiskModel:
    """A model of the registry over a fleet's features.

    `alarm_share` is the share of quiet rows of the calibration slice that may score above the level (conformal); a
    model without calibration never warns, for it has no level. The level is no less than `least`: where faults are rare
    nearly all quiet GPUs are below a few percent, and a warning of so little is wrong nearly always.
    """

    def __init__(self, version: ModelVersion, alarm_share: float = 0.001, least: float = 0.0) -> None:
        self._version = version
        self.card = version.card
        self.gate = version.gate
        self._scorer = version.scorer
        self.horizons_ms = version.scorer.horizons_ms
        self.level = max(alarm_level(version, alarm_share), least)

    def predict(
        self,
        builder: FeatureBuilder,
        seen: SeenGpus,
        now_ms: int,
        score: Score = score_here,
    ) -> list[Prediction]:
        """A prediction for each of the GPUs `seen` that the builder knows, in that order, then one on the drift of the
        fleet. MIG instances share their GPU's. What a GPU showed before it was repaired is no sign, and a fault that is
        there is not foretold."""
        gpus, repaired = seen.gpus, seen.repaired
        known = examples_now(builder, now_ms)
        place = {known.devices[device]: row for row, device in enumerate(known.device.tolist())}
        asked = [gpu for gpu in gpus if gpu.uuid in place and not gpu.is_mig]
        # Not those that the builder still knows and that have left: what is usual is so among the others.
        read = known.take(np.array([place[gpu.uuid] for gpu in asked], dtype=np.int64))
        fleet, changed = mended(read, repaired, builder.plan)
        scores = score(self._version, fleet)
        told = self._told_of_repair(read, changed, score)
        warned = self._explain(fleet, self._above(scores))
        kinds = self._version.kinds
        shares = None if kinds is None else kinds.shares(fleet)
        made = []
        for row, gpu in enumerate(asked):
            if gpu.uuid in seen.slowed:
                made.append(self._silent(gpu, say(SLOWED), now_ms))
                continue
            unforeseen = seen.unforeseen.get((self.card.family, self.card.version, gpu.simulated), 0.0)
            chances = self._chances(scores[row], unforeseen)
            split = () if kinds is None or shares is None else _split(kinds.classes, shares[row], chances[-1])
            own = float(scores[row, -1])
            said = self._say(gpu, fleet, row, chances, split, warned.get(row, own), now_ms)
            said = _beside_the_models(said, own, unforeseen)
            if row in told:
                english, chinese = since_repair((said.sentence, said.sentence_zh), repaired[gpu.uuid])
                said = replace(said, sentence=english, sentence_zh=chinese)
            made.append(said)
        return [*made, *self._drifts(read, now_ms, any(gpu.simulated for gpu in gpus))]

    def _chances(self, scores: Floats, unforeseen: float) -> list[float]:
        """What is stated by horizon: the model's `scores` of a GPU, and what no sign foretells."""
        last = self.horizons_ms[-1]
        return [beside(float(p), unforeseen, ahead / last) for ahead, p in zip(self.horizons_ms, scores, strict=True)]

    def _drifts(self, read: Examples, now_ms: int, simulated: bool) -> list[Prediction]:
        reference = self._version.reference
        shift = None if reference is None else feature_shift(reference, read)
        return [] if shift is None or shift.gpus < LEAST_GPUS else [self._drift(shift, now_ms, simulated)]

    def _drift(self, shift: Shift, now_ms: int, simulated: bool) -> Prediction:
        worst = ", ".join(f"{name} ({index:.2f})" for name, index in shift.worst)
        return Prediction(
            subject=Subject(SubjectKind.FLEET, "fleet"),
            target=MODEL_DRIFT,
            at_ms=now_ms,
            horizon_ms=self.horizons_ms[-1],
            status=PredictionStatus.LIKELY if shift.alarm else PredictionStatus.UNLIKELY,
            model=self.card.family,
            model_version=self.card.version,
            sentence=(
                f"{shift.share:.0%} of the features of {shift.gpus} GPUs have shifted since the training of "
                f"{self.card.version}{', so its scores are not to be trusted' if shift.alarm else ''}; most: {worst}."
            ),
            sentence_zh=(
                f"自模型 {self.card.version} 训练以来，{shift.gpus} 块 GPU 有 {shift.share:.0%} 的特征发生漂移"
                f"{'，其评分不可信' if shift.alarm else ''}；最大：{worst}。"
            ),
            value=shift.share,
            threshold=ALARM_SHARE,
            simulated=simulated,
        )

    def _told_of_repair(self, read: Examples, changed: Ints, score: Score) -> frozenset[int]:
        """Of the rows `changed` those of which the signs of before the repair would still warn."""
        if not changed.size:
            return frozenset()
        return frozenset(changed[self._above(score(self._version, read.take(changed)))].tolist())

    def _above(self, scores: Floats) -> Ints:
        """Rows above the level, the riskiest first."""
        rows = np.flatnonzero(np.nan_to_num(scores[:, -1], nan=-1.0) >= self.level)
        return rows[np.argsort(-scores[rows, -1], kind="stable")]

    def _explain(self, fleet: Examples, rows: Ints) -> dict[int, RiskWarning]:
        warned = {int(row): RiskWarning() for row in rows}
        first = rows[:EXPLAINED]
        if first.size:
            found = reasons(self._scorer, fleet, first)
            cases = self._version.cases
            like = cases.like(fleet.take(first)) if cases is not None else [None] * first.size
            warned |= {int(row): RiskWarning(tuple(r), one) for row, r, one in zip(first, found, like, strict=True)}
        return warned

    def _say(
        self,
        gpu: Gpu,
        fleet: Examples,
        row: int,
        chances: Sequence[float],
        split: Split,
        warned: RiskWarning | float,
        now_ms: int,
    ) -> Prediction:
        """`warned` is the model's own word where that is below the level."""
        if not np.isfinite(chances[-1]):
            needed_ms = self._scorer.min_history_ms
            return self._silent(gpu, short_history(self._scorer.name, int(fleet.history_ms[row]), needed_ms), now_ms)
        chance, ahead = chances[-1], self.horizons_ms[-1]
        made = replace(
            self._blank(gpu, now_ms),
            probability=chance,
            threshold=None if not np.isfinite(self.level) else self.level,
            curve=tuple(zip(self.horizons_ms, chances, strict=True)),
            classes=split,
        )
        if not isinstance(warned, RiskWarning):
            worded = unlikely_sentence if warned < UNLIKELY else unwarned_sentence
            english, chinese = worded(where(gpu), chance, now_ms, ahead)
            return replace(made, sentence=english, sentence_zh=chinese)
        english, chinese = likely_sentence(where(gpu), chance, now_ms, ahead, warned.reasons, split)
        evidence = _evidence(warned, now_ms)
        return replace(made, status=PredictionStatus.LIKELY, sentence=english, sentence_zh=chinese, evidence=evidence)

    def _silent(self, gpu: Gpu, reason: Phrase, now_ms: int) -> Prediction:
        return replace(
            self._blank(gpu, now_ms),
            status=PredictionStatus.NOT_ENOUGH_DATA,
            reason=str(reason),
            reason_zh=in_chinese(reason),
            sentence=f"{where(gpu)}: not enough data for a risk: {reason}.",
            sentence_zh=f"{where(gpu)}：数据不足，无法评估风险（{word_in_chinese(reason)}）。",
        )

    def _blank(self, gpu: Gpu, now_ms: int) -> Prediction:
        return Prediction(
            subject=Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool),
            target=HARDWARE_FAULT,
            at_ms=now_ms,
            horizon_ms=self.horizons_ms[-1],
            status=PredictionStatus.UNLIKELY,
            model=self.card.family,
            model_version=self.card.version,
            sentence="",
            simulated=gpu.simulated,
        )


def _beside_the_models(said: Prediction, raw: float, unforeseen: float) -> Prediction:
    """`said` with the model's own word beside what is stated, and its level where what is stated has it."""
    if not unforeseen or said.probability is None:
        return said
    level = None if said.threshold is None else beside(said.threshold, unforeseen)
    return replace(said, raw=raw, threshold=level)


def _split(classes: Sequence[str], shares: Floats, chance: float) -> Split:
    """The probability by class, the likeliest first; nothing where there is no probability."""
    if not np.isfinite(chance):
        return ()
    order = np.argsort(-shares, kind="stable")
    return tuple((classes[place], float(chance * shares[place])) for place in order)


def _evidence(warned: RiskWarning, now_ms: int) -> tuple[Evidence, ...]:
    told = [(one, *why(one)) for one in warned.reasons]
    pieces = [Evidence(one.feature, english, now_ms, one.weight, chinese) for one, english, chinese in told]
    like = warned.likeness
    if like is not None and like.median_hours is not None:
        # How many of the most similar ones did is no rate: what is kept of the past has more faults in it, and more
        # quiet rows that look like one, than the past had.
        said = say(
            "situations like this one ended in a fault before: {n}, after {hours} h at the median",
            n=like.faults,
            hours=f"{like.median_hours:.0f}",
        )
        pieces.append(evidence_of("past cases", said, now_ms, like.faults))
    return tuple(pieces)


def alarm_level(version: ModelVersion, share: float) -> float:
    """The probability from which on a GPU is warned of; infinite where the model was not calibrated on quiet rows."""
    scorer = version.scorer
    if not isinstance(scorer, Calibrated):
        return float("inf")
    return scorer.quiet_scores(scorer.horizons_ms[-1]).threshold(share)


def _worlds(gpus: Sequence[Gpu]) -> list[bool]:
    """Whether there are real GPUs, and simulated ones."""
    return sorted({gpu.simulated for gpu in gpus})


def _verdict(model: RiskModel | None, now_ms: int, *, simulated: bool) -> Prediction:
    """What the gate says of `model` in one world: whether it is heard there, and why, in one sentence."""
    gate = ModelGate() if model is None else model.gate
    heard = gate.heard(simulated=simulated)
    if heard:
        english, chinese = (SIMULATED_ALONE, SIMULATED_ALONE_ZH) if simulated else ("", "")
    else:
        english, chinese = LEARNING, LEARNING_ZH
    because = "; ".join(gate.because(simulated=simulated)) if model is not None else "no model is in service"
    return Prediction(
        subject=Subject(SubjectKind.FLEET, "simulated fleet" if simulated else "fleet"),
        target=MODEL_GATE,
        at_ms=now_ms,
        horizon_ms=0 if model is None else model.horizons_ms[-1],
        status=PredictionStatus.UNLIKELY if heard else PredictionStatus.NOT_ENOUGH_DATA,
        model="risk" if model is None else model.card.family,
        model_version="" if model is None else model.card.version,
        sentence=english,
        sentence_zh=chinese,
        reason=because,
        simulated=simulated,
    )


# The risk model at work in a process of its own: it reads the store, keeps its features up to date, and answers.

SAVE_MS = HOUR
"""Time between two savings of the features: a service that is killed reads so much again at most."""
_FED = "fed_ms"


class RiskWatch:
    """Answers for the whole fleet. `store` is used where it is given, else the one of the settings is opened.

    The version in service is looked up at every turn, so that a promotion or rollback needs no restart. A version
    speaks only of GPUs for which its gate record says that it may. Of the others, and where none is in service, one
    prediction for the fleet says so.
    """

    def __init__(
        self,
        place: RiskInputs,
        store: Store | None = None,
        plan: FeaturePlan | None = None,
        score: Score = score_here,
    ) -> None:
        self._place = place
        self._score = score
        self._plan = plan or FeaturePlan()
        self._registry = ModelRegistry(place.models)
        self._store = store
        self._model: RiskModel | None = None
        self._version: str | None = None
        self._builder: FeatureBuilder | None = None
        self._feed: StoreFeed | None = None
        self._saved_ms = 0

    def predict(self, seen: SeenGpus, now_ms: int) -> list[Prediction]:
        """The risk of each GPU that is `seen` at `now_ms`; those that are more than their hosts have tell nothing about
        others, and what a GPU showed before it was repaired is no sign. Raises InputError for a damaged model and what
        the store raises."""
        model, gpus = self._current(), seen.gpus
        if model is None:
            return [_verdict(None, now_ms, simulated=world) for world in _worlds(gpus)]
        heard = [gpu for gpu in gpus if model.gate.heard(simulated=gpu.simulated)]
        verdicts = [_verdict(model, now_ms, simulated=world) for world in _worlds(gpus)]
        said = [one for one in verdicts if one.sentence]
        if not heard:
            return said
        builder, feed = self._up_to_date(gpus, now_ms)
        builder.leave_out(seen.surplus)
        feed.until(now_ms)
        if now_ms - self._saved_ms >= SAVE_MS:
            self._save(builder, feed)
            self._saved_ms = now_ms
        asked = replace(seen, gpus=heard, slowed=seen.slowed | slowed_at(self._opened(), now_ms))
        return [*model.predict(builder, asked, now_ms, self._score), *said]

    def _current(self) -> RiskModel | None:
        version = self._registry.in_service
        if version != self._version:
            place = self._place
            opened = None if version is None else self._registry.load(version)
            self._model = None if opened is None else RiskModel(opened, place.alarm_share, place.least)
            self._version = version
        return self._model

    def _up_to_date(self, gpus: Sequence[Gpu], now_ms: int) -> tuple[FeatureBuilder, StoreFeed]:
        if self._builder is None or self._feed is None or self._builder.newest_ms > now_ms:
            # Also where the clock was set back: features of a future that is now to come again are of no use.
            store = self._opened()
            oldest = now_ms - int(min(self._place.warm_days * DAY, max(self._plan.windows_ms)))
            self._builder, from_ms = self._saved(now_ms) or (FeatureBuilder(self._plan, gpus), oldest)
            self._feed = StoreFeed(self._builder, store, max(from_ms, oldest), latest=store.latest)
            self._saved_ms = now_ms
        self._builder.know(gpus)
        return self._builder, self._feed

    def _opened(self) -> Store:
        if self._store is None:
            self._store = open_store(self._place.store)
        return self._store

    # ------------------------------------------------------------------ between two starts

    def _saved(self, now_ms: int) -> tuple[FeatureBuilder, int] | None:
        """What was saved, and up to where it had read; None where nothing usable is there."""
        path = self._place.state
        if path is None or not path.exists():
            return None
        try:
            # Array by array: all of them at once are as much again as the builder has.
            with blob.read(path) as file, np.load(file, allow_pickle=False) as state:
                fed_ms = int(state[_FED])
                builder = restore(self._plan, state)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, InputError, blob.Unreadable):
            return None  # the past is in the store: a state that cannot be used costs only the time to read it
        return (builder, fed_ms) if builder.newest_ms <= now_ms else None

    def _save(self, builder: FeatureBuilder, feed: StoreFeed) -> None:
        path = self._place.state
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(OSError),
            atomic_file(path, 0o600) as file,
        ):  # a full disk costs a slower start, no prediction
            state = {**save(builder), _FED: np.array(feed.fed_ms)}
            blob.write(file, lambda to: np.savez(to, allow_pickle=False, **state))
