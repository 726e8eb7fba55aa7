"""Laws of every source. A new source is one more factory in `FACTORIES`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.collector.amdsmi.library import AmdEvent
from tocsin.collector.amdsmi.source import AmdSmiSource
from tocsin.collector.dcgm.dcgmi import DcgmiSource
from tocsin.collector.npu_smi.source import NpuSmiSource
from tocsin.collector.nvidia_smi.source import NvidiaSmiSource
from tocsin.collector.nvml.library import Code
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.replay.source import ReplaySource, read_recording
from tocsin.collector.simulated import from_settings
from tocsin.collector.smi_program import SmiAnswer
from tocsin.collector.source import NodeIdentity, Source
from tocsin.config.settings import Settings, SimulationSettings
from tocsin.domain.clock import MINUTE, ManualClock, SystemClock
from tocsin.domain.metrics import spec_of
from tocsin.domain.reading import MAX_FUTURE_MS, sanitise
from tocsin.plugins import OWN_PACKAGE, Kind, plugins
from tocsin.runtime.agent.sources import open_source
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_pages import DATA as DCGM_DATA
from tocsin_testing.dcgm_pages import LIVE_IDS, Exporter, FakeDcgmi, exporter_source, live_rows
from tocsin_testing.nvml_replay import RecordedNvml, devices
from tocsin_testing.smi import FakeSmi, recorded
from tocsin_testing.vendor_doubles import FakeAmd, FakeNpu
from tocsin_testing.vendor_facts import amd, ascend

Factory = Callable[[], Source]
"""Makes a source with at least one GPU, ready to be read at `T0`."""


def simulated() -> Source:
    """A simulated fleet of 16 GPUs."""
    return from_settings(SimulationSettings(gpus=16, interval_seconds=60), T0)


def simulated_in_trouble() -> Source:
    """A simulated fleet in which one GPU is lost and another's telemetry is frozen."""
    source = from_settings(SimulationSettings(gpus=16, interval_seconds=60), T0 - 40 * MINUTE)
    source.fleet.inject("fallen_off_bus", "3")
    source.fleet.inject("frozen_telemetry", "12")
    source.read(T0 - MINUTE)
    return source


def replay() -> Source:
    """Recorded telemetry of two GPUs, one sample in ten minutes, sixty times as fast."""
    path = Path(__file__).parents[1] / "data" / "gwdg" / "excerpt_tidy.csv.bz2"
    return ReplaySource(read_recording([path]), origin_ms=T0, speed=60.0)


def dcgm_exporter() -> Source:
    """Pages of a dcgm-exporter with whole GPUs, instances, links, blanks and lines of other things."""
    names = ("exporter_3_3_5", "exporter_mig", "exporter_links_switches_cpus", "exporter_sentinels")
    return exporter_source(Exporter("".join((DCGM_DATA / f"{name}.prom").read_text() for name in names)))


def dcgm_exporter_that_fails() -> Source:
    """The same, after which no scrape succeeds."""
    exporter = Exporter((DCGM_DATA / "exporter_3_3_5.prom").read_text())
    source = exporter_source(exporter)
    source.read(T0 - MINUTE)
    exporter.status = 503
    return source


def dcgmi() -> Source:
    """A recorded `dcgmi dmon` of eight GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeDcgmi(Path(folder), LIVE_IDS, live_rows("dmon_live_ecc_dbe.txt")[0])
        return DcgmiSource([str(fake.path)], NodeIdentity("n1"), SystemClock(), OwnMetrics())


def nvml() -> Source:
    """Three GPUs as NVML answered for them."""
    return NvmlSource(RecordedNvml(devices("h100-healthy")), NodeIdentity("node-1"))


def nvml_in_trouble() -> Source:
    """A GPU that is lost, one that refuses what needs privilege, and one whose batches of fields fail."""
    library = RecordedNvml(devices("h100-healthy"))
    source = NvmlSource(library, NodeIdentity("node-1"))
    library.failures[0, "*"] = Code.GPU_IS_LOST
    library.failures[1, "nvmlDeviceGetComputeRunningProcesses"] = Code.NO_PERMISSION
    library.failures[2, "nvmlDeviceGetFieldValues"] = Code.UNKNOWN
    source.read(T0 - MINUTE)
    return source


def nvidia_smi() -> Source:
    """A GPU with MIG instances as nvidia-smi's XML has them."""
    return NvidiaSmiSource(FakeSmi(SmiAnswer(0, recorded("a100-mig-v12.xml"))), NodeIdentity("node-1"))


def nvidia_smi_in_trouble() -> Source:
    """After a reading the driver says that the GPU is lost."""
    smi = FakeSmi(SmiAnswer(0, recorded("blackwell-v13.xml")))
    source = NvidiaSmiSource(smi, NodeIdentity("node-1"))
    source.read(T0 - MINUTE)
    text = "Unable to determine the device handle for GPU0: 00000000:61:00.0: GPU is lost.  Reboot to recover"
    smi.xml = smi.csv = SmiAnswer(15, text)
    return source


def amdsmi() -> Source:
    """Two MI300X as the library would answer for them."""
    return AmdSmiSource(FakeAmd(amd("healthy")), NodeIdentity("node-1"), SystemClock())


def amdsmi_in_trouble() -> Source:
    """A link down, blanks of every form, a card of which only failures come, and a reset that was told of."""
    library = FakeAmd([*amd("link"), *amd("bus")[1:]])
    library.told = [AmdEvent(0, "GPU_PRE_RESET", "reset")]
    return AmdSmiSource(library, NodeIdentity("node-1"), SystemClock())


def npu_smi() -> Source:
    """Two Ascend NPUs as npu-smi would print them."""
    return NpuSmiSource(FakeNpu(ascend("healthy")), NodeIdentity("node-1"), SystemClock())


def npu_smi_in_trouble() -> Source:
    """An NPU in alarm with an error code, and no answer to most questions."""
    program = FakeNpu(ascend("memory"))
    source = NpuSmiSource(program, NodeIdentity("node-1"), SystemClock())
    program.hangs = ("info -t ecc", "info -t common")
    return source


FACTORIES: dict[str, Factory] = {
    "amdsmi": amdsmi,
    "amdsmi_in_trouble": amdsmi_in_trouble,
    "npu_smi": npu_smi,
    "npu_smi_in_trouble": npu_smi_in_trouble,
    "nvidia_smi": nvidia_smi,
    "nvidia_smi_in_trouble": nvidia_smi_in_trouble,
    "nvml": nvml,
    "nvml_in_trouble": nvml_in_trouble,
    "dcgm_exporter": dcgm_exporter,
    "dcgm_exporter_that_fails": dcgm_exporter_that_fails,
    "dcgmi": dcgmi,
    "simulated": simulated,
    "simulated_in_trouble": simulated_in_trouble,
    "replay": replay,
}


def of_another_package(name: str) -> Factory:
    """A source that an installed package adds, by default settings."""
    return lambda: open_source(name, Settings(), ManualClock(T0))


FACTORIES |= {
    one.name: of_another_package(one.name) for one in plugins(Kind.SOURCE).values() if one.package != OWN_PACKAGE
}


@pytest.fixture(params=sorted(FACTORIES))
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = FACTORIES[request.param]()
    yield made
    made.close()


def test_every_source_is_here() -> None:
    # `auto` is one of the others.
    assert {name.partition("_in_trouble")[0].partition("_that")[0] for name in FACTORIES} | {"auto"} == set(
        plugins(Kind.SOURCE)
    )


def test_it_has_a_name(source: Source) -> None:
    assert source.name
    assert source.name == source.name.lower()


def test_gpus_are_distinct_and_have_a_host(source: Source) -> None:
    gpus = source.gpus()
    assert gpus
    assert len(set(gpus)) == len(gpus)
    assert all(gpu.uuid and gpu.host for gpu in gpus)


def test_each_gpu_is_read_once_at_one_instant(source: Source) -> None:
    readings = source.read(T0).readings
    assert {reading.gpu for reading in readings} == set(source.gpus())
    assert len({(reading.gpu, reading.at_ms) for reading in readings}) == len(readings)


def test_readings_are_never_dated_ahead_of_the_reader(source: Source) -> None:
    for step in range(5):
        now_ms = T0 + step * 10_000
        assert all(reading.at_ms <= now_ms + MAX_FUTURE_MS for reading in source.read(now_ms).readings)


def test_time_moves_forward_with_the_reader(source: Source) -> None:
    first = {reading.gpu: reading.at_ms for reading in source.read(T0).readings}
    second = {reading.gpu: reading.at_ms for reading in source.read(T0 + 10_000).readings}
    assert all(second[gpu] > at_ms for gpu, at_ms in first.items() if gpu in second)


def test_every_value_is_usable_as_it_is(source: Source) -> None:
    for step in range(3):
        for reading in source.read(T0 + step * 10_000).readings:
            assert sanitise(reading)[1] == []
            assert all(type(value) is float for value in reading.values.values())


def test_a_name_has_a_value_or_a_reason_and_is_known(source: Source) -> None:
    for reading in source.read(T0).readings:
        assert not set(reading.values) & set(reading.missing)
        assert all(spec_of(name) is not None for name in (*reading.values, *reading.missing))
        assert reading.values or reading.missing


def test_events_belong_to_a_known_gpu_or_a_host_and_come_once(source: Source) -> None:
    known = {gpu.uuid for gpu in source.gpus()}
    seen: set[str] = set()
    for step in range(5):
        for event in source.read(T0 + step * MINUTE).events:
            assert event.gpu in known or (not event.gpu and event.host)
            assert event.id not in seen
            seen.add(event.id)


def test_the_same_instant_twice_does_no_harm(source: Source) -> None:
    first = source.read(T0).readings
    again = source.read(T0)
    assert {reading.gpu for reading in again.readings} == {reading.gpu for reading in first}
    assert not again.events


def test_a_clock_that_steps_back_does_no_harm(source: Source) -> None:
    source.read(T0)
    assert {reading.gpu for reading in source.read(T0 - MINUTE).readings} == set(source.gpus())


def test_close_is_safe_to_repeat(source: Source) -> None:
    source.close()
    source.close()
