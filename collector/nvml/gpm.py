"""Activity of a GPU's engines from its performance counters (GPM, Hopper and later)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import truediv
from typing import Any

from tocsin.collector.nvml.answers import BLANK_FROM, LASTING, Answers, divisor, quiet_reason, reason_of, usable
from tocsin.collector.nvml.library import Code, Gpm, Nvml, NvmlFailure
from tocsin.domain.reading import Missing

MIN_STEP_MS = 100
"""Two samples must lie farther apart than this (nvml.h, ``nvmlGpmMetricsGet``)."""


class GpmActivity:
    """Keeps the sample of the reading before and asks for all metrics of the time since, in one call.

    `instance` is the id of a MIG instance on the GPU behind `handle`. The first reading has no metrics yet (not due),
    and one that follows too soon has those of the reading before.
    """

    def __init__(
        self, library: Nvml, handle: Any, metrics: Mapping[int, tuple[str, float]], instance: int | None
    ) -> None:
        self._library = library
        self._handle = handle
        self._instance = instance
        self._numbers = tuple(metrics)
        self._keys = tuple(key for key, _ in metrics.values())
        self._divisors = tuple(divisor(scale) for _, scale in metrics.values())
        self._pair: Gpm | None = None
        self._sampled_ms: int | None = None
        self._values: dict[str, float] = {}
        self._unsupported: Missing | None = None
        self.missing: dict[str, Missing] = {}

    def read(self, at_ms: int) -> dict[str, float]:
        """Values by key at `at_ms`, on a scale that nobody sets; `missing` has the reasons of the rest.

        Raises GpuLost and NvmlFailure.
        """
        if self._unsupported is not None:
            return {}
        if self._sampled_ms is not None and 0 <= at_ms - self._sampled_ms <= MIN_STEP_MS:
            return self._values
        self._values, self.missing = {}, {}
        if code := self._sample():
            self._fail(code)
            return self._values
        before, self._sampled_ms = self._sampled_ms, at_ms
        if before is None:
            self._blame(Missing.NOT_DUE)
        else:
            self._ask()
        return self._values

    def close(self) -> None:
        """Give the samples' memory back; the library must still be open."""
        if self._pair is not None:
            self._pair.free()
            self._pair = None
        self._sampled_ms = None

    def _sample(self) -> int:
        try:
            if self._pair is None:
                if not self._library.call("nvmlGpmQueryDeviceSupport", self._handle).isSupportedDevice:
                    return Code.NOT_SUPPORTED
                pair = self._library.gpm(self._handle, self._instance, self._numbers)
                if code := pair.allocate():
                    pair.free()
                    return code
                self._pair = pair
            return self._pair.sample()
        except NvmlFailure as failure:
            return failure.code

    def _fail(self, code: int) -> None:
        self._sampled_ms = None
        reason = reason_of(code)
        if code in LASTING:
            self._unsupported = reason
        self._blame(reason)

    def _ask(self) -> None:
        if (pair := self._pair) is None:
            return
        code, codes, values = pair.metrics()
        if code:
            self._blame(reason_of(code))
            return
        if not any(codes) and usable(values):
            self._values = dict(zip(self._keys, map(truediv, values, self._divisors), strict=True))
            return
        answers = Answers()
        for key, by, code, value in zip(self._keys, self._divisors, codes, values, strict=True):
            if code != Code.SUCCESS:
                answers.fail(key, quiet_reason(code))
            else:
                answers.add(key, value / by if value < BLANK_FROM else None)
        self._values, self.missing = answers.values, answers.missing()

    def _blame(self, reason: Missing) -> None:
        answers = Answers()
        answers.blame(self._keys, reason)
        self.missing = answers.missing()
