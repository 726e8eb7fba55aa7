"""Bytes over PCIe and NVLink, and the rare errors of healthy links and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, SECOND
from tocsin.sim.arrays import Floats, Stream, generator
from tocsin.sim.inventory import Inventory
from tocsin.sim.load import Demand
from tocsin.sim.state import State

LANE_BYTES_PER_SECOND = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}
"""One direction of one lane after encoding, by PCIe generation (PCI-SIG's transfer rates)."""

CORRECTED_PER_DAY = 0.05
REPLAYS_PER_DAY = 0.5
CORRECTABLE_PER_DAY = 0.2
RECOVERIES_PER_DAY = 3.0
CRC_PER_DAY = 12.0
SYMBOLS_PER_DAY = 100.0
"""Errors of a healthy GPU: corrected DRAM errors, PCIe replays, PCIe correctable errors and retrainings, NVLink CRC
errors, and symbol errors of one NVLink 5 (all own choices, far below every alarm)."""


@dataclass(frozen=True)
class Traffic:
    """Bytes per second in this step."""

    pcie_transmit: Floats
    pcie_receive: Floats
    nvlink: Floats


def pcie_capacity(inventory: Inventory) -> Floats:
    """Bytes per second of one lane of each GPU, in one direction."""
    return np.array([LANE_BYTES_PER_SECOND[model.pcie_generation] for model in inventory.model_of])


def advance(state: State, inventory: Inventory, lane: Floats, nvlink: Floats, load: Demand, seconds: float) -> Traffic:
    """Count the bytes of a step; `nvlink` is each GPU's bandwidth in both directions with all links up."""
    moving = np.where(state.effects.hang, 0.0, load.util)
    capacity = lane * state.effects.lanes
    transmit = np.round((0.0005 + 0.10 * moving) * capacity)
    receive = np.round((0.0005 + 0.22 * moving) * capacity)
    links = inventory.column("nvlink_links")
    up = np.divide(_up(state, links), links, out=np.zeros_like(links), where=links > 0)
    share = np.where(inventory.training, 0.38, 0.03) * np.where(state.effects.hang, 0.0, load.sm)
    linked = np.round(nvlink * up * share)
    counters = state.counters
    counters["gpu_pcie_transmit_bytes_total"] += np.round(transmit * seconds)
    counters["gpu_pcie_receive_bytes_total"] += np.round(receive * seconds)
    counters["gpu_nvlink_transmit_bytes_total"] += np.round(linked * 0.5 * seconds)
    counters["gpu_nvlink_receive_bytes_total"] += np.round(linked * 0.5 * seconds)
    return Traffic(transmit, receive, linked)


def _up(state: State, links: Floats) -> Floats:
    exists = np.arange(state.link_up.shape[1])[None, :] < links[:, None]
    return np.asarray((state.link_up & exists).sum(axis=1), dtype=np.float64)


def background(state: State, seed: int, step: int, interval_ms: int) -> None:
    """Errors that healthy hardware shows; their numbers never depend on what faults are active."""
    days = interval_ms / DAY
    size = len(state.lost)
    rng = generator(seed, Stream.BACKGROUND, step)
    alive = ~state.lost
    corrected = rng.poisson(CORRECTED_PER_DAY * days, size) * alive
    for name in ("corrected_volatile", "corrected_aggregate", "dram_corrected_volatile"):
        state.counters[f"gpu_ecc_{name}_total"] += corrected
    state.counters["gpu_pcie_replay_total"] += rng.poisson(REPLAYS_PER_DAY * days, size) * alive
    state.pcie_errors[:, 0] += rng.poisson(CORRECTABLE_PER_DAY * days, size) * alive
    state.pcie_errors[:, 3] += rng.poisson(RECOVERIES_PER_DAY * days, size) * alive
    state.counters["gpu_nvlink_crc_flit_errors_total"] += rng.poisson(CRC_PER_DAY * days, size) * alive
    state.counters["gpu_nvlink_crc_data_errors_total"] += rng.poisson(CRC_PER_DAY / 10 * days, size) * alive
    state.link_symbols += rng.poisson(SYMBOLS_PER_DAY * days, state.link_symbols.shape) * alive[:, None]


def bit_error_ratio(state: State, seconds: float, before: Floats) -> Floats:
    """Symbol error ratio of each link over a step of `seconds`: new symbols over those that a link carries.

    An NVLink 5 carries 100 Gbaud on each of 2 lanes in each direction (two bits a symbol).
    """
    return np.asarray((state.link_symbols - before) / (2.0e11 * max(seconds, 1.0 / SECOND)))
