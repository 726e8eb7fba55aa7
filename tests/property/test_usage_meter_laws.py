"""Every second of a GPU's presence is counted exactly once, energy is the counter's, and order and crashes change
nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.accounting.meter import LEFT_MS, Meter, Row, Use
from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import UsageTable
from tocsin.config.usage import UsageSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND, ManualClock
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.runtime.brain.usage_keeper import UsageKeeper, UsageParts
from tocsin.store.memory import MemoryStore
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import gpu

START = 1_795_000_000_000 // DAY * DAY + 23 * HOUR
GAP_MS = 120 * SECOND
GPUS = [gpu(n, host=f"node-{n // 2}") for n in range(4)]
MIG = [
    Gpu(f"MIG-{n}", "node-0", model=GPUS[0].model, parent=GPUS[0].uuid, mig_profile=profile)
    for n, profile in enumerate(["1g.10gb", "2g.20gb", "4g.40gb"])
]
OWNERS = [(), (Owner(1, slurm_job="7"),), (Owner(2, pod="a", namespace="x"), Owner(3, pod="b", namespace="y"))]
steps = st.sampled_from([10_000, 60_000, 120_000, 121_000, 1_800_000, 2 * HOUR, 20 * HOUR])
some = st.none() | st.floats(0, 1)


@st.composite
def histories(draw: st.DrawFn, gpus: int = 4) -> list[list[Reading]]:
    """Readings of one instant after the other; each GPU may be left out, its counter may begin anew."""
    at_ms, joules, found = START, [0.0] * len(GPUS), []
    for _ in range(draw(st.integers(2, 14))):
        step = draw(steps)
        at_ms += step
        members: list[Reading] = []
        for place in range(gpus):
            if draw(st.integers(0, 4)) == 0:
                continue
            joules[place] = 0.0 if draw(st.integers(0, 9)) == 0 else joules[place] + 300.0 * step / SECOND
            values = {
                "gpu_utilization_ratio": draw(some),
                "gpu_processes": draw(st.sampled_from([None, 0, 1])),
                "gpu_memory_used_ratio": draw(some),
                "gpu_power_watts": draw(st.sampled_from([None, 300.0])),
                "gpu_energy_joules_total": draw(st.sampled_from([None, joules[place]])),
            }
            kept = {name: float(value) for name, value in values.items() if value is not None}
            members.append(Reading(GPUS[place], at_ms, kept, owners=draw(st.sampled_from(OWNERS))))
        if any(one.gpu == GPUS[0] for one in members):
            members += [Reading(one, at_ms, {}, owners=draw(st.sampled_from(OWNERS))) for one in draw(st.sets(mig()))]
        found.append(members)
    return found


def mig() -> st.SearchStrategy[Gpu]:
    return st.sampled_from(MIG)


def presence(history: Sequence[Sequence[Reading]]) -> dict[str, float]:
    """Seconds from one reading of a GPU to the next, but for those after which it had left."""
    last: dict[str, int] = {}
    found: dict[str, float] = defaultdict(float)
    for members in history:
        for uuid in {one.gpu.parent or one.gpu.uuid for one in members}:
            span = members[0].at_ms - last.get(uuid, members[0].at_ms)
            found[uuid] += span / SECOND if span <= LEFT_MS else 0.0
            last[uuid] = members[0].at_ms
    return found


def by_gpu(rows: dict[object, Row]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for key, row in rows.items():
        found[key.gpu] += sum(row.seconds)  # type: ignore[attr-defined]
    return found


@settings(max_examples=60)
@given(histories())
def test_each_second_of_a_gpus_presence_is_counted_exactly_once(history: list[list[Reading]]) -> None:
    meter = Meter(GAP_MS)
    for members in history:
        assert not meter.take(members)
    rows, _ = meter.drain()
    counted = by_gpu(rows)  # type: ignore[arg-type]
    for uuid, seconds in presence(history).items():
        assert counted.get(uuid, 0.0) == pytest.approx(seconds)
    days: dict[tuple[str, int], float] = defaultdict(float)
    for key, row in rows.items():
        assert min(row.seconds) >= 0
        assert row.unmetered_s <= sum(row.seconds) + 1e-6
        days[key.gpu, key.day] += sum(row.seconds)
        if not key.holder:
            assert row.seconds[Use.USED] == row.seconds[Use.IDLE] == 0
        else:
            assert row.seconds[Use.FREE] == row.seconds[Use.STRANDED] == row.seconds[Use.NOT_SEEN] == 0
    assert all(seconds <= DAY / SECOND + 1e-6 for seconds in days.values())


@given(st.lists(steps, min_size=1, max_size=10), st.lists(st.sampled_from(OWNERS), min_size=11, max_size=11))
def test_energy_is_what_the_counter_rose_by_whoever_holds_the_gpu(gaps: list[int], owners: list[tuple[Owner]]) -> None:
    at_ms, joules, meter = START, 1e6, Meter(GAP_MS)
    for owner, gap in zip(owners, [0, *gaps], strict=False):
        at_ms, joules = at_ms + gap, joules + 250.0 * gap / SECOND
        values = {"gpu_utilization_ratio": 0.5, "gpu_energy_joules_total": joules, "gpu_power_watts": 9.0}
        meter.take([Reading(GPUS[0], at_ms, values, owners=owner)])
    rows, _ = meter.drain()
    assert sum(row.joules for row in rows.values()) == pytest.approx(joules - 1e6)
    assert sum(row.unmetered_s for row in rows.values()) == 0


class Thorough(Meter):
    """Looks at all GPUs of a host with every reading."""

    def _as_before(self, host: str, at_ms: int, fresh: object) -> bool:
        return False


@given(histories(), st.lists(st.sampled_from([0, 1_000, 10_000, 130_000]), min_size=1, max_size=4), st.booleans())
def test_readings_that_say_what_those_before_them_said_count_as_if_all_were_looked_at(
    history: list[list[Reading]], steps_ms: list[int], one_by_one: bool
) -> None:
    quick, thorough, later_ms = Meter(GAP_MS), Thorough(GAP_MS), 0
    for members in history:
        for step_ms in steps_ms:
            later_ms += step_ms
            again = [replace(one, at_ms=one.at_ms + later_ms) for one in members]
            for part in [[one] for one in again] if one_by_one else [again]:
                assert quick.take(part) == thorough.take(part)
    told = [meter.drain() for meter in (quick, thorough)]
    assert told[0][1] == told[1][1]
    assert told[0][0].keys() == told[1][0].keys()
    for key, row in told[0][0].items():
        other = told[1][0][key]
        assert (row.seconds, row.joules, row.unmetered_s) == (other.seconds, other.joules, other.unmetered_s)
        assert (row.profile is None) is (other.profile is None)
        if row.profile is not None and other.profile is not None:
            assert row.profile.to_bytes() == other.profile.to_bytes()


class Site:
    """A store and the sums of it, which can be killed: what is not written then is lost."""

    def __init__(self) -> None:
        self.store, self.table, self.clock = MemoryStore(), UsageTable(None), ManualClock(START)
        self.start()

    def start(self) -> None:
        known = {one.uuid: one for one in (*GPUS, *MIG)}
        settings = UsageSettings(open_days=30)
        self.keeper = UsageKeeper(
            self.store, UsageParts(self.table, PriceList()), settings, self.clock, OwnMetrics(), known.get, dict
        )
        self.keeper.recover(self.clock.now_ms())

    def accept(self, readings: Sequence[Reading]) -> None:
        self.clock.set(max([self.clock.now_ms(), *(one.at_ms for one in readings)]))
        self.store.write(Batch(readings=readings))
        self.keeper.take(readings)

    def kill(self) -> None:
        self.start()

    def sums(self) -> Sums:
        while True:
            self.keeper.look()
            if not self.table.late():
                break
        found = self.table.groups(0, 10**6, ["job", "model"])
        return {
            (one.day, one.names, one.held): [*one.row.seconds, one.row.joules, one.row.unmetered_s] for one in found
        }


Sums = dict[tuple[int, tuple[str, ...], bool], list[float]]


def assert_same(found: Sums, wanted: Sums) -> None:
    empty = [0.0] * (len(Use) + 2)
    for key in found.keys() | wanted.keys():
        assert found.get(key, empty) == pytest.approx(wanted.get(key, empty), abs=1e-3), key


@settings(max_examples=25)
@given(histories(), st.data())
def test_a_crash_at_any_time_changes_no_sum(history: list[list[Reading]], data: st.DataObject) -> None:
    calm, shaken = Site(), Site()
    for members in history:
        calm.accept(members)
        shaken.accept(members)
        if not shaken.table.cursors():
            # What comes before the first write is in no file: it begins with what comes then.
            shaken.keeper.write()
        what = data.draw(st.sampled_from(["", "write", "kill", "look"]))
        if what == "kill":
            shaken.kill()
        elif what:
            getattr(shaken.keeper, what)()
    assert_same(shaken.sums(), calm.sums())


@settings(max_examples=25)
@given(histories(), st.data())
def test_readings_that_come_late_are_counted_as_if_they_had_come_in_time(
    history: list[list[Reading]], data: st.DataObject
) -> None:
    calm, shaken = Site(), Site()
    late = data.draw(st.sets(st.integers(1, len(history) - 1), max_size=3))
    hosts = data.draw(st.sets(st.sampled_from(["node-0", "node-1"]), min_size=1))
    kept: list[list[Reading]] = []
    for place, members in enumerate(history):
        calm.accept(members)
        held = [one for one in members if place in late and one.gpu.host in hosts]
        shaken.accept([one for one in members if one not in held])
        kept.append(held)
        if data.draw(st.booleans()):
            shaken.keeper.write()
    for held in kept:
        shaken.accept(held)
    assert_same(shaken.sums(), calm.sums())
