"""Heat that cannot leave: slow loss of heat transfer on one GPU, sudden loss of a host's air or coolant."""

from __future__ import annotations

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.sim.faults.base import FaultClass, FaultKind, Run
from tocsin.sim.faults.rates import LLAMA3_POWER_SUPPLY, LLAMA3_THERMAL
from tocsin.sim.inventory import INLET_C
from tocsin.sim.world import Window, World

OVERSHOOT_C = 10.0
"""How far above the hardware's slowdown point the GPU would settle at full power when the drift is complete."""


class ThermalDrift(FaultKind):
    """Thermal paste, a clogged filter or a loose heat sink."""

    kind = "thermal_drift"
    help = "thermal resistance of one GPU rises until it slows down from heat"
    per_gpu_year = LLAMA3_THERMAL
    abrupt_share = 0.0
    benign_share = 0.3
    lead = (3.0 * HOUR, 36.0 * HOUR)
    rehearsal_lead = 40.0 * MINUTE

    def _worst(self, world: World, gpu: int) -> float:
        inventory = world.inventory
        target = inventory.model_of[gpu].slowdown_at_c + OVERSHOOT_C - INLET_C
        usual = inventory.resistance[gpu] * world.usual_power[gpu]
        return float(max(1.25, target / usual))

    def _set(self, run: Run, world: World, strength: float) -> None:
        effects = world.state.effects
        factor = 1.0 + (self._worst(world, run.gpu) - 1.0) * strength
        effects.resistance[run.gpu] = max(effects.resistance[run.gpu], factor)
        effects.pinned[run.gpu] |= run.injected

    def warn(self, run: Run, world: World, strength: float, window: Window) -> None:
        self._set(run, world, strength)

    def hold(self, run: Run, world: World, window: Window) -> None:
        self._set(run, world, 1.0)


class FanFailure(FaultKind):
    """A fan wall or a coolant pump stops."""

    kind = "fan_failure"
    help = "fans or pump of a host stop: all its GPUs heat up within minutes"
    fault_class = FaultClass.FACILITY
    per_gpu_year = LLAMA3_POWER_SUPPLY
    repair = (30.0 * MINUTE, 3.0 * HOUR)
    rehearsal_repair = 45.0 * MINUTE
    factor = 2.2
    """Multiplier on the thermal resistance (own choice)."""

    def hold(self, run: Run, world: World, window: Window) -> None:
        effects = world.state.effects
        for mate in world.host_mates(run.gpu):
            effects.resistance[mate] = max(effects.resistance[mate], self.factor)
            effects.pinned[mate] |= run.injected
