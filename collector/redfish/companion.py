"""Faults around this node that its management controllers report, as events of kind ``node_fault`` on the host.

A thread of its own asks, slowly and one request at a time. While a fault stands its event is told again, so that the
rule holds; when a full look says that no part is at fault any more, an event says so. A controller that does not answer
takes nothing back, and after ten minutes holds nothing up.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tocsin.collector.redfish.client import RedfishClient, RedfishFailed
from tocsin.collector.redfish.walk import FLOW, SUPPLY, Look, Walk
from tocsin.config.redfish import RedfishSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, Clock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.node_fault import AROUND_NODE, NodeFault
from tocsin.http_client import http_client
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("redfish")

REPEAT_MS = 5 * MINUTE
"""A fault that stands is told again after this; rules hold it for 15 minutes (own choice)."""
STALE_SECONDS = 600.0
"""What a controller said longer ago than this is not taken for the present."""
_NAMED = 3
"""Parts that are named in one event."""


class Redfish:
    """Adds events, and the coolant's flow and temperature, of all `controllers` by URL.

    `ask` looks at all of them once; `start` does so in a thread, every `every_seconds`. `alarm` is called, by that
    thread, when faults began or ended.
    """

    name = "redfish"

    def __init__(
        self,
        controllers: Mapping[str, RedfishClient],
        every_seconds: float,
        host: str,
        clock: Clock,
        own: OwnMetrics,
        alarm: Callable[[], None] = lambda: None,
    ) -> None:
        self._controllers = dict(controllers)
        self._every = every_seconds
        self._host = host
        self._clock = clock
        self._own = own
        self._alarm = alarm
        self._looks: dict[str, tuple[float, Look]] = {}
        self._told: dict[NodeFault, tuple[str, int]] = {}
        self._failing: set[str] = set()
        self._last_ms = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="redfish", daemon=True)

    def start(self) -> None:
        """Ask from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop asking and end the sessions; a request that hangs is left to end with the process."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        if not self._thread.is_alive():
            self._end_sessions()

    def ask(self) -> None:
        """Look at all controllers once."""
        for url, client in self._controllers.items():
            try:
                client.begin()
                look = Walk(client.get).run()
            except RedfishFailed as error:
                self._fail(url, "failed", str(error))
                continue
            before = self._looks.get(url)
            self._looks[url] = self._clock.monotonic(), look
            if look.failed:
                self._fail(url, "partly", look.failed[0])
            else:
                self._failing.discard(url)
                self._own.count("tocsin_redfish_looks_total", outcome="complete")
            if (before[1].faults if before is not None else {}) != look.faults:
                self._alarm()

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with events and figures of what the controllers said last."""
        if not batch.readings:
            return batch
        now = self._clock.monotonic()
        looks = [look for at, look in list(self._looks.values()) if now - at <= STALE_SECONDS]
        events = self._news(looks, next((one.gpu.host for one in batch.readings if one.gpu.host), self._host), now_ms)
        figures = _coolant(looks)
        if not events and not figures:
            return batch
        readings = [
            replace(one, values={**one.values, **figures}) if one.values and figures else one for one in batch.readings
        ]
        return replace(batch, readings=readings, events=[*batch.events, *events])

    def _news(self, looks: Sequence[Look], host: str, now_ms: int) -> list[Event]:
        events: list[Event] = []
        for kind in AROUND_NODE:
            parts = [part for look in looks for part in look.faults.get(kind, ())]
            whole = len(looks) == len(self._controllers) and not any(look.failed for look in looks)
            known = whole and any(kind in look.known for look in looks)
            text, told_ms = self._told.get(kind, ("", 0))
            if parts:
                more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
                words = ", ".join(parts[:_NAMED]) + more
                if words != text or not 0 <= now_ms - told_ms < REPEAT_MS:
                    events.append(self._event(kind, words, host, now_ms))
                    self._told[kind] = words, now_ms
            elif text and known:
                events.append(self._event(kind.over, f"over: {text}", host, now_ms))
                del self._told[kind]
        return events

    def _event(self, code: int, words: str, host: str, now_ms: int) -> Event:
        # The name of an event follows from its instant, and one that is told again must not end in that of the first.
        self._last_ms = max(now_ms, self._last_ms + 1)
        return Event(EventKind.NODE_FAULT, "", host, self._last_ms, int(code), words, self.name)

    def _fail(self, url: str, outcome: str, problem: str) -> None:
        self._own.count("tocsin_redfish_looks_total", outcome=outcome)
        tell = _log.debug if url in self._failing else _log.warning
        self._failing.add(url)
        tell("management controller gives no full answer", url=url, problem=problem)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.ask()
            except Exception:  # noqa: BLE001  # the supervisor of the asking loop
                self._own.count("tocsin_loop_failures_total", loop="redfish")
                _log.exception("unexpected error, asking goes on")
            self._closing.wait(self._every)

    def _end_sessions(self) -> None:
        for client in self._controllers.values():
            client.close()


def _coolant(looks: Sequence[Look]) -> dict[str, float]:
    """The least flow and the warmest supply of all connectors, where any says so."""
    flows, supplies = [[one for look in looks for one in getattr(look, name)] for name in ("flows", "supplies")]
    return {**({FLOW: min(flows)} if flows else {}), **({SUPPLY: max(supplies)} if supplies else {})}


def controller(url: str, wanted: RedfishSettings, clock: Clock) -> RedfishClient:
    """The client for one of ``redfish.urls``. Raises InputError for a CA file that cannot be used."""
    unchecked = None
    if not wanted.verify:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
    client = http_client(wanted.timeout_seconds, base_url=url, ca=wanted.ca_file, tls=unchecked, most_bytes=None)
    return RedfishClient(client, clock, wanted.timeout_seconds, wanted.username, wanted.password.get_secret_value())


def open_redfish(settings: Settings, clock: Clock, own: OwnMetrics, alarm: Callable[[], None]) -> Redfish:
    """The companion for the controllers of ``redfish.urls``, asking already. Raises InputError for a bad CA file."""
    wanted = settings.redfish
    controllers = {url: controller(url, wanted, clock) for url in wanted.urls}
    host = settings.agent.host or socket.gethostname()
    made = Redfish(controllers, wanted.every_seconds, host, clock, own, alarm)
    made.start()
    return made
