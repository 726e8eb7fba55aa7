"""Two parts of the past: one to learn from, and a later one that shows how right that was."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import to_iso
from tocsin.forecaster.features.examples import Examples, Mask
from tocsin.forecaster.hazard.rows import settled
from tocsin.forecaster.hazard.scorer import NotEnoughData


def later_slice(
    examples: Examples, horizon_ms: int, share: float, *, disjoint: bool = False, seed: int = 0
) -> tuple[Mask, Mask]:
    """Rows of the early and of the later part: bool[n] each.

    The cut is where `share` of the different onsets is still to come. An early row's horizon ends before the cut, so
    that its label was known there; rows between are in neither. With `disjoint` the later part has a `share` of the
    devices, spread by chance, and the early part the others. Raises NotEnoughData without any onset.
    """
    onset, known = settled(examples, horizon_ms)
    rows = np.flatnonzero(onset)
    if rows.size == 0:
        raise NotEnoughData(f"no onset in {len(examples)} rows, so no later slice can be cut")
    pairs = np.stack([examples.event_ms[rows], examples.device[rows].astype(np.int64)], axis=1)
    events = np.unique(pairs, axis=0)[:, 0]
    cut_ms = int(events[min(int(events.size * (1 - share)), events.size - 1)])
    early = known & (examples.at_ms + horizon_ms <= cut_ms)
    later = known & (examples.at_ms >= cut_ms)
    if disjoint:
        chosen = np.random.default_rng(seed).random(len(examples.devices)) < share
        early, later = early & ~chosen[examples.device], later & chosen[examples.device]
    if not early.any() or not later.any():
        sizes = f"{int(early.sum())} rows before and {int(later.sum())} after"
        raise NotEnoughData(f"a cut at {to_iso(cut_ms)} leaves {sizes}, some of each are needed")
    return early, later
