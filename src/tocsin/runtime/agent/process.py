"""The agent: reads one node's GPUs, exports, spools and pushes. It needs no brain and loads no model or web server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from tocsin.collector.exporter import FleetCollector, MetricsServer
from tocsin.collector.instants import Instants
from tocsin.collector.source import HasReaders, Source
from tocsin.collector.spool import Buffer
from tocsin.collector.uplink import PushTarget, Uplink
from tocsin.config.address import split_address
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading, sanitise
from tocsin.http_client import ClientTls
from tocsin.runtime.agent.companions import Companions, Context, Opener, find_companion
from tocsin.runtime.agent.sources import open_settled, open_source
from tocsin.runtime.service_manager import ServiceManager, Stop, Watched
from tocsin.runtime.state_files import agent_files, require_encryption
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

if TYPE_CHECKING:
    from tocsin.collector.push.otlp_out import OtlpExporter

_log = logger("agent")

BATCH_READINGS = 500
"""Most readings of one spooled batch; keeps a push within what receivers take."""
PUSH_SECONDS = 0.5
"""Pause between two looks into the spool."""
STOP_LOOK_SECONDS = 0.5
"""Longest time until the end is noticed by an agent that waits for what companions report."""
END_SECONDS = 3.0
"""How long an agent that is told to end is waited for. A driver or a receiver may hang: what was read is in the spool,
which outlives any end."""
LEAST_WAIT_SECONDS = 0.001
LISTENERS = frozenset({"kernel_log", "notices"})
"""Companions that report between two readings."""
EXPORT_INTERVALS = 3
MIN_EXPORT_SECONDS = 30.0
"""Readings are exported for three intervals, and for this long at least, after the source fell silent."""


class Agent:
    """Everything of one agent but its HTTP server.

    Readings go past the companions to the exporter and, where ``agent.push_url`` is set, through the spool to the
    uplink. `registry` holds the GPUs' metrics and the agent's own. Takes over `source` and closes it. `companions` are
    names and openers; without them those of the settings.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        clock: Clock,
        *,
        own: OwnMetrics | None = None,
        transport: httpx2.BaseTransport | None = None,
        companions: Iterable[tuple[str, Opener]] | None = None,
    ) -> None:
        wanted = settings.agent
        self.own = own if own is not None else OwnMetrics()
        self.registry = self.own.registry
        self._source = source
        self._clock = clock
        self._interval = wanted.interval_seconds
        self._patience = wanted.push_timeout_seconds + 1.0
        self._warned: set[str] = set()
        self._gpus: dict[str, Gpu] = {}
        self.exporter = FleetCollector(clock, max(EXPORT_INTERVALS * wanted.interval_seconds, MIN_EXPORT_SECONDS))
        self.registry.register(self.exporter)
        self._instants = Instants(clock, self.own)
        self.otlp = _open_otlp(settings, clock, self.own, transport)
        self.spool: Buffer | None = None
        self._owner_labels = wanted.push_owner_labels
        self.uplink: Uplink | None = None
        if wanted.push_url:
            self.spool, self.uplink = _open_push(settings, clock, self.own, transport)
        self._alarm = threading.Event()
        self._spooled = threading.Event()
        context = Context(settings, clock, self.own, source.name, self._alarm.set)
        self.companions = Companions(context, companions)

    def tick(self) -> Batch:
        """Read once and push; returns what was read, without what could not be used."""
        batch = self.read()
        self.push()
        return batch

    def read(self) -> Batch:
        """Read, enrich, clean, export and spool. Raises what the source raises, which is never for a single GPU."""
        now_ms = self._instants.next()
        return self._hand_on(self._read_source(now_ms), now_ms)

    def read_events(self) -> Batch:
        """Hand on what the companions were told since the last reading, without asking the GPUs."""
        self._alarm.clear()
        return self._hand_on(Batch(), self._instants.next())

    def _hand_on(self, raw: Batch, now_ms: int) -> Batch:
        full, name = self.companions.enrich(raw, now_ms), self._source.name
        batch = replace(full, readings=[self._clean(reading) for reading in full.readings])
        self.own.count("tocsin_readings_total", len(batch.readings), source=name)
        self._gpus.update((reading.gpu.uuid, reading.gpu) for reading in batch.readings)
        for event in batch.events:
            self.own.count("tocsin_events_total", source=name, kind=event.kind.value)
            if event.kind is EventKind.XID:
                self._count_xid(event)
            _log.info("event", kind=event.kind.value, gpu=event.gpu, code=event.code, message=event.message)
        if batch.readings or not self._source.gpus():
            # A replay has nothing new at most ticks; that is no reason to take its GPUs for gone.
            self.exporter.update(name, batch.readings)
        if self.otlp is not None:
            self.otlp.put(batch.readings)
        self._keep(batch)
        if batch.events:
            self._spooled.set()
        return batch

    def _count_xid(self, event: Event) -> None:
        gpu = self._gpus.get(event.gpu, Gpu(event.gpu, event.host, pool=""))
        self.own.count(
            "tocsin_xids_total",
            gpu_uuid=gpu.uuid,
            gpu_index="" if gpu.index is None else str(gpu.index),
            host=gpu.host,
            pool=gpu.pool,
            simulated="true" if event.simulated else "",
            xid=str(event.code),
        )

    def _read_source(self, now_ms: int) -> Batch:
        begun, name = self._clock.monotonic(), self._source.name
        try:
            raw = self._source.read(now_ms)
        except Exception:
            self.own.count("tocsin_source_failures_total", source=name)
            raise
        self.own.observe("tocsin_source_read_seconds", self._clock.monotonic() - begun, source=name)
        if isinstance(self._source, HasReaders):
            self.own.set("tocsin_stuck_readers", self._source.stuck_readers, source=name)
        return raw

    def push(self) -> int:
        """Push what waits; returns how many batches left the spool."""
        return self.uplink.push() if self.uplink is not None else 0

    def run(self, stop: Stop) -> None:
        """Read at a fixed cadence until `stop`. Pushing has its own thread: a slow receiver must delay no reading.

        A tick that is missed is skipped and counted, not made up for, and the cadence does not drift. An unexpected
        error costs one tick; a TocsinError, such as a driver that only a new process can open, ends the run.
        """
        ended = threading.Event()
        pusher = threading.Thread(target=self._push_until, args=(ended,), name="uplink", daemon=True)
        if self.uplink is not None:
            pusher.start()
        if self.otlp is not None:
            threading.Thread(target=self._send_until, args=(ended,), name="otlp", daemon=True).start()
        begun = self._clock.monotonic()
        done = 0
        try:
            while not stop.is_set():
                self._supervised("read", self.read)
                due = max(done, int((self._clock.monotonic() - begun) // self._interval)) + 1
                if due > done + 1:
                    self.own.count("tocsin_ticks_missed_total", due - done - 1)
                done = due
                self._wait(stop, begun + due * self._interval)
        finally:
            ended.set()
            self._spooled.set()
            if pusher.is_alive():
                pusher.join(self._patience)

    def _wait(self, stop: Stop, until: float) -> None:
        """Wait until the monotonic instant `until`; what a companion reports meanwhile is handed on at once."""
        listening = bool(LISTENERS.intersection(self.companions.names))
        while not stop.is_set():
            left = until - self._clock.monotonic()
            if left < LEAST_WAIT_SECONDS:
                return
            if listening:
                self._alarm.wait(min(left, STOP_LOOK_SECONDS))
            else:
                stop.wait(left)
            if self._alarm.is_set():
                self._supervised("events", self.read_events)

    def close(self) -> None:
        """Let go of source, companions, spool and connections; what waits in the spool stays there. Safe to repeat."""
        self._source.close()
        self.companions.close()
        if self.uplink is not None:
            self.uplink.close()
        if self.otlp is not None:
            self.otlp.close()
        if self.spool is not None:
            self.spool.close()

    def _push_until(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self._spooled.wait(PUSH_SECONDS)
            self._spooled.clear()
            self._supervised("push", self.push)

    def _send_until(self, ended: threading.Event) -> None:
        assert self.otlp is not None
        while not ended.wait(PUSH_SECONDS):
            self._supervised("otlp", self.otlp.send)

    def _supervised(self, loop: str, work: Callable[[], object]) -> None:
        try:
            work()
        except TocsinError:
            raise
        except Exception:  # noqa: BLE001  # the supervisor of the agent's loops
            self.own.count("tocsin_loop_failures_total", loop=loop)
            _log.exception("unexpected error, the agent goes on", loop=loop)

    def _clean(self, reading: Reading) -> Reading:
        cleaned, problems = sanitise(reading)
        if problems:
            self.own.count("tocsin_dropped_total", len(problems), what="value", reason="implausible")
        for problem in problems:
            metric = problem.split(" ", 1)[0]
            if metric not in self._warned:
                self._warned.add(metric)
                _log.warning("implausible value dropped (once per metric)", gpu=reading.gpu.uuid, problem=problem)
        return cleaned

    def _keep(self, batch: Batch) -> None:
        if self.spool is None:
            return
        for part in _parts(batch):
            packed = self.uplink is not None and self.uplink.packs
            text = encode(part, owner_labels=self._owner_labels, packed=packed)
            durable = self.spool.put(text, len(part.readings), len(part.events))
            at_ms = [part.readings[0].at_ms] if part.readings else []
            _log.debug("spooled", durable=durable, readings=len(part.readings), events=len(part.events), at_ms=at_ms)


def _open_otlp(
    settings: Settings, clock: Clock, own: OwnMetrics, transport: httpx2.BaseTransport | None
) -> OtlpExporter | None:
    """None where ``otlp.url`` is not set. Raises InputError where its library lacks."""
    if not settings.otlp.url:
        return None
    try:
        from tocsin.collector.push.otlp_out import OtlpExporter
    except ImportError:
        raise InputError("otlp.url", settings.otlp.url, "needs the extra otlp", "pip install 'tocsin[otlp]'") from None
    return OtlpExporter(settings.otlp, clock, own, transport)


def _open_push(
    settings: Settings, clock: Clock, own: OwnMetrics, transport: httpx2.BaseTransport | None
) -> tuple[Buffer, Uplink]:
    wanted = settings.agent
    target = PushTarget(
        wanted.push_url,
        wanted.push_org,
        wanted.push_bucket,
        wanted.push_token.get_secret_value(),
        wanted.push_timeout_seconds,
        ClientTls.of(wanted.push_ca, wanted.push_certificate, wanted.push_key),
        tuple(wanted.cell_urls),
        wanted.push_token_file,
    )
    spool = Buffer(wanted.spool, wanted.spool_max_bytes, clock, own)
    try:
        return spool, Uplink(spool, target, clock, own, transport=transport)
    except TocsinError:
        spool.close()
        raise


def _parts(batch: Batch) -> Iterator[Batch]:
    """`batch` in pieces of at most `BATCH_READINGS` readings, its events in the first."""
    if batch.events and not batch.readings:
        yield batch
    for start in range(0, len(batch.readings), BATCH_READINGS):
        readings = batch.readings[start : start + BATCH_READINGS]
        yield Batch(readings=readings, events=batch.events if start == 0 else ())


def once(settings: Settings, name: str, clock: Clock) -> Iterator[dict[str, object]]:
    """One reading of each GPU of source `name`, with the owners of its processes, as rows: see `Reading.as_json`."""
    own = OwnMetrics()
    source = open_settled(name, settings, clock, own)
    companions = Companions(
        Context(settings, clock, own, source.name), [("attribution", find_companion("attribution"))]
    )
    try:
        now_ms = clock.now_ms()
        for reading in companions.enrich(source.read(now_ms), now_ms).readings:
            yield sanitise(reading)[0].as_json()
    finally:
        companions.close()
        source.close()


def serve(settings: Settings, name: str, clock: Clock, stop: Stop, announce: Callable[[str], None]) -> None:
    """Run an agent over source `name` with its `/metrics` until `stop`; says by `announce` what it reads, and where.

    It runs on a thread of its own, which is left behind where it does not end in time: the end of the process must
    wait neither for a source nor for a receiver. What was changed on the node is given back first, which has its own
    bounds. Raises what ended the agent.
    """
    require_encryption(settings, agent_files(settings))
    failures: list[BaseException] = []
    give_back: list[Callable[[], None]] = []

    def run() -> None:
        try:
            _serve(settings, name, clock, stop, announce, give_back)
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits for this one
            failures.append(error)

    agent = threading.Thread(target=run, name="agent", daemon=True)
    agent.start()
    while agent.is_alive() and not stop.is_set():
        agent.join(STOP_LOOK_SECONDS)
    for close in give_back:
        close()
    agent.join(END_SECONDS)
    if agent.is_alive():
        _log.warning("something hangs: the agent ends without waiting for it", seconds=END_SECONDS)
    if failures:
        raise failures[0]


def _one_at_a_time(close: Callable[[], None]) -> Callable[[], None]:
    """`close`, which may be repeated, for two threads of which one waits for the other."""
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            close()

    return locked


def _serve(
    settings: Settings,
    name: str,
    clock: Clock,
    stop: Stop,
    announce: Callable[[str], None],
    give_back: list[Callable[[], None]],
) -> None:
    """The agent itself; what must not be left out at its end goes to `give_back` as well."""
    host, port = split_address(settings.agent.listen, "agent.listen")
    own = OwnMetrics()
    with ExitStack() as stack:
        source = open_source(name, settings, clock, own)
        stack.callback(source.close)
        agent = Agent(settings, source, clock, own=own)
        stack.callback(agent.close)
        server = MetricsServer(agent.registry, host, port)
        stack.callback(server.close)
        announce(f"reading {len(source.gpus())} GPUs from {source.name} every {settings.agent.interval_seconds:g} s")
        announce(f"metrics: {server.url}")
        if agent.uplink is not None:
            announce(f"pushing to {settings.agent.push_url}")
        # An earlier agent may have left a limit that is to be given back.
        wanted = settings.node.allow or any(settings.node.marker_folder.glob("*.limit.json"))
        if agent.companions.context.is_this_node and wanted:
            from tocsin.runtime.agent.order_worker import open_order_worker

            order_worker = open_order_worker(settings, clock, own, agent.companions)
            give_back.append(_one_at_a_time(order_worker.close))
            stack.callback(give_back[-1])
            order_worker.start()
            announce(f"allowed on this node: {', '.join(settings.node.allow) or 'nothing'}")
        manager = ServiceManager()
        stack.callback(manager.stopping)
        manager.ready()
        agent.run(Watched(stop, manager, clock))
