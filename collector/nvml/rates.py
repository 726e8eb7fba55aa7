"""Rates made of counters that grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tocsin.collector.nvml.decode import metric_of
from tocsin.collector.nvml.probes import RATES
from tocsin.domain.clock import SECOND
from tocsin.domain.missing import Missing


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters behind the rates, as last read at `at_ms` on a scale that nobody sets."""

    at_ms: int
    sums: Mapping[str, float]


class Rates:
    """Keeps the counters of the reading before. `by_link` are keys of counters that come link by link."""

    def __init__(self, by_link: Iterable[str], before: Counters | None) -> None:
        self.last = before
        keys = tuple(by_link)
        names = dict.fromkeys(name for counters in RATES.values() for name in counters)
        self._parts = {name: tuple(key for key in keys if metric_of(key) == name) for name in names}

    def read(self, values: dict[str, float], at_ms: int, reasons: Mapping[str, Missing]) -> dict[str, Missing]:
        """Put the rates of the counters in `values` beside them; gives the reasons of those that cannot be told.

        `reasons` are those of the counters. A rate that is there already, measured in another way, stays where the
        counters do not tell.
        """
        sums = self._sums(values)
        before, self.last = self.last, Counters(at_ms, sums)
        failed: dict[str, Missing] = {}
        for rate, counters in RATES.items():
            lacking = [name for name in counters if name not in sums]
            if lacking:
                failed[rate] = reasons.get(lacking[0], Missing.UNSUPPORTED)
            elif before is None or at_ms <= before.at_ms or any(name not in before.sums for name in counters):
                failed[rate] = Missing.NOT_DUE
            else:
                grown = sum(sums[name] - before.sums[name] for name in counters)
                # A counter that shrank wrapped or started again: no rate can be told for this step.
                if grown < 0:
                    failed[rate] = Missing.BLANK
                else:
                    values[rate] = grown * SECOND / (at_ms - before.at_ms)
        return {rate: reason for rate, reason in failed.items() if rate not in values}

    def _sums(self, values: Mapping[str, float]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for name, keys in self._parts.items():
            if name in values:
                sums[name] = values[name]
            elif keys and all(key in values for key in keys):
                sums[name] = sum(values[key] for key in keys)
        return sums
