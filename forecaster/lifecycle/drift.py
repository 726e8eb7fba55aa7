"""Whether the world is still the one that a model learned from: shift of features, calibration, silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from tocsin.domain.errors import InputError
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.features.examples import Examples, Floats, Singles
from tocsin.forecaster.features.onsets import Onset

BINS = 10
SHIFTED = 0.25
"""Population stability index from which on a feature counts as shifted (Siddiqi 2006: 0.25 is a major shift)."""
ALARM_SHARE = 0.2
"""Share of shifted features from which on the model is told to be out of its world (own choice)."""
LEAST_GPUS = 50
"""Fewer GPUs make the index chance: with ten bins its mean under no shift is about 9 / n."""
_LEAST = 1e-4


@dataclass(frozen=True, slots=True)
class FeatureReference:
    """How features were spread in training: `edges` float64[f, BINS - 1], `share` float64[f, BINS + 1], the last column
    for missing values. `least_history_ms` is the shortest past of any row there: of a GPU with a shorter one, features
    of long windows must differ."""

    names: tuple[str, ...]
    edges: Floats
    share: Floats
    least_history_ms: int = 0

    @classmethod
    def of(cls, examples: Examples) -> FeatureReference:
        levels = np.linspace(0, 1, BINS + 1)[1:-1]
        edges = np.zeros((len(examples.names), BINS - 1))
        share = np.zeros((len(examples.names), BINS + 1))
        for column in range(len(examples.names)):
            values = examples.features[:, column].astype(np.float64)
            known = values[np.isfinite(values)]
            if known.size:
                edges[column] = np.quantile(known, levels)
            share[column] = _shares(values, edges[column])
        return cls(examples.names, edges, share, int(examples.history_ms.min()) if len(examples) else 0)

    def shift(self, names: Sequence[str], values: Singles) -> dict[str, float]:
        """Population stability index of each feature of `values` float32[n, f] against training; features by name."""
        place = {name: column for column, name in enumerate(names)}
        return {
            name: _index(share, _shares(values[:, place[name]].astype(np.float64), edges))
            for name, share, edges in zip(self.names, self.share, self.edges, strict=True)
            if name in place
        }

    def save(self, path: Path) -> None:
        words = {"names": "\n".join(self.names), "least_history_ms": str(self.least_history_ms)}
        save_file({"edges": self.edges, "share": self.share}, path, words)

    @classmethod
    def load(cls, path: Path) -> FeatureReference:
        """Inverse of `save`. Raises InputError for a file that is none."""
        try:
            arrays = load_file(path)
            with safe_open(path, framework="np") as file:
                words = file.metadata() or {}
            names, least_ms = tuple(words["names"].split("\n")), int(words["least_history_ms"])
            return cls(names, arrays["edges"], arrays["share"], least_ms)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError("reference", str(path), f"not a reference: {error!r}", "train the model anew") from error


def _shares(values: Floats, edges: Floats) -> Floats:
    known = values[np.isfinite(values)]
    counts = np.bincount(np.searchsorted(edges, known, side="left"), minlength=BINS).astype(np.float64)
    whole = np.append(counts, values.size - known.size)
    return np.asarray(whole / max(values.size, 1))


def _index(before: Floats, now: Floats) -> float:
    """Sum of (now - before) ln(now / before), shares below 1e-4 counted as such."""
    a, b = np.maximum(before, _LEAST), np.maximum(now, _LEAST)
    return float(((b - a) * np.log(b / a)).sum())


@dataclass(frozen=True, slots=True)
class Shift:
    """`share` of the features have shifted; `worst` are the most shifted with their index."""

    share: float
    worst: tuple[tuple[str, float], ...]
    gpus: int

    @property
    def alarm(self) -> bool:
        return self.gpus >= LEAST_GPUS and self.share >= ALARM_SHARE


def feature_shift(reference: FeatureReference, now: Examples) -> Shift:
    """How far the features of `now` have moved from training, over the GPUs with as long a past as those there."""
    now = now.take(now.history_ms >= reference.least_history_ms)
    found = reference.shift(now.names, now.features)
    ranked = sorted(found.items(), key=lambda item: -item[1])
    shifted = sum(value >= SHIFTED for value in found.values())
    return Shift(shifted / max(len(found), 1), tuple(ranked[:3]), len(now))


@dataclass(frozen=True, slots=True)
class Matured:
    """Predictions whose horizon has passed: `expected` onsets by their probabilities, `happened` ones, among
    `predictions`."""

    predictions: int
    expected: float
    happened: int

    @property
    def error(self) -> float | None:
        """Absolute difference of stated and observed rate; None without predictions."""
        return abs(self.expected - self.happened) / self.predictions if self.predictions else None


class Maturing:
    """What was said of each device until it is over, one statement per horizon: overlapping ones repeat each other."""

    def __init__(self) -> None:
        self._said: dict[str, list[tuple[int, int, float]]] = defaultdict(list)

    def take(self, predictions: Iterable[Prediction]) -> None:
        """Take in what was said, in any order among each other but not older than what was taken before."""
        for one in sorted(predictions, key=lambda p: p.at_ms):
            settled = one.status in (PredictionStatus.LIKELY, PredictionStatus.UNLIKELY)
            if one.probability is None or not settled:
                continue
            mine = self._said[one.subject.name]
            if not mine or one.at_ms >= mine[-1][1]:
                mine.append((one.at_ms, one.at_ms + one.horizon_ms, one.probability))

    def forget(self, before_ms: int) -> None:
        """Drop what was said before `before_ms`."""
        left = {device: [one for one in mine if one[0] >= before_ms] for device, mine in self._said.items()}
        self._said = defaultdict(list, {device: mine for device, mine in left.items() if mine})

    def matured(self, onsets: Sequence[Onset], now_ms: int) -> Matured:
        """What is over by `now_ms`, and what came of it."""
        by_device: dict[str, list[int]] = defaultdict(list)
        for onset in onsets:
            by_device[onset.device].append(onset.at_ms)
        count, expected, happened = 0, 0.0, 0
        for device, mine in self._said.items():
            for start_ms, end_ms, probability in mine:
                if end_ms <= now_ms:
                    count += 1
                    expected += probability
                    happened += any(start_ms < at_ms <= end_ms for at_ms in by_device[device])
        return Matured(count, expected, happened)


def silent(predictions: Sequence[Prediction]) -> int:
    """GPUs that the model can say nothing of."""
    return sum(one.status is PredictionStatus.NOT_ENOUGH_DATA for one in predictions)
