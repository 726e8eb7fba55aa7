"""Whatever a driver writes into a batch of field values, it is decoded in one step as pynvml decodes each entry."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pynvml
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.collector.nvml.answers import Answers, GpuLost
from tocsin.collector.nvml.library import Code, FieldBatch, FieldReplies, Nvml, NvmlFailure
from tocsin.collector.nvml.probes import FIELDS
from tocsin.collector.nvml.tiers import FieldQuery
from tocsin.domain.reading import Reading, sanitise
from tocsin_testing.builders import T0, gpu

MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
CODES = st.one_of(st.just(0), st.sampled_from([*Code]), st.integers(0, 2**31 - 1))
ENTRY = st.tuples(CODES, st.integers(0, 12), st.integers(0, 2**64 - 1), st.integers(0, 10**6))
BATCHES = st.lists(ENTRY, min_size=1, max_size=40)


def asked(entries: list[tuple[int, int, int, int]]) -> FieldReplies:
    def function(_handle: Any, _count: Any, values: Any) -> int:
        for slot, (code, kind, value, latency) in zip(values._obj, entries, strict=True):
            slot.nvmlReturn, slot.valueType, slot.value, slot.latencyUsec = code, kind, value, latency
        return 0

    batch = FieldBatch(function, None, [(1, 0)] * len(entries))
    code, replies = batch()
    assert code == 0
    assert replies is not None
    return replies


def one_by_one(code: int, kind: int, value: int) -> tuple[int, float | None]:
    entry = pynvml.c_nvmlFieldValue_t()
    ctypes.memmove(ctypes.addressof(entry.value), value.to_bytes(8, "little"), 8)
    if code or kind >= len(MEMBERS):
        return code or Code.UNKNOWN, None
    found: float = getattr(entry.value, MEMBERS[kind])
    return 0, found


@given(BATCHES)
def test_a_batch_says_what_its_entries_say(entries: list[tuple[int, int, int, int]]) -> None:
    replies = asked(entries)
    assert replies.latency_us == max(latency for *_, latency in entries)
    for (code, kind, raw, _), told, value in zip(entries, replies.codes, replies.values, strict=True):
        expected, wanted = one_by_one(code, kind, raw)
        assert told == expected
        if wanted is not None:
            assert value == wanted or (math.isnan(value) and math.isnan(wanted))


class Scripted:
    """A library whose batches say what a test wants."""

    def __init__(self, entries: list[tuple[int, int, int, int]]) -> None:
        self._entries = entries

    def batch(self, _handle: Any, wanted: list[tuple[int, int]]) -> Any:
        return lambda: (0, asked((self._entries * len(wanted))[: len(wanted)]))


@given(BATCHES)
@example([(0, 2, 2**53, 0)])
def test_no_answer_of_a_driver_becomes_a_value_that_is_not_finite(entries: list[tuple[int, int, int, int]]) -> None:
    library: Any = Scripted(entries)
    nvml: Nvml = library
    fields = FieldQuery(nvml, None, FIELDS)
    answers = Answers()
    try:
        fields.read(answers)
    except (GpuLost, NvmlFailure):
        return
    clean, _ = sanitise(Reading(gpu(1), T0, answers.values, answers.missing()))
    assert all(math.isfinite(value) for value in clean.values.values())
    # A sentinel is from 2**63 - 16 on as the driver writes it; a value is scaled after that, and sums its fields.
    for key, value in answers.values.items():
        assert value < sum(2**63 * max(1.0, probe.scale) for probe in FIELDS if probe.key == key)
    assert {key.split("{")[0] for key in (*answers.values, *answers.failed)} == {
        probe.key.split("{")[0] for probe in FIELDS
    }, "a value or a reason for each"
