"""Everything of the fleet that changes, as arrays with one entry per GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.fragmentation import Placement
from tocsin.sim.inventory import Bools, Floats, Ints, Inventory

MAX_LINKS = 18
BANK_LEVELS = ("max", "high", "partial", "low", "none")
BANKS = 640
"""Memory banks with spare rows, as an A100 reports them (own choice for the other models)."""
PCIE_ERROR_KINDS = ("correctable", "bad_tlp", "lcrc", "l0_to_recovery")
LINK_RESULTS = ("successful", "failed")

VOLATILE = (
    "gpu_ecc_corrected_volatile_total",
    "gpu_ecc_uncorrected_volatile_total",
    "gpu_ecc_dram_corrected_volatile_total",
    "gpu_ecc_dram_uncorrected_volatile_total",
    "gpu_ecc_sram_corrected_volatile_total",
    "gpu_ecc_sram_uncorrected_volatile_total",
    "gpu_pcie_replay_total",
)
"""Counters that a reset of the GPU sets to zero."""
LASTING = (
    "gpu_energy_joules_total",
    "gpu_power_cap_seconds_total",
    "gpu_thermal_violation_seconds_total",
    "gpu_sync_boost_seconds_total",
    "gpu_board_limit_seconds_total",
    "gpu_reliability_seconds_total",
    "gpu_sw_thermal_slowdown_seconds_total",
    "gpu_hw_thermal_slowdown_seconds_total",
    "gpu_hw_power_brake_seconds_total",
    "gpu_ecc_corrected_aggregate_total",
    "gpu_ecc_uncorrected_aggregate_total",
    "gpu_retired_pages_corrected_total",
    "gpu_retired_pages_uncorrected_total",
    "gpu_row_remap_correctable_total",
    "gpu_row_remap_uncorrectable_total",
    "gpu_pcie_transmit_bytes_total",
    "gpu_pcie_receive_bytes_total",
    "gpu_nvlink_crc_flit_errors_total",
    "gpu_nvlink_crc_data_errors_total",
    "gpu_nvlink_transmit_bytes_total",
    "gpu_nvlink_receive_bytes_total",
)
"""Counters that keep their value over a reset."""
COUNTERS = VOLATILE + LASTING

FLAGS = (
    "gpu_ecc_sram_threshold_exceeded",
    "gpu_retired_pages_pending",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
    "gpu_memory_unrepairable",
    "gpu_recovery_action",
)
"""Verdicts that a fault sets and a repair clears."""


@dataclass
class GangLoad:
    """What runs, per gang slot: whether, since and until when, how hard (0.8 to 1.05), how many jobs there were so far,
    and the number that names the one now, which it keeps where it is moved."""

    busy: Bools
    since_ms: Floats
    until_ms: Floats
    level: Floats
    job: Ints
    number: Ints

    @classmethod
    def none(cls, gangs: int, now_ms: int) -> GangLoad:
        return cls(
            busy=np.zeros(gangs, dtype=np.bool_),
            since_ms=np.full(gangs, float(now_ms)),
            until_ms=np.full(gangs, -np.inf),
            level=np.ones(gangs),
            job=np.zeros(gangs, dtype=np.int64),
            number=np.arange(gangs, dtype=np.int64),
        )


@dataclass
class Effects:
    """What the active faults do in this step; rebuilt in each."""

    resistance: Floats
    """Multiplier on the thermal resistance."""
    hang: Bools
    """Kernels resident, nothing computes."""
    power_brake: Bools
    leak: Floats
    """Share of the memory left that a leak has taken, 0 to 1."""
    fragmentation: Floats
    """External fragmentation of the allocator that a fault forces; 0 leaves the normal."""
    pinned: Bools
    """Work is held running, so that what a fault does can be seen."""
    lanes: Floats
    """PCIe lanes in use."""

    @classmethod
    def none(cls, size: int) -> Effects:
        return cls(
            resistance=np.ones(size),
            hang=np.zeros(size, dtype=np.bool_),
            power_brake=np.zeros(size, dtype=np.bool_),
            leak=np.zeros(size),
            fragmentation=np.zeros(size),
            pinned=np.zeros(size, dtype=np.bool_),
            lanes=np.full(size, 16.0),
        )


@dataclass
class SimState:
    """The arrays. Counters and flags are kept under their canonical names."""

    now_ms: int
    work: GangLoad
    effects: Effects
    temperature: Floats
    power: Floats
    power_limit: Floats
    clock: Floats
    counters: dict[str, Floats]
    flags: dict[str, Floats]
    banks: Floats
    link_up: Bools
    link_recovery: Floats
    link_replay: Floats
    link_symbols: Floats
    link_results: Floats
    pcie_errors: Floats
    c2c_errors: Floats
    lost: Bools
    frozen: Bools
    unschedulable: Bools
    drained: Bools
    xid_last: Floats
    xid_counts: list[dict[int, int]]
    pids: Ints
    retries: Floats
    ooms: Floats
    layouts: list[tuple[Placement, ...]]
    extra_capacity: dict[str, float] = field(default_factory=dict)
    cooled: dict[int, float] = field(default_factory=dict)
    """Temperature to which a throttle for heat brings a GPU, by its number, in degrees Celsius."""

    def reset_gpu(self, gpu: int) -> None:
        """What a reset of the GPU or a reload of its driver does to its counters and verdicts."""
        for name in VOLATILE:
            self.counters[name][gpu] = 0.0
        for name in ("gpu_row_remap_pending", "gpu_retired_pages_pending", "gpu_recovery_action"):
            self.flags[name][gpu] = 0.0
        self.pcie_errors[gpu] = 0.0
        self.link_up[gpu] = True
        self.xid_last[gpu] = 0.0


def initial(inventory: Inventory, now_ms: int) -> SimState:
    """A cold, idle fleet without a history."""
    size = len(inventory)
    idle_power = inventory.column("idle_power_w")
    banks = np.zeros((size, len(BANK_LEVELS)))
    banks[:, 0] = BANKS
    return SimState(
        now_ms=now_ms,
        work=GangLoad.none(inventory.gangs, now_ms),
        effects=Effects.none(size),
        temperature=30.0 + inventory.resistance * idle_power,
        power=idle_power,
        power_limit=inventory.column("default_power_w"),
        clock=np.full(size, 0.2),
        counters={name: np.zeros(size) for name in COUNTERS},
        flags={name: np.zeros(size) for name in FLAGS},
        banks=banks,
        link_up=np.ones((size, MAX_LINKS), dtype=np.bool_),
        link_recovery=np.zeros((size, MAX_LINKS)),
        link_replay=np.zeros((size, MAX_LINKS)),
        link_symbols=np.zeros((size, MAX_LINKS)),
        link_results=np.zeros((size, len(LINK_RESULTS))),
        pcie_errors=np.zeros((size, len(PCIE_ERROR_KINDS))),
        c2c_errors=np.zeros(size),
        lost=np.zeros(size, dtype=np.bool_),
        frozen=np.zeros(size, dtype=np.bool_),
        unschedulable=np.zeros(size, dtype=np.bool_),
        drained=np.zeros(size, dtype=np.bool_),
        xid_last=np.zeros(size),
        xid_counts=[{} for _ in range(size)],
        pids=np.zeros(size, dtype=np.int64),
        retries=np.zeros(size),
        ooms=np.zeros(size),
        layouts=list(inventory.layouts),
    )
