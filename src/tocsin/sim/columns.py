"""The metrics of a step as columns: one array over all GPUs for each plain metric and each fixed variant.

A model that lacks a metric has a meaningless number here; `render` leaves it out.
"""

from __future__ import annotations

import numpy as np

from tocsin.domain.metrics import variant
from tocsin.sim import thermal, traffic
from tocsin.sim.arrays import Floats
from tocsin.sim.inventory import Inventory
from tocsin.sim.load import Demand
from tocsin.sim.memory import Memory
from tocsin.sim.scenario import Sensors
from tocsin.sim.state import BANK_LEVELS, COUNTERS, FLAGS, LINK_RESULTS, MAX_LINKS, PCIE_ERROR_KINDS, State

MHZ = 1_000_000.0
C2C_KINDS = ("interrupt", "replay", "replay_back_to_back")
EFFECTIVE_SHARE = 0.01
"""Symbol errors that survive correction, as a share (own choice)."""


def static(inventory: Inventory) -> dict[str, Floats]:
    """Columns that never change."""
    column = inventory.column
    size = len(inventory)
    return {
        "gpu_memory_total_bytes": column("memory_bytes"),
        "gpu_bar1_total_bytes": np.exp2(np.ceil(np.log2(column("memory_bytes")))),
        "gpu_temperature_slowdown_celsius": column("slowdown_c"),
        "gpu_temperature_shutdown_celsius": column("shutdown_c"),
        "gpu_temperature_max_operating_celsius": column("max_operating_c"),
        "gpu_memory_temperature_max_operating_celsius": column("memory_max_operating_c"),
        "gpu_tlimit_slowdown_celsius": column("tlimit_slowdown"),
        "gpu_tlimit_shutdown_celsius": column("tlimit_shutdown"),
        "gpu_tlimit_max_operating_celsius": np.zeros(size),
        "gpu_power_limit_default_watts": column("default_power_w"),
        "gpu_power_limit_min_watts": column("min_power_w"),
        "gpu_power_limit_max_watts": column("max_power_w"),
        "gpu_sm_clock_max_hertz": column("sm_clock_mhz") * MHZ,
        "gpu_memory_clock_max_hertz": column("memory_clock_mhz") * MHZ,
        "gpu_app_sm_clock_hertz": column("sm_clock_mhz") * MHZ,
        "gpu_pcie_link_generation_max": column("pcie_generation"),
        "gpu_pcie_link_width_max": np.full(size, 16.0),
        "gpu_nvlink_links_max": column("nvlink_links"),
        "gpu_ecc_mode_enabled": np.ones(size),
        "gpu_mig_mode": inventory.mig.astype(np.float64),
        variant("gpu_repair_pending", "unit", "channel"): np.zeros(size),
        variant("gpu_repair_pending", "unit", "tpc"): np.zeros(size),
    }


def utilisation(state: State, load: Demand, sensors: Sensors, noise: Floats) -> dict[str, Floats]:
    """How busy the engines look. A hung kernel counts as resident, and nothing else moves."""
    hang = state.effects.hang
    jitter = 1.0 + sensors.activity * noise.clip(-3, 3)

    def seen(share: Floats) -> Floats:
        return np.round(np.where(hang, 0.0, share * jitter).clip(0.0, 1.0), 6)

    def percent(share: Floats, when_hung: float = 0.0) -> Floats:
        return np.asarray(np.round(np.where(hang, when_hung, share), 2), dtype=np.float64)

    media = percent(0.2 * load.fp32)
    return {
        "gpu_utilization_ratio": percent(load.util, 1.0),
        "gpu_memory_copy_utilization_ratio": percent(load.dram),
        "gpu_encoder_utilization_ratio": np.zeros(len(hang)),
        "gpu_decoder_utilization_ratio": media,
        "gpu_jpeg_utilization_ratio": percent(media / 2),
        "gpu_ofa_utilization_ratio": np.zeros(len(hang)),
        "gpu_graphics_engine_active_ratio": percent(load.util, 1.0),
        "gpu_sm_active_ratio": seen(load.sm),
        "gpu_sm_occupancy_ratio": seen(load.sm * 0.55),
        "gpu_tensor_active_ratio": seen(load.tensor),
        "gpu_dram_active_ratio": seen(load.dram),
        "gpu_fp64_active_ratio": seen(load.fp32 * 0.02),
        "gpu_fp32_active_ratio": seen(load.fp32),
        "gpu_fp16_active_ratio": seen(load.fp16),
    }


def heat(state: State, limits: thermal.Limits, load: Demand, sensors: Sensors, noise: Floats) -> dict[str, Floats]:
    """Temperatures in whole degrees, as NVML gives them, and power."""
    die = np.round(state.temperature + sensors.die_c * noise.clip(-2, 2))
    power = state.power
    return {
        "gpu_temperature_celsius": die,
        "gpu_memory_temperature_celsius": np.round(die + 3.0 + 7.0 * np.where(state.effects.hang, 0.0, load.dram)),
        "gpu_thermal_margin_celsius": limits.ceiling_c - die,
        "gpu_power_watts": power,
        "gpu_power_instant_watts": np.round(power * (1.0 + sensors.power_instant * noise.clip(-3, 3)), 3),
        "gpu_power_limit_watts": state.power_limit,
        "gpu_power_limit_enforced_watts": state.power_limit,
    }


def clocks(state: State, inventory: Inventory, throttle: thermal.Throttle, load: Demand) -> dict[str, Floats]:
    """Clocks, why they are held down, and the performance state; parts without NVLink sleep in P8 when idle."""
    sleepy = ~load.busy & (inventory.column("nvlink_links") == 0)
    sm_max, memory_max = inventory.column("sm_clock_mhz"), inventory.column("memory_clock_mhz")
    return {
        "gpu_sm_clock_hertz": np.round(sm_max * state.clock / 15.0) * 15.0 * MHZ,
        "gpu_memory_clock_hertz": np.where(sleepy, 405.0, memory_max) * MHZ,
        "gpu_clocks_event_reasons_bitmask": throttle.bitmask(),
        "gpu_performance_state": np.where(sleepy, 8.0, 0.0),
        "gpu_pcie_link_generation": np.where(sleepy, 1.0, inventory.column("pcie_generation")),
        "gpu_pcie_link_width": state.effects.lanes,
    }


def memory(measured: Memory, load: Demand) -> dict[str, Floats]:
    """Device memory and how many processes hold it."""
    return {
        "gpu_memory_used_bytes": measured.used,
        "gpu_memory_free_bytes": measured.total - measured.reserved - measured.used,
        "gpu_memory_reserved_bytes": measured.reserved,
        "gpu_memory_used_ratio": measured.used_ratio,
        "gpu_bar1_used_bytes": np.where(load.busy, 8.0, 1.0) * 1024 * 1024,
        "gpu_processes": load.busy.astype(np.float64),
    }


def links(state: State, moved: traffic.Traffic, symbols_before: Floats, seconds: float) -> dict[str, Floats]:
    """NVLink and PCIe: rates, counters, and one column for each link."""
    symbol_ratio = traffic.bit_error_ratio(state, seconds, symbols_before)
    down = ~state.link_up.all(axis=1)
    found: dict[str, Floats] = {
        "gpu_pcie_transmit_bytes_per_second": moved.pcie_transmit,
        "gpu_pcie_receive_bytes_per_second": moved.pcie_receive,
        "gpu_nvlink_bandwidth_bytes_per_second": moved.nvlink,
        "gpu_nvlink_symbol_ber_ratio": symbol_ratio.max(axis=1),
        "gpu_fabric_state": np.full(len(state.lost), 3.0),
        "gpu_fabric_health": np.where(down, 3.0, 1.0),
    }
    for place, kind in enumerate(PCIE_ERROR_KINDS):
        found[variant("gpu_pcie_errors_total", "kind", kind)] = state.pcie_errors[:, place]
    for place, result in enumerate(LINK_RESULTS):
        found[variant("gpu_nvlink_link_recovery_total", "result", result)] = state.link_results[:, place]
    for kind in C2C_KINDS:
        found[variant("gpu_c2c_link_errors_total", "kind", kind)] = np.zeros(len(state.lost))
    by_link = {
        "gpu_nvlink_up": state.link_up.astype(np.float64),
        "gpu_nvlink_recovery_errors_total": state.link_recovery,
        "gpu_nvlink_replay_errors_total": state.link_replay,
        "gpu_nvlink_symbol_errors_total": state.link_symbols,
        "gpu_nvlink_effective_ber_ratio": symbol_ratio * EFFECTIVE_SHARE,
    }
    for name, values in by_link.items():
        for link in range(MAX_LINKS):
            found[variant(name, "link", str(link))] = values[:, link]
    return found


def counters(state: State) -> dict[str, Floats]:
    """Counters, verdicts and the spare rows of memory banks."""
    found = {name: state.counters[name] for name in COUNTERS}
    found |= {name: state.flags[name] for name in FLAGS}
    for place, level in enumerate(BANK_LEVELS):
        found[variant("gpu_row_remap_banks", "availability", level)] = state.banks[:, place]
    found["gpu_xid_last_code"] = state.xid_last
    return found
