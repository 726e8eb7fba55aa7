"""What a fleet takes: CPU, memory, disk and network, computed from what the benchmarks measured.

The constants are in `measured.csv`, each with the benchmark of ``tests/perf`` that prints it. Between two fleets that
were measured the figure of a brain is a straight line; beyond the largest one a fleet is cut into cells.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.clock import DAY, HOUR, SECOND
from tocsin.domain.errors import InputError

MINUTE_S, TEN_MINUTE_S = 60.0, 600.0
_DAY_S, _HOUR_S = DAY / SECOND, HOUR / SECOND
MONTH_S = 365.25 * _DAY_S / 12
MEASURED_INTERVAL_S = 10.0
"""Time between two readings in the measurement of brains."""
UNPACKED_S = 70 * 60.0
"""The oldest reading that is not packed: an hour, 5 minutes until it is over for good, 5 until the next round."""
STORES = (StoreKind.SQLITE, StoreKind.VICTORIAMETRICS)
"""Stores whose bytes were measured: no InfluxDB 2.x was at hand."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One measured figure; `at` is the number of GPUs that it was measured with, where it depends on that."""

    name: str
    at: float | None
    value: float
    unit: str
    benchmark: str
    what: str


@cache
def constants() -> tuple[Constant, ...]:
    """All of `measured.csv`."""
    text = resources.files("tocsin.offline").joinpath("measured.csv").read_text("utf-8")
    return tuple(
        Constant(
            row["name"],
            float(row["at"]) if row["at"] else None,
            float(row["value"]),
            row["unit"],
            row["benchmark"],
            row["what"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def _one(name: str) -> float:
    return next(each.value for each in constants() if each.name == name)


def _line(name: str, gpus: float) -> float:
    """The measured figure for `gpus`, on the straight line between its neighbours."""
    points = sorted((each.at or 0.0, each.value) for each in constants() if each.name == name)
    for (low, below), (high, above) in pairwise(points):
        if gpus <= high:
            share = max(0.0, gpus - low) / (high - low)
            return below + share * (above - below)
    return points[-1][1]


def largest_brain() -> int:
    """GPUs of the largest fleet that one brain was measured with."""
    return int(max(each.at or 0.0 for each in constants() if each.name == "brain_cores"))


@dataclass(frozen=True, slots=True)
class StoragePrices:
    """Money of any currency for a month of a core, of a GB of memory or disk, and for a GB that crosses the network."""

    core_month: float | None = None
    memory_gb_month: float | None = None
    disk_gb_month: float | None = None
    network_gb: float | None = None


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """What is asked: so many GPUs, read so often, kept so long, with agents that bridge so long an outage."""

    gpus: int
    gpus_per_node: int = 8
    interval_seconds: float = 10.0
    outage_hours: float = 24.0
    gpus_per_cell: int = 0
    store: StoreSettings = field(default_factory=StoreSettings)
    prices: StoragePrices = field(default_factory=StoragePrices)

    def __post_init__(self) -> None:
        most = largest_brain()
        for name in ("gpus", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "there is none", "give a number from 1 up")
        if not self.interval_seconds > 0:
            raise InputError("interval", self.interval_seconds, "time must move forward", "give a number above 0")
        if not 0 <= self.gpus_per_cell <= most:
            problem = f"no brain was measured with more than {most:,} GPUs"
            raise InputError("gpus-per-cell", self.gpus_per_cell, problem, f"give 1 to {most}")
        if self.store.kind not in STORES:
            remedy = f"use one of {', '.join(STORES)}"
            raise InputError("store.kind", str(self.store.kind), "its bytes were not measured", remedy)


@dataclass(frozen=True, slots=True)
class SizingPart:
    """What one process of a kind takes, and how many of them there are."""

    name: str
    count: int
    cores: float
    memory_bytes: float
    disk_bytes: float
    network_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Size:
    """The answer to a plan. `kept_bytes` is the disk of the store by the age of what is on it, for the whole fleet."""

    gpus: int
    nodes: int
    cells: int
    gpus_per_cell: int
    readings_per_second: float
    values_per_second: float
    network_bytes_per_second: float
    parts: tuple[SizingPart, ...]
    kept_bytes: Mapping[str, float]
    total: SizingPart
    cost_per_month: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """The same as JSON, with the constants that it was computed from."""
        return asdict(self) | {"constants": [asdict(each) for each in constants()]}


def size(plan: SizingPlan) -> Size:
    """Compute what `plan` takes."""
    nodes = math.ceil(plan.gpus / plan.gpus_per_node)
    cells = math.ceil(plan.gpus / (plan.gpus_per_cell or largest_brain()))
    in_cell = math.ceil(plan.gpus / cells)
    rate = plan.gpus / plan.interval_seconds
    kept = _kept(plan)
    parts = [_agent(plan, nodes), _brain(plan, cells, in_cell, kept)]
    network = rate * _one("sent_bytes")
    if plan.store.kind is StoreKind.VICTORIAMETRICS:
        # Its CPU and memory depend on its own settings and queries: disk and network alone were measured. The brain
        # hands readings on as plain text.
        parts.append(SizingPart("victoriametrics", 1, 0.0, 0.0, sum(kept.values()), rate * _one("line_bytes")))
        network += rate * _one("line_bytes")
    total = _total(parts, network)
    return Size(
        plan.gpus,
        nodes,
        cells,
        in_cell,
        rate,
        rate * _one("values"),
        network,
        tuple(parts),
        kept,
        total,
        _cost(plan.prices, total),
    )


def _kept(plan: SizingPlan) -> dict[str, float]:
    """Bytes of the store by age, once each age is full."""
    store, every = plan.store, plan.interval_seconds
    if store.kind is StoreKind.VICTORIAMETRICS:
        rows = plan.gpus * store.minute_days * _DAY_S / every
        return {f"up to {store.minute_days:g} days": rows * _one("values") * _one("vm_value_bytes")}
    ages = (
        (0.0, store.raw_days, every, "raw_row_bytes"),
        (store.raw_days, store.minute_days, max(every, MINUTE_S), "minute_row_bytes"),
        (store.minute_days, store.ten_minute_days, max(every, TEN_MINUTE_S), "ten_minute_row_bytes"),
    )
    waiting = plan.gpus * UNPACKED_S / every * _one("hot_row_bytes")
    packed = {
        f"up to {end:g} days": plan.gpus * (end - start) * _DAY_S / step * _one(name) for start, end, step, name in ages
    }
    return {"until its hour is packed": waiting, **packed}


def _agent(plan: SizingPlan, nodes: int) -> SizingPart:
    # A node of another size reads more or fewer GPUs; what the process holds at rest is the most of its memory.
    per_node = min(plan.gpus, plan.gpus_per_node)
    busy = (
        _one("agent_cpu_seconds") * per_node / next(c.at or 1.0 for c in constants() if c.name == "agent_cpu_seconds")
    )
    readings = per_node / plan.interval_seconds
    return SizingPart(
        "agent",
        nodes,
        busy / plan.interval_seconds,
        _one("agent_memory_bytes"),
        readings * plan.outage_hours * _HOUR_S * _one("spool_bytes"),
        readings * _one("sent_bytes"),
    )


def _brain(plan: SizingPlan, cells: int, in_cell: int, kept: Mapping[str, float]) -> SizingPart:
    disk = sum(kept.values()) / cells if plan.store.kind is StoreKind.SQLITE else 0.0
    oftener = MEASURED_INTERVAL_S / plan.interval_seconds
    return SizingPart(
        "brain",
        cells,
        _line("brain_cores", in_cell) * max(oftener, 1.0),
        _line("brain_memory_bytes", in_cell),
        disk,
        in_cell / plan.interval_seconds * _one("sent_bytes"),
    )


def _total(parts: Sequence[SizingPart], network: float) -> SizingPart:
    return SizingPart(
        "all",
        sum(part.count for part in parts),
        sum(part.count * part.cores for part in parts),
        sum(part.count * part.memory_bytes for part in parts),
        sum(part.count * part.disk_bytes for part in parts),
        network,
    )


def _cost(prices: StoragePrices, total: SizingPart) -> dict[str, float]:
    """Money a month, of what has a price."""
    amounts = {
        "cores": (prices.core_month, total.cores),
        "memory": (prices.memory_gb_month, total.memory_bytes / 1e9),
        "disk": (prices.disk_gb_month, total.disk_bytes / 1e9),
        "network": (prices.network_gb, total.network_bytes_per_second * MONTH_S / 1e9),
    }
    return {name: price * amount for name, (price, amount) in amounts.items() if price is not None}
