"""The network ports of this node beside its GPUs: each port's figures go with the GPU that it serves.

A thread of its own reads the ports: a card that hangs in its firmware blocks that thread, and the readings go on
without the ports' figures. ``network_port_up`` is there from when a port was up for the first time, also before a
restart of the agent: a port that never was is no fault.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.collector.network.ethtool import pause_frames
from tocsin.collector.network.ports import MOST_PORTS, UP, Port, PortSample, find_ports, read_port
from tocsin.collector.network.rails import homes
from tocsin.collector.network.rates import PortRates, rates_between
from tocsin.collector.pci_tree import Way, folder_of, way_to
from tocsin.collector.sysfs import number_of
from tocsin.config.settings import Settings
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, Clock
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, Reading, normalise_pci_bus_id
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.labels import RAIL_LABEL

_log = logger("network")

USED, RESENDS, PORTS_DOWN = "network_utilization_ratio", "network_resends_per_second", "network_ports_down"
STALE_INTERVALS = 3.0
"""Figures older than so many intervals are not taken for the present."""
FORGET_MS = 7 * DAY
"""A port that has been down for so long was taken out of use (own choice)."""
_MOST_STATE_BYTES = 65_536
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at all ports gave, and when (seconds, monotonic)."""

    at: float
    ports: tuple[Port, ...] = ()
    samples: tuple[PortSample, ...] = ()
    rates: tuple[PortRates, ...] = ()
    lost: tuple[Port, ...] = ()
    """Ports that were up, of cards that are no longer on the bus."""


class Network:
    """Adds the metrics of family ``network`` to the GPUs that the ports serve, and the rail to their labels.

    `look` reads all ports once; `start` does so in a thread, every `every_seconds`. `rails` names the rail of a port
    (``mlx5_0:1``) or of its card (``mlx5_0``). `state` keeps which ports were up.
    """

    name = "network"

    def __init__(
        self,
        sys: Path,
        clock: Clock,
        own: OwnMetrics,
        *,
        state: Path,
        every_seconds: float = 10.0,
        interfaces: Sequence[str] = (),
        rails: Mapping[str, str] | None = None,
        pauses: Callable[[str], int | None] = pause_frames,
    ) -> None:
        self._sys = sys
        self._clock = clock
        self._own = own
        self._every = every_seconds
        self._interfaces = tuple(interfaces)
        self._rails = dict(rails or {})
        self._pauses = pauses
        self._state = state
        self._was_up = self._saved = _load(state)
        self._look = _Look(clock.monotonic())
        self._capped: frozenset[tuple[str, str]] = frozenset()
        self._placed: tuple[tuple[object, ...], dict[str, str]] = ((), {})
        self._known: dict[str, Port] = {}
        self._homes: dict[str, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that hangs in a card's firmware is left behind."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> None:
        """Read all ports once."""
        found = find_ports(self._sys, self._interfaces)
        if len(found) > MOST_PORTS:
            self._own.count("tocsin_dropped_total", len(found) - MOST_PORTS, what="port", reason="network_full")
        ports = tuple(found[:MOST_PORTS])
        samples = tuple(read_port(port, self._pauses) for port in ports)
        self._remember(ports, samples)
        self._say_capped(ports, samples)
        self._own.set("tocsin_network_ports", float(len(ports)))
        now = self._clock.monotonic()
        before, passed = dict(zip(self._look.ports, self._look.samples, strict=True)), now - self._look.at
        rates = tuple(rates_between(before.get(one), now_, passed) for one, now_ in zip(ports, samples, strict=True))
        self._look = _Look(now, ports, samples, rates, self._lost(ports))

    def _lost(self, ports: Sequence[Port]) -> tuple[Port, ...]:
        """Known ports of cards that the bus no longer has: one whose card is there was handed to a container."""
        gone = self._known.keys() - {port.name for port in ports}
        self._known |= {port.name: port for port in ports}
        buses = self._sys / "bus/pci/devices"
        found = (self._known[name] for name in sorted(gone) if name in self._was_up)
        return tuple(port for port in found if port.bus and not (buses / port.bus[-1]).exists())

    def enrich(self, batch: Batch, now_ms: int) -> Batch:  # noqa: ARG002  # looks age on the monotonic scale
        """`batch` with the figures of the newest look; they are missing as timed out where it is too old."""
        look = self._look
        if not (look.ports or look.lost) or not batch.readings:
            return batch
        home = self._home(look.ports, batch.readings)
        self._homes |= home
        stale = self._clock.monotonic() - look.at > STALE_INTERVALS * self._every
        values: dict[str, dict[str, float]] = defaultdict(dict)
        rails: dict[str, str] = {}
        for port, sample, rate in zip(look.ports, look.samples, look.rates, strict=True):
            uuid = home.get(port.name)
            if uuid is not None:
                values[uuid] |= {} if stale else self._figures(port, sample, rate, values[uuid])
                rails.setdefault(uuid, self._rails.get(port.name) or self._rails.get(port.device, ""))
        for port in look.lost:
            if (uuid := self._homes.get(port.name)) is not None and not stale:
                figures = values[uuid]
                figures[variant(UP, "port", port.name)] = 0.0
                figures[PORTS_DOWN] = figures.get(PORTS_DOWN, 0.0) + 1
        readings = [
            # A GPU that answers nothing stays one: what its port does says nothing of it.
            _with(one, values[one.gpu.uuid], rails.get(one.gpu.uuid, ""), stale=stale)
            if one.gpu.uuid in values and one.values
            else one
            for one in batch.readings
        ]
        if all(one is other for one, other in zip(readings, batch.readings, strict=True)):
            return batch
        return replace(batch, readings=readings)

    def _figures(
        self, port: Port, sample: PortSample, rate: PortRates, others: Mapping[str, float]
    ) -> dict[str, float]:
        """What `port` adds to `others`, the figures of its GPU so far."""
        figures = {variant(metric, "port", port.name): value for metric, value in sample.values.items()}
        if sample.up is not None and port.name in self._was_up:
            figures[variant(UP, "port", port.name)] = float(sample.up)
            figures[PORTS_DOWN] = others.get(PORTS_DOWN, 0.0) + (not sample.up)
        if rate.used is not None:
            figures[USED] = max(others.get(USED, 0.0), rate.used)
        if rate.resends is not None:
            figures[RESENDS] = others.get(RESENDS, 0.0) + rate.resends
        return figures

    def _home(self, ports: Sequence[Port], readings: Sequence[Reading]) -> dict[str, str]:
        gpus = {one.gpu.uuid: normalise_pci_bus_id(one.gpu.pci_bus_id) for one in readings if not one.gpu.is_mig}
        key = (tuple(ports), tuple(gpus.items()))
        if self._placed[0] != key:
            places: dict[str, tuple[Way, int | None]] = {}
            for uuid, bus in sorted(gpus.items(), key=lambda item: (item[1], item[0])):
                numa = number_of(folder_of(self._sys, bus) / "numa_node") if bus else None
                places[uuid] = way_to(self._sys, bus), numa
            self._placed = key, homes([(port.name, port.bus, port.numa) for port in ports], places)
        return self._placed[1]

    def _remember(self, ports: Sequence[Port], samples: Sequence[PortSample]) -> None:
        now_ms = self._clock.now_ms()
        up = {port.name: now_ms for port, sample in zip(ports, samples, strict=True) if sample.up}
        kept = {name: at_ms for name, at_ms in self._was_up.items() if now_ms - at_ms < FORGET_MS}
        self._was_up = kept | up
        # Once a day is enough for ports that stay up.
        if set(self._was_up) == set(self._saved) and all(now_ms - self._saved[name] < DAY for name in up):
            return
        try:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._state, json.dumps(self._was_up))
        except OSError as error:
            _log.warning("ports that were up cannot be kept", path=str(self._state), problem=error.strerror)
        self._saved = self._was_up

    def _say_capped(self, ports: Sequence[Port], samples: Sequence[PortSample]) -> None:
        capped = frozenset(
            (port.name, file) for port, sample in zip(ports, samples, strict=True) for file in sample.capped
        )
        for port, file in sorted(capped - self._capped):
            _log.warning(
                "a counter is at its cap: what comes after is not seen until it is cleared", port=port, counter=file
            )
        self._capped = capped
        self._own.set("tocsin_network_counters_at_cap", float(len(capped)))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001  # the supervisor of the looking loop
                self._own.count("tocsin_loop_failures_total", loop="network")
                _log.exception("unexpected error, looking at ports goes on")
            self._closing.wait(self._every)


def _with(reading: Reading, values: Mapping[str, float], rail: str, *, stale: bool) -> Reading:
    gpu = reading.gpu
    if not values and not rail and not stale:
        return reading
    if rail and RAIL_LABEL not in gpu.labels:
        gpu = replace(gpu, labels={**gpu.labels, RAIL_LABEL: rail})
    missing = {**reading.missing, UP: Missing.TIMED_OUT} if stale else reading.missing
    return replace(reading, gpu=gpu, values={**reading.values, **values}, missing=missing)


def _load(path: Path) -> dict[str, int]:
    """When each port was up last, in milliseconds; nothing where `path` cannot be used."""
    try:
        with path.open("rb") as file:
            rows = json.loads(file.read(_MOST_STATE_BYTES))
        if not isinstance(rows, dict) or not all(type(at_ms) is int for at_ms in rows.values()):
            raise TypeError
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, RecursionError):
        _log.warning("which ports were up cannot be read, it is learnt anew", path=str(path))
        return {}
    return rows


def open_network(settings: Settings, clock: Clock, own: OwnMetrics) -> Network:
    """The companion that ``agent.network`` asks for, looking already."""
    wanted = settings.agent
    made = Network(
        wanted.sys,
        clock,
        own,
        state=wanted.spool.with_name("network.json"),
        every_seconds=wanted.interval_seconds,
        interfaces=wanted.network_interfaces,
        rails=wanted.network_rails,
    )
    made.start()
    return made
