"""Device memory: growing corrected errors, row remapping, and errors that cannot be corrected."""

from __future__ import annotations

from tocsin.domain.clock import SECOND
from tocsin.sim.faults.base import RESETS, FaultKind, FaultRun
from tocsin.sim.inventory import GpuModel, Inventory
from tocsin.sim.world import SimWorld, StepWindow

DELTA_MEMORY_FACTOR = 3.2
"""The Delta study (arXiv 2503.11901) gives H100 memory a so much shorter time between errors than A100 memory."""


def memory_factor(model: GpuModel) -> float:
    """Memory error rate of a model relative to H100; newer parts count as H100, for want of a figure."""
    return 1.0 if model.arch in {"hopper", "blackwell"} else 1.0 / DELTA_MEMORY_FACTOR


BANK_GRADES = 5
NO_REMAPPING = "the model has no row remapping; choose an Ampere or newer GPU"


def corrected(world: SimWorld, gpu: int, amount: float) -> None:
    """Count corrected DRAM errors."""
    for name in ("corrected_volatile", "corrected_aggregate", "dram_corrected_volatile"):
        world.count(f"gpu_ecc_{name}_total", gpu, amount)


def uncorrected(world: SimWorld, gpu: int, location: str) -> None:
    """Count one uncorrectable error in ``dram`` or ``sram``."""
    for name in ("uncorrected_volatile", "uncorrected_aggregate", f"{location}_uncorrected_volatile"):
        world.count(f"gpu_ecc_{name}_total", gpu, 1.0)


def wear_bank(world: SimWorld, gpu: int, grade: int) -> None:
    """Move one bank from `grade` (0: all spare rows left) to the next worse, where there is one."""
    banks = world.state.banks[gpu]
    if banks[grade] > 0 and grade + 1 < BANK_GRADES:
        banks[grade] -= 1.0
        banks[grade + 1] += 1.0


class _RowFault(FaultKind):
    """Corrected errors grow, rows are remapped, then one error is too much."""

    rises = frozenset({"corrected", "remaps"})
    marks = frozenset({"first_remap", "second_remap", "third_remap", "xid_92"})

    def objection(self, inventory: Inventory, gpu: int) -> str:
        return NO_REMAPPING if inventory.model_of[gpu].arch == "turing" else ""

    def model_factor(self, model: GpuModel) -> float:
        return memory_factor(model)

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        world.state.effects.pinned[run.gpu] |= run.injected
        corrected(world, run.gpu, self.more(run, world, "corrected", "corrected", strength, window))
        marks = self.course(run).marks
        for _ in range(int(self.more(run, world, "remaps", "remaps", strength, window))):
            self._remap(run, world, 0)
        for grade, mark in enumerate(("first_remap", "second_remap", "third_remap")):
            if strength >= marks[mark] and run.once(mark):
                self._remap(run, world, grade)
        if strength >= marks["xid_92"] and run.once("xid 92"):
            world.xids(run.gpu, window.end_ms, [(92, "High single-bit ECC error rate")])

    def _remap(self, run: FaultRun, world: SimWorld, grade: int) -> None:
        wear_bank(world, run.gpu, grade)
        world.count("gpu_row_remap_correctable_total", run.gpu, 1.0)


class RowRemap(_RowFault):
    """The usual end: the row is remapped at the next reset, the application is lost, the GPU is not."""

    kind = "row_remap"
    help = "corrected errors grow, then XID 48, 63 and 94: a row remap waits for a reset"
    cured_by = RESETS

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        gpu = run.gpu
        uncorrected(world, gpu, "dram")
        world.count("gpu_row_remap_uncorrectable_total", gpu, 1.0)
        wear_bank(world, gpu, 0)
        world.state.flags["gpu_row_remap_pending"][gpu] = 1.0
        text = "Row Remapper: New row marked for remapping, reset gpu to activate."
        world.xids(gpu, at_ms, [(48, "Double Bit ECC Error"), (63, text), (94, "Contained error"), (45, "Cleanup")])
        world.verdict(gpu, at_ms + 4 * SECOND, 1, "GPU Reset")
        world.kill_job(gpu, at_ms)

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.onset_ms is not None:
            world.reset(run.gpu, at_ms)


class RowRemapFailure(_RowFault):
    """No spare row is left: the board is to be replaced."""

    kind = "row_remap_failure"
    help = "corrected errors grow, then XID 48, 64 and 95: no spare row is left, the board must be replaced"

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        gpu = run.gpu
        uncorrected(world, gpu, "dram")
        for flag in ("gpu_row_remap_failure", "gpu_memory_unrepairable"):
            world.state.flags[flag][gpu] = 1.0
        for grade in range(BANK_GRADES - 1):
            wear_bank(world, gpu, grade)
        text = "Row Remapper: Error marking row for remapping."
        world.xids(gpu, at_ms, [(48, "Double Bit ECC Error"), (64, text), (95, "Uncontained error"), (45, "Cleanup")])
        world.verdict(gpu, at_ms + 4 * SECOND, 4, "Drain and Reset")
        world.kill_job(gpu, at_ms)

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.onset_ms is None:
            return
        for flag in ("gpu_row_remap_failure", "gpu_memory_unrepairable"):
            world.state.flags[flag][run.gpu] = 0.0
        world.reset(run.gpu, at_ms)


class SramError(FaultKind):
    """An uncorrectable error in a cache or register file: cannot be remapped, comes without warning."""

    kind = "sram_error"
    help = "uncorrectable SRAM error without warning: XID 48, 172 and 95"
    cured_by = RESETS

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        gpu = run.gpu
        uncorrected(world, gpu, "sram")
        codes = [(48, "Double Bit ECC Error"), (172, "Uncorrectable SRAM error"), (95, "Uncontained error")]
        world.xids(gpu, at_ms, codes)
        world.verdict(gpu, at_ms + 3 * SECOND, 4, "Drain and Reset")
        world.kill_job(gpu, at_ms)

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        world.reset(run.gpu, at_ms)
