"""Asking one NVML handle for fields and calls, again and again, at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import truediv
from typing import Any, Protocol

from tocsin.collector.nvml.answers import BLANK_FROM, LASTING, Answers, divisor, link_up, reason_of, unpack_ber, usable
from tocsin.collector.nvml.library import Code, FieldReplies, Nvml, NvmlFailure
from tocsin.collector.nvml.probes import CallProbe, FieldProbe
from tocsin.domain.reading import Missing

_SIZE_RETRIES = 3
"""Lists can grow between the two calls in which nvidia-ml-py reads them."""

Bound = Callable[[], tuple[int, Any]]


class FieldQuery:
    """A batch of fields of one handle. Those that this GPU does not have leave the batch for good.

    `dropped` has their reasons by key, `latency_us` the longest answer of the last batch in microseconds, None where
    none came.
    """

    def __init__(self, library: Nvml, handle: Any, probes: Iterable[FieldProbe]) -> None:
        self._library = library
        self._handle = handle
        self._probes: list[FieldProbe] = []
        self._ask: Callable[[], tuple[int, FieldReplies | None]] | None = None
        self._keys: tuple[str, ...] = ()
        self._divisors: tuple[float, ...] = ()
        self._plain = True
        self.dropped: dict[str, Missing] = {}
        self.latency_us: int | None = None
        self._set(list(probes))

    def _set(self, probes: list[FieldProbe]) -> None:
        self._probes = probes
        self._ask = None
        self._keys = tuple(probe.key for probe in probes)
        self._divisors = tuple(divisor(probe.scale) for probe in probes)
        self._plain = len(set(self._keys)) == len(probes) and not any(p.packed or p.state for p in probes)

    def leave_out(self, keys: Iterable[str]) -> None:
        """Ask for `keys` no more, without a reason."""
        unwanted = set(keys)
        self._set([probe for probe in self._probes if probe.key not in unwanted])

    def read(self, answers: Answers) -> None:
        """Ask for all. Raises GpuLost, and NvmlFailure where the library is gone."""
        self.latency_us = None
        if not self._probes:
            return
        try:
            ask = self._ask
            if ask is None:
                wanted = [(probe.field, probe.scope) for probe in self._probes]
                ask = self._ask = self._library.batch(self._handle, wanted)
            code, replies = ask()
        except NvmlFailure as failure:
            code, replies = failure.code, None
        if replies is None:
            self._all_failed(code, answers)
            return
        codes, values, self.latency_us = replies
        if self._plain and not any(codes) and usable(values):
            answers.values.update(zip(self._keys, map(truediv, values, self._divisors), strict=True))
        else:
            self._one_by_one(codes, values, answers)

    def _all_failed(self, code: int, answers: Answers) -> None:
        reason = reason_of(code)
        answers.blame(self._keys, reason)
        if code in LASTING:
            self.dropped.update(dict.fromkeys(self._keys, reason))
            self._set([])

    def _one_by_one(self, codes: Sequence[int], values: Sequence[float], answers: Answers) -> None:
        lasting: set[int] = set()
        summed: dict[str, float] = {}
        broken: set[str] = set()
        for place, (probe, code, value) in enumerate(zip(self._probes, codes, values, strict=True)):
            if code != Code.SUCCESS:
                reason = reason_of(code)
                answers.fail(probe.key, reason)
                if code in LASTING:
                    lasting.add(place)
                    self.dropped[probe.key] = reason
                else:
                    broken.add(probe.key)
            elif not value < BLANK_FROM:
                answers.fail(probe.key, Missing.BLANK)
                broken.add(probe.key)
            elif probe.packed:
                answers.add(probe.key, unpack_ber(value))
            elif probe.state:
                answers.add(probe.key, link_up(value))
            else:
                summed[probe.key] = summed.get(probe.key, 0.0) + value / divisor(probe.scale)
        # A sum that lacks a part would look like a counter that started again.
        answers.values.update((key, value) for key, value in summed.items() if key not in broken)
        if lasting:
            self._set([probe for place, probe in enumerate(self._probes) if place not in lasting])


class _BoundCall:
    """One call, and what makes it once it was made."""

    __slots__ = ("bound", "probe", "single")

    def __init__(self, probe: CallProbe) -> None:
        self.probe = probe
        self.single = len(probe.metrics) == 1
        self.bound: Bound | None = None


class Calls:
    """Calls of one handle, in order; one that this GPU does not have is not made again, its reason is in `dropped`."""

    def __init__(self, library: Nvml, handle: Any, probes: Iterable[CallProbe]) -> None:
        self._library = library
        self._handle = handle
        self._rows = [_BoundCall(probe) for probe in probes]
        self.dropped: dict[str, Missing] = {}

    def read(self, answers: Answers) -> None:
        """Make each call one of whose metrics has no value yet. Raises GpuLost and NvmlFailure."""
        values = answers.values
        lasting: list[_BoundCall] = []
        for row in self._rows:
            metrics = row.probe.metrics
            if metrics[0] in values and (row.single or all(metric in values for metric in metrics)):
                continue
            code, reply = self._asked(row)
            if code:
                reason = reason_of(code)
                wanted = [metric for metric in metrics if metric not in values]
                answers.blame(wanted, reason)
                if code in LASTING:
                    lasting.append(row)
                    self._drop(wanted, reason)
                continue
            try:
                given = row.probe.read(reply)
            except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
                # A driver that answers in another shape must not cost the metrics beside it.
                answers.blame([metric for metric in metrics if metric not in values], Missing.BLANK)
            else:
                _keep(given, answers)
        if lasting:
            self._rows = [row for row in self._rows if row not in lasting]

    def _drop(self, keys: Sequence[str], reason: Missing) -> None:
        for key in keys:
            if self.dropped.get(key, Missing.UNSUPPORTED) is Missing.UNSUPPORTED:
                self.dropped[key] = reason

    def _asked(self, row: _BoundCall) -> tuple[int, Any]:
        bound = row.bound
        if bound is None:
            try:
                bound = self._library.bind(row.probe.function, self._handle, *row.probe.arguments)
            except NvmlFailure as failure:
                return failure.code, None
            row.bound = bound
        return ask(bound)


def ask(bound: Bound) -> tuple[int, Any]:
    """The code and answer of one call; a list that grew while it was read is read again."""
    code, reply = bound()
    for _ in range(_SIZE_RETRIES):
        if code != Code.INSUFFICIENT_SIZE:
            break
        code, reply = bound()
    return code, reply


def _keep(given: Mapping[str, float | None], answers: Answers) -> None:
    values = answers.values
    for key, value in given.items():
        if key not in values:
            if value is not None and value < BLANK_FROM:
                values[key] = float(value)
            else:
                answers.fail(key, Missing.BLANK)


class AnswerPart(Protocol):
    """Something of a handle that takes more than one question to know."""

    def read(self, answers: Answers) -> None:
        """Add to `answers`. Raises GpuLost and NvmlFailure."""
        ...


class Tiered:
    """What is read of one handle at one cadence: fields, calls, then parts; `values` and `missing` are the last."""

    def __init__(
        self,
        library: Nvml,
        handle: Any,
        fields: Iterable[FieldProbe] = (),
        calls: Iterable[CallProbe] = (),
        parts: Sequence[AnswerPart] = (),
    ) -> None:
        self.fields = FieldQuery(library, handle, fields)
        self.calls = Calls(library, handle, calls)
        self._parts = parts
        self._clean = False
        self.values: dict[str, float] = {}
        self.missing: dict[str, Missing] = {}

    def read(self) -> None:
        """Ask for everything once more. Raises GpuLost, and NvmlFailure where the library is gone."""
        answers = Answers()
        self.fields.read(answers)
        self.calls.read(answers)
        for part in self._parts:
            part.read(answers)
        before, self.values = self.values, answers.values
        clean = not answers.failed
        if clean and self._clean and before.keys() == answers.values.keys():
            return
        self._clean = clean
        for dropped in (self.fields.dropped, self.calls.dropped):
            for key, reason in dropped.items():
                answers.fail(key, reason)
        self.missing = answers.missing()
