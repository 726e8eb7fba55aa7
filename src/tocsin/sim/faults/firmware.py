"""The GPU's system processor (GSP) stops answering: it looks busy, draws idle power and computes nothing."""

from __future__ import annotations

from tocsin.domain.clock import MINUTE
from tocsin.sim.faults.base import RESETS, FaultKind, FaultRun
from tocsin.sim.inventory import Inventory
from tocsin.sim.world import SimWorld, StepWindow

REPEATS = 3


class _Gsp(FaultKind):
    code = 119
    text = "Timeout waiting for RPC from GSP"
    cured_by = RESETS

    def objection(self, inventory: Inventory, gpu: int) -> str:
        turing = inventory.model_of[gpu].arch == "turing"
        return "its driver does not use the GSP; choose an Ampere or newer GPU" if turing else ""

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        for repeat in range(REPEATS):
            world.xids(run.gpu, at_ms + repeat * MINUTE, [(self.code, self.text)])
        world.verdict(run.gpu, at_ms + REPEATS * MINUTE, 1, "GPU Reset")

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        world.state.effects.hang[run.gpu] = True
        world.state.effects.pinned[run.gpu] = True

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.kill_job(run.gpu, at_ms)
        world.reset(run.gpu, at_ms)


class GspTimeout(_Gsp):
    """The driver's calls to the GSP time out."""

    kind = "gsp_timeout"
    help = "XID 119 three times, a minute apart: the GPU hangs until it is reset"


class GspError(_Gsp):
    """The GSP reports an error of its own."""

    kind = "gsp_error"
    help = "XID 120 three times, a minute apart: the GPU hangs until it is reset"
    code = 120
    text = "GSP task exception"
