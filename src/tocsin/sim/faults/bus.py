"""The PCIe bus: replays and lost lanes before a GPU falls off it, and exporters that go on serving the last values."""

from __future__ import annotations

from tocsin.domain.clock import SECOND
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind
from tocsin.sim.faults.base import FaultKind, FaultRun
from tocsin.sim.world import SimWorld, StepWindow


def fall_off(run: FaultRun, world: SimWorld, at_ms: int) -> None:
    """XID 79 with what follows it."""
    world.xids(run.gpu, at_ms, [(79, "GPU has fallen off the bus."), (45, "Cleanup")])
    world.verdict(run.gpu, at_ms + 2 * SECOND, 2, "Node Reboot")
    world.kill_job(run.gpu, at_ms)


class FallenOffBus(FaultKind):
    """A riser, retimer or seat goes bad."""

    kind = "fallen_off_bus"
    help = "PCIe replays grow and lanes drop, then XID 79: the GPU falls off the bus and is lost"
    rises = frozenset({"replays", "correctable"})
    marks = frozenset({"half_lanes"})
    named = frozenset({"bad_tlp", "lcrc"})
    cured_by = frozenset({ActionKind.REBOOT_NODE})

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        state, gpu = world.state, run.gpu
        state.effects.pinned[gpu] |= run.injected
        replays = self.more(run, world, "replays", "replays", strength, window)
        world.count("gpu_pcie_replay_total", gpu, replays)
        state.pcie_errors[gpu, 0] += self.more(run, world, "correctable", "correctable", strength, window)
        state.pcie_errors[gpu, 1] += float(run.rng.poisson(self.numbers["bad_tlp"] * replays))
        state.pcie_errors[gpu, 2] += float(run.rng.poisson(self.numbers["lcrc"] * replays))
        if strength > self.course(run).marks["half_lanes"]:
            state.effects.lanes[gpu] = 8.0

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        fall_off(run, world, at_ms)
        world.state.lost[run.gpu] = True
        world.emit(EventKind.GPU_LOST, run.gpu, at_ms, message="the GPU does not answer")

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.onset_ms is None:
            return
        world.state.lost[run.gpu] = False
        world.reset(run.gpu, at_ms)
        world.emit(EventKind.GPU_FOUND, run.gpu, at_ms, message="the GPU answers again")


class FrozenTelemetry(FaultKind):
    """After XID 79 some exporters go on serving what they read last."""

    kind = "frozen_telemetry"
    help = "XID 79 without warning, after which the exporter repeats its last values"
    cured_by = frozenset({ActionKind.REBOOT_NODE})

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        fall_off(run, world, at_ms)
        world.state.frozen[run.gpu] = True

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.state.frozen[run.gpu] = False
        world.reset(run.gpu, at_ms)
