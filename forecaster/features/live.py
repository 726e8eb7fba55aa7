"""The rows that a scorer answers on, at the present instant of a builder."""

from __future__ import annotations

import numpy as np

from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin.forecaster.features.walk import groups_of, host_of


def examples_now(builder: FeatureBuilder, now_ms: int) -> Examples:
    """A row for each GPU that has been read, by number; nothing is known of what comes.

    The same instants, features and sequences as a walk gives. Raises InputError where something later has been fed.
    """
    table = builder.table(now_ms)
    rows = np.flatnonzero(table.history_ms >= 0)
    groups, group = groups_of(builder.parts.roster.gpus, host_of)
    unknown = np.full(rows.size, now_ms, np.int64)
    return Examples(
        table.gpus,
        rows.astype(np.int32),
        groups,
        group[rows],
        unknown,
        table.names,
        table.values[rows],
        table.seen_ms[rows],
        table.history_ms[rows],
        np.full(rows.size, NEVER, np.int64),
        unknown.copy(),
        np.full(rows.size, "", dtype="<U16"),
        np.ones(rows.size),
        HeldSequences(builder.plan.sequence, builder.sequences(now_ms)[rows]),
    )
