"""The state of a fleet in a JSON file: what `tocsin plan --state` reads. Every mistake is named with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tocsin.actions.planning.simulation import whole_request
from tocsin.actions.planning.state import (
    TEMPLATES,
    Budget,
    FleetNode,
    FleetState,
    GpuMode,
    LeftOut,
    Pool,
    Slot,
    Workload,
)
from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.fragmentation import TaskClass, free_slices

T = TypeVar("T")
REMEDY = "see docs/planning.md for the format of state files"


class _TaskRow(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gpus: float = Field(ge=0, le=1024)
    share: float = Field(default=1.0, gt=0)
    cpus: float = Field(default=0.0, ge=0)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    at: str = "1970-01-01T00:00:00Z"
    nodes: list[FleetNode]
    gpus: list[Slot]
    works: list[Workload] = Field(default_factory=list)
    budgets: list[Budget] = Field(default_factory=list)
    pools: list[Pool] = Field(default_factory=list)
    mix: list[_TaskRow] = Field(default_factory=list)
    demand: dict[str, float] = Field(default_factory=dict)
    simulated: bool = False
    left_out: list[LeftOut] = Field(default_factory=list)


def read_state(path: Path) -> FleetState:
    """The state in the file `path`. Raises InputError that names the place of the first mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("state", str(path), f"cannot be read ({error})", "name a JSON file") from None
    return parse_state(text)


def parse_state(text: str) -> FleetState:
    """The state that `text` holds as JSON. Raises InputError."""
    try:
        found = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "state"
        raise InputError(place, first.get("input"), first["msg"], REMEDY) from None
    try:
        at_ms = from_iso(found.at)
    except ValueError:
        raise InputError("at", found.at, "is no ISO 8601 instant", REMEDY) from None
    try:
        mix = tuple(TaskClass(row.gpus, row.share, row.cpus) for row in found.mix)
    except ValueError as error:
        raise InputError("mix", [row.gpus for row in found.mix], str(error), REMEDY) from None
    state = FleetState(
        at_ms,
        _by_name("nodes", ((node.host, node) for node in found.nodes)),
        _by_name("gpus", ((slot.uuid, slot) for slot in found.gpus)),
        _by_name("works", ((work.id, work) for work in found.works)),
        _by_name("budgets", ((budget.name, budget) for budget in found.budgets)),
        _by_name("pools", ((pool.name, pool) for pool in found.pools)),
        mix,
        found.demand,
        found.simulated,
        _by_name("left_out", ((one.uuid, one) for one in found.left_out)),
    )
    check_state(state)
    return state


def _by_name(field: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if not name or name in found:
            raise InputError(field, name, "is empty or there twice", "give each a name of its own")
        found[name] = value
    return found


def check_state(state: FleetState) -> None:
    """Raises InputError where the state contradicts itself: a GPU given twice, work on two hosts, a number below 0."""
    _numbers("demand", state.demand)
    for node in state.nodes.values():
        _numbers(f"node {node.host}", asdict(node))
        if not 0 <= node.risk <= 1:
            raise InputError(f"node {node.host}.risk", node.risk, "is no probability", "give a number from 0 to 1")
    for budget in state.budgets.values():
        _numbers(f"budget {budget.name}", asdict(budget))
    for pool in state.pools.values():
        _numbers(f"pool {pool.name}", asdict(pool))
        if pool.node_gpus < 1:
            raise InputError(f"pool {pool.name}.node_gpus", pool.node_gpus, "a node has a GPU", "give at least 1")
    twice = sorted(state.left_out.keys() & state.gpus.keys())
    if twice:
        raise InputError("left_out", twice[0], "is among the GPUs too", "keep it in one of the two")
    for slot in state.gpus.values():
        _check_slot(state, slot)
    for work in state.works.values():
        _check_work(state, work)
    for slot in state.gpus.values():
        _check_room(state, slot)


def _check_slot(state: FleetState, slot: Slot) -> None:
    _numbers(f"gpu {slot.uuid}", asdict(slot))
    if slot.host not in state.nodes:
        raise InputError(f"gpu {slot.uuid}.host", slot.host, "is no node", "add the node, or mend the name")
    if slot.template not in TEMPLATES:
        raise InputError(f"gpu {slot.uuid}.template", slot.template, "is not known", "write seven or four")


def _numbers(where: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, int | float) and not (math.isfinite(value) and (value >= 0 or key == "priority")):
            raise InputError(f"{where}.{key}", value, "is negative or no finite number", "give a number from 0 up")


def _check_work(state: FleetState, work: Workload) -> None:
    where = f"work {work.id}"
    _numbers(where, asdict(work))
    if not work.profile and (work.gpus <= 0 or (work.gpus > 1 and work.gpus != int(work.gpus))):
        raise InputError(f"{where}.gpus", work.gpus, "is no share of a GPU and no whole number", "mend it")
    if work.profile and not any(work.profile in template.profiles for template in TEMPLATES.values()):
        raise InputError(f"{where}.profile", work.profile, "is no MIG profile", "write for example 1g, 2g or 3g")
    unknown = [hold.gpu for hold in work.holds if hold.gpu not in state.gpus]
    if unknown:
        raise InputError(f"{where}.holds", unknown[0], "is no GPU of this state", "add the GPU, or mend the name")
    if not work.holds:
        return
    slots = [state.gpus[hold.gpu] for hold in work.holds]
    hosts = sorted({slot.host for slot in slots})
    if len(hosts) > 1:
        raise InputError(f"{where}.holds", hosts, "lie on several hosts", "write one work for each host, with one gang")
    if not whole_request(work, work.holds):
        raise InputError(f"{where}.holds", [hold.gpu for hold in work.holds], "is not what it asks for", "mend either")
    modes = {slot.mode for slot in slots}
    problem = f"is in mode {', '.join(sorted(modes))}, the work needs {work.mode}" if modes != {work.mode} else ""
    if any(work.model not in {"", slot.model} for slot in slots):
        problem = f"is {slots[0].model or 'of no known model'}, the work needs {work.model}"
    if work.pool not in {"", state.nodes[hosts[0]].pool}:
        problem = f"is in pool {state.nodes[hosts[0]].pool}, the work belongs to pool {work.pool}"
    if problem:
        raise InputError(f"{where}.holds", slots[0].uuid, problem, "mend the GPU or the work")


def _check_room(state: FleetState, slot: Slot) -> None:
    if slot.mode is GpuMode.MIG:
        layout = state.layout(slot.uuid)
        try:
            free_slices(layout, TEMPLATES[slot.template])
        except ValueError as error:
            raise InputError(f"gpu {slot.uuid}", layout, str(error), "mend the works on it") from None
    elif state.taken.get(slot.uuid, 0.0) > 1.0 + 1e-6:
        works = [work.id for work in state.on_gpu[slot.uuid]]
        raise InputError(f"gpu {slot.uuid}", works, "hold more than the whole of it together", "mend their shares")


def state_json(state: FleetState) -> str:
    """`state` as such a file."""
    document = {
        "at": to_iso(state.at_ms),
        "nodes": [asdict(node) for node in state.nodes.values()],
        "gpus": [asdict(slot) for slot in state.gpus.values()],
        "works": [asdict(work) for work in state.works.values()],
        "budgets": [asdict(budget) for budget in state.budgets.values()],
        "pools": [asdict(pool) for pool in state.pools.values()],
        "mix": [asdict(task) for task in state.mix],
        "demand": dict(state.demand),
        "simulated": state.simulated,
        "left_out": [asdict(one) for one in state.left_out.values()],
    }
    return json.dumps(document, indent=1)
