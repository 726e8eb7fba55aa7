"""`tocsin size`: what a fleet takes, from measured constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.config.settings import StoreKind

if TYPE_CHECKING:
    from tocsin.offline.sizing import Size, SizingPart

_STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_PRICE = click.FloatRange(min=0)


def _bytes(amount: float) -> str:
    for step, unit in _STEPS:
        if amount >= step:
            return f"{amount / step:.3g} {unit}"
    return f"{amount:.0f} B"


def _rate(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"


@click.command()
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="How many GPUs.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--interval", type=float, help="Seconds between two readings; default: setting agent.interval_seconds.")
@click.option("--gpus-per-cell", type=int, default=0, help="Maximum GPUs per brain; default: the largest measured.")
@click.option(
    "--outage-hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="Outage that agents buffer.",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite", "victoriametrics"]),
    help="Where readings are stored; default: setting store.kind.",
)
@click.option("--core-price", type=_PRICE, help="Price of a CPU core per month.")
@click.option("--memory-price", type=_PRICE, help="Price of a GB of memory per month.")
@click.option("--disk-price", type=_PRICE, help="Price of a GB of disk per month.")
@click.option("--network-price", type=_PRICE, help="Price of a GB of network traffic.")
@json_option
@pass_context
def size(
    context: CliContext,
    gpus: int,
    gpus_per_node: int,
    interval: float | None,
    gpus_per_cell: int,
    outage_hours: float,
    store: str | None,
    core_price: float | None,
    memory_price: float | None,
    disk_price: float | None,
    network_price: float | None,
    as_json: bool,
) -> None:
    """Estimate the CPU, memory, disk and network that a fleet needs, from measured constants; cost only with prices.

    Retention is that of the settings.
    """
    from tocsin.offline import sizing

    settings = context.settings
    every = settings.agent.interval_seconds if interval is None else interval
    prices = sizing.StoragePrices(core_price, memory_price, disk_price, network_price)
    kept = settings.store if store is None else settings.store.model_copy(update={"kind": StoreKind(store)})
    plan = sizing.SizingPlan(gpus, gpus_per_node, every, outage_hours, gpus_per_cell, kept, prices)
    made = sizing.size(plan)
    show(as_json, made.as_json(), _lines(made))


def _lines(made: Size) -> list[str]:
    cells = "1 brain" if made.cells == 1 else f"{made.cells:,} brains of {made.gpus_per_cell:,} GPUs"
    lines = [
        f"{made.gpus:,} GPUs on {made.nodes:,} nodes, {cells}",
        f"{_rate(made.readings_per_second)} readings/s, {made.values_per_second:,.0f} values/s, "
        f"{_bytes(made.network_bytes_per_second)}/s on the network",
        "",
        _row("", "count", "cores", "memory", "disk", "network"),
    ]
    lines += [_part(part) for part in (*made.parts, made.total)]
    lines += ["", *(f"kept {age}: {_bytes(amount)}" for age, amount in made.kept_bytes.items())]
    if made.cost_per_month:
        lines += ["", *(f"{name} a month: {money:,.2f}" for name, money in made.cost_per_month.items())]
        lines.append(f"together a month: {sum(made.cost_per_month.values()):,.2f}")
    return lines


def _part(part: SizingPart) -> str:
    # A store that is a server of its own has neither CPU nor memory measured.
    held = _bytes(part.memory_bytes) if part.memory_bytes else "-"
    cores = f"{part.cores:.3g}" if part.cores else "-"
    disk = _bytes(part.disk_bytes) if part.disk_bytes else "-"
    return _row(part.name, f"{part.count:,}", cores, held, disk, f"{_bytes(part.network_bytes_per_second)}/s")


def _row(name: str, count: str, cores: str, memory: str, disk: str, network: str) -> str:
    return f"{name:<16}{count:>8}{cores:>9}{memory:>10}{disk:>10}{network:>12}"


COMMANDS: list[click.Command] = [size]
