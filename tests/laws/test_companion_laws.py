"""Laws of every companion. A new companion is one more factory in `FACTORIES`."""

from __future__ import annotations

import copy
import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest

from tocsin.collector.attribution import Attribution, AttributionCompanion
from tocsin.collector.frozen import FrozenValues
from tocsin.collector.host_errors import HostErrors
from tocsin.collector.host_load import HostLoad
from tocsin.collector.kernel_log.companion import KernelLogCompanion
from tocsin.collector.kernel_log.readers import KmsgReader
from tocsin.collector.network.companion import Network
from tocsin.collector.redfish.client import RedfishClient
from tocsin.collector.redfish.companion import Redfish
from tocsin.collector.source import Companion
from tocsin.collector.spot import Azure, NoticeCompanion
from tocsin.collector.training_hook.companion import HookCompanion
from tocsin.collector.training_hook.server import HookServer
from tocsin.collector.versions.companion import Versions
from tocsin.collector.vllm import VllmCompanion, parse_entry
from tocsin.config.cloud import CloudSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.metrics import spec_of
from tocsin.domain.reading import Gpu, Missing, Reading, sanitise
from tocsin.hook.wire import VERSION, pack
from tocsin.plugins import OWN_PACKAGE, Kind, plugins
from tocsin.runtime.agent.companions import Context, find_companion
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, xid

STEP = 10 * SECOND
GPUS = [gpu(n, pci_bus_id=f"00000000:{n + 1:02x}:00.0") for n in range(3)]
ME = os.getpid()


@dataclass(frozen=True)
class Made:
    """A companion, and how to let it take in what it watches, without waiting."""

    companion: Companion
    watch: Callable[[], None] = lambda: None


Factory = Callable[[Path, ManualClock, bytes], Made]
"""Makes a companion that finds `outside`: the kernel log, the page, the packets or the files that it reads."""


def frozen(_folder: Path, _clock: ManualClock, _outside: bytes) -> Made:
    """It looks at the readings alone."""
    return Made(FrozenValues(OwnMetrics()))


def kernel_log(folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what ``/dev/kmsg`` gives."""
    own = OwnMetrics()
    (folder / "kmsg").write_bytes(outside)
    (folder / "boot").write_text("boot")
    reader = KmsgReader(clock, path=folder / "kmsg", boot_id=folder / "boot")
    made = KernelLogCompanion(reader, own, host="node-1", state=folder / "state.json")
    return Made(made, made.pump)


def hook(folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` holds packets, one a line."""
    server = HookServer(folder / "hook.sock", clock, OwnMetrics())
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(str(folder / "hook.sock"))
    for packet in outside.split(b"\n"):
        if packet:
            peer.send(packet[:30_000])

    def serve() -> None:
        for _ in range(20):
            server.turn(0)

    class Hooked(HookCompanion):
        def close(self) -> None:
            peer.close()
            super().close()

    return Made(Hooked(server, OwnMetrics()), serve)


def vllm(_folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is the server's page."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=outside))
    server = parse_entry(f"http://vllm.test:8000={GPUS[0].uuid}")
    made = VllmCompanion([server], 10.0, clock, OwnMetrics(), transport=transport, pids=lambda _: frozenset())
    return Made(made, made.scrape)


def notices(_folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is the body of every answer."""
    client = httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=outside)))
    made = NoticeCompanion(Azure(client, "http://cloud.test", "vm-1"), CloudSettings(), "node-1", clock, OwnMetrics())
    return Made(made, made.ask)


def versions(folder: Path, _clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what every file about versions holds."""
    for name in (
        "sys/kernel/osrelease",
        "var/lib/dpkg/status",
        "usr/local/cuda/version.json",
        "usr/include/cudnn_version.h",
        "class/infiniband/mlx5_0/fw_ver",
        "driver/nvidia/version",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(outside)
    made = Versions(folder, folder, folder, OwnMetrics())
    return Made(made, made.look)


def attribution(folder: Path, _clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what every file of one process holds."""
    process = folder / "proc" / str(ME)
    process.mkdir(parents=True)
    for name in ("stat", "cgroup", "comm", "environ"):
        (process / name).write_bytes(outside)
    return Made(AttributionCompanion(Attribution(folder / "proc", folder / "pods")))


def host_load(folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what every file about the node holds; a reading before gives it something to compare with."""
    (folder / "pressure").mkdir()
    for name in ("stat", "meminfo", "pressure/cpu", "pressure/io", "pressure/memory"):
        (folder / name).write_bytes(outside)
    return Made(HostLoad(folder, clock))


def network(folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what every file of a card without a place on the PCI tree holds, behind what makes it active."""
    port = folder / "class/infiniband/mlx5_0/ports/1"
    for name in ("state", "phys_state", "link_layer", "rate", "counters/symbol_error", "counters/link_downed"):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_bytes(outside)
    made = Network(folder, clock, OwnMetrics(), state=folder / "state.json", pauses=lambda _: None)
    return Made(made, made.look)


def host_errors(folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is what the counter of memory errors holds from the second look on."""
    counter = folder / "devices/system/edac/mc/mc0/ue_count"
    counter.parent.mkdir(parents=True)
    counter.write_bytes(b"0")
    made = HostErrors(folder, clock, "node-1")
    made.enrich(Batch(readings=[Reading(GPUS[0], 0, {})]), 0)
    counter.write_bytes(outside)
    return Made(made)


def redfish(_folder: Path, clock: ManualClock, outside: bytes) -> Made:
    """`outside` is the body of every answer."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=outside))
    client = RedfishClient(httpx2.Client(transport=transport, base_url="http://bmc.test"), clock, 10.0, "", "")
    made = Redfish({"http://bmc.test": client}, 60.0, "node-1", clock, OwnMetrics())
    return Made(made, made.ask)


HELLO = {"kind": "hello", "v": VERSION, "process": "train", "every_s": 5.0}
STATS = {
    "kind": "stats",
    "v": VERSION,
    "steps": 3,
    "devices": [{"uuid": GPUS[0].uuid, "framework": "torch", "allocated": 4e9, "reserved": 5e9}],
}
TALK: dict[str, bytes] = {
    "frozen": b"",
    "kernel_log": (
        b"6,1,1000,-;usb 1-1: new device\n"
        b"3,2,2000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
        b"3,3,2000001,-;NVRM: Xid (PCI:0000:02:00): 48, pid=1, name=python, DBE\n"
    ),
    "hook": pack(HELLO) + b"\n" + pack(STATS),
    "vllm": b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3\n',
    "notices": b'{"Events": [{"EventType": "Preempt", "Resources": ["vm-1"], "NotBefore": ""}]}',
    "host_load": b"MemTotal: 1000 kB\nMemAvailable: 250 kB\n",
    "network": b"4: ACTIVE",
    "host_errors": b"7",
    "versions": b"Package: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.17.8-1\n",
    "redfish": b"""{"ThermalEquipment": {"@odata.id": "/redfish/v1/t"}, "CDUs": {"@odata.id": "/redfish/v1/c"},
        "Members": [{"@odata.id": "/redfish/v1/m"}], "LeakDetection": {"@odata.id": "/redfish/v1/l"},
        "LeakDetectors": {"@odata.id": "/redfish/v1/d"}, "DetectorState": "Critical", "Name": "m"}""",
    "attribution": b"%d (python) S %s\n" % (ME, b" ".join(b"1" for _ in range(50))),
}
"""What each companion understands."""

FACTORIES: dict[str, Factory] = {
    "frozen": frozen,
    "kernel_log": kernel_log,
    "hook": hook,
    "vllm": vllm,
    "notices": notices,
    "host_load": host_load,
    "network": network,
    "host_errors": host_errors,
    "redfish": redfish,
    "versions": versions,
    "attribution": attribution,
}


def of_another_package(name: str) -> Factory:
    """A companion that an installed package adds; what is outside comes to it as the name of its rack."""

    def make(_folder: Path, clock: ManualClock, outside: bytes) -> Made:
        settings = Settings.model_validate({"agent": {"rack": outside.decode(errors="replace")}})
        companion = find_companion(name)(Context(settings, clock, OwnMetrics()))
        assert companion is not None
        return Made(companion)

    return make


OTHERS = [one.name for one in plugins(Kind.COMPANION).values() if one.package != OWN_PACKAGE]
FACTORIES |= {name: of_another_package(name) for name in OTHERS}
TALK |= dict.fromkeys(OTHERS, b"rack-in-works")


def values(n: int) -> dict[str, float]:
    """Nothing of it moves: a source that has frozen."""
    return {
        "gpu_power_watts": 300.0,
        "gpu_energy_joules_total": 5e6,
        "gpu_temperature_celsius": 60.0,
        "gpu_sm_clock_hertz": 1.4e9,
        "gpu_utilization_ratio": 1.0,
        f'gpu_process_memory_used_bytes{{pid="{ME}"}}': 1e9 + n,
    }


def batch_at(at_ms: int, gpus: list[Gpu] = GPUS) -> Batch:
    readings = tuple(
        Reading(one, at_ms, values(n), {"gpu_fan_speed_ratio": Missing.UNSUPPORTED}) for n, one in enumerate(gpus)
    )
    return Batch(readings=readings, events=(xid(31, GPUS[2], at_ms),))


def noise(seed: int) -> bytes:
    """Bytes that mean nothing, with pieces that look as if they did."""
    chance = random.Random(seed)
    pieces = [
        b"NVRM: Xid (PCI:",
        b"): ",
        b"{",
        b"}",
        b'"kind":"stats"',
        b"vllm:",
        b"0::/kubepods",
        b"\xff\xfe",
        b"\n",
        b"NaN",
    ]
    pieces += list(TALK.values())
    return b"".join(chance.choice(pieces) if chance.random() < 0.5 else chance.randbytes(9) for _ in range(400))


@pytest.fixture(params=sorted(FACTORIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


Make = Callable[[bytes], Made]


@pytest.fixture
def make(name: str, clock: ManualClock) -> Iterator[Make]:
    made: list[Made] = []
    folders: list[tempfile.TemporaryDirectory[str]] = []

    def one(outside: bytes) -> Made:
        folder = tempfile.TemporaryDirectory()  # a socket's path must be short
        folders.append(folder)
        made.append(FACTORIES[name](Path(folder.name), clock, outside))
        return made[-1]

    yield one
    for each in made:
        each.companion.close()
    for folder in folders:
        folder.cleanup()


def rounds(made: Made, clock: ManualClock, count: int = 30) -> Iterator[tuple[Batch, Batch]]:
    """Batches ten seconds apart, before and after."""
    for _ in range(count):
        made.watch()
        before = batch_at(clock.now_ms())
        yield before, made.companion.enrich(before, clock.now_ms())
        clock.advance(STEP)


def test_it_has_the_name_that_the_settings_know(name: str, make: Make) -> None:
    assert make(b"").companion.name == name
    assert set(FACTORIES) == set(plugins(Kind.COMPANION))


def test_the_same_object_comes_back_where_it_knows_nothing(make: Make, clock: ManualClock) -> None:
    made = make(b"")
    for _ in range(3):
        moving = [Reading(one, clock.now_ms(), {"gpu_temperature_celsius": 50.0}) for one in GPUS]
        batch = Batch(readings=moving)
        assert made.companion.enrich(batch, clock.now_ms()) is batch
        empty = Batch()
        assert made.companion.enrich(empty, clock.now_ms()) is empty
        clock.advance(STEP)


def test_no_reading_is_taken_away_and_none_changes_its_gpu(name: str, make: Make, clock: ManualClock) -> None:
    for before, after in rounds(make(TALK[name]), clock):
        assert [reading.gpu for reading in after.readings[: len(GPUS)]] == GPUS
        assert len(after.readings) >= len(before.readings)


def test_values_of_the_source_stay_or_become_a_reason(name: str, make: Make, clock: ManualClock) -> None:
    for before, after in rounds(make(TALK[name]), clock):
        for old, new in zip(before.readings, after.readings, strict=False):
            for key, value in old.values.items():
                assert new.values.get(key, value) == value
                assert key in new.values or new.missing[key] is Missing.FROZEN
            assert all(key in new.missing or key in new.values for key in old.missing)


def test_what_comes_out_can_be_used_as_it_is(name: str, make: Make, clock: ManualClock) -> None:
    for _, after in rounds(make(TALK[name]), clock):
        for reading in after.readings:
            assert sanitise(reading)[1] == []
            assert not set(reading.values) & set(reading.missing)
            assert all(spec_of(key) is not None for key in (*reading.values, *reading.missing))
        assert all(event.gpu or event.host for event in after.events)


def test_what_is_given_is_not_written_to(name: str, make: Make, clock: ManualClock) -> None:
    made = make(TALK[name])
    for _ in range(20):
        made.watch()
        batch = batch_at(clock.now_ms())
        kept = copy.deepcopy(batch)
        made.companion.enrich(batch, clock.now_ms())
        assert batch == kept
        clock.advance(STEP)


def test_events_of_the_source_stay_and_new_ones_come_once(name: str, make: Make, clock: ManualClock) -> None:
    seen: set[str] = set()
    for before, after in rounds(make(TALK[name]), clock):
        kept = {(event.kind, event.gpu, event.code) for event in after.events}
        assert all((event.kind, event.gpu, event.code) in kept for event in before.events)
        new = [event.id for event in after.events if event.id not in {event.id for event in before.events}]
        assert not seen & set(new)
        seen |= set(new)


@pytest.mark.parametrize("seed", range(5))
def test_garbage_from_outside_costs_nothing(seed: int, make: Make, clock: ManualClock) -> None:
    for before, after in rounds(make(noise(seed)), clock, 3):
        assert [reading.gpu for reading in after.readings[: len(GPUS)]] == GPUS
        assert all(sanitise(reading)[1] == [] for reading in after.readings)
        assert len(after.readings) >= len(before.readings)


def test_garbage_from_the_source_costs_nothing(name: str, make: Make, clock: ManualClock) -> None:
    made = make(TALK[name])
    odd = {"": 1.0, "nonsense{": float("nan"), "gpu_power_watts": float("inf"), "gpu_energy_joules_total": -1.0}
    odd |= {'gpu_process_memory_used_bytes{pid="-1"}': 1.0, 'gpu_process_memory_used_bytes{pid="9999999999"}': 1.0}
    for gpus in ([], [Gpu("", "")], [replace(gpu(7), pci_bus_id="nonsense")], [gpu(0), gpu(0)]):
        for _ in range(8):
            made.watch()
            batch = Batch(readings=[Reading(one, clock.now_ms(), dict(odd)) for one in gpus])
            assert len(made.companion.enrich(batch, clock.now_ms()).readings) == len(gpus)
            clock.advance(STEP)


@pytest.mark.parametrize("step_ms", [-60 * MINUTE, 60 * MINUTE, -T0])
def test_a_step_of_the_clock_does_no_harm(step_ms: int, name: str, make: Make, clock: ManualClock) -> None:
    made = make(TALK[name])
    assert all(len(after.readings) >= len(GPUS) for _, after in rounds(made, clock, 3))
    clock.set(clock.now_ms() + step_ms)
    assert all(len(after.readings) >= len(GPUS) for _, after in rounds(made, clock, 3))


def test_the_same_batch_twice_does_no_harm(name: str, make: Make, clock: ManualClock) -> None:
    made = make(TALK[name])
    made.watch()
    batch = batch_at(clock.now_ms())
    once = made.companion.enrich(batch, clock.now_ms())
    again = made.companion.enrich(batch, clock.now_ms())
    assert [reading.gpu for reading in again.readings] == [reading.gpu for reading in once.readings]


def test_close_is_safe_to_repeat_and_leaves_no_thread(name: str, make: Make, clock: ManualClock) -> None:
    before = threading.active_count()
    made = make(TALK[name])
    start = getattr(made.companion, "start", None)
    if start is not None:
        start()
    made.companion.enrich(batch_at(clock.now_ms()), clock.now_ms())
    made.companion.close()
    made.companion.close()
    assert threading.active_count() == before


def test_each_has_something_to_say(name: str, make: Make, clock: ManualClock) -> None:
    """The laws above would hold for a companion that does nothing; `TALK` has to reach it."""
    assert any(after is not before for before, after in rounds(make(TALK[name]), clock))
