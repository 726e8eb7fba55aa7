"""The PCIe bus: replays and lost lanes before a GPU falls off it, and exporters that go on serving the last values."""

from __future__ import annotations

from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind
from tocsin.sim.faults.base import FaultKind, Run
from tocsin.sim.faults.rates import LLAMA3_FAULTY_GPU
from tocsin.sim.world import Window, World

BUS_SHARE = 0.40
FROZEN_SHARE = 0.05
"""Of Llama 3's "faulty GPU" interruptions (own choice)."""
REPLAYS_PER_MINUTE = 60.0
"""At the end of a precursor (own choice): DCGM's health watch warns from 31 a minute on a x16 link of generation 5."""


def fall_off(run: Run, world: World, at_ms: int) -> None:
    """XID 79 with what follows it."""
    world.xids(run.gpu, at_ms, [(79, "GPU has fallen off the bus."), (45, "Cleanup")])
    world.verdict(run.gpu, at_ms + 2 * SECOND, 2, "Node Reboot")
    world.kill_job(run.gpu, at_ms)


class FallenOffBus(FaultKind):
    """A riser, retimer or seat goes bad."""

    kind = "fallen_off_bus"
    help = "PCIe replays grow and lanes drop, then XID 79: the GPU falls off the bus and is lost"
    per_gpu_year = LLAMA3_FAULTY_GPU * BUS_SHARE
    abrupt_share = 0.70
    benign_share = 0.3
    lead = (30.0 * MINUTE, 2.0 * DAY)
    rehearsal_lead = 20.0 * MINUTE
    repair = (1.0 * HOUR, 24.0 * HOUR)
    cured_by = frozenset({ActionKind.REBOOT_NODE})

    def warn(self, run: Run, world: World, strength: float, window: Window) -> None:
        state, gpu = world.state, run.gpu
        state.effects.pinned[gpu] |= run.injected
        minutes = window.after(run.started_ms) / 60.0
        replays = float(run.rng.poisson(REPLAYS_PER_MINUTE * strength * minutes))
        world.count("gpu_pcie_replay_total", gpu, replays)
        state.pcie_errors[gpu, 0] += replays
        state.pcie_errors[gpu, 1] += float(run.rng.poisson(0.2 * replays))
        state.pcie_errors[gpu, 2] += float(run.rng.poisson(0.3 * replays))
        if strength > 0.45:
            state.effects.lanes[gpu] = 8.0

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        fall_off(run, world, at_ms)
        world.state.lost[run.gpu] = True
        world.emit(EventKind.GPU_LOST, run.gpu, at_ms, message="the GPU does not answer")

    def clear(self, run: Run, world: World, at_ms: int) -> None:
        if run.onset_ms is None:
            return
        world.state.lost[run.gpu] = False
        world.reset(run.gpu, at_ms)
        world.emit(EventKind.GPU_FOUND, run.gpu, at_ms, message="the GPU answers again")


class FrozenTelemetry(FaultKind):
    """After XID 79 some exporters go on serving what they read last."""

    kind = "frozen_telemetry"
    help = "XID 79 without warning, after which the exporter repeats its last values"
    per_gpu_year = LLAMA3_FAULTY_GPU * FROZEN_SHARE
    repair = (6.0 * HOUR, 96.0 * HOUR)
    rehearsal_repair = 6.0 * HOUR
    cured_by = frozenset({ActionKind.REBOOT_NODE})

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        fall_off(run, world, at_ms)
        world.state.frozen[run.gpu] = True

    def clear(self, run: Run, world: World, at_ms: int) -> None:
        world.state.frozen[run.gpu] = False
        world.reset(run.gpu, at_ms)
