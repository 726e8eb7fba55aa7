"""Power: the rack or host asserts the power brake, and several GPUs at once halve their clocks. Not a GPU's fault."""

from __future__ import annotations

from tocsin.sim.faults.base import FaultClass, FaultKind, Run
from tocsin.sim.world import Window, World


class PowerBrake(FaultKind):
    """A power supply fails or a power limit of the facility is reached."""

    kind = "power_brake"
    help = "external power brake on all GPUs of a host or rack: clocks fall by more than half, no XID"
    fault_class = FaultClass.FACILITY
    named = frozenset({"rack_share"})

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        run.base["rack"] = float(not run.injected and run.rng.uniform() < self.numbers["rack_share"])

    def hold(self, run: Run, world: World, window: Window) -> None:
        hit = world.rack_mates(run.gpu) if run.base["rack"] else world.host_mates(run.gpu)
        world.state.effects.power_brake[hit] = True
        world.state.effects.pinned[hit] |= run.injected
