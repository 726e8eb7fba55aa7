"""Power, clocks and temperature.

Steady state is T = inlet + R P and the way there is first order, T(t + dt) = Ts + (T(t) - Ts) exp(-dt / tau); both are
exact for power that is constant over a step, at any length of it. Dynamic power goes with the clock to the power
`clock_exponent` of the scenario: P ~ f V^2 with a voltage that falls slower than the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.sim.inventory import INLET_C, TAU_S, Bools, Floats, Inventory
from tocsin.sim.load import LoadDemand
from tocsin.sim.scenario import Scenario
from tocsin.sim.state import SimState

IDLE_CLOCK = 0.2
SW_OFFSET_C = 1.0
SW_DROOP = 0.25
SW_DROOP_MAX_C = 8.0
"""How far software slowdown lets the maximum operating temperature pass, and how that grows (own choices)."""
POWER_BRAKE_CLOCK = 0.4

REASON_IDLE = 0x1
REASON_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40
REASON_POWER_BRAKE = 0x80


@dataclass(frozen=True)
class ThermalLimits:
    """Per GPU, from the models: watts, and the temperatures at which software and hardware slow the clocks; for the
    fleet, the exponent of power over clock and the deviation of power over a step."""

    idle_w: Floats
    max_w: Floats
    ceiling_c: Floats
    slowdown_c: Floats
    clock_exponent: float
    power_noise: float

    @classmethod
    def of(cls, inventory: Inventory, scenario: Scenario) -> ThermalLimits:
        return cls(
            idle_w=inventory.column("idle_power_w"),
            max_w=inventory.column("default_power_w"),
            ceiling_c=inventory.column("ceiling_c"),
            slowdown_c=inventory.column("slowdown_at_c"),
            clock_exponent=scenario.power.clock_exponent,
            power_noise=scenario.normal.sensors.power,
        )


@dataclass(frozen=True)
class ClockThrottle:
    """Which reason holds the clocks down, per GPU."""

    power_cap: Bools
    sw_thermal: Bools
    hw_thermal: Bools
    power_brake: Bools
    idle: Bools

    def bitmask(self) -> Floats:
        """NVML's clocks-event reasons."""
        mask = np.where(self.idle, REASON_IDLE, 0) | np.where(self.power_cap, REASON_POWER_CAP, 0)
        mask = mask | np.where(self.sw_thermal, REASON_SW_THERMAL, 0)
        mask = mask | np.where(self.hw_thermal, REASON_HW_THERMAL | REASON_HW_SLOWDOWN, 0)
        mask = mask | np.where(self.power_brake, REASON_POWER_BRAKE | REASON_HW_SLOWDOWN, 0)
        return mask.astype(np.float64)


def relax(temperature: Floats, steady: Floats, seconds: float | Floats, tau_s: float = TAU_S) -> Floats:
    """Temperatures after `seconds` on the first-order way to `steady`."""
    return np.asarray(steady + (temperature - steady) * np.exp(-seconds / tau_s), dtype=np.float64)


def inlet(inventory: Inventory, at_ms: int) -> Floats:
    """Inlet temperature of each GPU's rack: the mean, the rack's own offset and the day's swing."""
    swing = np.cos(2.0 * np.pi * (at_ms % DAY / HOUR - 16.0) / 24.0)
    return np.asarray(INLET_C + inventory.inlet_offset + inventory.day_c * swing, dtype=np.float64)


def clock_for(power: Floats, limits: ThermalLimits, heat_w: Floats) -> Floats:
    """The clock, as a share of the highest, at which dynamic power `heat_w` falls so far that `power` is drawn."""
    room = np.maximum(power - limits.idle_w, 0.0)
    ratio = np.divide(room, heat_w, out=np.ones_like(room), where=heat_w > 0)
    return np.minimum(1.0, ratio ** (1.0 / limits.clock_exponent))


def settle(state: SimState, inventory: Inventory, limits: ThermalLimits, load: LoadDemand, at_ms: int) -> None:
    """Set temperatures to where the present load would have brought them, at most to where the driver holds back: a
    fleet does not begin cold."""
    heat_w = load.heat * (limits.max_w * 1.12 - limits.idle_w)
    power = np.minimum(limits.idle_w + heat_w, state.power_limit)
    free_c = inlet(inventory, at_ms) + inventory.resistance * state.effects.resistance * power
    state.temperature = np.minimum(free_c, limits.ceiling_c)


def advance(
    state: SimState,
    inventory: Inventory,
    limits: ThermalLimits,
    load: LoadDemand,
    noise: Floats,
    ambient: Floats,
    seconds: float,
) -> ClockThrottle:
    """Move clocks, power and temperatures over a step at inlet temperature `ambient`; power and its counters are means
    over the step."""
    effects = state.effects
    resistance = inventory.resistance * effects.resistance
    computing = load.busy & ~effects.hang
    heat_w = np.where(computing, load.heat, 0.0) * (limits.max_w * 1.12 - limits.idle_w)
    capped = clock_for(state.power_limit, limits, heat_w)
    clock = np.where(effects.power_brake, np.minimum(capped, POWER_BRAKE_CLOCK), capped)
    asked = (limits.idle_w + heat_w * clock**limits.clock_exponent) * (1.0 + limits.power_noise * noise.clip(-3, 3))
    wanted = np.where(state.lost, 0.0, np.minimum(asked, np.maximum(state.power_limit, limits.idle_w) * 1.01))
    heat = _hold_back(state.temperature, ambient + resistance * wanted, limits, seconds)
    held = limits.idle_w + np.maximum(0.0, (heat.target_c - ambient) / resistance - limits.idle_w)
    power = np.where(heat.held > 0, wanted * (1.0 - heat.held) + np.minimum(held, wanted) * heat.held, wanted)
    state.power = np.asarray(np.round(power, 3), dtype=np.float64)
    slowed = np.where(heat.held > 0, np.minimum(clock, clock_for(state.power, limits, heat_w)), clock)
    state.clock = np.where(load.busy, slowed, IDLE_CLOCK)
    state.temperature = np.where(
        heat.held > 0,
        relax(np.maximum(state.temperature, limits.ceiling_c), heat.target_c, heat.held * seconds),
        relax(state.temperature, ambient + resistance * state.power, seconds),
    )
    throttle = ClockThrottle(
        power_cap=(capped < 0.999) & computing,
        sw_thermal=heat.held > 0,
        hw_thermal=heat.hardware > 0,
        power_brake=effects.power_brake & ~state.lost,
        idle=~load.busy,
    )
    _count(state, throttle, heat, seconds)
    return throttle


@dataclass(frozen=True)
class _Heat:
    """`held` is the share of the step in which software holds the GPU at `target_c`, `hardware` that of hardware."""

    held: Floats
    hardware: Floats
    target_c: Floats


def _hold_back(temperature: Floats, free_c: Floats, limits: ThermalLimits, seconds: float) -> _Heat:
    """Thermal slowdown over a step in which unlimited power would settle at `free_c`.

    Software starts at the maximum operating temperature and lets it pass by an offset that grows with what it holds
    back. Where that offset would pass the hardware's point, hardware slowdown comes and goes and keeps it there, for
    a share of the time that grows with the excess. Closed form, so that no step is too long.
    """
    excess = np.maximum(free_c - limits.ceiling_c, 0.0)
    reach = np.maximum(free_c - temperature, 1e-9)
    crossing = TAU_S * np.log(np.maximum(reach, 1e-9) / np.maximum(excess, 1e-9)).clip(0.0, None)
    engaged = (excess > 0.5) & (crossing < seconds)
    held = np.where(engaged, 1.0 - np.where(engaged, crossing, 0.0) / seconds, 0.0)
    allowed = limits.ceiling_c + SW_OFFSET_C + (SW_DROOP * excess).clip(0.0, SW_DROOP_MAX_C)
    beyond = allowed - limits.slowdown_c
    hardware = np.where(beyond > 0, (beyond / SW_DROOP_MAX_C).clip(0.1, 1.0), 0.0) * held
    return _Heat(held, hardware, np.minimum(np.minimum(allowed, limits.slowdown_c + 0.5), free_c))


def _count(state: SimState, throttle: ClockThrottle, heat: _Heat, seconds: float) -> None:
    counters = state.counters
    counters["gpu_energy_joules_total"] += state.power * seconds
    counters["gpu_power_cap_seconds_total"] += throttle.power_cap * seconds
    counters["gpu_sw_thermal_slowdown_seconds_total"] += heat.held * seconds
    counters["gpu_hw_thermal_slowdown_seconds_total"] += heat.hardware * seconds
    counters["gpu_thermal_violation_seconds_total"] += heat.held * seconds
    counters["gpu_hw_power_brake_seconds_total"] += throttle.power_brake * seconds
