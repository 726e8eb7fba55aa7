"""The simulated fleet: one object that steps through time, takes faults and actions, and knows the truth."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from threading import RLock

import numpy as np

from tocsin.domain.batch import Batch
from tocsin.domain.decision import PARAMETERS, ActionParameters
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind
from tocsin.domain.parameters import encode
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Gpu, Reading
from tocsin.sim import inventory, jobs, load, memory, state, thermal, traffic
from tocsin.sim import jobs as pools
from tocsin.sim import render as columns
from tocsin.sim.actions import FleetActions, pool_named
from tocsin.sim.background import Background
from tocsin.sim.faultline import FaultLine, kind_named
from tocsin.sim.inventory import Stream, generator
from tocsin.sim.render import Moment, ReadingRenderer, TableMaker
from tocsin.sim.spec import Fault, FleetSpec, HardFault
from tocsin.sim.world import SimWorld, StepWindow
from tocsin.store.port import Columns

POOL_ACTIONS = frozenset({ActionKind.SCALE_OUT, ActionKind.SCALE_IN})
USUAL_HEAT = {"training": 0.84, "inference": 0.45, "batch": 0.60}
"""Share of its dynamic power that a GPU of each pool draws at its usual load."""


class SimulatedFleet:
    """A fleet made from a `FleetSpec`.

    The same spec, steps, injections and actions give the same batches; what happens to one GPU changes no random number
    of another. Calls from several threads take turns.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self._lock = RLock()
        self._inventory = inventory.build(spec)
        self._state = state.initial(self._inventory, spec.start_ms)
        self._normal = spec.scenario.normal
        self._limits = thermal.ThermalLimits.of(self._inventory, spec.scenario)
        heat = np.array([USUAL_HEAT[gpu.pool] for gpu in self._inventory.gpus])
        usual = self._limits.idle_w + heat * (self._limits.max_w * 1.12 - self._limits.idle_w)
        background = Background(self._inventory, self._normal, spec.seed)
        self._world = SimWorld(self._inventory, self._state, usual, background)
        self._faults = FaultLine(spec, self._world)
        self._actions = FleetActions(self._world, self._faults)
        self._static = columns.static(self._inventory)
        nvlink = self._inventory.column("nvlink_gb_s") * 1e9
        self._roads = traffic.Roads(traffic.pcie_capacity(self._inventory), nvlink)
        self._renderer: ReadingRenderer | None = None
        self._last: list[Reading] = []
        self._tables: TableMaker | None = None
        self._order = np.argsort([gpu.uuid for gpu in self._inventory.gpus])
        self._uuids = tuple(self._inventory.gpus[number].uuid for number in self._order.tolist())
        self._step = 0

    @property
    def now_ms(self) -> int:
        """The instant of the last batch; the start before the first step."""
        return self._state.now_ms

    @property
    def gpus(self) -> list[Gpu]:
        """Every GPU, lost ones among them; a GPU's place in the list is its index number for `inject`."""
        return list(self._inventory.gpus)

    @property
    def faults(self) -> list[Fault]:
        """Ground truth of every fault so far, oldest first."""
        with self._lock:
            return self._faults.faults()

    @property
    def hard_faults(self) -> list[HardFault]:
        """Ground truth of what a person must be called for, oldest first; also what has begun and not struck yet."""
        with self._lock:
            return self._faults.hard_faults()

    def objection(self, kind: str, gpu: int) -> str:
        """Why a fault of `kind` cannot befall the GPU with this number; empty where it can. Raises InputError."""
        return kind_named(kind).objection(self._inventory, gpu)

    def pools(self) -> list[PoolState]:
        """What each pool's scheduler says now."""
        with self._lock:
            return pools.states(self._state, self._inventory)

    def jobs(self) -> list[jobs.SimulatedJob]:
        """What schedulers tell of the jobs that run now."""
        with self._lock:
            return jobs.jobs(self._state, self._inventory)

    def step(self, interval_ms: int | None = None) -> Batch:
        """Move on by the spec's interval, or by `interval_ms`: one reading of each GPU, and the events of the span.

        Raises InputError for an interval below 1 ms.
        """
        with self._lock:
            moment, events = self._advance(self._window(interval_ms))
            self._last = self._render(moment)
            return Batch(readings=self._last, events=events)

    def step_columns(self, metrics: Sequence[str], interval_ms: int | None = None) -> tuple[Columns, list[Event]]:
        """The same as `step`, with the values of `metrics` as columns and without readings: many times faster.

        Metrics of a process and of MIG instances, whose keys in a reading have a label, go by their plain names. In the
        first step after one of `step`, or with other metrics, a frozen GPU shows live values.
        """
        with self._lock:
            if self._tables is None or self._tables.metrics != tuple(metrics):
                self._tables = TableMaker(self._inventory, metrics)
            moment, events = self._advance(self._window(interval_ms))
            self._last = []
            rows = self._tables.rows(moment, self._state)[self._order]
            places = np.arange(len(self._uuids), dtype=np.int32)
            instants = np.full(places.size, self._state.now_ms, dtype=np.int64)
            return Columns(self._uuids, self._tables.metrics, places, instants, rows), events

    def _window(self, interval_ms: int | None) -> StepWindow:
        span = self.spec.interval_ms if interval_ms is None else interval_ms
        if span < 1:
            raise InputError("interval_ms", span, "time must move forward", "give at least 1 ms")
        return StepWindow(self._state.now_ms, self._state.now_ms + span)

    def _advance(self, window: StepWindow) -> tuple[Moment, list[Event]]:
        world, now, inv = self._state, window.end_ms, self._inventory
        seed, normal = self.spec.seed, self._normal
        self._step += 1
        symbols_before = world.link_symbols.copy()
        load.advance(world, inv, normal.load, seed, self._step, now)
        world.effects = state.Effects.none(len(inv))
        hot_air_c = self._world.normal.advance(world, self._step, window.start_ms, now)
        self._faults.advance(self._step, window)
        self._actions.advance()
        events = self._world.deliver(now)
        world.now_ms = now
        noise = generator(seed, Stream.NOISE, self._step, 1).standard_normal((5, len(inv)))
        asked = load.demand(world, inv, normal.load, seed, self._step, now)
        self._renew_processes(asked)
        if self._step == 1:
            thermal.settle(world, inv, self._limits, asked, now)
        ambient = thermal.inlet(inv, now) + hot_air_c
        throttle = thermal.advance(world, inv, self._limits, asked, noise[0], ambient, window.seconds)
        self._faults.show(throttle, window)
        curve = self.spec.scenario.power.throughput
        speed = load.throughput(curve, inv, world.power_limit / self._limits.max_w)
        moved = traffic.advance(world, inv, self._roads, asked, speed, window.seconds)
        total = self._static["gpu_memory_total_bytes"]
        measured = memory.measure(world, inv, total, asked, normal, noise[3:])
        table = {
            **self._static,
            **columns.utilisation(world, asked, normal.sensors, noise[1]),
            **columns.heat(world, self._limits, asked, normal.sensors, noise[2]),
            **columns.clocks(world, inv, throttle, asked),
            **columns.memory(measured, asked),
            **columns.links(world, moved, symbols_before, window.seconds),
            **columns.counters(world),
        }
        return Moment(table, asked, measured), events

    def _render(self, moment: Moment) -> list[Reading]:
        if self._renderer is None:
            self._renderer = ReadingRenderer(self._inventory, tuple(moment.columns))
        return self._renderer.readings(moment.columns, self._state, moment.load, moment.memory, self._last)

    def _renew_processes(self, asked: load.LoadDemand) -> None:
        """A new process starts its allocator's counters from zero."""
        fresh = asked.pid != self._state.pids
        self._state.pids = asked.pid
        self._state.retries[fresh] = 0.0
        self._state.ooms[fresh] = 0.0

    def inject(self, kind: str, gpu: str) -> Fault:
        """Begin fault `kind` on `gpu`, a UUID or an index number as text; visible within minutes, see `FAULT_KINDS`.

        Raises InputError for an unknown kind or GPU, or one that the kind cannot befall, and Conflict where the fault
        is already there.
        """
        with self._lock:
            return self._faults.inject(kind_named(kind), self._number(gpu), self._state.now_ms)

    def apply(self, action: ActionKind, gpu: str, parameters: ActionParameters | None = None) -> bool:
        """Do `action`; whether it could be done. Scaling takes a pool's name in place of a GPU.

        Cordon, drain, uncordon and reboot act on the GPU's whole host. Of the parameters `power_limit_watts` counts for
        throttle and restore, `gpus` for scaling. Raises InputError for an unknown GPU, pool or parameter value.
        """
        told = PARAMETERS[action]() if parameters is None else parameters
        if told.problem:
            raise InputError("parameters", encode(told), told.problem, "give watts, or a number of GPUs")
        with self._lock:
            if action in POOL_ACTIONS:
                return self._actions.on_pool(action, pool_named(gpu), told)
            return self._actions.on_gpu(action, self._number(gpu), told)

    def move(self, job: str, hosts: Collection[str]) -> bool:
        """Move a job, by the name or number in its owner, to one of `hosts`, anywhere where none is named; whether it
        moved."""
        number = job.rpartition("-")[2].rpartition("/")[2]
        if not (number.isascii() and number.isdigit()):
            return False
        with self._lock:
            return self._actions.move(int(number) - pools.FIRST_JOB, frozenset(hosts))

    def closed(self) -> frozenset[str]:
        """UUIDs of the GPUs that take no new work."""
        with self._lock:
            shut = np.flatnonzero(self._state.unschedulable | self._state.drained).tolist()
            return frozenset(self._inventory.gpus[number].uuid for number in shut)

    def schedulable(self) -> dict[str, bool]:
        """Whether each host takes new work: not where one of its GPUs is cordoned or drained with its host."""
        with self._lock:
            closed = self._state.unschedulable | self._state.drained
            hosts: dict[str, list[bool]] = {}
            for gpu, out in zip(self._inventory.gpus, closed.tolist(), strict=True):
                hosts.setdefault(gpu.host, []).append(out)
            return {host: not all(out) for host, out in hosts.items()}

    def gpu_on(self, host: str) -> str:
        """The first GPU of `host`; empty where there is no such host."""
        return next((gpu.uuid for gpu in self._inventory.gpus if gpu.host == host), "")

    def _number(self, gpu: str) -> int:
        known = self._inventory.by_uuid
        if gpu in known:
            return known[gpu]
        if gpu.isascii() and gpu.isdigit() and int(gpu) < len(known):
            return int(gpu)
        close = difflib.get_close_matches(gpu, known, n=1, cutoff=0.0)[0]
        raise InputError("gpu", gpu, "no such GPU", f"nearest is {close}; or give a number from 0 to {len(known) - 1}")
