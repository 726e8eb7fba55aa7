"""Medians of GPUs that are alike, and whose values count in them: for the rule of peers and for features.

What must hold: what one host's agent says moves nothing about another host by values that cannot be. One such value and
the whole host is left out: who makes up one makes up others that look sound.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.rules.table import Bools, Floats, Ints


def sound(levels: Iterable[tuple[Floats, Floats]], hosts: Ints) -> Bools:
    """Which rows count among the peers of others, shape (n,): those of a host without an impossible value.

    `levels` are the values of a metric and the highest that each row's model can show, both of shape (n,) and NaN where
    nothing was said or is known; `hosts` are numbers, negative where the host is not known.
    """
    beyond = np.zeros(hosts.size, dtype=np.bool_)
    for values, highest in levels:
        beyond |= (values > highest) | (~np.isnan(highest) & (values < 0))
    return np.asarray(~(beyond | ((hosts >= 0) & np.isin(hosts, hosts[beyond]))), dtype=np.bool_)


def group_medians(values: Floats, groups: Ints, counted: Bools) -> tuple[Floats, Ints]:
    """Median and size of what is `counted` of each value's group, all of shape (n,); groups are numbered from 0. The
    median is NaN where nothing counts."""
    median = np.full(int(groups.max(initial=-1)) + 1, np.nan)
    size = np.bincount(groups[counted], minlength=median.size)
    ordered = values[counted][np.lexsort((values[counted], groups[counted]))]
    some = size > 0
    start, count = (np.cumsum(size) - size)[some], size[some]
    median[some] = 0.5 * (ordered[start + (count - 1) // 2] + ordered[start + count // 2])
    return median[groups], size[groups]
