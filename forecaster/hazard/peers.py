"""How far a device is from its peers at the same instant.

After Minder (Deng et al., NSDI 2025): machines that do the same work look alike, metric by metric, so that the one that
differs is the faulty one. Here a metric's residual is compared with the median of the peers in units of their own
spread, which one or two strange peers do not move.
"""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.features.examples import Codes, Floats, Ints, Mask

LEAST_PEERS = 4
"""A company of fewer, the device itself among them, tells nothing: own choice."""
FLOOR = 0.5
"""The least spread of peers, in spreads of quiet rows."""
FAR = 10.0


def companies(group: Codes, at_ms: Ints) -> Ints:
    """int64[n]: rows of one group at one instant have the same number."""
    _, company = np.unique(np.stack([group.astype(np.int64), at_ms], axis=1), axis=0, return_inverse=True)
    return np.asarray(company.ravel(), np.int64)


def apart(values: Floats, company: Ints) -> tuple[Floats, Mask]:
    """float64[n, m]: distance of each of `values` float64[n, m] from the median of its company, in spreads of that
    company, NaN where the value is; and bool[n]: whether the company is large enough to tell."""
    made = np.full(values.shape, np.nan)
    told = np.zeros(len(values), np.bool_)
    order = np.argsort(company, kind="stable")
    starts = np.flatnonzero(np.diff(company[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if rows.size < LEAST_PEERS:
            continue
        here = values[rows]
        centre = _median(here)
        away = here - centre
        spread = np.maximum(1.4826 * _median(np.abs(away)), FLOOR)
        made[rows], told[rows] = np.clip(away / spread, -FAR, FAR), True
    return made, told


def _median(values: Floats) -> Floats:
    """Median of each column without NaN; 0 where there is nothing."""
    count = (~np.isnan(values)).sum(axis=0)
    ordered = np.sort(values, axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.maximum(count - 1, 0) // 2, columns]
    high = ordered[np.minimum(count // 2, len(values) - 1), columns]
    return np.where(count > 0, (low + high) / 2, 0.0)
