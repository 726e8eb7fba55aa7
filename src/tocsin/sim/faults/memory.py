"""Device memory: growing corrected errors, row remapping, and errors that cannot be corrected."""

from __future__ import annotations

from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.sim.faults.base import RESETS, FaultKind, Run
from tocsin.sim.faults.rates import LLAMA3_HBM, LLAMA3_SRAM, memory_factor
from tocsin.sim.inventory import Inventory
from tocsin.sim.models import GpuModel
from tocsin.sim.world import Window, World

REMAP_FAILURE_SHARE = 0.15
"""Of the memory faults, those for which no spare row is left (own choice)."""
ERRORS_PER_HOUR = 400.0
"""Corrected errors at the end of a precursor (own choice; a healthy GPU has about one in 20 days)."""
XID_92_AT = 0.8
BANK_GRADES = 5
NO_REMAPPING = "the model has no row remapping; choose an Ampere or newer GPU"


def corrected(world: World, gpu: int, amount: float) -> None:
    """Count corrected DRAM errors."""
    for name in ("corrected_volatile", "corrected_aggregate", "dram_corrected_volatile"):
        world.count(f"gpu_ecc_{name}_total", gpu, amount)


def uncorrected(world: World, gpu: int, location: str) -> None:
    """Count one uncorrectable error in ``dram`` or ``sram``."""
    for name in ("uncorrected_volatile", "uncorrected_aggregate", f"{location}_uncorrected_volatile"):
        world.count(f"gpu_ecc_{name}_total", gpu, 1.0)


def wear_bank(world: World, gpu: int, grade: int) -> None:
    """Move one bank from `grade` (0: all spare rows left) to the next worse, where there is one."""
    banks = world.state.banks[gpu]
    if banks[grade] > 0 and grade + 1 < BANK_GRADES:
        banks[grade] -= 1.0
        banks[grade + 1] += 1.0


class _RowFault(FaultKind):
    """Corrected errors grow, rows are remapped, then one error is too much."""

    benign_share = 0.4
    lead = (6.0 * HOUR, 7.0 * DAY)
    rehearsal_lead = 30.0 * MINUTE
    repair = (4.0 * HOUR, 48.0 * HOUR)
    rehearsal_repair = 6.0 * HOUR

    def objection(self, inventory: Inventory, gpu: int) -> str:
        return NO_REMAPPING if inventory.model_of[gpu].arch == "turing" else ""

    def model_factor(self, model: GpuModel) -> float:
        return memory_factor(model)

    def warn(self, run: Run, world: World, strength: float, window: Window) -> None:
        world.state.effects.pinned[run.gpu] |= run.injected
        hours = window.after(run.started_ms) * SECOND / HOUR
        corrected(world, run.gpu, float(run.rng.poisson(ERRORS_PER_HOUR * strength**2 * hours)))
        for grade, mark in enumerate((0.3, 0.5, 0.7)):
            if strength >= mark and run.once(f"bank {mark}"):
                wear_bank(world, run.gpu, grade)
                world.count("gpu_row_remap_correctable_total", run.gpu, 1.0)
        if strength >= XID_92_AT and run.once("xid 92"):
            world.xids(run.gpu, window.end_ms, [(92, "High single-bit ECC error rate")])


class RowRemap(_RowFault):
    """The usual end: the row is remapped at the next reset, the application is lost, the GPU is not."""

    kind = "row_remap"
    help = "corrected errors grow, then XID 48, 63 and 94: a row remap waits for a reset"
    per_gpu_year = LLAMA3_HBM * (1.0 - REMAP_FAILURE_SHARE)
    abrupt_share = 0.70
    cured_by = RESETS

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        gpu = run.gpu
        uncorrected(world, gpu, "dram")
        world.count("gpu_row_remap_uncorrectable_total", gpu, 1.0)
        wear_bank(world, gpu, 0)
        world.state.flags["gpu_row_remap_pending"][gpu] = 1.0
        text = "Row Remapper: New row marked for remapping, reset gpu to activate."
        world.xids(gpu, at_ms, [(48, "Double Bit ECC Error"), (63, text), (94, "Contained error"), (45, "Cleanup")])
        world.verdict(gpu, at_ms + 4 * SECOND, 1, "GPU Reset")
        world.kill_job(gpu, at_ms)

    def clear(self, run: Run, world: World, at_ms: int) -> None:
        if run.onset_ms is not None:
            world.reset(run.gpu, at_ms)


class RowRemapFailure(_RowFault):
    """No spare row is left: the board is to be replaced."""

    kind = "row_remap_failure"
    help = "corrected errors grow, then XID 48, 64 and 95: no spare row is left, the board must be replaced"
    per_gpu_year = LLAMA3_HBM * REMAP_FAILURE_SHARE
    abrupt_share = 0.70
    repair = (24.0 * HOUR, 96.0 * HOUR)

    def strike(self, run: Run, world: World, at_ms: int) -> None:
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

    def clear(self, run: Run, world: World, at_ms: int) -> None:
        if run.onset_ms is None:
            return
        for flag in ("gpu_row_remap_failure", "gpu_memory_unrepairable"):
            world.state.flags[flag][run.gpu] = 0.0
        world.reset(run.gpu, at_ms)


class SramError(FaultKind):
    """An uncorrectable error in a cache or register file: cannot be remapped, comes without warning."""

    kind = "sram_error"
    help = "uncorrectable SRAM error without warning: XID 48, 172 and 95"
    per_gpu_year = LLAMA3_SRAM
    repair = (2.0 * HOUR, 12.0 * HOUR)
    cured_by = RESETS

    def strike(self, run: Run, world: World, at_ms: int) -> None:
        gpu = run.gpu
        uncorrected(world, gpu, "sram")
        codes = [(48, "Double Bit ECC Error"), (172, "Uncorrectable SRAM error"), (95, "Uncontained error")]
        world.xids(gpu, at_ms, codes)
        world.verdict(gpu, at_ms + 3 * SECOND, 4, "Drain and Reset")
        world.kill_job(gpu, at_ms)

    def clear(self, run: Run, world: World, at_ms: int) -> None:
        world.reset(run.gpu, at_ms)
