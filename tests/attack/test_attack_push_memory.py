"""What one sender pushes changes nothing of what is judged of others, and costs what its own bytes cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.collector.dcgm.readings import MAX_CODES
from tocsin.collector.push import fleet as module
from tocsin.collector.push.fleet import FORGET_MS, SETTLE_MS, PushedFleet, Taken
from tocsin.collector.push.samples import PushedSeries
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

XID, COUNT, SXID = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS"
START = "process_start_time_seconds"
NOW = T0 + 10 * MINUTE


def a_fleet() -> PushedFleet:
    return PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000, 4)


def series(name: str, host: str, what: str, at_ms: int, value: float) -> PushedSeries:
    """A series of a GPU or a switch `what`; a count is of the code `value`, once."""
    labels = {"Hostname": host, "nvswitch" if name == SXID else "UUID": what}
    if name == COUNT:
        return PushedSeries(name, {**labels, "xid": str(int(value))}, [(at_ms, 1)])
    return PushedSeries(name, labels, [(at_ms, value)])


def by(sender: str) -> Callable[[str, object], str]:
    """What a node's token may say, or one that speaks for all hosts but node-b, however they are spelt."""
    return lambda host, _: "" if (host.lower() == sender or (sender == "fleet" and host != "node-b")) else "no"


def push(fleet: PushedFleet, sender: str, *sent: PushedSeries, now_ms: int = NOW) -> Taken:
    return fleet.take(sent, sender, by(sender), now_ms)


HOSTS = st.sampled_from(["node-b", "node-a", "NODE-A", "Node-a", *(f"made-up-{n}" for n in range(12))])
WHAT = st.sampled_from(["GPU-b", "1", *(f"GPU-{n}" for n in range(6)), *(f"switch-{n}" for n in range(6))])
ANY = st.builds(
    series,
    st.sampled_from([XID, COUNT, SXID, START]),
    HOSTS,
    WHAT,
    st.integers(T0, T0 + 2 * MINUTE),
    st.sampled_from([0, 1, 2, 79]),
)
BODIES = st.tuples(st.sampled_from(["node-a", "fleet"]), st.lists(ANY, max_size=40))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile=st.lists(BODIES, max_size=7))
def test_what_others_push_changes_no_event_of_a_host(
    monkeypatch: pytest.MonkeyPatch, hostile: list[tuple[str, list[PushedSeries]]]
) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    monkeypatch.setattr(module, "MAX_SWITCHES", 4)
    monkeypatch.setattr(module, "MAX_LABEL_COST", 5_000)
    fleet = a_fleet()
    found = []
    for step in range(7):
        if step < len(hostile):
            push(fleet, hostile[step][0], *hostile[step][1])
        at_ms, code = T0 + step * 15 * SECOND, 79 if step == 6 else 0
        sent = [series(XID, "node-b", "GPU-b", at_ms, code), series(SXID, "node-b", "1", at_ms, code)]
        found.append([event.code for event in push(fleet, "node-b", *sent).batch.events])
    assert found == [[]] * 6 + [[79, 79]]
    assert all(len(host.gpus) <= 4 and len(host.switches) <= 4 for host in fleet._hosts.values())
    kept = dict.fromkeys(("node-a", "node-b", "fleet"), 0)
    for host in fleet._hosts.values():
        for one in (*host.gpus.values(), *host.switches.values()):
            kept[one.sender] += 1
    assert max(kept.values()) <= 10
    assert +fleet._kept == {sender: number for sender, number in kept.items() if number}


def test_who_has_named_too_much_leaves_room_for_others_on_hosts_that_it_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    fleet = a_fleet()
    flood = [series(XID, host, f"GPU-{host}-{n}", T0, 0) for host in ("node-a", "h1", "h2", "h3") for n in range(3)]
    taken = push(fleet, "fleet", *flood)
    assert (taken.outcomes["used"], taken.outcomes["full"]) == (10, 2)
    assert "fleet sends more than 10 GPUs and switches" in taken.problem
    assert push(fleet, "node-a", series(XID, "node-a", "GPU-a", T0, 0)).outcomes["used"] == 1
    assert push(fleet, "fleet", flood[0]).outcomes["used"] == 1


def test_a_gpu_that_is_silent_gives_way_and_one_that_is_pushed_does_not() -> None:
    fleet = a_fleet()
    four = [series(XID, "node-a", f"GPU-{n}", T0, 0) for n in range(4)]
    assert push(fleet, "node-a", *four, now_ms=T0).rejected == 0
    fifth = series(XID, "node-a", "GPU-4", T0, 0)
    taken = push(fleet, "node-a", fifth, now_ms=T0 + MINUTE)
    assert (taken.rejected, taken.outcomes["full"]) == (1, 1)
    assert "more than 4 GPUs (api.limits.gpus_per_host)" in taken.problem
    push(fleet, "node-a", *four[1:], now_ms=T0 + 5 * MINUTE)
    assert push(fleet, "node-a", fifth, now_ms=T0 + 6 * MINUTE).rejected == 0
    assert set(fleet._hosts["node-a"].gpus) == {"GPU-1", "GPU-2", "GPU-3", "GPU-4"}


def steps(call: Callable[[], object]) -> int:
    """How many instructions of Python `call` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def steps_of(fleet: PushedFleet, sent: list[PushedSeries], now_ms: int = NOW) -> int:
    return steps(lambda: push(fleet, "n0", *sent, now_ms=now_ms))


def filled(hosts: int) -> PushedFleet:
    """A fleet that remembers three GPUs and a switch of each of so many hosts."""
    fleet = a_fleet()
    for n in range(hosts):
        gpus = [series(XID, f"n{n}", f"GPU-{n}-{gpu}", T0, 0) for gpu in range(3)]
        push(fleet, f"n{n}", *gpus, series(SXID, f"n{n}", "1", T0, 0))
    return fleet


SMALL = {
    "start": [series(START, "n0", "", T0 + n, n) for n in range(20)],
    "start of nobody": [series(START, "zz", "", T0 + n, n) for n in range(20)],
    "GPU": [series(XID, "n0", "GPU-0-1", T0 + n, 0) for n in range(20)],
    "switch": [series(SXID, "n0", "1", T0 + n, 0) for n in range(20)],
    "too many": [series(XID, "n0", f"GPU-x{n}", T0, 0) for n in range(20)],
}


@pytest.mark.parametrize("body", SMALL)
def test_a_body_costs_the_same_however_much_is_remembered(body: str) -> None:
    few, many = (steps_of(filled(hosts), SMALL[body]) for hosts in (5, 100))
    assert many < 1.1 * few


def test_what_is_long_gone_is_forgotten_in_one_pass() -> None:
    later = NOW + FORGET_MS + MINUTE
    fleets = [filled(hosts) for hosts in (20, 80)]
    few, many = (steps_of(fleet, [], later) for fleet in fleets)
    assert many < 5 * few
    assert [len(fleet._hosts) + len(fleet._xids._known) + len(fleet._sxids._known) for fleet in fleets] == [0, 0]


def test_codes_without_number_make_no_sample_dearer() -> None:
    def body(size: int) -> list[PushedSeries]:
        codes = [series(COUNT, "n0", "GPU-0", T0, 1 + n) for n in range(size)]
        return codes + [series(XID, "n0", "GPU-0", T0 + SETTLE_MS + n, 1 + n) for n in range(size)]

    few, many = (steps_of(a_fleet(), body(size)) for size in (100, 400))
    assert many < 5 * few
    fleet = a_fleet()
    push(fleet, "n0", *body(400))
    (memory,) = fleet._xids._known.values()
    assert len(memory.counts) <= MAX_CODES
    assert len(memory.reported) <= MAX_CODES
