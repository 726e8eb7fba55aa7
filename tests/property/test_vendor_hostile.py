"""Whatever AMD's library or npu-smi answers: a look at the cards ends, raises nothing and costs a bounded number of
values, cards and events."""

from __future__ import annotations

import math
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.collector.amdsmi.library import (
    MOST_CARDS,
    MOST_EVENTS,
    MOST_RECORDS,
    AmdFailure,
    AmdSmiLibrary,
)
from tocsin.collector.amdsmi.source import AmdSmiSource
from tocsin.collector.npu_smi.source import NpuSmiSource
from tocsin.collector.npu_smi.text import MOST_CHIPS
from tocsin.collector.source import NodeIdentity
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.reading import sanitise
from tocsin_testing.builders import T0
from tocsin_testing.vendor_doubles import FakeAmd, FakeNpu
from tocsin_testing.vendor_facts import amd, ascend

NODE = NodeIdentity("node-1")
MOST_VALUES = 10_000
LONG = "9" * 5_000
numbers = st.integers() | st.sampled_from([10**400, -(10**400), 1 << 64, True]) | st.floats()
anything = st.recursive(
    st.none() | numbers | st.text(max_size=20) | st.sampled_from([LONG, "1e999", "nan", "N/A"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CALLS = sorted(amd("healthy")[0])
TEMPERATURE = "amdsmi_get_temp_metric(HOTSPOT, CURRENT)"
PROCESSES = "amdsmi_get_gpu_process_list"


def misled(answer: Any, path: list[int], other: Any) -> Any:
    """`answer` with one of its parts, found by `path`, in another's place."""
    if not path or not isinstance(answer, dict | list) or not answer:
        return other
    keys = list(answer) if isinstance(answer, dict) else list(range(len(answer)))
    key, made = keys[path[0] % len(keys)], answer.copy()
    made[key] = misled(answer[key], path[1:], other)
    return made


def bounded(batch: Batch, cards: int) -> None:
    assert len(batch.readings) <= cards
    assert sum(len(one.values) + len(one.missing) for one in batch.readings) <= MOST_VALUES
    for one in batch.readings:
        assert all(math.isfinite(value) for value in one.values.values())
        assert len(one.gpu.uuid) < 200
        assert sanitise(one)[0].values.keys() <= one.values.keys()


@settings(deadline=None)
@example([(TEMPERATURE, [], 10**400)])
@example([(PROCESSES, [], [{"pid": 10**400, "mem": 1}] * 50_000)])
@given(
    st.lists(
        st.tuples(st.sampled_from(CALLS), st.lists(st.integers(0, 9), max_size=3), anything | st.just([{}] * 50_000)),
        min_size=1,
        max_size=6,
    )
)
def test_amdsmi_of_any_answer(lies: list[tuple[str, list[int], Any]]) -> None:
    cards = amd("healthy")
    for call, path, other in lies:
        cards[0][call] = misled(cards[0][call], path, other)
        # What a double takes for an error of the library is not what is tried here.
        if isinstance(cards[0][call], dict):
            cards[0][call].pop("error", None)
    source = AmdSmiSource(FakeAmd(cards), NODE, ManualClock(T0))
    try:
        for step in range(2):
            batch = source.read(T0 + step * MINUTE)
            bounded(batch, len(cards))
            other_card = next((one for one in batch.readings if one.gpu.index == 1), None)
            assert other_card is None or other_card.values, "a card that lies takes nothing from another"
    finally:
        source.close()


class _PackageError(Exception):
    pass


def package(answer: Any, handles: Any) -> Any:
    kinds = IntEnum("kinds", ["GPU_PRE_RESET", "GPU_POST_RESET", "THERMAL_THROTTLE"])
    reader = SimpleNamespace(read=lambda _wait: answer, stop=lambda: None)
    return SimpleNamespace(
        AmdSmiException=_PackageError,
        AmdSmiLibraryException=_PackageError,
        AmdSmiEvtNotificationType=kinds,
        AmdSmiEventReader=lambda _handle, _wanted: reader,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: handles,
        amdsmi_get_gpu_cper_entries=lambda *_arguments: answer,
    )


happened = st.fixed_dictionaries(
    {"processor_handle": st.sampled_from(["h0", "gone"]) | anything},
    optional={"event": st.just("GPU_PRE_RESET") | anything, "message": anything},
)
reports = anything | st.lists(anything | happened, max_size=4) | st.just([{"processor_handle": "h0"}] * 50_000)
entries = st.tuples(st.dictionaries(st.text(max_size=4), anything, max_size=3), anything)
logs = anything | entries | st.just(({str(one): {} for one in range(50_000)}, 7))


@settings(deadline=None)
@given(reports)
def test_events_of_amdsmi_of_any_shape(answer: Any) -> None:
    door = AmdSmiLibrary(package(answer, ["h0"]))
    door.open()
    found = door.events()
    assert len(found) <= MOST_EVENTS
    assert all(one.card == 0 and len(one.name) <= 200 and len(one.message) <= 200 for one in found)


@settings(deadline=None)
@given(logs)
def test_error_logs_of_amdsmi_of_any_shape(answer: Any) -> None:
    door = AmdSmiLibrary(package(answer, ["h0"]))
    door.open()
    try:
        records, cursor = door.records(0, 0)
    except AmdFailure:
        return
    assert len(records) <= MOST_RECORDS
    assert 0 <= cursor < 1 << 64


@pytest.mark.parametrize("handles", [["h"] * 100_000, None, 7, "all"])
def test_an_absurd_number_of_cards_is_refused(handles: Any) -> None:
    door = AmdSmiLibrary(package([], handles))
    with pytest.raises(Unavailable, match=rf"amdsmi (finds no AMD GPU|answers no list of at most {MOST_CARDS})"):
        door.open()


TEXTS = ascend("healthy")


@settings(deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 4_000), st.text(max_size=40) | st.sampled_from([LONG, "|" * 900]))
def test_npu_smi_of_any_text(question: str, place: int, other: str) -> None:
    text = TEXTS[question]
    at = place % (len(text) + 1)
    program = FakeNpu({**TEXTS, question: text[:at] + other + text[at + len(other) % 7 :]})
    try:
        source = NpuSmiSource(program, NODE, ManualClock(T0))
    except Unavailable:
        return
    for step in range(2):
        bounded(source.read(T0 + step * MINUTE), MOST_CHIPS)
