"""Two days of six GPUs whose users are known: sums as the product makes them, for views and texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from tocsin.accounting.holders import Holder
from tocsin.accounting.meter import Meter
from tocsin.accounting.prices import PriceList, parse_prices
from tocsin.accounting.table import Place, UsageTable
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.config.usage import CapacityRule, UsageSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.usage import UsageQueries

GIB = 1024**3
PRICES = """model,kind,gpu_hour,kwh,pue,currency,valid_from
H100,own,2.00,,,EUR,
H100,own,2.50,,,EUR,2026-11-20
,,,0.20,1.3,,
"""
SETTINGS = UsageSettings(
    capacity=[CapacityRule(kind="own", pool="train"), CapacityRule(kind="spot", host="node-2")], right_size_hours=6.0
)
H100 = [Gpu(f"GPU-h{n}", "node-1", n, "NVIDIA H100 80GB HBM3", pool="train") for n in range(4)]
L4 = [Gpu(f"GPU-l{n}", "node-2", n, "NVIDIA L4", pool="web") for n in range(2)]
TRAIN = (Owner(1, "train", slurm_job="41", user="ann"),)
NOTEBOOK = (Owner(2, "python", pod="notebook", namespace="research"),)
PEAKY = (Owner(3, "python", pod="peaky", namespace="research"),)
SERVE = (Owner(4, "serve", pod="serve", namespace="web"),)
KNOWN = [Holder("slurm/41", account="physics"), Holder("pod/research/notebook", team="vision")]


def start_of(now_ms: int) -> int:
    """When the two days before that of `now_ms` begin."""
    return now_ms // DAY * DAY - 2 * DAY


def readings(start_ms: int) -> Iterator[list[Reading]]:
    """A reading a minute. Nobody sees node-2 for three hours; `PEAKY` needs 60 GiB for one minute."""
    for minute in range(2 * 24 * 60 + 1):
        at_ms = start_ms + minute * MINUTE
        peak = 60 if minute == 1_000 else 8
        found = [
            _one(H100[0], at_ms, minute, TRAIN, 0.93, 71, 80, 600, 4e10),
            _one(H100[1], at_ms, minute, TRAIN, 0.93, 71, 80, 600, 4e10),
            _one(H100[2], at_ms, minute, NOTEBOOK, 0.08, 8, 80, 120),
            _one(H100[3], at_ms, minute, PEAKY, 0.08, peak, 80, 120),
        ]
        if not HOUR * 6 < at_ms - start_ms < HOUR * 9:
            found.append(_one(L4[0], at_ms, minute, SERVE, 0.01, 12, 24, 30))
            found.append(_one(L4[1], at_ms, minute, (), 0.0, 0, 24, 15))
        yield found


def _one(
    gpu: Gpu, at_ms: int, minute: int, owners: tuple[Owner, ...], busy: float, used: int, total: int, watts: int,
    link: float = 0.0,
) -> Reading:  # fmt: skip
    values = {
        "gpu_utilization_ratio": busy,
        "gpu_sm_active_ratio": busy,
        "gpu_processes": float(len(owners)),
        "gpu_memory_used_bytes": used * GIB,
        "gpu_memory_total_bytes": total * GIB,
        "gpu_memory_used_ratio": used / total,
        "gpu_power_watts": float(watts),
        "gpu_energy_joules_total": watts * minute * MINUTE / SECOND,
        "gpu_nvlink_bandwidth_bytes_per_second": link,
    }
    return Reading(gpu, at_ms, {name: float(value) for name, value in values.items()}, owners=owners)


@cache
def table(start_ms: int) -> UsageTable:
    """The sums of these days."""
    meter, made = Meter(120 * SECOND), UsageTable(None)
    places = {one.uuid: Place(one.pool, one.model, SETTINGS.kind_of(one.pool, one.host, {})) for one in H100 + L4}
    for group in readings(start_ms):
        meter.take(group)
    rows, holders = meter.drain()
    made.add(rows, holders, meter.cursors(), (), lambda key: places[key.gpu])
    made.learn(KNOWN)
    return made


def brain(now_ms: int, *, simulated: bool = False, prices: PriceList | None = None) -> Any:
    """As much of a brain as the questions ask."""
    start_ms = start_of(now_ms)
    last = [*readings(start_ms)][-1]
    return SimpleNamespace(
        usage=SimpleNamespace(
            table=table(start_ms),
            counted_ms=start_ms + 2 * DAY,
            prices=parse_prices(PRICES, "prices.csv") if prices is None else prices,
        ),
        settings=SimpleNamespace(usage=SETTINGS),
        memory=SimpleNamespace(latest=lambda: tuple(last)),
        gpus=[SimpleNamespace(simulated=simulated)],
    )


def usage(now_ms: int, first: int, last: int, by: list[UsageBy], limit: int, *, simulated: bool) -> UsageOut:
    return UsageQueries(brain(now_ms, simulated=simulated)).usage(first, last, by, limit)


def right_size(now_ms: int, first: int, last: int, limit: int, *, simulated: bool) -> RightSizeOut:
    return UsageQueries(brain(now_ms, simulated=simulated)).right_size(first, last, limit)
