"""Everything of one GPU at one instant."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tocsin.domain.clock import MINUTE, to_iso
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import spec_of
from tocsin.domain.missing import Missing
from tocsin.domain.owner import Owner

MAX_FUTURE_MS = 5 * MINUTE
"""How far ahead of the receiver's clock a reading may be dated: skew is tolerated, a wrong clock is not."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One wide row.

    `values` maps a canonical metric name, or a variant ``name{label="v"}``, to a finite float in the metric's unit.
    `missing` maps names to the reason for which there is no value. A name is in one of the two at most.
    `owners` are the processes on the GPU; empty where there is none and where nobody looked.
    """

    gpu: Gpu
    at_ms: int
    values: Mapping[str, float]
    missing: Mapping[str, Missing] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the GPU answered nothing at all: it has fallen off the bus."""
        return not self.values and Missing.LOST in self.missing.values()

    def as_json(self) -> dict[str, object]:
        """The wire form of `tocsin agent --once --json`."""
        return {
            "gpu": self.gpu.uuid,
            "host": self.gpu.host,
            "at": to_iso(self.at_ms),
            "simulated": self.gpu.simulated,
            "values": dict(self.values),
            "missing": {name: reason.label for name, reason in self.missing.items()},
            "owners": [owner.as_json() for owner in self.owners],
        }


def sanitise(reading: Reading) -> tuple[Reading, list[str]]:
    """`reading` without what cannot be used, and one sentence for each value taken out.

    A NaN, an infinity, an unknown metric and a value outside the bounds of the metric table become `Missing.BLANK`
    (an unknown metric is dropped); the other values stay.
    """
    for key, value in reading.values.items():
        low, high = _bounds(key)
        if not low <= value <= high:  # also a NaN
            return _sorted_out(reading)
    return reading, []


@lru_cache(maxsize=16_384)
def _bounds(key: str) -> tuple[float, float]:
    """Bounds of plausible values; nothing lies within those of an unknown metric."""
    spec = spec_of(key)
    return (math.inf, -math.inf) if spec is None else (spec.minimum, min(spec.maximum, sys.float_info.max))


def _sorted_out(reading: Reading) -> tuple[Reading, list[str]]:
    problems: list[str] = []
    values: dict[str, float] = {}
    missing = dict(reading.missing)
    for key, value in reading.values.items():
        spec = spec_of(key)
        if spec is None:
            problems.append(f"{key}: not in the metric table, dropped")
        elif not math.isfinite(value):
            problems.append(f"{key} = {value}: not finite, kept as blank")
            missing[key] = Missing.BLANK
        elif not spec.minimum <= value <= spec.maximum:
            problems.append(f"{key} = {value}: outside {spec.minimum} to {spec.maximum} {spec.unit}, kept as blank")
            missing[key] = Missing.BLANK
        else:
            values[key] = value
    return replace(reading, values=values, missing=missing), problems
