"""The node beside its GPUs: shares over the time between two readings, and files that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.host_load import HostLoad
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.reading import Missing, Reading
from tocsin_testing.builders import T0, gpu, reading

STAT = "cpu  {user} 0 100 {idle} {wait} 0 0 0 {guest} 0\ncpu0 1 2 3 4 5\n"


def write(proc: Path, **files: str) -> None:
    (proc / "pressure").mkdir(exist_ok=True)
    for name, text in files.items():
        (proc / name.replace("_", "/")).write_text(text)


def batch() -> Batch:
    return Batch(readings=[reading(gpu(n), T0, power_watts=100.0) for n in range(2)])


def pressure(total: int) -> str:
    return f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=1\n"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def test_shares_are_those_of_the_time_between_two_readings(tmp_path: Path, clock: ManualClock) -> None:
    companion = HostLoad(tmp_path, clock)
    memory = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n"
    write(tmp_path, stat=STAT.format(user=100, idle=800, wait=0, guest=50), meminfo=memory)
    write(tmp_path, pressure_cpu=pressure(0), pressure_io=pressure(5_000), pressure_memory=pressure(0))
    first = companion.enrich(batch(), T0)
    assert [one.values["host_memory_used_ratio"] for one in first.readings] == [0.6, 0.6]
    assert "host_cpu_utilization_ratio" not in first.readings[0].values
    clock.advance(10_000)
    write(tmp_path, stat=STAT.format(user=500, idle=1200, wait=200, guest=450))
    write(tmp_path, pressure_cpu=pressure(0), pressure_io=pressure(2_505_000), pressure_memory=pressure(0))
    values = companion.enrich(batch(), T0 + 10_000).readings[1].values
    assert values["host_cpu_utilization_ratio"] == pytest.approx(0.4)  # 400 of 1,000 ticks; guests are in it already
    assert values["host_cpu_iowait_ratio"] == pytest.approx(0.2)
    assert values["host_io_pressure_ratio"] == pytest.approx(0.25)
    assert values["host_cpu_pressure_ratio"] == 0.0
    assert values["gpu_power_watts"] == 100.0


def test_a_kernel_without_pressure_says_so(tmp_path: Path, clock: ManualClock) -> None:
    companion = HostLoad(tmp_path, clock)
    write(tmp_path, stat=STAT.format(user=1, idle=1, wait=0, guest=0), meminfo="MemTotal: 2 kB\nMemAvailable: 1 kB\n")
    companion.enrich(batch(), T0)
    clock.advance(1_000)
    found = companion.enrich(batch(), T0 + 1_000).readings[0]
    assert found.missing["host_io_pressure_ratio"] is Missing.UNSUPPORTED
    assert found.values["host_memory_used_ratio"] == 0.5
    assert "host_cpu_utilization_ratio" in found.missing, "the counters stood still"


def test_a_counter_that_went_back_gives_no_share_outside_0_to_1(tmp_path: Path, clock: ManualClock) -> None:
    companion = HostLoad(tmp_path, clock)
    write(tmp_path, stat=STAT.format(user=100, idle=800, wait=90, guest=0), pressure_io=pressure(9_000_000))
    companion.enrich(batch(), T0)
    clock.advance(1_000)
    write(tmp_path, stat=STAT.format(user=150, idle=850, wait=80, guest=0), pressure_io=pressure(1))
    values = companion.enrich(batch(), T0 + 1_000).readings[0].values
    assert values["host_cpu_iowait_ratio"] == values["host_io_pressure_ratio"] == 0.0
    assert 0.0 <= values["host_cpu_utilization_ratio"] <= 1.0


def test_a_gpu_that_answers_nothing_stays_one(tmp_path: Path, clock: ManualClock) -> None:
    write(tmp_path, meminfo="MemTotal: 2 kB\nMemAvailable: 1 kB\n")
    lost = Reading(gpu(0), T0, {}, {"gpu_power_watts": Missing.LOST})
    found = HostLoad(tmp_path, clock).enrich(Batch(readings=[lost, reading(gpu(1), T0, power_watts=1.0)]), T0)
    assert found.readings[0] is lost
    assert found.readings[1].values["host_memory_used_ratio"] == 0.5


def test_nothing_is_read_for_no_reading(tmp_path: Path, clock: ManualClock) -> None:
    empty = Batch()
    assert HostLoad(tmp_path / "none", clock).enrich(empty, T0) is empty
