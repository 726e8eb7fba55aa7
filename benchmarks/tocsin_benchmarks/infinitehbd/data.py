"""Reads the fault trace of InfiniteHBD: a JSON list of starts and ends of faults of LLM-training servers.

Each entry has ``node_id``, ``event_time`` in days since the first event, ``event_type`` ``fault_start`` or
``fault_end``, and ``fault_type`` with ``Level``, ``Class`` and ``Desc``. A node is out of service from start to end.

Shou et al., InfiniteHBD, SIGCOMM 2025.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Codes, Ints, Mask

POPULATION = 400
"""Nodes of the cluster's sample, those that never fail and are never named among them."""
GPU_CLASS = "GPU"
START, END = "fault_start", "fault_end"
UNNAMED = "unnamed-"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One line of the trace; `at_ms` counts from the first event of the trace."""

    at_ms: int
    node: str
    is_start: bool
    fault: tuple[str, str, str]
    """Level, class, description."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Faults in order of their start. `node` indexes `nodes`; `end_ms` of a fault is `NEVER` while it lasts, or what
    ended it was not told. `known` are nodes that train has among its own, `tested` those that are judged. `until_ms` is
    the newest instant of the files, at which observation ends."""

    nodes: tuple[str, ...]
    node: Codes
    start_ms: Ints
    end_ms: Ints
    kind: npt.NDArray[np.str_]
    is_gpu: Mask
    known: Mask
    tested: Mask
    until_ms: int


def read_trace(folder: Path) -> list[Entry]:
    """The entries of all ``*.json`` of `folder` that hold a trace, in order. Raises InputError where there is none, or
    where an entry cannot be used."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    traces = [(path, raw) for path in files if (raw := _trace(path)) is not None]
    if not traces:
        found = ", ".join(path.name for path in files) or "no JSON"
        raise InputError(
            str(folder), found, "no JSON list of faults with node_id and event_time", "name a folder with one"
        )
    return sorted({_entry(path, place, one) for path, raw in traces for place, one in enumerate(raw)})


def _trace(path: Path) -> list[dict[str, object]] | None:
    """The list, or None where the file is something else, such as the set's statistics."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(str(path), path.name, f"cannot be read: {error}", "give JSON") from None
    is_trace = isinstance(raw, list) and raw and all(isinstance(one, dict) for one in raw) and "node_id" in raw[0]
    return raw if is_trace else None


def _entry(path: Path, place: int, raw: dict[str, object]) -> Entry:
    where = f"{path.name} entry {place + 1}"
    node, days, kind, fault = (raw.get(name) for name in ("node_id", "event_time", "event_type", "fault_type"))
    if not isinstance(node, str) or not node:
        raise InputError(f"{where} node_id", node, "not a name", "give the node's identifier")
    if isinstance(days, bool) or not isinstance(days, int | float) or not math.isfinite(days) or days < 0:
        raise InputError(f"{where} event_time", days, "not days since the first event", "give a number of 0 or more")
    if kind not in (START, END):
        raise InputError(f"{where} event_type", kind, "no such type", f"give {START} or {END}")
    if not isinstance(fault, dict) or not isinstance(fault.get("Class"), str):
        raise InputError(f"{where} fault_type", fault, "has no Class", "give Level, Class and Desc")
    named = tuple(str(fault.get(name, "")) for name in ("Level", "Class", "Desc"))
    return Entry(round(days * DAY), node, kind == START, (named[0], named[1], named[2]))


def cluster_of(train: Sequence[Entry], test: Sequence[Entry] | None = None) -> Cluster:
    """The nodes and faults of both folders, each once, filled up to the population with nodes without a name.

    Where the test folder has nodes of its own only, in days that train also covers, the set was cut by node: those are
    judged, with their share of the nodes without a name. Otherwise it goes on in time and all are judged, none of which
    is new: who was never named was there, quietly.
    """
    both = sorted({*train, *(test or ())})
    named = sorted({one.node for one in both})
    unnamed = max(0, POPULATION - len(named))
    nodes = (*named, *(f"{UNNAMED}{number}" for number in range(unnamed)))
    of_train = {one.node for one in train}
    tested = _judged(nodes, train, test)
    known = np.asarray([name in of_train for name in nodes]) | tested.all()
    faults = _faults(both)
    until_ms = max((one.at_ms for one in both), default=0)
    index = {name: place for place, name in enumerate(nodes)}
    return Cluster(
        nodes=nodes,
        node=np.asarray([index[one.node] for one, _ in faults], dtype=np.int32),
        start_ms=np.asarray([one.at_ms for one, _ in faults], dtype=np.int64),
        end_ms=np.asarray([end_ms for _, end_ms in faults], dtype=np.int64),
        kind=np.asarray([one.fault[1] for one, _ in faults], dtype=np.str_),
        is_gpu=np.asarray([one.fault[1] == GPU_CLASS for one, _ in faults], dtype=np.bool_),
        known=known,
        tested=tested,
        until_ms=until_ms,
    )


def _faults(entries: Iterable[Entry]) -> list[tuple[Entry, int]]:
    """Each start with its end: the next end of the same fault of that node, or the node's next start if that is
    sooner."""
    open_: dict[tuple[str, tuple[str, str, str]], int] = {}
    last: dict[str, int] = {}
    faults: list[tuple[Entry, int]] = []
    for one in _in_turn(entries):
        key = (one.node, one.fault)
        if one.is_start:
            before = last.get(one.node)
            if before is not None and faults[before][1] == NEVER:
                faults[before] = (faults[before][0], one.at_ms)
            open_[key] = last[one.node] = len(faults)
            faults.append((one, NEVER))
        elif key in open_:
            place = open_.pop(key)
            faults[place] = (faults[place][0], min(faults[place][1], one.at_ms))
    return faults


def _in_turn(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Rising `entries` as they came about: an end stands before a start of its instant, unless what it ends is that
    very start, which then lasted no time."""
    running: set[tuple[str, tuple[str, str, str]]] = set()
    for _, group in groupby(entries, key=lambda one: one.at_ms):
        at_once = list(group)
        early = [one for one in at_once if not one.is_start and (one.node, one.fault) in running]
        starts = [one for one in at_once if one.is_start]
        late = [one for one in at_once if not one.is_start and (one.node, one.fault) not in running]
        for one in (*early, *starts, *late):
            key = (one.node, one.fault)
            running.add(key) if one.is_start else running.discard(key)
            yield one


def _judged(nodes: Sequence[str], train: Sequence[Entry], test: Sequence[Entry] | None) -> Mask:
    if test is None:
        return np.ones(len(nodes), dtype=np.bool_)
    of_train, of_test = {one.node for one in train}, {one.node for one in test}
    if of_train & of_test or not of_test or min(one.at_ms for one in test) >= max(one.at_ms for one in train):
        return np.ones(len(nodes), dtype=np.bool_)
    share = round(sum(name.startswith(UNNAMED) for name in nodes) * len(of_test) / len(of_train | of_test))
    quiet = {f"{UNNAMED}{number}" for number in range(share)}
    return np.asarray([name in of_test or name in quiet for name in nodes])
