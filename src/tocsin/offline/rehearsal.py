"""Rehearsing the thermal controller: GPUs whose cooling gets worse, with it, without any action, and at a fixed cap.

Controller, marker files and the writing of limits are those of the agent; only the driver is simulated. The
cases are of the simulated fleet: every GPU gets the fault `thermal_drift` with the numbers of the scenario. A case
begins shortly before its GPU would be as hot as the controller allows, at the heaviest load it may get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tocsin.actions.node.limit_writer import LimitWriter
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.thermal import ThermalController, ThermalPhase, ThermalSettings
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order
from tocsin.domain.power import MARGIN_BELOW_SLOWDOWN_C, ClockRange, Heat, LimitFailure, Obstacle, PowerLimits
from tocsin.sim import inventory, load, state, thermal
from tocsin.sim.background import Background
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultRun
from tocsin.sim.fleet import USUAL_HEAT
from tocsin.sim.inventory import INLET_C, Bools, Floats, Inventory, Stream, generator
from tocsin.sim.load import LoadDemand
from tocsin.sim.spec import FleetSpec
from tocsin.sim.state import Effects, SimState
from tocsin.sim.world import SimWorld, StepWindow

START_MS = 12 * HOUR
"""Two hours before the busiest hour of the simulated day."""
BEFORE_C = 0.5
"""Degrees below the controller's point of engagement at which a case begins, at steady heaviest load."""
DEMAND_SECONDS = 10
FAULT_SECONDS = 60
HEAVIEST = {"training": 0.90, "inference": 0.70, "batch": 0.65}
"""Share of its dynamic power that a GPU of each pool draws at the most within a case, nearly."""
POWER_OVERSHOOT = 1.12
"""Dynamic power at full load and clocks over the default limit, as `tocsin.sim.thermal` has it."""


@dataclass
class Arm:
    """One way of treating all cases. Arrays have one entry per case.

    `hottest_c` is the highest true temperature of the die so far.
    """

    state: SimState
    hottest_c: Floats
    slowed_seconds: Floats

    def step(self, cases: Cases) -> None:
        throttle = thermal.advance(
            self.state, cases.inventory, cases.limits, cases.demand, cases.noise[0], cases.ambient, 1.0
        )
        np.maximum(self.hottest_c, self.state.temperature, out=self.hottest_c)
        self.slowed_seconds += throttle.sw_thermal

    def throughput(self, cases: Cases) -> Floats:
        """Share of its throughput that each GPU has with the power it draws, by the scenario's curve of its pool."""
        return cases.curve(self.state.power)


class Cases:
    """All cases at one instant. `prior_w` are the limits as the operator has them; some are below the default.

    `engage_c` is how far below the slowdown temperature the controller engages; `lead_hours` are the shortest and the
    longest drift from its begin to the fault, those of the scenario where it is None.
    """

    def __init__(self, count: int, seed: int, engage_c: float, lead_hours: tuple[float, float] | None = None) -> None:
        spec = FleetSpec(gpus=count, seed=seed, start_ms=START_MS, fault_rate_scale=0.0)
        self.spec = spec
        self.inventory: Inventory = inventory.build(spec)
        self.limits = thermal.ThermalLimits.of(self.inventory, spec.scenario)
        self.now_ms = START_MS
        self._rng = generator(seed, Stream.NOISE)
        self._step = 0
        self.slowdown_c = np.array([model.slowdown_at_c for model in self.inventory.model_of])
        self.min_w = self.inventory.column("min_power_w")
        lowered = self._rng.random(count) < 0.2
        self.prior_w = np.where(lowered, np.round(0.95 * self.limits.max_w), self.limits.max_w)
        self._base = state.initial(self.inventory, START_MS)
        self._world = SimWorld(
            self.inventory,
            self._base,
            self._power(USUAL_HEAT),
            Background(self.inventory, self.spec.scenario.normal, self.spec.seed),
        )
        self._fault = fault_kinds(spec.scenario)["thermal_drift"]
        self._lead = self._fault.lead if lead_hours is None else (lead_hours[0] * HOUR, lead_hours[1] * HOUR)
        self._runs = self._drifts(engage_c)
        self.noise: Floats = np.zeros((2, count))
        self.ambient: Floats = np.zeros(count)
        self.demand: LoadDemand
        self._renew()
        thermal.settle(self._base, self.inventory, self.limits, self.demand, START_MS)

    def _power(self, heat: dict[str, float]) -> Floats:
        share = np.array([heat[gpu.pool] for gpu in self.inventory.gpus])
        idle, most = self.limits.idle_w, self.limits.max_w
        return np.asarray(np.minimum(idle + share * (POWER_OVERSHOOT * most - idle), most))

    def _drifts(self, engage_c: float) -> list[FaultRun]:
        usual = self.inventory.resistance * np.minimum(self._power(HEAVIEST), self.prior_w)
        factor = (self.slowdown_c - engage_c - BEFORE_C - INLET_C - self.inventory.inlet_offset) / usual
        worst = (self.slowdown_c + self._fault.numbers["overshoot_c"] - INLET_C) / (
            self.inventory.resistance * self._world.usual_power
        )
        worst = np.maximum(self._fault.numbers["least_factor"], worst)
        begun = ((factor - 1.0) / (worst - 1.0)).clip(0.0, 0.95)
        leads = self._rng.uniform(*self._lead, len(self.inventory))
        runs = []
        for gpu, (share, lead) in enumerate(zip(begun.tolist(), leads.tolist(), strict=True)):
            started = START_MS - int(share * lead)
            onset = started + int(lead)
            end = onset + 24 * HOUR
            runs.append(FaultRun("thermal_drift", gpu, started, onset, end, False, False, False, self._rng))
        return runs

    def arm(self) -> Arm:
        """A fresh arm with the operator's limits."""
        own = state.initial(self.inventory, START_MS)
        own.temperature = self._base.temperature.copy()
        own.power_limit = self.prior_w.copy()
        size = len(self.inventory)
        return Arm(own, np.full(size, -np.inf), np.zeros(size))

    def second(self) -> None:
        """Let a second pass for load, inlet and drift; arms are stepped on their own."""
        self._step += 1
        self.now_ms += SECOND
        self.noise = self._rng.standard_normal((2, len(self.inventory)))
        if self._step % DEMAND_SECONDS == 0:
            self._renew()

    def _renew(self) -> None:
        numbers = self.spec.scenario.normal.load
        if self._step % FAULT_SECONDS == 0:
            turn = self._step // FAULT_SECONDS + 1
            load.advance(self._base, self.inventory, numbers, self.spec.seed, turn, self.now_ms)
            self._base.effects = state.Effects.none(len(self.inventory))
            for run in self._runs:
                self._fault.advance(run, self._world, StepWindow(self.now_ms - MINUTE, self.now_ms))
        self.demand = load.demand(self._base, self.inventory, numbers, self.spec.seed, self._step, self.now_ms)
        self.ambient = thermal.inlet(self.inventory, self.now_ms)

    @property
    def effects(self) -> Effects:
        """What the drifts do now."""
        return self._base.effects

    def shown_c(self, arm: Arm) -> Floats:
        """Temperatures as sensors show them: whole degrees."""
        die = self.spec.scenario.normal.sensors.die_c
        return np.asarray(np.round(arm.state.temperature + die * self.noise[1].clip(-2, 2)))

    def free_w(self) -> Floats:
        """Power that each GPU's work would draw at its operator's limit, were it cool."""
        heat = np.where(self.demand.busy, self.demand.heat, 0.0)
        heat_w = heat * (POWER_OVERSHOOT * self.limits.max_w - self.limits.idle_w)
        noise = 1.0 + self.limits.power_noise * self.noise[0].clip(-3, 3)
        return np.asarray(np.minimum((self.limits.idle_w + heat_w) * noise, self.prior_w * 1.01))

    def curve(self, watts: Floats) -> Floats:
        """Share of the throughput at `watts`, by the curve of each GPU's pool."""
        return load.throughput(self.spec.scenario.power.throughput, self.inventory, watts / self.limits.max_w)


FIXED_SHARE = 0.60
"""The fixed cap that the controller is compared with, as a share of the default limit."""
ACCOUNT_SECONDS = 10
MOST_TURNS = 2
"""Turns of an episode above which it counts as swinging."""


class SimulatedPower:
    """The power port over the state of one arm."""

    def __init__(self, cases: Cases, arm: Arm) -> None:
        self._cases = cases
        self._arm = arm
        self._place = cases.inventory.by_uuid

    def limits(self, gpu: str) -> PowerLimits:
        place = self._place[gpu]
        now = round(float(self._arm.state.power_limit[place]) * 1000)
        default = round(float(self._cases.limits.max_w[place]) * 1000)
        return PowerLimits(now, now, default, round(float(self._cases.min_w[place]) * 1000), default)

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        self._arm.state.power_limit[self._place[gpu]] = milliwatts / 1000.0

    def heat(self, gpu: str) -> Heat:
        place = self._place[gpu]
        return Heat(float(self._arm.state.temperature[place]), float(self._arm.state.power[place]))

    def clocks(self, gpu: str) -> ClockRange:
        raise _no_clocks(gpu)

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:  # noqa: ARG002  # the port's signature
        raise _no_clocks(gpu)

    def unlock_clocks(self, gpu: str) -> None:
        raise _no_clocks(gpu)

    def release(self) -> None:
        return


def _no_clocks(gpu: str) -> LimitFailure:
    return LimitFailure(Obstacle.UNSUPPORTED, f"{gpu}: simulated GPUs lock no clocks")


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One way of treating the cases. Shares of cases, medians over the capped cases; None where there is none.

    `throughput_lost` is against the same work on a cool GPU, over the time in which the controller had the GPU capped;
    `slowed_minutes` is the mean time per case in which heat held the clocks down.
    """

    name: str
    kept_below_slowdown: float
    throughput_lost_median: float | None
    throughput_lost_p90: float | None
    slowed_minutes: float
    hottest_over_slowdown_c: float


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The outcome. `engaged` counts cases in which a limit was lowered, `exhausted` those that reached the floor and
    were still too hot, `turns` cases by how often their limit changed its direction until the episode was ended,
    `swinging` those with more than two, `restored` those whose limit was afterwards what it had been."""

    cases: int
    seed: int
    hours: float
    engaged: int
    exhausted: int
    restored: int
    swinging: int
    turns: dict[int, int]
    writes: int
    arms: tuple[ArmResult, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class ControlledArm:
    """The arm of the controller: one a GPU, its limits kept by the agent's own keeper of limits."""

    def __init__(self, cases: Cases, settings: ThermalSettings, folder: Path) -> None:
        self.arm = cases.arm()
        self._cases = cases
        self._settings = settings
        self._clock = ManualClock(START_MS)
        port = SimulatedPower(cases, self.arm)
        self.keeper = LimitWriter(port, MarkerFolder(folder), self._clock, "rehearsal")
        self.uuids = [gpu.uuid for gpu in cases.inventory.gpus]
        self._controllers = [ThermalController(port.limits(uuid), settings) for uuid in self.uuids]
        size = len(self.uuids)
        self._zone = np.ones(size, dtype=np.int64)
        self.engaged = np.zeros(size, dtype=np.bool_)
        self.exhausted = np.zeros(size, dtype=np.bool_)
        self.history: list[list[float]] = [[watts] for watts in cases.prior_w.tolist()]
        self.writes = 0

    @property
    def capped(self) -> Bools:
        """Where a lowered limit is in force now."""
        return np.asarray(self.arm.state.power_limit < self._cases.prior_w - 0.5)

    def step(self, second: int) -> None:
        """One second of physics, then a sample of each controller that can have something to say."""
        self._clock.advance(1000)
        self.arm.step(self._cases)
        shown = self._cases.shown_c(self.arm)
        margin = self._cases.slowdown_c - MARGIN_BELOW_SLOWDOWN_C - shown
        zone = np.where(
            margin <= self._settings.engage_margin_c, 2, np.where(margin >= self._settings.release_margin_c, 0, 1)
        )
        # Between the two thresholds a sample only ends what was counted: once is enough.
        due = (zone == 2) | (zone != self._zone) | ((zone == 0) & self.capped)
        self._zone = zone
        for place in np.flatnonzero(due).tolist():
            self._sample(place, second, float(shown[place]))

    def _sample(self, place: int, second: int, shown_c: float) -> None:
        controller = self._controllers[place]
        heat = Heat(shown_c, float(self.arm.state.power[place]), slowdown_c=float(self._cases.slowdown_c[place]))
        before = controller.limit_mw
        wanted = controller.sample(float(second), heat)
        if controller.phase is ThermalPhase.EXHAUSTED:
            self.exhausted[place] = True
        if wanted == before:
            return
        uuid = self.uuids[place]
        now_ms = self._clock.now_ms()
        order = Order(f"rehearsal@{uuid}", "", "", uuid, ActionKind.THROTTLE, now_ms, now_ms + HOUR)
        self.keeper.hold(order, wanted)
        self.writes += 1
        self.engaged[place] = True
        self.history[place].append(float(self.arm.state.power_limit[place]))

    def restore(self) -> int:
        """End every episode; how many cases have the limit that they had before."""
        self.keeper.restore_all()
        return int(np.sum(self.arm.state.power_limit == self._cases.prior_w))


def turns(limits: list[float]) -> int:
    """How often a course of limits changes its direction."""
    steps = [b - a for a, b in pairwise(limits) if b != a]
    return sum((a > 0) is not (b > 0) for a, b in pairwise(steps))


class _Loss:
    """Throughput lost per case, as a mean over the seconds in which it counts."""

    def __init__(self, size: int) -> None:
        self.sum: Floats = np.zeros(size)
        self.seconds: Floats = np.zeros(size)

    def add(self, lost: Floats, counts: Bools) -> None:
        self.sum += np.where(counts, lost, 0.0)
        self.seconds += counts

    def quantile(self, q: float) -> float | None:
        known = self.seconds > 0
        return float(np.quantile(self.sum[known] / self.seconds[known], q)) if known.any() else None


def rehearse(
    count: int,
    seed: int,
    hours: float,
    settings: ThermalSettings,
    folder: Path,
    lead_hours: tuple[float, float] | None = None,
    progress: Callable[[float], None] = lambda _share: None,
) -> Rehearsal:
    """Run `count` cases for `hours`; marker files go to `folder`. The same arguments give the same result.

    `lead_hours` are the shortest and the longest drift; those of the scenario where it is None.
    """
    cases = Cases(count, seed, MARGIN_BELOW_SLOWDOWN_C + settings.engage_margin_c, lead_hours)
    controlled = ControlledArm(cases, settings, folder)
    arms = {"controller": controlled.arm, "no action": cases.arm(), "fixed 60 % cap": cases.arm()}
    losses = {name: _Loss(count) for name in arms}
    seconds = round(hours * 3600)
    for second in range(seconds):
        _second(cases, controlled, arms, second)
        if second % ACCOUNT_SECONDS == 0:
            _account(cases, arms, losses, controlled.capped & cases.demand.busy)
            progress(second / seconds)
    made = [turns(history) for history in controlled.history]
    restored = controlled.restore()
    return Rehearsal(
        cases=count,
        seed=seed,
        hours=hours,
        engaged=int(controlled.engaged.sum()),
        exhausted=int(controlled.exhausted.sum()),
        restored=restored,
        swinging=sum(number > MOST_TURNS for number in made),
        turns={number: made.count(number) for number in sorted(set(made))},
        writes=controlled.writes,
        arms=tuple(_result(name, arm, losses[name], cases) for name, arm in arms.items()),
    )


def _second(cases: Cases, controlled: ControlledArm, arms: Mapping[str, Arm], second: int) -> None:
    """One second of all arms; the fixed cap stands from the instant at which the controller engages."""
    cases.second()
    for arm in arms.values():
        arm.state.effects = cases.effects
    controlled.step(second)
    arms["no action"].step(cases)
    fixed_w = np.minimum(np.maximum(cases.min_w, FIXED_SHARE * cases.limits.max_w), cases.prior_w)
    arms["fixed 60 % cap"].state.power_limit = np.where(controlled.engaged, fixed_w, cases.prior_w)
    arms["fixed 60 % cap"].step(cases)


def _account(cases: Cases, arms: Mapping[str, Arm], losses: Mapping[str, _Loss], counts: Bools) -> None:
    free = cases.curve(cases.free_w())
    for name, arm in arms.items():
        losses[name].add(1.0 - np.minimum(arm.throughput(cases) / free, 1.0), counts)


def _result(name: str, arm: Arm, loss: _Loss, cases: Cases) -> ArmResult:
    over = arm.hottest_c - cases.slowdown_c
    return ArmResult(
        name=name,
        kept_below_slowdown=float(np.mean(over < 0)),
        throughput_lost_median=loss.quantile(0.5),
        throughput_lost_p90=loss.quantile(0.9),
        slowed_minutes=float(arm.slowed_seconds.mean() / 60.0),
        hottest_over_slowdown_c=float(over.max()),
    )
