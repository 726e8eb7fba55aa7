"""Heat that cannot leave: slow loss of heat transfer on one GPU, sudden loss of a host's air or coolant."""

from __future__ import annotations

from tocsin.sim.faults.base import FaultClass, FaultKind, FaultRun
from tocsin.sim.inventory import INLET_C, Ints
from tocsin.sim.world import SimWorld, StepWindow


class ThermalDrift(FaultKind):
    """Thermal paste, a clogged filter or a loose heat sink."""

    kind = "thermal_drift"
    help = "thermal resistance of one GPU rises until it slows down from heat"
    heats = True
    rises = frozenset({"resistance"})
    named = frozenset({"overshoot_c", "least_factor"})

    def _worst(self, world: SimWorld, gpu: int) -> float:
        """The factor at which it would settle `overshoot_c` above the hardware's slowdown point at full power."""
        inventory = world.inventory
        target = inventory.model_of[gpu].slowdown_at_c + self.numbers["overshoot_c"] - INLET_C
        usual = inventory.resistance[gpu] * world.usual_power[gpu]
        return float(max(self.numbers["least_factor"], target / usual))

    def _set(self, run: FaultRun, world: SimWorld, strength: float) -> None:
        effects = world.state.effects
        factor = 1.0 + (self._worst(world, run.gpu) - 1.0) * strength
        effects.resistance[run.gpu] = max(effects.resistance[run.gpu], factor)
        effects.pinned[run.gpu] |= run.injected

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        self._set(run, world, strength ** self.course(run).rises["resistance"].shape)

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        self._set(run, world, 1.0)


class FanFailure(FaultKind):
    """A fan wall or a coolant pump stops."""

    kind = "fan_failure"
    help = "fans or pump of a host stop: all its GPUs heat up within minutes"
    fault_class = FaultClass.FACILITY
    heats = True
    named = frozenset({"resistance_factor"})

    def touches(self, run: FaultRun, world: SimWorld) -> Ints:
        return world.host_mates(run.gpu)

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        effects = world.state.effects
        for mate in self.touches(run, world):
            effects.resistance[mate] = max(effects.resistance[mate], self.numbers["resistance_factor"])
            effects.pinned[mate] |= run.injected
