"""Faults of what runs on the GPU: leaks, broken-up allocators, hangs and crashes. They never condemn the hardware."""

from __future__ import annotations

from tocsin.domain.finding import ActionKind
from tocsin.sim.faults.base import LEAVES, FaultClass, FaultKind, FaultRun
from tocsin.sim.inventory import Inventory
from tocsin.sim.world import SimWorld, StepWindow


class MemoryLeak(FaultKind):
    """A process keeps what it should free; a benign one is a cache that fills to its bound and shrinks, or a leak that
    stops by itself: what it took stays taken until the process ends."""

    kind = "memory_leak"
    help = "a process leaks device memory until an allocation fails and the job dies"
    fault_class = FaultClass.SOFTWARE
    hard = False
    rises = frozenset({"memory"})
    cured_by = LEAVES

    def _set(self, run: FaultRun, world: SimWorld, strength: float) -> None:
        world.state.effects.leak[run.gpu] = max(world.state.effects.leak[run.gpu], strength)
        world.state.effects.pinned[run.gpu] = True

    def _stops(self, run: FaultRun) -> bool:
        """Whether a benign one holds what it took; drawn once."""
        if "stops" not in run.base:
            run.base["stops"] = float(run.benign and run.rng.uniform() < self.benign_holds_share)
        return bool(run.base["stops"])

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        if self._stops(run):
            strength = min(run.grown(window.end_ms), run.peak)
        self._set(run, world, strength ** self.course(run).rises["memory"].shape)

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.state.ooms[run.gpu] += 1.0
        world.state.retries[run.gpu] += 1.0

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        self._set(run, world, 1.0)

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.onset_ms is not None or run.base.get("stops"):
            world.kill_job(run.gpu, at_ms)


class AllocatorFragmentation(FaultKind):
    """Changing batch shapes leave holes that no large tensor fits into."""

    kind = "allocator_fragmentation"
    help = "external fragmentation of a process's caching allocator grows past one half; allocations retry"
    fault_class = FaultClass.SOFTWARE
    hard = False
    rises = frozenset({"fragmentation"})
    named = frozenset({"worst", "retries_per_minute"})
    cured_by = LEAVES | {ActionKind.DEFRAGMENT}

    def objection(self, inventory: Inventory, gpu: int) -> str:
        blind = inventory.inference[gpu] or inventory.mig[gpu]
        return "no process reports its allocator there; choose a training or batch GPU without MIG" if blind else ""

    def _set(self, run: FaultRun, world: SimWorld, strength: float) -> None:
        effects = world.state.effects
        effects.fragmentation[run.gpu] = max(effects.fragmentation[run.gpu], self.numbers["worst"] * strength)
        effects.pinned[run.gpu] = True

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        self._set(run, world, strength ** self.course(run).rises["fragmentation"].shape)

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.state.retries[run.gpu] += 1.0

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        self._set(run, world, 1.0)
        world.state.retries[run.gpu] += float(
            run.rng.poisson(self.numbers["retries_per_minute"] * window.seconds / 60.0)
        )


class Hang(FaultKind):
    """A collective waits for ever: a kernel is resident, nothing computes, no XID tells."""

    kind = "hang"
    help = "utilisation 100 % at idle power with no SM active, and no XID"
    fault_class = FaultClass.SOFTWARE
    announced = False
    cured_by = LEAVES

    def objection(self, inventory: Inventory, gpu: int) -> str:
        return "utilisation cannot be read with MIG on; choose a GPU without MIG" if inventory.mig[gpu] else ""

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        world.state.effects.hang[run.gpu] = True
        world.state.effects.pinned[run.gpu] = True

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.kill_job(run.gpu, at_ms)


class AppCrash(FaultKind):
    """A program reads what is not its own."""

    kind = "app_crash"
    help = "a program's own fault: XID 31 or 13, then 45 and 43; the GPU is sound"
    fault_class = FaultClass.SOFTWARE
    hard = False
    named = frozenset({"mmu_share"})

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        first = (31, "MMU Fault") if run.rng.uniform() < self.numbers["mmu_share"] else (13, "Graphics Exception")
        world.xids(run.gpu, at_ms, [first, (45, "Cleanup"), (43, "Reset channel")])
        world.kill_job(run.gpu, at_ms)
