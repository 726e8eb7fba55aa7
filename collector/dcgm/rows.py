"""One GPU's values as DCGM gave them at one instant, on the way to a reading; shared by all readers of DCGM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.collector.dcgm.fields import Field
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.missing import Missing
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading

XID = "gpu_xid_last_code"
USED_RATIO = "gpu_memory_used_ratio"
_USED, _FREE = "gpu_memory_used_bytes", "gpu_memory_free_bytes"


@dataclass(slots=True)
class Row:
    """Grows by `add`. A value outlives a blank of the same name: shared GPUs have a line for each that uses them."""

    gpu: Gpu
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    owners: set[Owner] = field(default_factory=set)

    def add(self, which: Field, key: str, raw: float, blank: Missing | None) -> bool:
        """Take one raw value, or the reason for having none; whether it was a plausible value or an honest blank."""
        if blank is not None:
            self.missing[key] = blank
            return True
        value = which.scaled(raw)
        spec = which.spec
        if spec.minimum <= value <= spec.maximum:
            if not which.second or key not in self.values:
                self.values[key] = value
            return True
        self.missing[key] = Missing.BLANK
        return False

    @property
    def latched_xid(self) -> int | None:
        """The last XID's code; None where the source has none."""
        code = self.values.get(XID)
        return None if code is None else int(code)

    def reading(self, at_ms: int, expected: Mapping[str, object]) -> Reading:
        """The reading; what is `expected` and has not come is blank. Used over used plus free is added where the
        source has no ratio."""
        values = self.values
        if USED_RATIO not in values and _USED in values and _FREE in values:
            total = values[_USED] + values[_FREE]
            if total > 0:
                values[USED_RATIO] = values[_USED] / total
        missing = {key: reason for key, reason in self.missing.items() if key not in values}
        for key in expected:
            if key not in values and key not in missing:
                missing[key] = Missing.BLANK
        return Reading(self.gpu, at_ms, values, missing, tuple(sorted(self.owners)))


def counters(values: Mapping[str, float]) -> dict[str, float]:
    """Those of `values` that only grow."""
    return {key: value for key, value in values.items() if _is_counter(key)}


_COUNTERS: dict[str, bool] = {}


def _is_counter(key: str) -> bool:
    known = _COUNTERS.get(key)
    if known is None:
        spec = spec_of(key)
        known = _COUNTERS[key] = spec is not None and spec.kind is MetricKind.COUNTER
    return known


def absent(gpu: Gpu, at_ms: int, expected: Mapping[str, object], reason: Missing) -> Reading:
    """A reading without any value, for the one `reason`."""
    return Reading(gpu, at_ms, {}, dict.fromkeys(expected, reason))
