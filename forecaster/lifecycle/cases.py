"""Past situations like the present one, and what came of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Singles
from tocsin.forecaster.hazard.rows import aligned

MOST_FAULTS, MOST_QUIET, MOST_FEATURES = 500, 1_500, 64
NEIGHBOURS = 10
CLIP = 5.0
"""Robust deviations beyond which a feature is just "far out"."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """What came of the `of` most similar past situations: `faults` were followed by a fault within the horizon, each by
    another one, after `median_hours` at the median; `classes` says of which class, most frequent first."""

    of: int
    faults: int
    median_hours: float | None
    classes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """Rows of a past: `z` float32[n, f] are features in robust deviations times their weight, `centre`, `scale` and
    `weight` float64[f]; `hours` float64[n] until the onset, NaN where none came within the horizon; `kind` its class;
    `which` int64[n] tells situations before the same onset, or of the same quiet device, from others.
    """

    names: tuple[str, ...]
    centre: Floats
    scale: Floats
    weight: Floats
    z: Singles
    hours: Floats
    kind: npt.NDArray[np.str_]
    which: Ints

    @classmethod
    def of(cls, examples: Examples, score: Floats, horizon_ms: int, seed: int = 0) -> CaseRecord:
        """From rows of known label: situations before a fault, and the quiet ones that `score` (float64[n]) took most
        for such, with as many again drawn evenly.

        A feature counts by how well it alone tells the two apart (twice its ROC-AUC less one); the `MOST_FEATURES` that
        do so best are kept.
        """
        onset, known = examples.label(horizon_ms)
        rng = np.random.default_rng(seed)
        before = np.flatnonzero(onset & known)
        before = np.sort(rng.permutation(before)[:MOST_FAULTS])
        quiet = np.flatnonzero(~onset & known)
        hard = quiet[np.argsort(-np.nan_to_num(score[quiet], nan=-1.0), kind="stable")][: MOST_QUIET // 2]
        even = rng.permutation(np.setdiff1d(quiet, hard))[: MOST_QUIET - hard.size]
        rows = np.concatenate([before, hard, even])
        values = examples.features[rows].astype(np.float64)
        base = examples.features[np.concatenate([even, hard])].astype(np.float64)
        centre, scale = _middle(base)
        weight = _telling(values, np.arange(rows.size) < before.size)
        chosen = np.sort(np.argsort(-weight, kind="stable")[:MOST_FEATURES])
        values, centre, scale, weight = values[:, chosen], centre[chosen], scale[chosen], weight[chosen]
        hours = np.full(rows.size, np.nan)
        hours[: before.size] = (examples.event_ms[before] - examples.at_ms[before]) / HOUR
        kind = np.where(np.isfinite(hours), examples.event_class[rows], "")
        names = tuple(examples.names[column] for column in chosen)
        same = np.stack((examples.device[rows], np.where(np.isfinite(hours), examples.event_ms[rows], -1)), axis=1)
        which = np.unique(same, axis=0, return_inverse=True)[1].astype(np.int64)
        return cls(names, centre, scale, weight, _deviations(values, centre, scale, weight), hours, kind, which)

    def like(self, examples: Examples, neighbours: int = NEIGHBOURS) -> list[Likeness]:
        """What came of the situations most like each row; features are found by name. Of situations before one onset,
        or of one quiet device, the most similar alone counts: the others are near copies of it."""
        z = _deviations(aligned(examples, self.names).astype(np.float64), self.centre, self.scale, self.weight)
        return [self._likeness(row, neighbours) for row in z]

    def _likeness(self, row: Singles, neighbours: int) -> Likeness:
        distance = ((self.z - row) ** 2).sum(axis=1)
        ranked_by_distance = np.argsort(distance, kind="stable")
        first = np.unique(self.which[ranked_by_distance], return_index=True)[1]
        nearest = ranked_by_distance[np.sort(first)][:neighbours]
        hours = self.hours[nearest]
        followed = np.isfinite(hours)
        classes = Counter(self.kind[nearest][followed].tolist())
        ranked = tuple(sorted(classes.items(), key=lambda item: (-item[1], item[0])))
        median = float(np.median(hours[followed])) if followed.any() else None
        return Likeness(int(nearest.size), int(followed.sum()), median, ranked)

    def save(self, path: Path) -> None:
        arrays = {"centre": self.centre, "scale": self.scale, "weight": self.weight, "z": self.z}
        arrays |= {"hours": self.hours, "which": self.which}
        words = {"names": "\n".join(self.names), "kind": "\n".join(self.kind.tolist())}
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path, words)

    @classmethod
    def load(cls, path: Path) -> CaseRecord:
        """Inverse of `save`. Raises InputError for a file that is none."""
        try:
            arrays = load_file(path)
            with safe_open(path, framework="np") as file:
                words = file.metadata() or {}
            names, kind = tuple(words["names"].split("\n")), np.array(words["kind"].split("\n"), dtype=np.str_)
            centre, scale, weight, hours = (arrays[one] for one in ("centre", "scale", "weight", "hours"))
            made = cls(names, centre, scale, weight, arrays["z"], hours, kind, arrays["which"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError("cases", str(path), f"not a record of cases: {error!r}", "train the model anew") from error
        if made.z.shape != (made.kind.size, len(made.names)):
            raise InputError("cases", str(path), "its parts do not fit together", "train the model anew")
        return made


def _middle(values: Floats) -> tuple[Floats, Floats]:
    """Median and a robust width of each column; the width of one that hardly moves is 1."""
    known = np.isfinite(values).any(axis=0)
    centre, scale = np.zeros(values.shape[1]), np.ones(values.shape[1])
    low, mid, high = np.nanquantile(values[:, known], [0.05, 0.5, 0.95], axis=0)
    centre[known] = mid
    # 1.645 standard deviations to each side hold 90 % of a normal distribution.
    scale[known] = np.where(high > low, (high - low) / 3.29, 1.0)
    return centre, scale


def _telling(values: Floats, fault: npt.NDArray[np.bool_]) -> Floats:
    """How well each column alone tells faults from the rest, 0 to 1: |2 AUC - 1| by mean ranks."""
    from scipy.stats import rankdata

    filled = np.where(np.isfinite(values), values, np.nanmin(np.where(np.isfinite(values), values, 0.0)) - 1.0)
    ranks = rankdata(filled, axis=0)
    some, rest = int(fault.sum()), int((~fault).sum())
    if not some or not rest:
        return np.ones(values.shape[1])
    auc = (ranks[fault].sum(axis=0) - some * (some + 1) / 2) / (some * rest)
    return np.asarray(np.abs(2 * auc - 1))


def _deviations(values: Floats, centre: Floats, scale: Floats, weight: Floats) -> Singles:
    z = np.clip((values - centre) / scale, -CLIP, CLIP) * weight
    return np.nan_to_num(z).astype(np.float32)
