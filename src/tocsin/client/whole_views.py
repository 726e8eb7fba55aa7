"""Pages of decisions, changes and maps of several cells put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.client.models import STATE_RANKS, FleetMap, GpuState, HostLabel, Timeline
from tocsin.client.models_changes import Changes

CELL_LABEL = "cell"
"""Label of hosts by which the map of all cells tells these apart."""
UNSEEN = (STATE_RANKS.index(GpuState.STALE), STATE_RANKS.index(GpuState.LOST))
"""Ranks of the states of a GPU that its cell does not see now."""
_COLUMNS = ("uuid", "index", "state", "temperature", "utilization", "memory", "power", "risk")


def whole_timeline(answers: Mapping[str, Timeline], offset: int, limit: int) -> tuple[Timeline, dict[str, str]]:
    """The page of [`offset`, `offset + limit`) of all cells, newest first, and the cell of each decision on it.

    `answers` are the first pages of the cells, each of `offset + limit` decisions at least where it has so many.
    """
    rows = [(item, name) for name in sorted(answers) for item in answers[name].items]
    rows.sort(key=lambda one: (one[0].at_ms, one[0].id), reverse=True)
    shown = rows[offset : offset + limit]
    marks = [(mark, name) for name in sorted(answers) for mark in answers[name].marks]
    states = Counter[Any]()
    for one in answers.values():
        states.update(one.states)
    every = list(answers.values())
    page = Timeline(
        total=sum(one.total for one in every),
        offset=offset,
        items=[item for item, _ in shown],
        marks=[mark for mark, _ in marks],
        states=dict(states),
        waiting=sum(one.waiting for one in every),
        actions=sorted({action for one in every for action in one.actions}),
        rules=sorted({rule for one in every for rule in one.rules}),
        pools=sorted({pool for one in every for pool in one.pools}),
    )
    return page, {mark.id: name for mark, name in marks} | {item.id: name for item, name in shown}


def whole_changes(answers: Mapping[str, Changes], limit: int) -> Changes | None:
    """The newest `limit` changes of all cells, each with its cell's name before it; None where no cell answered."""
    if not answers:
        return None
    items = [
        one.model_copy(update={"text": f"{name}: {one.text}", "text_zh": one.text_zh and f"{name}：{one.text_zh}"})
        for name in sorted(answers)
        for one in answers[name].items
    ]
    items.sort(key=lambda one: one.at, reverse=True)
    every = list(answers.values())
    return Changes(
        start=min(one.start for one in every),
        end=max(one.end for one in every),
        total=sum(one.total for one in every),
        at_least=any(one.at_least for one in every),
        items=items[:limit],
    )


def whole_map(maps: Mapping[str, FleetMap]) -> FleetMap:
    """The maps of all cells as one, cell by cell, with `CELL_LABEL` as a label of hosts.

    Of a GPU that two cells have, which has moved, the one is left out that its cell no longer sees.
    """
    homes = _homes(maps)
    found: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, "hosts", "racks", "pools", "host", "model", "job")}
    models, jobs = _Names(), _Names()
    for name, one in maps.items():
        first = len(found["hosts"])
        kept = [n for n, uuid in enumerate(one.uuid) if homes.get(uuid, name) == name]
        for column in _COLUMNS:
            values = getattr(one, column)
            found[column] += values if len(kept) == len(values) else [values[n] for n in kept]
        for column in ("hosts", "racks", "pools"):
            found[column] += getattr(one, column)
        found["host"] += [first + one.host[n] for n in kept]
        placed = [models.place(model) for model in one.models]
        found["model"] += [placed[one.model[n]] for n in kept]
        work = [jobs.place(job) for job in one.jobs]
        had = one.job or [None] * len(one.uuid)
        found["job"] += [None if (place := had[n]) is None else work[place] for n in kept]
    columns: dict[str, Any] = {**found, "models": models.names, "jobs": jobs.names, "labels": _labels(maps)}
    return FleetMap.model_construct(None, **columns)


class _Names:
    """Names, each once, and where each stands."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]


def _homes(maps: Mapping[str, FleetMap]) -> dict[str, str]:
    """For each GPU that several cells have, the one that sees it."""
    seen: dict[str, tuple[bool, str]] = {}
    twice: dict[str, str] = {}
    for name, one in maps.items():
        for uuid, state in zip(one.uuid, one.state, strict=True):
            here = state not in UNSEEN, name
            if (known := seen.get(uuid)) is not None:
                here = max(known, here, key=lambda each: each[0])
                twice[uuid] = here[1]
            seen[uuid] = here
    return twice


def _labels(maps: Mapping[str, FleetMap]) -> dict[str, HostLabel]:
    """The cell, and every label that any cell has; the empty value for hosts of one that lacks it."""
    sizes = {name: len(one.hosts) for name, one in maps.items()}
    cells = list(maps)
    found = {CELL_LABEL: HostLabel(values=cells, of=_repeated(range(len(cells)), list(sizes.values())))}
    for key in sorted({key for one in maps.values() for key in one.labels} - {CELL_LABEL}):
        values = _Names()
        of: list[int] = []
        for name, one in maps.items():
            if (label := one.labels.get(key)) is None:
                of += [values.place("")] * sizes[name]
            else:
                placed = [values.place(value) for value in label.values]
                of += [placed[place] for place in label.of]
        found[key] = HostLabel(values=values.names, of=of)
    return found


def _repeated(values: Sequence[int], counts: Sequence[int]) -> list[int]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
