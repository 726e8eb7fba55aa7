"""Small fleets to plan for, written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.actions.planning.state import Budget, FleetNode, FleetState, GpuHold, GpuMode, Pool, Slot, Workload
from tocsin.domain.fragmentation import TaskClass

MIX = (TaskClass(1.0, 0.5), TaskClass(4.0, 0.25), TaskClass(8.0, 0.25))
MODEL = "H100"


def nodes(count: int, gpus: int = 8, **more: object) -> tuple[dict[str, FleetNode], dict[str, Slot]]:
    """`count` hosts ``n0``... of `gpus` GPUs ``n0/0``...; keywords go to every node."""
    hosts = {f"n{number}": FleetNode(f"n{number}", "p", f"r{number // 4}", **more) for number in range(count)}  # type: ignore[arg-type]
    slots = [Slot(f"{host}/{index}", host, MODEL) for host in hosts for index in range(gpus)]
    return hosts, {slot.uuid: slot for slot in slots}


def on(host: str, *indices: int) -> tuple[GpuHold, ...]:
    """Whole GPUs of a host."""
    return tuple(GpuHold(f"{host}/{index}") for index in indices)


def work(name: str, holds: tuple[GpuHold, ...] = (), gpus: float | None = None, **more: object) -> Workload:
    """Work without state that restarts in a minute."""
    fields: dict[str, object] = {"lost_s": 0.0, "restart_s": 60.0, "model": MODEL, "pool": "p", **more}
    return Workload(name, float(len(holds)) if gpus is None else gpus, holds, **fields)  # type: ignore[arg-type]


def fleet(count: int, works: Iterable[Workload], gpus: int = 8, **more: object) -> FleetState:
    """Hosts with `works` on them, in pool ``p``."""
    hosts, slots = nodes(count, gpus)
    fields: dict[str, object] = {"pools": {"p": Pool("p", node_model=MODEL)}, "mix": MIX, **more}
    return FleetState(nodes=hosts, gpus=slots, works={one.id: one for one in works}, **fields)  # type: ignore[arg-type]


def mig_fleet(layouts: Iterable[Iterable[tuple[str, int]]], demand: dict[str, float], **more: object) -> FleetState:
    """GPUs ``n0/0``... of one host in MIG mode; each instance holds a work ``w<gpu>-<n>``."""
    slots, works = {}, {}
    for number, layout in enumerate(layouts):
        uuid = f"n0/{number}"
        slots[uuid] = Slot(uuid, "n0", MODEL, GpuMode.MIG, tuple(layout))
        for place, (profile, start) in enumerate(layout):
            name = f"w{number}-{place}"
            fields: dict[str, object] = {"lost_s": 0.0, "restart_s": 60.0, **more}
            works[name] = Workload(name, 1.0, (GpuHold(uuid, 1.0, start),), profile, **fields)  # type: ignore[arg-type]
    return FleetState(nodes={"n0": FleetNode("n0", "p")}, gpus=slots, works=works, demand=demand)


def budgets(**allowed: int) -> dict[str, Budget]:
    """Disruption budgets by name."""
    return {name: Budget(name, count) for name, count in allowed.items()}
