"""Power: the rack or host asserts the power brake, and several GPUs at once halve their clocks. Not a GPU's fault."""

from __future__ import annotations

from tocsin.domain.clock import MINUTE
from tocsin.sim.faults.base import FaultClass, FaultKind, Run
from tocsin.sim.faults.rates import LLAMA3_POWER_SUPPLY
from tocsin.sim.world import Window, World

RACK_SHARE = 0.5
"""Of the spontaneous ones, those that hit the whole rack rather than one host (own choice)."""


class PowerBrake(FaultKind):
    """A power supply fails or a power limit of the facility is reached."""

    kind = "power_brake"
    help = "external power brake on all GPUs of a host or rack: clocks fall by more than half, no XID"
    fault_class = FaultClass.FACILITY
    per_gpu_year = LLAMA3_POWER_SUPPLY
    repair = (10.0 * MINUTE, 90.0 * MINUTE)
    rehearsal_repair = 30.0 * MINUTE

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        run.base["rack"] = float(not run.injected and run.rng.uniform() < RACK_SHARE)

    def hold(self, run: Run, world: World, window: Window) -> None:
        hit = world.rack_mates(run.gpu) if run.base["rack"] else world.host_mates(run.gpu)
        world.state.effects.power_brake[hit] = True
        world.state.effects.pinned[hit] |= run.injected
