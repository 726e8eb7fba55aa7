"""Power: the rack or host asserts the power brake, and several GPUs at once halve their clocks. Not a GPU's fault."""

from __future__ import annotations

from tocsin.sim.faults.base import FaultClass, FaultKind, FaultRun
from tocsin.sim.inventory import Ints
from tocsin.sim.world import SimWorld, StepWindow


class PowerBrake(FaultKind):
    """A power supply fails or a power limit of the facility is reached."""

    kind = "power_brake"
    help = "external power brake on all GPUs of a host or rack: clocks fall by more than half, no XID"
    fault_class = FaultClass.FACILITY
    announced = False
    named = frozenset({"rack_share"})

    def touches(self, run: FaultRun, world: SimWorld) -> Ints:
        return world.rack_mates(run.gpu) if run.base.get("rack") else world.host_mates(run.gpu)

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        run.base["rack"] = float(not run.injected and run.rng.uniform() < self.numbers["rack_share"])

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        hit = self.touches(run, world)
        world.state.effects.power_brake[hit] = True
        world.state.effects.pinned[hit] |= run.injected
