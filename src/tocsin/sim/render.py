"""What a step shows: the metrics as columns, and made of them readings, or tables without making the readings.

GPUs of one model and MIG mode share their metric names and missing reasons; each such group is cut from the matrix of
all columns in one step. What is named after a process or an MIG instance is added per GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.fragmentation import Placement, mig_capacity, mig_fragmentation
from tocsin.domain.metrics import METRICS, split_variant, variant
from tocsin.domain.reading import Missing, Reading
from tocsin.sim import memory as mig
from tocsin.sim import thermal, traffic
from tocsin.sim.inventory import Bools, Floats, GpuModel, Ints, Inventory
from tocsin.sim.jobs import Owners
from tocsin.sim.load import LoadDemand
from tocsin.sim.memory import Memory
from tocsin.sim.scenario import Sensors
from tocsin.sim.state import BANK_LEVELS, COUNTERS, FLAGS, LINK_RESULTS, MAX_LINKS, PCIE_ERROR_KINDS, SimState

# Columns are one array over all GPUs for each plain metric and each fixed variant. A model that lacks a metric has a
# meaningless number in its column, which readings and tables leave out.

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


def utilisation(state: SimState, load: LoadDemand, sensors: Sensors, noise: Floats) -> dict[str, Floats]:
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


def heat(
    state: SimState, limits: thermal.ThermalLimits, load: LoadDemand, sensors: Sensors, noise: Floats
) -> dict[str, Floats]:
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


def clocks(
    state: SimState, inventory: Inventory, throttle: thermal.ClockThrottle, load: LoadDemand
) -> dict[str, Floats]:
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


def memory(measured: Memory, load: LoadDemand) -> dict[str, Floats]:
    """Device memory and how many processes hold it."""
    return {
        "gpu_memory_used_bytes": measured.used,
        "gpu_memory_free_bytes": measured.total - measured.reserved - measured.used,
        "gpu_memory_reserved_bytes": measured.reserved,
        "gpu_memory_used_ratio": measured.used_ratio,
        "gpu_bar1_used_bytes": np.where(load.busy, 8.0, 1.0) * 1024 * 1024,
        "gpu_processes": load.busy.astype(np.float64),
    }


def links(state: SimState, moved: traffic.Traffic, symbols_before: Floats, seconds: float) -> dict[str, Floats]:
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
    found |= _labelled("gpu_pcie_errors_total", "kind", PCIE_ERROR_KINDS, state.pcie_errors)
    found |= _labelled("gpu_nvlink_link_recovery_total", "result", LINK_RESULTS, state.link_results)
    found |= _labelled("gpu_c2c_link_errors_total", "kind", C2C_KINDS, np.zeros((len(state.lost), len(C2C_KINDS))))
    by_link = {
        "gpu_nvlink_up": state.link_up.astype(np.float64),
        "gpu_nvlink_recovery_errors_total": state.link_recovery,
        "gpu_nvlink_replay_errors_total": state.link_replay,
        "gpu_nvlink_symbol_errors_total": state.link_symbols,
        "gpu_nvlink_effective_ber_ratio": symbol_ratio * EFFECTIVE_SHARE,
    }
    for name, values in by_link.items():
        found |= _labelled(name, "link", [str(link) for link in range(MAX_LINKS)], values)
    return found


def _labelled(name: str, label: str, texts: Sequence[str], values: Floats) -> dict[str, Floats]:
    return {variant(name, label, text): values[:, place] for place, text in enumerate(texts)}


def counters(state: SimState) -> dict[str, Floats]:
    """Counters, verdicts and the spare rows of memory banks."""
    found = {name: state.counters[name] for name in COUNTERS}
    found |= {name: state.flags[name] for name in FLAGS}
    found |= _labelled("gpu_row_remap_banks", "availability", BANK_LEVELS, state.banks)
    return found | {"gpu_xid_last_code": state.xid_last}


_OF_THE_NODE = frozenset({"network", "cooling"})
"""Families that companions read of a real node; a simulated GPU has no node, so they are not even missing."""
GPU_METRICS = frozenset(
    name for name, spec in METRICS.items() if spec.entity == "gpu" and spec.family not in _OF_THE_NODE
)
LOST = {name: Missing.LOST for name in METRICS if name in GPU_METRICS}
_ALLOCATOR = (
    "gpu_allocator_reserved_bytes",
    "gpu_allocator_allocated_bytes",
    "gpu_allocator_largest_free_block_bytes",
    "gpu_allocator_external_fragmentation_ratio",
    "gpu_allocator_retries_total",
    "gpu_allocator_ooms_total",
)
_ALLOCATOR_MISSING = dict.fromkeys(_ALLOCATOR, Missing.UNSUPPORTED)
_NOT_OF_EVERY_READING = frozenset(
    {
        *_ALLOCATOR,
        "gpu_process_memory_used_bytes",
        "gpu_process_sm_utilization_ratio",
        "gpu_mig_fragmentation_ratio",
        "gpu_mig_instances",
        "gpu_mig_remaining_capacity",
        "gpu_mig_instance_memory_used_ratio",
        "gpu_xid_events_total",
    }
)
"""Metrics that come and go with processes, instances and events."""


@dataclass(frozen=True)
class _ModelGroup:
    members: Ints
    rows: Ints
    names: tuple[str, ...]
    missing: Mapping[str, Missing]


def _wanted(name: str, model: GpuModel, lacking: frozenset[str]) -> bool:
    metric, label, value = split_variant(name)
    return metric not in lacking and (label != "link" or int(value) < model.nvlink_links)


class ReadingRenderer:
    """Makes the readings of one fleet; keeps what repeats from step to step."""

    def __init__(self, inventory: Inventory, names: tuple[str, ...]) -> None:
        self._inventory = inventory
        self._names = names
        modelled = {split_variant(name)[0] for name in names} | _NOT_OF_EVERY_READING
        self._not_modelled = [name for name in METRICS if name in GPU_METRICS and name not in modelled]
        self._groups = self._grouped()
        self._owners = Owners(inventory)
        self._keys: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._instances: dict[int, tuple[tuple[Placement, ...], dict[str, float], tuple[str, ...]]] = {}

    def _grouped(self) -> list[_ModelGroup]:
        kinds: dict[tuple[str, bool, bool], list[int]] = {}
        for number, model in enumerate(self._inventory.model_of):
            inferring = bool(self._inventory.inference[number])
            kinds.setdefault((model.name, bool(self._inventory.mig[number]), inferring), []).append(number)
        groups = []
        for (_, mig_on, inferring), members in kinds.items():
            model = self._inventory.model_of[members[0]]
            lacking = model.unsupported(mig_on=mig_on)
            rows = [row for row, name in enumerate(self._names) if _wanted(name, model, lacking)]
            missing = dict.fromkeys(self._not_modelled, Missing.UNSUPPORTED)
            missing |= {name: Missing.UNSUPPORTED for name in METRICS if name in lacking}
            if inferring or mig_on:
                missing |= _ALLOCATOR_MISSING
            groups.append(
                _ModelGroup(np.array(members), np.array(rows), tuple(self._names[row] for row in rows), missing)
            )
        return groups

    def readings(
        self, columns: Mapping[str, Floats], state: SimState, load: LoadDemand, memory: Memory, stale: list[Reading]
    ) -> list[Reading]:
        """One reading of each GPU, in the fleet's order; `stale` are those of the step before, or none."""
        matrix = np.array([columns[name] for name in self._names])
        found: list[Reading | None] = [None] * len(self._inventory)
        at_ms = state.now_ms
        gpus, owners = self._inventory.gpus, self._owners.now(state, load)
        for group in self._groups:
            rows = matrix[np.ix_(group.rows, group.members)].T.tolist()
            for number, row in zip(group.members.tolist(), rows, strict=True):
                values = dict(zip(group.names, row, strict=True))
                found[number] = Reading(gpus[number], at_ms, values, group.missing, owners[number])
        readings = [reading for reading in found if reading is not None]
        self._add_processes(readings, load, memory, state)
        self._add_instances(readings, state, memory)
        self._add_events(readings, state)
        for number in np.flatnonzero(state.lost).tolist():
            readings[number] = Reading(gpus[number], at_ms, {}, LOST)
        if stale:
            for number in np.flatnonzero(state.frozen & ~state.lost).tolist():
                old = stale[number]
                readings[number] = Reading(gpus[number], at_ms, old.values, old.missing, old.owners)
        return readings

    def _process_keys(self, number: int, pid: int) -> tuple[str, ...]:
        if (known := self._keys.get(number)) is None or known[0] != pid:
            names: tuple[str, ...] = ("gpu_process_memory_used_bytes",)
            if not self._inventory.mig[number]:
                names += ("gpu_process_sm_utilization_ratio",)
                names += () if self._inventory.inference[number] else _ALLOCATOR
            known = (pid, tuple(variant(name, "pid", str(pid)) for name in names))
            self._keys[number] = known
        return known[1]

    def _add_processes(self, readings: list[Reading], load: LoadDemand, memory: Memory, state: SimState) -> None:
        columns = np.array(
            [
                memory.used,
                np.round(np.where(state.effects.hang, 0.0, load.sm), 2),
                memory.allocator_reserved,
                memory.allocator_allocated,
                memory.allocator_largest_free,
                memory.allocator_fragmentation,
                state.retries,
                state.ooms,
            ]
        )
        busy = np.flatnonzero(load.busy)
        pids = load.pid.tolist()
        for number, row in zip(busy.tolist(), columns[:, busy].T.tolist(), strict=True):
            keys = self._process_keys(number, pids[number])
            _mutable(readings[number]).update(zip(keys, row, strict=False))

    def _layout(self, number: int, layout: tuple[Placement, ...]) -> tuple[dict[str, float], tuple[str, ...]]:
        if (known := self._instances.get(number)) is None or known[0] != layout:
            values = {"gpu_mig_fragmentation_ratio": mig_fragmentation(layout, mig.DEMAND)}
            counts = Counter(name for name, _ in layout)
            capacity = mig_capacity(layout)
            for name, profile in mig.NAMES_80GB.items():
                values[variant("gpu_mig_instances", "profile", profile)] = float(counts[name])
                values[variant("gpu_mig_remaining_capacity", "profile", profile)] = float(capacity[name])
            uuid = self._inventory.gpus[number].uuid
            instance = "gpu_mig_instance_memory_used_ratio"
            keys = tuple(variant(instance, "instance", mig.instance_id(uuid, placement)) for placement in layout)
            known = (layout, values, keys)
            self._instances[number] = known
        return known[1], known[2]

    def _add_instances(self, readings: list[Reading], state: SimState, memory: Memory) -> None:
        for number in np.flatnonzero(self._inventory.mig).tolist():
            values, keys = self._layout(number, state.layouts[number])
            target = _mutable(readings[number])
            target.update(values)
            target.update(zip(keys, memory.instances[number], strict=True))

    def _add_events(self, readings: list[Reading], state: SimState) -> None:
        for number, counts in enumerate(state.xid_counts):
            if counts:
                named = {variant("gpu_xid_events_total", "xid", str(code)): float(n) for code, n in counts.items()}
                _mutable(readings[number]).update(named)


def _mutable(reading: Reading) -> dict[str, float]:
    """The values of a reading that is still being made: always the dict that `readings` put there."""
    values = reading.values
    assert isinstance(values, dict)
    return values


OF_INSTANCE = "gpu_mig_instance_memory_used_ratio"
"""Given under its plain name: that of the fullest instance."""
OF_LAYOUT = "gpu_mig_fragmentation_ratio"


@dataclass(frozen=True, slots=True)
class Moment:
    """All that a step has to show."""

    columns: Mapping[str, Floats]
    load: LoadDemand
    memory: Memory


class TableMaker:
    """Rows of one step for chosen metrics, float64[gpus, metrics] in the fleet's order; NaN where a reading would have
    no value."""

    def __init__(self, inventory: Inventory, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self._inventory = inventory
        self._has = np.column_stack([_has(inventory, name) for name in metrics]) if metrics else np.empty((0, 0), bool)
        self._before: Floats | None = None
        self._layouts: dict[object, float] = {}

    def rows(self, moment: Moment, state: SimState) -> Floats:
        """The values now; a frozen GPU repeats those of the step before."""
        made = np.full((len(self._inventory), len(self.metrics)), np.nan)
        for place, name in enumerate(self.metrics):
            found = moment.columns.get(name)
            made[:, place] = self._own(name, moment, state) if found is None else found
        made[~self._has] = np.nan
        made[state.lost] = np.nan
        if self._before is not None:
            stuck = state.frozen & ~state.lost
            made[stuck] = self._before[stuck]
        self._before = made
        return made

    def _own(self, name: str, moment: Moment, state: SimState) -> Floats:
        memory, busy = moment.memory, moment.load.busy
        # Metrics of a process go by their plain names: a simulated GPU has one process.
        if name in _ALLOCATOR:
            made = (
                memory.allocator_reserved,
                memory.allocator_allocated,
                memory.allocator_largest_free,
                memory.allocator_fragmentation,
                state.retries,
                state.ooms,
            )
            return np.where(busy, made[_ALLOCATOR.index(name)], np.nan)
        if name == OF_INSTANCE:
            return np.array([max(shares, default=np.nan) for shares in memory.instances])
        if name == OF_LAYOUT:
            return np.array([self._fragmentation(state, gpu) for gpu in range(len(self._inventory))])
        return np.full(len(self._inventory), np.nan)

    def _fragmentation(self, state: SimState, gpu: int) -> float:
        layout = state.layouts[gpu]
        if not self._inventory.mig[gpu]:
            return float("nan")
        if layout not in self._layouts:
            self._layouts[layout] = mig_fragmentation(layout, mig.DEMAND)
        return self._layouts[layout]


def _has(inventory: Inventory, name: str) -> Bools:
    """Which GPUs have the metric at all."""
    if split_variant(name)[0] in _ALLOCATOR:
        return np.asarray(~(inventory.inference | inventory.mig))
    lacking = (model.unsupported(mig_on=bool(on)) for model, on in zip(inventory.model_of, inventory.mig, strict=True))
    found = [_wanted(name, model, lacks) for model, lacks in zip(inventory.model_of, lacking, strict=True)]
    return np.array(found, dtype=np.bool_)
