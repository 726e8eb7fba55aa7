"""Why a row scores as it does: what the score loses when one thing looked as it does on the rest of the fleet.

Occlusion by groups of features (Zeiler and Fergus 2014), with the fleet's median at the same instant in place of the
row's own values: it works for every scorer, and compares a GPU with its peers by the way. Differences are in log-odds.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.forecaster.features.examples import Examples, Floats, HeldSequences, Ints, Singles
from tocsin.forecaster.hazard.scorer import Scorer

LEAST = 0.1
"""Log-odds below which a reason is none."""
_FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class Reason:
    """`group` adds `weight` to the log-odds of the row; `feature` is the one of the group that stands out most, with
    its `value` and the fleet's median `usual` (NaN where unknown)."""

    group: str
    weight: float
    feature: str
    value: float
    usual: float


def group_of(feature: str) -> str:
    """The channel, or the family, that a feature belongs to: ``pcie_replay.24h`` to ``pcie_replay``."""
    return feature.partition(".")[0]


def reasons(scorer: Scorer, fleet: Examples, rows: Ints, most: int = 3) -> list[list[Reason]]:
    """The strongest reasons for the score at the longest horizon of each of `rows` of `fleet`, strongest first."""
    if not rows.size:
        return []
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(fleet.names):
        groups.setdefault(group_of(name), []).append(column)
    usual = _medians(fleet.features)
    base = _log_odds(scorer.score(fleet.take(rows))[:, -1])
    columns = list(groups.items())
    lost = np.empty((len(columns), rows.size))
    shown, typical = _sequences(fleet, rows)
    for place, (group, members) in enumerate(columns):
        lost[place] = base - _log_odds(
            scorer.score(_without(fleet, rows, group, members, usual, shown, typical))[:, -1]
        )
    spread = _spreads(fleet.features)
    return [
        _strongest(fleet, int(row), lost[:, place], columns, usual, spread, most)
        for place, row in enumerate(rows.tolist())
    ]


def _without(
    fleet: Examples,
    rows: Ints,
    group: str,
    members: Sequence[int],
    usual: Singles,
    shown: Singles | None,
    typical: Singles | None,
) -> Examples:
    """`rows` with `group` as it is on the rest of the fleet."""
    chosen = fleet.take(rows)
    features = chosen.features.copy()
    features[:, members] = usual[list(members)]
    sequences = chosen.sequences
    if shown is not None and typical is not None and fleet.sequences is not None:
        channels = fleet.sequences.channels
        if group in channels:
            shown = shown.copy()
            shown[:, :, channels.index(group)] = typical[:, channels.index(group)]
        sequences = HeldSequences(channels, shown)
    return replace(chosen, features=features, sequences=sequences)


def _sequences(fleet: Examples, rows: Ints) -> tuple[Singles | None, Singles | None]:
    """The rows' sequences, and the fleet's median course float32[steps, channels]."""
    if fleet.sequences is None:
        return None, None
    # A few hundred GPUs give the median course of a fleet of thousands.
    some = np.unique(np.linspace(0, len(fleet) - 1, min(len(fleet), 512)).astype(np.int64))
    return fleet.sequences.take(rows), _medians(fleet.sequences.take(some))


def _medians(values: Singles) -> Singles:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column that nobody has
        return np.asarray(np.nanmedian(values, axis=0), dtype=np.float32)


def _spreads(values: Singles) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spread = np.nanquantile(values.astype(np.float64), 0.95, axis=0) - np.nanquantile(values, 0.05, axis=0)
    return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)


def _log_odds(probability: Floats) -> Floats:
    p = np.clip(probability, _FLOOR, 1 - _FLOOR)
    return np.asarray(np.log(p) - np.log1p(-p))


def _strongest(
    fleet: Examples,
    row: int,
    lost: Floats,
    columns: Sequence[tuple[str, list[int]]],
    usual: Singles,
    spread: Floats,
    most: int,
) -> list[Reason]:
    found = []
    for place in np.argsort(-np.nan_to_num(lost, nan=0.0), kind="stable")[:most].tolist():
        if not lost[place] >= LEAST:
            break
        group, members = columns[place]
        values = fleet.features[row, members].astype(np.float64)
        away = np.abs(np.nan_to_num(values - usual[members])) / spread[members]
        out = members[int(away.argmax())]
        found.append(
            Reason(group, float(lost[place]), fleet.names[out], float(fleet.features[row, out]), float(usual[out]))
        )
    return found
