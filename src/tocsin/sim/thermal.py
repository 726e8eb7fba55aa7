"""Power, clocks and temperature.

Steady state is T = inlet + R P and the way there is first order, T(t + dt) = Ts + (T(t) - Ts) exp(-dt / tau); both are
exact for power that is constant over a step, at any length of it. Dynamic power goes with the clock to the power
`CLOCK_EXPONENT`: P ~ f V^2 with a voltage that falls slower than the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.sim.arrays import Bools, Floats
from tocsin.sim.inventory import INLET_C, TAU_S, Inventory
from tocsin.sim.load import Demand
from tocsin.sim.state import State

CLOCK_EXPONENT = 2.4
"""Between 1 (constant voltage) and 3 (voltage in step with the clock); own choice."""
IDLE_CLOCK = 0.2
HW_SLOWDOWN_CLOCK = 0.5
"""Hardware slowdown cuts the clocks by a factor of at least 2 (NVML's description of the reason bits)."""
POWER_BRAKE_CLOCK = 0.4

REASON_IDLE = 0x1
REASON_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40
REASON_POWER_BRAKE = 0x80


@dataclass(frozen=True)
class Limits:
    """Per GPU, from the models: watts, and the temperatures at which software and hardware slow the clocks."""

    idle_w: Floats
    max_w: Floats
    ceiling_c: Floats
    slowdown_c: Floats

    @classmethod
    def of(cls, inventory: Inventory) -> Limits:
        """The limits of a fleet."""
        return cls(
            idle_w=inventory.column("idle_power_w"),
            max_w=inventory.column("default_power_w"),
            ceiling_c=inventory.column("ceiling_c"),
            slowdown_c=inventory.column("slowdown_at_c"),
        )


@dataclass(frozen=True)
class Throttle:
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


def relax(temperature: Floats, steady: Floats, seconds: float, tau_s: float = TAU_S) -> Floats:
    """Temperatures after `seconds` on the first-order way to `steady`."""
    return np.asarray(steady + (temperature - steady) * np.exp(-seconds / tau_s), dtype=np.float64)


def inlet(inventory: Inventory, at_ms: int) -> Floats:
    """Inlet temperature of each GPU's rack: the mean, the rack's own offset and a day's swing of 1 C to each side."""
    swing = np.cos(2.0 * np.pi * (at_ms % DAY / HOUR - 16.0) / 24.0)
    return np.asarray(INLET_C + inventory.inlet_offset + swing, dtype=np.float64)


def clock_for(power: Floats, idle_w: Floats, heat_w: Floats) -> Floats:
    """The clock, as a share of the highest, at which dynamic power `heat_w` falls so far that `power` is drawn."""
    room = np.maximum(power - idle_w, 0.0)
    ratio = np.divide(room, heat_w, out=np.ones_like(room), where=heat_w > 0)
    return np.minimum(1.0, ratio ** (1.0 / CLOCK_EXPONENT))


def settle(state: State, inventory: Inventory, limits: Limits, load: Demand, at_ms: int) -> None:
    """Set temperatures to where the present load would have brought them: a fleet does not begin cold."""
    heat_w = load.heat * (limits.max_w * 1.12 - limits.idle_w)
    power = np.minimum(limits.idle_w + heat_w, state.power_limit)
    state.temperature = inlet(inventory, at_ms) + inventory.resistance * power


def advance(
    state: State, inventory: Inventory, limits: Limits, load: Demand, noise: Floats, at_ms: int, seconds: float
) -> Throttle:
    """Move clocks, power and temperatures to `at_ms`; power and its counters are means over the step."""
    effects = state.effects
    ambient = inlet(inventory, at_ms)
    resistance = inventory.resistance * effects.resistance
    computing = load.busy & ~effects.hang
    heat_w = np.where(computing, load.heat, 0.0) * (limits.max_w * 1.12 - limits.idle_w)
    capped = clock_for(state.power_limit, limits.idle_w, heat_w)
    wanted = limits.idle_w + heat_w * capped**CLOCK_EXPONENT
    excess = ambient + resistance * wanted - limits.ceiling_c
    sw_thermal = (excess > 0.5) & (state.temperature >= limits.ceiling_c - 0.5) & computing
    # The software's regulator leaves an offset that grows with what it has to hold back, so that a grave loss of
    # cooling still reaches the hardware's own limit.
    allowed = limits.ceiling_c + 1.0 + (0.1 * excess).clip(0.0, 8.0)
    thermal = clock_for((allowed - ambient) / resistance, limits.idle_w, heat_w)
    clock = np.where(sw_thermal, np.minimum(capped, thermal), capped)
    hw_thermal = (state.temperature >= limits.slowdown_c) & computing
    clock = np.where(hw_thermal, np.minimum(clock, HW_SLOWDOWN_CLOCK), clock)
    clock = np.where(effects.power_brake, np.minimum(clock, POWER_BRAKE_CLOCK), clock)
    drawn = (limits.idle_w + heat_w * clock**CLOCK_EXPONENT) * (1.0 + 0.006 * noise.clip(-3, 3))
    drawn = np.where(state.lost, 0.0, np.minimum(drawn, np.maximum(state.power_limit, limits.idle_w) * 1.01))
    state.power = np.round(drawn, 3)
    state.clock = np.where(load.busy, clock, IDLE_CLOCK)
    state.temperature = relax(state.temperature, ambient + resistance * state.power, seconds)
    throttle = Throttle(
        power_cap=(capped < 0.999) & computing,
        sw_thermal=sw_thermal,
        hw_thermal=hw_thermal,
        power_brake=effects.power_brake & ~state.lost,
        idle=~load.busy,
    )
    _count(state, throttle, seconds)
    return throttle


def _count(state: State, throttle: Throttle, seconds: float) -> None:
    counters = state.counters
    counters["gpu_energy_joules_total"] += state.power * seconds
    counters["gpu_power_cap_seconds_total"] += throttle.power_cap * seconds
    counters["gpu_sw_thermal_slowdown_seconds_total"] += throttle.sw_thermal * seconds
    counters["gpu_hw_thermal_slowdown_seconds_total"] += throttle.hw_thermal * seconds
    counters["gpu_thermal_violation_seconds_total"] += (throttle.sw_thermal | throttle.hw_thermal) * seconds
    counters["gpu_hw_power_brake_seconds_total"] += throttle.power_brake * seconds


def as_seconds(interval_ms: int) -> float:
    """Milliseconds as seconds."""
    return interval_ms / SECOND
