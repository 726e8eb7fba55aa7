"""Cases of worsening cooling on the simulated fleet, and their physics second by second.

Every GPU of a simulated fleet gets the fault `thermal_drift` with the numbers of the fleet's scenario. A case begins
shortly before its GPU would be as hot as the thermal controller allows, at the heaviest load it may get.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.sim import inventory, load, state, thermal
from tocsin.sim.arrays import Bools, Floats, Stream, generator
from tocsin.sim.background import Background
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import Run
from tocsin.sim.fleet import USUAL_HEAT
from tocsin.sim.inventory import INLET_C, Inventory
from tocsin.sim.load import Demand
from tocsin.sim.spec import FleetSpec
from tocsin.sim.state import Effects, State
from tocsin.sim.world import Window, World

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

    state: State
    hottest_c: Floats
    slowed_seconds: Floats

    def step(self, cases: Cases) -> None:
        """One second."""
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
        self.limits = thermal.Limits.of(self.inventory, spec.scenario)
        self.now_ms = START_MS
        self._rng = generator(seed, Stream.NOISE)
        self._step = 0
        self.slowdown_c = np.array([model.slowdown_at_c for model in self.inventory.model_of])
        self.min_w = self.inventory.column("min_power_w")
        lowered = self._rng.random(count) < 0.2
        self.prior_w = np.where(lowered, np.round(0.95 * self.limits.max_w), self.limits.max_w)
        self._base = state.initial(self.inventory, START_MS)
        self._world = World(self.inventory, self._base, self._power(USUAL_HEAT), self._background())
        self._fault = fault_kinds(spec.scenario)["thermal_drift"]
        self._lead = self._fault.lead if lead_hours is None else (lead_hours[0] * HOUR, lead_hours[1] * HOUR)
        self._runs = self._drifts(engage_c)
        self.noise: Floats = np.zeros((2, count))
        self.ambient: Floats = np.zeros(count)
        self.demand: Demand
        self._renew()
        thermal.settle(self._base, self.inventory, self.limits, self.demand, START_MS)

    def _background(self) -> Background:
        return Background(self.inventory, self.spec.scenario.normal, self.spec.seed)

    def _power(self, heat: dict[str, float]) -> Floats:
        share = np.array([heat[gpu.pool] for gpu in self.inventory.gpus])
        idle, most = self.limits.idle_w, self.limits.max_w
        return np.asarray(np.minimum(idle + share * (POWER_OVERSHOOT * most - idle), most))

    def _drifts(self, engage_c: float) -> list[Run]:
        heaviest = np.minimum(self._power(HEAVIEST), self.prior_w)
        usual = self.inventory.resistance * heaviest
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
            run = Run("thermal_drift", gpu, started, onset, onset + 24 * HOUR, False, False, False, self._rng)
            runs.append(run)
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
        if self._step % FAULT_SECONDS == 0:
            numbers = self.spec.scenario.normal.load
            turn = self._step // FAULT_SECONDS + 1
            load.advance(self._base, self.inventory, numbers, self.spec.seed, turn, self.now_ms)
            self._base.effects = state.Effects.none(len(self.inventory))
            for run in self._runs:
                self._fault.advance(run, self._world, Window(self.now_ms - MINUTE, self.now_ms))
        numbers = self.spec.scenario.normal.load
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
        asked = (self.limits.idle_w + heat_w) * noise
        return np.asarray(np.minimum(asked, self.prior_w * 1.01))

    def busy(self) -> Bools:
        """Whether each GPU has work."""
        return self.demand.busy

    def curve(self, watts: Floats) -> Floats:
        """Share of the throughput at `watts`, by pool: straight between the points of the scenario's curves."""
        inv, curve = self.inventory, self.spec.scenario.power.throughput
        share = watts / self.limits.max_w
        made = [np.interp(share, curve.limit_share, row) for row in (curve.training, curve.inference, curve.batch)]
        return np.where(inv.training, made[0], np.where(inv.inference, made[1], made[2]))
