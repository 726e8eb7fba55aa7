"""What the far end of an NVLink says holds no longer than the fault itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.domain.clock import SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin_testing.builders import gpu
from tocsin_testing.rule_runs import Run, instant

FAULT, FAR = gpu(0), gpu(1)
AWAY = replace(gpu(2), host="node-9", labels={NVLINK_DOMAIN: "d"})
RENEWED = (EventKind.DRIVER_RELOAD, EventKind.GPU_FOUND)


def told(of: Gpu, code: int, at_ms: int, severity: Severity | None = None) -> Event:
    return Event(EventKind.XID, of.uuid, of.host, at_ms, code, severity=severity)


def holding(run: Run) -> set[str]:
    """The GPUs of which a finding about NVLinks holds."""
    return {one.subject.name for one in run.last.active if one.rule.startswith("xid_nvlink")}


def struck(far: Event, fault: Gpu = FAULT) -> Run:
    """A link failed at `fault`; `far` is what another GPU said of it."""
    run = Run()
    read = {one: {"power_watts": 100.0} for one in (fault, FAR, AWAY)}
    run.step(0, read, events=[told(fault, 149, instant(0)), far])
    run.step(10, read)
    return run


@pytest.mark.parametrize("kind", RENEWED)
@pytest.mark.parametrize(("code", "severity"), [(145, Severity.WARNING), (149, None), (74, None)])
def test_the_far_end_is_over_once_the_fault_is(kind: EventKind, code: int, severity: Severity | None) -> None:
    run = struck(told(FAR, code, instant(0) + SECOND, severity))
    assert holding(run) == {FAULT.uuid, FAR.uuid}
    run.step(11, events=[Event(kind, FAULT.uuid, FAULT.host, instant(11))])
    assert holding(run) == set()


def test_a_fault_of_its_own_stays() -> None:
    before = struck(told(FAR, 149, instant(0) - SECOND))
    before.step(11, events=[Event(EventKind.DRIVER_RELOAD, FAULT.uuid, FAULT.host, instant(11))])
    assert holding(before) == {FAR.uuid}, "it was first"
    later = struck(told(FAR, 149, instant(0) + 20 * SECOND))
    later.step(11, events=[Event(EventKind.DRIVER_RELOAD, FAULT.uuid, FAULT.host, instant(11))])
    assert holding(later) == {FAR.uuid}
    again = struck(told(FAR, 145, instant(0) + SECOND, Severity.WARNING))
    again.step(10.5, events=[told(FAR, 145, instant(10.5), Severity.WARNING)])
    again.step(11, events=[Event(EventKind.DRIVER_RELOAD, FAULT.uuid, FAULT.host, instant(11))])
    assert holding(again) == {FAR.uuid}, "it goes on"


@pytest.mark.parametrize("domain", ["d", "other", ""])
def test_the_far_end_is_on_the_host_or_in_the_domain(domain: str) -> None:
    fault = replace(FAULT, labels={NVLINK_DOMAIN: domain})
    run = struck(told(AWAY, 145, instant(0) + SECOND, Severity.WARNING), fault)
    assert holding(run) == {fault.uuid, AWAY.uuid}
    run.step(11, events=[Event(EventKind.DRIVER_RELOAD, fault.uuid, fault.host, instant(11))])
    assert holding(run) == (set() if domain == "d" else {AWAY.uuid})


@pytest.mark.parametrize("kind", RENEWED)
def test_a_brain_that_starts_anew_reads_the_fault_and_its_end_at_once(kind: EventKind) -> None:
    run, reset = Run(), Event(kind, FAULT.uuid, FAULT.host, instant(11))
    read = {one: {"power_watts": 100.0} for one in (FAULT, FAR)}
    far = told(FAR, 145, instant(0) + SECOND, Severity.WARNING)
    run.step(12, read, events=[told(FAULT, 149, instant(0)), far, reset])
    assert holding(run) == set()
