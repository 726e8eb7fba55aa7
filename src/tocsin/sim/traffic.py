"""Bytes over PCIe and NVLink, and what share of a link's symbols are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import SECOND
from tocsin.sim.inventory import Floats, Inventory
from tocsin.sim.load import LoadDemand
from tocsin.sim.state import SimState

LANE_BYTES_PER_SECOND = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}
"""One direction of one lane after encoding, by PCIe generation (PCI-SIG's transfer rates)."""


@dataclass(frozen=True)
class Traffic:
    """Bytes per second in this step."""

    pcie_transmit: Floats
    pcie_receive: Floats
    nvlink: Floats


def pcie_capacity(inventory: Inventory) -> Floats:
    """Bytes per second of one lane of each GPU, in one direction."""
    return np.array([LANE_BYTES_PER_SECOND[model.pcie_generation] for model in inventory.model_of])


@dataclass(frozen=True)
class Roads:
    """Per GPU: bytes per second of one PCIe lane in one direction, and of all NVLinks in both."""

    lane: Floats
    nvlink: Floats


def advance(
    state: SimState, inventory: Inventory, roads: Roads, load: LoadDemand, speed: Floats, seconds: float
) -> Traffic:
    """Count the bytes of a step; `speed` is the share of its throughput that a GPU's power limit leaves it."""
    lane, nvlink = roads.lane, roads.nvlink
    moving = np.where(state.effects.hang, 0.0, load.util * speed)
    capacity = lane * state.effects.lanes
    transmit = np.round((0.0005 + 0.10 * moving) * capacity)
    receive = np.round((0.0005 + 0.22 * moving) * capacity)
    links = inventory.column("nvlink_links")
    up = np.divide(_up(state, links), links, out=np.zeros_like(links), where=links > 0)
    share = np.where(inventory.training, 0.38, 0.03) * np.where(state.effects.hang, 0.0, load.sm * speed)
    linked = np.round(nvlink * up * share)
    counters = state.counters
    counters["gpu_pcie_transmit_bytes_total"] += np.round(transmit * seconds)
    counters["gpu_pcie_receive_bytes_total"] += np.round(receive * seconds)
    counters["gpu_nvlink_transmit_bytes_total"] += np.round(linked * 0.5 * seconds)
    counters["gpu_nvlink_receive_bytes_total"] += np.round(linked * 0.5 * seconds)
    return Traffic(transmit, receive, linked)


def _up(state: SimState, links: Floats) -> Floats:
    exists = np.arange(state.link_up.shape[1])[None, :] < links[:, None]
    return np.asarray((state.link_up & exists).sum(axis=1), dtype=np.float64)


def bit_error_ratio(state: SimState, seconds: float, before: Floats) -> Floats:
    """Symbol error ratio of each link over a step of `seconds`: new symbols over those that a link carries.

    An NVLink 5 carries 100 Gbaud on each of 2 lanes in each direction (two bits a symbol).
    """
    return np.asarray((state.link_symbols - before) / (2.0e11 * max(seconds, 1.0 / SECOND)))
