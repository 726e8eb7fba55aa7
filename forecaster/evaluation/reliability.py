"""Whether a stated probability is the frequency that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.evaluation.bootstrap import Clusters, ratio
from tocsin.forecaster.evaluation.result import Curve, ReportTable
from tocsin.forecaster.features.examples import Floats, Mask

EDGES = (0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bins of probability (own choice): the usual tenths, the lowest cut finer since failures are rare. Finer bins never
lower the calibration error."""


def is_probability(score: Floats) -> bool:
    """Whether every score that is there lies in 0 to 1."""
    known = score[~np.isnan(score)]
    return bool(known.size and known.min() >= 0.0 and known.max() <= 1.0)


def bin_of(probability: float) -> int:
    """Index into `EDGES` of the bin that holds one probability."""
    return int(_bin(np.asarray([probability]))[0])


def _bin(probability: Floats) -> npt.NDArray[np.intp]:
    inner = np.asarray(EDGES[1:-1])
    return np.asarray(np.searchsorted(inner, probability, "right"), dtype=np.intp)


def calibration_figures(score: Floats, label: Mask, weight: Floats, drawn: Clusters) -> dict[str, Floats]:
    """`brier` (mean squared error of the probability) and `calibration_error` (expected calibration error: mean gap of
    stated probability and frequency over `EDGES`; Naeini et al., AAAI 2015). No score counts as probability 0."""
    probability = np.nan_to_num(score, nan=0.0)
    total = drawn.total(weight)
    gap = np.zeros_like(total)
    index, miss = _bin(probability), weight * (probability - label)
    for one in np.unique(index):
        gap += np.abs(drawn.total(np.where(index == one, miss, 0.0)))
    brier = drawn.total(weight * (probability - label) ** 2)
    return {"brier": ratio(brier, total), "calibration_error": ratio(gap, total)}


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose stated probability lies in `EDGES[index]` to `EDGES[index + 1]`: how many by weight, the mean of what
    was stated, the frequency that was observed, and the positive rows by weight."""

    index: int
    weight: float
    stated: float
    observed: float
    positive: float


def reliability_bins(score: Floats, label: Mask, weight: Floats) -> list[Bin]:
    """Every bin with a row, from the lowest."""
    probability = np.nan_to_num(score, nan=0.0)
    index = _bin(probability)
    found = []
    for one in np.unique(index[weight > 0]):
        inside = index == one
        mass = float(weight[inside].sum())
        positive = float(weight[inside & label].sum())
        stated = float((weight[inside] * probability[inside]).sum()) / mass
        found.append(Bin(int(one), mass, min(stated, 1.0), min(positive / mass, 1.0), positive))
    return found


def reliability_table(model: str, score: Floats, label: Mask, weight: Floats) -> ReportTable:
    """`reliability_bins` as a table of the report."""
    head = ("stated probability", "windows", "mean stated", "observed", "positive windows")
    rows = [
        (f"{EDGES[one.index]:g} to {EDGES[one.index + 1]:g}", one.weight, one.stated, one.observed, one.positive)
        for one in reliability_bins(score, label, weight)
    ]
    return ReportTable(f"Reliability of {model}", head, rows)


def reliability_curve(scores: Mapping[str, Floats], label: Mask, weight: Floats) -> Curve:
    """The same of some models, to draw."""
    bins = {model: reliability_bins(score, label, weight) for model, score in scores.items()}
    lines = {model: ([one.stated for one in found], [one.observed for one in found]) for model, found in bins.items()}
    return Curve("Reliability", "stated probability", "observed frequency", lines, diagonal=True)
