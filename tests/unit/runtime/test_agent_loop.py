"""The agent: what one tick does, how the cadence keeps, what it loads."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import pytest
from prometheus_client import generate_latest

from tocsin.at_rest.keys import RING, StateKey
from tocsin.at_rest.mounts import Disks
from tocsin.collector.spool import Spool
from tocsin.config.at_rest import AtRestSettings
from tocsin.config.settings import AgentSettings, Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.runtime import state_files
from tocsin.runtime.agent import process as module
from tocsin.runtime.agent.process import Agent, once, serve
from tocsin.runtime.agent.sources import open_source
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0, gpu, reading, xid

HEAVY = (
    "torch", "sklearn", "statsmodels", "streamlit", "fastapi", "uvicorn", "starlette", "polars", "pandas",
    "influxdb_client", "scipy", "plotly", "kubernetes",
)  # fmt: skip


class ListSource:
    """A source of prepared readings; `work` runs inside each read."""

    name = "list"

    def __init__(self, readings: Sequence[Reading] = (), events: Sequence[Event] = ()) -> None:
        self.readings = readings
        self.events = events
        self.reads: list[int] = []
        self.work: Callable[[], None] = lambda: None
        self.closed = False

    def gpus(self) -> list[Gpu]:
        return [r.gpu for r in self.readings]

    def read(self, now_ms: int) -> Batch:
        self.reads.append(now_ms)
        self.work()
        return Batch(readings=self.readings, events=self.events)

    def close(self) -> None:
        self.closed = True


class ClockStop:
    """A stop signal whose waiting moves a clock, until `seconds` have passed."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def is_set(self) -> bool:
        return self._clock.monotonic() >= self._end

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        assert timeout > 0
        self._clock.advance(round(timeout * SECOND))
        return self.is_set()


def settings(tmp_path: Path, **more: object) -> Settings:
    fields: dict[str, object] = {
        "spool": tmp_path / "spool.db",
        "interval_seconds": 10.0,
        "hook_socket": "",
        "kernel_log": "off",
        "host_load": False,
        "network": False,
        "host_errors": False,
        "versions": False,
    }
    fields |= more
    return Settings(agent=AgentSettings.model_validate(fields))


def accepting(bodies: list[str], status: int = 204) -> httpx2.MockTransport:
    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(gzip.decompress(request.content).decode())
        return httpx2.Response(status)

    return httpx2.MockTransport(answer)


def test_a_tick_exports_spools_and_pushes(tmp_path: Path) -> None:
    bodies: list[str] = []
    source = ListSource([reading(gpu(0), temperature_celsius=66)], [xid(79, gpu(0))])
    clock = ManualClock(T0)
    agent = Agent(settings(tmp_path, push_url="http://brain.test"), source, clock, transport=accepting(bodies))
    agent.tick()
    assert b"gpu_temperature_celsius{" in generate_latest(agent.registry)
    decoded = decode("".join(bodies), precision="ms", now_ms=T0)
    assert not decoded.rejected
    assert dict(decoded.batch.readings[0].values) == {"gpu_temperature_celsius": 66.0}
    assert [e.code for e in decoded.batch.events] == [79]
    assert agent.spool is not None
    assert agent.spool.batches == 0
    assert agent.own.value("tocsin_readings_total", source="list") == 1
    assert agent.own.value("tocsin_events_total", source="list", kind="xid") == 1
    agent.close()
    assert source.closed


def test_what_cannot_be_pushed_waits_over_a_restart(tmp_path: Path) -> None:
    clock, wanted = ManualClock(T0), settings(tmp_path, push_url="http://brain.test")
    first = Agent(wanted, ListSource([reading(temperature_celsius=50)]), clock, transport=accepting([], 503))
    first.tick()
    first.close()
    bodies: list[str] = []
    second = Agent(wanted, ListSource(), clock, transport=accepting(bodies))
    second.push()
    assert decode(bodies[0], precision="ms", now_ms=T0).batch.readings[0].values == {"gpu_temperature_celsius": 50.0}
    second.close()


def test_without_a_push_address_nothing_is_spooled(tmp_path: Path) -> None:
    agent = Agent(settings(tmp_path), ListSource([reading(temperature_celsius=50)]), ManualClock(T0))
    agent.tick()
    assert not (tmp_path / "spool.db").exists()
    agent.close()


def test_unusable_values_are_counted_and_cost_nothing_else(tmp_path: Path) -> None:
    bad = Reading(gpu(0), T0, {"gpu_temperature_celsius": 9_999.0, "gpu_power_watts": float("nan"), "nonsense": 1.0})
    agent = Agent(settings(tmp_path), ListSource([bad, reading(gpu(1), temperature_celsius=50)]), ManualClock(T0))
    batch = agent.tick()
    assert batch.readings[0].values == {}
    assert batch.readings[0].missing == {
        "gpu_temperature_celsius": Missing.BLANK,
        "gpu_power_watts": Missing.BLANK,
    }
    assert batch.readings[1].values == {"gpu_temperature_celsius": 50.0}
    assert agent.own.value("tocsin_dropped_total", what="value", reason="implausible") == 3
    agent.close()


def test_large_fleets_are_spooled_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_READINGS", 10)
    source = ListSource([reading(gpu(n), temperature_celsius=50) for n in range(25)], [xid(79)])
    agent = Agent(settings(tmp_path, push_url="http://b.test"), source, ManualClock(T0), transport=accepting([], 503))
    agent.tick()
    assert agent.spool is not None
    batches = agent.spool.peek(1 << 30)
    assert [b.readings for b in batches] == [10, 10, 5]
    decoded = decode("".join(b.text for b in batches), precision="ms", now_ms=T0).batch
    assert (len(decoded.readings), len(decoded.events)) == (25, 1)
    agent.close()


def test_a_full_spool_drops_the_oldest_and_counts(tmp_path: Path) -> None:
    readings = [reading(gpu(n), **{f"{m}_celsius": n * 1.37}) for n in range(500) for m in ("temperature",)]
    wanted = settings(tmp_path, push_url="http://b.test", spool_max_bytes=1024 * 1024)
    agent = Agent(wanted, ListSource(readings), ManualClock(T0), transport=accepting([], 503))
    ticks = 0
    while not agent.own.value("tocsin_dropped_total", what="reading", reason="spool_full"):
        agent.tick()
        ticks += 1
        assert ticks < 1_000
    assert agent.own.value("tocsin_dropped_total", what="reading", reason="spool_full") % 500 == 0
    assert agent.spool is not None
    assert agent.spool.size <= 1024 * 1024
    agent.close()


def test_a_disk_that_takes_nothing_does_not_stop_the_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    source = ListSource([reading(gpu(0), temperature_celsius=66)], [xid(79, gpu(0))])
    bodies: list[str] = []
    agent = Agent(settings(tmp_path, push_url="http://b.test"), source, ManualClock(T0), transport=accepting(bodies))
    monkeypatch.setattr(Spool, "put_packed", refuse)
    agent.read()
    assert agent.own.value("tocsin_spool_memory_batches") == 1
    assert b"gpu_temperature_celsius{" in generate_latest(agent.registry)
    agent.push()
    decoded = decode(bodies[0], precision="ms", now_ms=T0).batch
    assert (len(decoded.readings), len(decoded.events)) == (1, 1), "what the disk refuses is pushed from memory"
    agent.close()


def test_a_store_that_is_away_for_an_hour_gets_everything_once(tmp_path: Path) -> None:
    clock, away, kept = ManualClock(T0), True, Counter[tuple[str, int]]()
    refused = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal refused
        if away:
            refused += 1
            raise httpx2.ConnectError("refused")
        text = gzip.decompress(request.content).decode()
        kept.update((r.gpu.uuid, r.at_ms) for r in decode(text, precision="ms", now_ms=clock.now_ms()).batch.readings)
        return httpx2.Response(204)

    class Live(ListSource):
        def read(self, now_ms: int) -> Batch:
            super().read(now_ms)
            return Batch(readings=[reading(gpu(n), now_ms, power_watts=300 + now_ms % 97) for n in range(8)])

    source = Live()
    wanted = settings(tmp_path, push_url="http://b.test")
    agent = Agent(wanted, source, clock, transport=httpx2.MockTransport(answer))
    for tick in range(420):
        away = tick < 360
        agent.read()
        for _ in range(20):
            agent.push()
            clock.advance(500)
    assert 50 < refused < 100, "back-off: an hour of trying every half second would be 7,200"
    assert set(kept) == {(gpu(n).uuid, at_ms) for n in range(8) for at_ms in source.reads}
    assert set(kept.values()) == {1}
    assert agent.own.value("tocsin_spool_batches") == 0
    agent.close()


def test_readings_that_would_meet_an_instant_again_are_moved(tmp_path: Path) -> None:
    clock = ManualClock(T0)

    class Live(ListSource):
        def read(self, now_ms: int) -> Batch:
            super().read(now_ms)
            return Batch(readings=[reading(gpu(0), now_ms, power_watts=300)])

    source = Live()
    agent = Agent(settings(tmp_path), source, clock)
    for offset in (0, 0, -10_000, 10_000, -3_600_000):
        clock.set(T0 + offset)
        agent.read()
    assert source.reads == [T0, T0 + 1, T0 - 10_000, T0 + 10_000, T0 - 3_600_000]
    assert agent.own.value("tocsin_clock_steps_total", direction="back") == 2
    agent.close()


def test_stuck_readers_are_shown(tmp_path: Path) -> None:
    source = ListSource([reading(gpu(0), temperature_celsius=50)])
    agent = Agent(settings(tmp_path), source, ManualClock(T0))
    agent.read()
    assert agent.own.registry.get_sample_value("tocsin_stuck_readers", {"source": "list"}) is None
    agent.close()
    source.stuck_readers = 2
    agent = Agent(settings(tmp_path), source, ManualClock(T0))
    agent.read()
    assert agent.own.value("tocsin_stuck_readers", source="list") == 2
    agent.close()


def test_the_cadence_does_not_drift(tmp_path: Path) -> None:
    clock, source = ManualClock(T0), ListSource()
    source.work = lambda: clock.advance(3_300)
    agent = Agent(settings(tmp_path), source, clock)
    agent.run(ClockStop(clock, 100))
    assert source.reads == [T0 + n * 10_000 for n in range(10)]
    assert agent.own.value("tocsin_ticks_missed_total") == 0
    agent.close()


def test_missed_ticks_are_skipped_and_counted(tmp_path: Path) -> None:
    clock, source = ManualClock(T0), ListSource()
    slow = iter([0, 34_000])
    source.work = lambda: clock.advance(next(slow, 0))
    agent = Agent(settings(tmp_path), source, clock)
    agent.run(ClockStop(clock, 70))
    assert [at - T0 for at in source.reads] == [0, 10_000, 50_000, 60_000]
    assert agent.own.value("tocsin_ticks_missed_total") == 3
    agent.close()


def test_a_step_of_the_wall_clock_does_not_disturb_the_cadence(tmp_path: Path) -> None:
    clock, source = ManualClock(T0), ListSource()
    steps = iter([lambda: clock.set(T0 - 3_600_000)])
    source.work = lambda: next(steps, lambda: None)()
    agent = Agent(settings(tmp_path), source, clock)
    agent.run(ClockStop(clock, 30))
    assert source.reads == [T0, *(T0 - 3_600_000 + n * 10_000 for n in (1, 2))]
    agent.close()


def test_an_unexpected_error_costs_one_tick(tmp_path: Path) -> None:
    clock, source = ManualClock(T0), ListSource()
    errors = iter([None, ZeroDivisionError("bug")])

    def work() -> None:
        if error := next(errors, None):
            raise error

    source.work = work
    agent = Agent(settings(tmp_path), source, clock)
    agent.run(ClockStop(clock, 40))
    assert len(source.reads) == 4
    assert agent.own.value("tocsin_loop_failures_total", loop="read") == 1
    assert agent.own.value("tocsin_source_failures_total", source="list") == 1
    agent.close()


def test_a_source_that_is_gone_for_good_ends_the_run(tmp_path: Path) -> None:
    clock, source = ManualClock(T0), ListSource()

    def work() -> None:
        raise Unavailable("the driver was replaced")

    source.work = work
    bodies: list[str] = []
    agent = Agent(settings(tmp_path, push_url="http://b.test"), source, clock, transport=accepting(bodies))
    with pytest.raises(Unavailable, match="replaced"):
        agent.run(ClockStop(clock, 40))
    agent.close()


def test_serve_shows_metrics_and_closes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, source = ManualClock(T0), ListSource([reading(gpu(0), temperature_celsius=66)])
    monkeypatch.setattr("tocsin.runtime.agent.process.open_source", lambda *_: source)
    told: list[str] = []
    pages: list[str] = []

    class Once(ClockStop):
        def wait(self, timeout: float | None = None) -> bool:
            pages.append(httpx2.get(told[1].removeprefix("metrics: ")).text)
            return super().wait(timeout)

    serve(settings(tmp_path, listen="127.0.0.1:0"), "list", clock, Once(clock, 10), told.append)
    assert told[0] == "reading 1 GPUs from list every 10 s"
    assert 'host="node-1"' in pages[0]
    assert source.closed
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(told[1].removeprefix("metrics: "))


def test_serve_closes_the_source_where_the_spool_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ListSource()
    monkeypatch.setattr("tocsin.runtime.agent.process.open_source", lambda *_: source)
    (tmp_path / "file").write_text("")
    wanted = settings(tmp_path, listen="127.0.0.1:0", push_url="http://b.test", spool=tmp_path / "file" / "spool.db")
    with pytest.raises(InputError, match=r"agent\.spool"):
        serve(wanted, "list", ManualClock(T0), ClockStop(ManualClock(T0), 10), lambda _: None)
    assert source.closed


def test_serve_refuses_a_plain_spool_where_encryption_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ListSource([reading(gpu(0), temperature_celsius=66)])
    monkeypatch.setattr("tocsin.runtime.agent.process.open_source", lambda *_: source)
    # A machine whose own disk is encrypted has nothing to refuse.
    monkeypatch.setattr(state_files, "Disks", lambda: Disks(tmp_path / "none", tmp_path / "none"))
    agent = settings(tmp_path, listen="127.0.0.1:0", push_url="http://127.0.0.1:9").agent

    def begin(**at_rest: object) -> list[str]:
        told: list[str] = []
        clock = ManualClock(T0)
        required = AtRestSettings.model_validate({"require_encryption": True, **at_rest})
        serve(Settings(agent=agent, at_rest=required), "list", clock, ClockStop(clock, 10), told.append)
        return told

    begun = begin(vouched=[tmp_path])
    assert begun[0].startswith("reading 1 GPUs")
    looks = len(source.reads)
    with pytest.raises(InputError, match=r"at_rest\.require_encryption.*spool\.db.*tocsin at-rest encrypt"):
        begin()
    assert len(source.reads) == looks, "it is refused before anything is read"
    (tmp_path / "spool.db").unlink()
    RING.hold(lambda: (StateKey(b"k" * 32),))
    try:
        for _ in range(2):
            assert begin()[0].startswith("reading 1 GPUs"), "with a key the spool is made encrypted, and found so"
    finally:
        RING.hold(tuple)


def test_a_bad_push_address_closes_the_spool(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    made_by_hand = wanted.model_copy(update={"agent": wanted.agent.model_copy(update={"push_url": "brain"})})
    with pytest.raises(InputError, match=r"agent\.push_url"):
        Agent(made_by_hand, ListSource(), ManualClock(T0))
    Spool(tmp_path / "spool.db", 1 << 20, ManualClock(T0)).close()


def test_a_replay_is_exported_between_its_instants(tmp_path: Path) -> None:
    recorded = tmp_path / "node.prom"
    labels = 'gpu="0",UUID="GPU-1",modelName="A100",Hostname="n1"'
    recorded.write_text(
        f"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 50 {T0}\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 70 {T0 + 60_000}\n"
    )
    wanted = settings(tmp_path, replay=[recorded])
    clock = ManualClock(T0)
    agent = Agent(wanted, open_source("replay", wanted, clock), clock)
    for wait_ms, expected in ((0, 50), (25_000, 50), (35_000, 70)):
        clock.advance(wait_ms)
        agent.read()
        page = generate_latest(agent.registry).decode()
        (line,) = [line for line in page.splitlines() if line.startswith("gpu_temperature_celsius{")]
        assert float(line.rsplit(" ", 1)[1]) == expected
    agent.close()


def test_a_replay_of_nothing_is_one_clear_error() -> None:
    with pytest.raises(InputError, match=r"agent\.replay"):
        open_source("replay", Settings(), ManualClock(T0))


def test_an_unknown_source_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"agent\.source = 'simulate': .*; did you mean simulated\?"):
        open_source("simulate", Settings(), ManualClock(T0))


def test_nvml_without_a_library_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    from tocsin.collector.nvml.library import Code, NvmlFailure, PynvmlLibrary

    def missing(_: PynvmlLibrary) -> None:
        raise NvmlFailure(Code.LIBRARY_NOT_FOUND, "NVML Shared Library Not Found")

    monkeypatch.setattr(PynvmlLibrary, "open", missing)
    with pytest.raises(Unavailable, match=r"libnvidia-ml\.so\.1 was not found") as caught:
        open_source("nvml", Settings(), ManualClock(T0))
    assert caught.value.exit_code == 3


@pytest.mark.smoke
def test_once_over_the_simulated_fleet_shows_sixty_metrics() -> None:
    rows = [json.loads(json.dumps(row)) for row in once(Settings(), "simulated", ManualClock(T0))]
    assert len(rows) >= 64
    names = {key.split("{")[0] for row in rows for key in row["values"]}
    assert len(names) >= 60
    assert all(row["simulated"] is True for row in rows)
    assert {"gpu", "at", "values", "missing"} <= set(rows[0])


@pytest.mark.smoke
@pytest.mark.parametrize("opened", ["", "simulated"])
def test_importing_the_agent_loads_nothing_heavy(opened: str) -> None:
    code = (
        "import sys\n"
        "import tocsin.runtime.agent.process as agent\n"
        "from tocsin.config.settings import Settings\n"
        "from tocsin.domain.clock import ManualClock\n"
        f"rows = list(agent.once(Settings(), {opened!r}, ManualClock(1795000000000))) if {opened!r} else []\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.smoke
def test_what_runs_on_a_node_loads_no_numpy() -> None:
    """It would be a quarter of the agent's memory."""
    sources = ("nvml.source", "nvidia_smi.source", "dcgm.exporter", "dcgm.dcgmi", "spool", "uplink")
    beside = ("frozen", "kernel_log.companion", "training_hook.companion", "vllm", "attribution")
    parts = [f"tocsin.collector.{name}" for name in (*sources, *beside)]
    code = f"import sys, tocsin.runtime.agent.process, {', '.join(parts)}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
