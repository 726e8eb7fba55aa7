"""The two kinds of orders to throttle a GPU, told apart by their parameters."""

from __future__ import annotations

from collections.abc import Mapping

LIMIT_WATTS = "power_limit_watts"
CLOCK_MHZ = "sm_clock_max_mhz"
LEAD = "lead"
"""Parameters of an order: a power limit in watts, a highest SM clock in MHz, the order whose limit this one follows."""
FIXED = frozenset({LIMIT_WATTS, CLOCK_MHZ})
"""What makes an order a fixed cap; without it heat decides, that of the GPU or of its lead."""
OF = "of"
"""Parameter of a restore: which kind of order it ends, as `kind_of` names it. Without it all are ended."""
HEAT, CAP = "heat", "cap"
LIMIT_SHARE = "limit_share"
"""Share of the default limit that the lead of a job is at; the order queue adds it to the orders that follow."""


def kind_of(parameters: Mapping[str, str]) -> str:
    """`CAP` or `HEAT`: a GPU can be under one order of each kind. A restore has the parameters of what it undoes."""
    return CAP if any(parameters.get(name) for name in FIXED) else HEAT
