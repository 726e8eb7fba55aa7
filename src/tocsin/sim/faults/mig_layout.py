"""MIG instances created and destroyed without regard to where they begin."""

from __future__ import annotations

from tocsin.domain.finding import ActionKind
from tocsin.sim import memory as mig
from tocsin.sim.faults.base import FaultClass, FaultKind, FaultRun
from tocsin.sim.inventory import Inventory
from tocsin.sim.world import SimWorld, StepWindow


class MigFragmentation(FaultKind):
    """Churn leaves small instances where they keep larger ones out."""

    kind = "mig_fragmentation"
    help = "churn of MIG instances leaves a layout in which larger instances no longer fit"
    fault_class = FaultClass.SOFTWARE
    hard = False
    marks = frozenset({"first_stage"})
    cured_by = frozenset({ActionKind.DEFRAGMENT})

    def objection(self, inventory: Inventory, gpu: int) -> str:
        return "" if inventory.mig[gpu] else "MIG is off there; choose a GPU with MIG on"

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        stage = min(int(strength * len(mig.DECAY)), len(mig.DECAY) - 1)
        if strength > self.course(run).marks["first_stage"] and run.once(f"stage {stage}"):
            world.state.layouts[run.gpu] = mig.DECAY[stage]

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.state.layouts[run.gpu] = mig.DECAY[-1]

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.state.layouts[run.gpu] = world.inventory.layouts[run.gpu]
