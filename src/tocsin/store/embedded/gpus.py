"""The GPUs of the embedded store: their numbers, their attributes, and the instant of the newest reading of each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.reading import Gpu, Reading
from tocsin.store.embedded.blocks import Flags, Ints
from tocsin.store.embedded.notes import Index
from tocsin.store.embedded.sums import ROWS, checked, row_sum
from tocsin.store.identity import KnownGpu, is_bare
from tocsin.store.points import read_labels

Value = str | int | float | bytes | None
Row = Sequence[Value]

_ATTRIBUTES = ROWS["gpu"]
GPU_COLUMNS = f"{_ATTRIBUTES}, sum"

_sorted_json = json.JSONEncoder(sort_keys=True).encode

LOST = -1
"""In column ``simulated``: which GPU has this number is not known any more, and no other may get it."""


def gpu_row(gpu: Gpu) -> Row:
    """A row of `GPU_COLUMNS`."""
    labels = _sorted_json(dict(gpu.labels))
    attributes = (gpu.model, gpu.serial, gpu.pci_bus_id, gpu.parent, gpu.mig_profile, gpu.pool, gpu.rack)
    row = (gpu.uuid, gpu.host, gpu.index, *attributes, labels, int(gpu.simulated))
    return (*row, row_sum(row))


def read_gpu(row: Sequence[object]) -> Gpu:
    """Inverse of `gpu_row`; raises DamagedRow."""
    *attributes, found = row
    checked("gpu", found, attributes)
    uuid, host, index, model, serial, pci, parent, profile, pool, rack, labels, simulated = attributes
    return Gpu(
        uuid=str(uuid),
        host=str(host),
        index=None if index is None else int(str(index)),
        model=str(model),
        serial=str(serial),
        pci_bus_id=str(pci),
        parent=str(parent),
        mig_profile=str(profile),
        pool=str(pool),
        rack=str(rack),
        labels=read_labels(str(labels)),
        simulated=bool(simulated),
    )


_COLUMNS = GPU_COLUMNS.replace(" ", "").split(",")
_UPSERT = (
    f"INSERT INTO gpu ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (uuid) "
    f"DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)


class Numbers:
    """Number and attributes of every GPU as the writer knows them. Used under the writer's lock alone."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, KnownGpu]] = {}

    def load(self, db: sqlite3.Connection) -> None:
        """Take up what the file says; what a transaction that was undone said is not in it."""
        found = {}
        for row in db.execute(f"SELECT id, last_ms, {GPU_COLUMNS} FROM gpu WHERE simulated >= 0"):
            gpu = read_gpu(row[2:])
            # When the attributes came is not in the file: the newest reading is the latest that it can have been.
            found[gpu.uuid] = (int(row[0]), KnownGpu(gpu, None if is_bare(gpu) else row[1]))
        self._known = found

    def of(self, db: sqlite3.Connection, readings: Sequence[Reading]) -> Index:
        """The number of each reading's GPU, int32[n]; new GPUs and changed attributes are written."""
        new, changed = dict[str, KnownGpu](), dict[str, Gpu]()
        for reading in readings:
            gpu = reading.gpu
            found = self._known.get(gpu.uuid)
            known = new.get(gpu.uuid) if found is None else found[1]
            if known is None:
                known = new[gpu.uuid] = KnownGpu(gpu)
                known.learn(gpu, reading.at_ms)
                changed[gpu.uuid] = gpu
                continue
            before = known.gpu
            if known.learn(gpu, reading.at_ms) and before is not gpu and not _alike(before, gpu):
                changed[gpu.uuid] = gpu
        if changed:
            db.executemany(_UPSERT, [tuple(gpu_row(gpu)) for gpu in changed.values()])
        for uuid, known in new.items():
            (number,) = db.execute("SELECT id FROM gpu WHERE uuid = ?", (uuid,)).fetchone()
            self._known[uuid] = int(number), known
        return np.fromiter((self._known[reading.gpu.uuid][0] for reading in readings), np.int32, len(readings))


def _alike(one: Gpu, other: Gpu) -> bool:
    """Whether all attributes are the same; `Gpu` itself compares by UUID. Asked for every reading of a write."""
    return (
        one.host == other.host
        and one.index == other.index
        and one.model == other.model
        and one.serial == other.serial
        and one.pci_bus_id == other.pci_bus_id
        and one.parent == other.parent
        and one.mig_profile == other.mig_profile
        and one.pool == other.pool
        and one.rack == other.rack
        and one.labels == other.labels
        and one.simulated is other.simulated
    )


def note_newest(db: sqlite3.Connection, gpu: Index, at_ms: Ints) -> None:
    """Keep the newest instant of each GPU number."""
    order = np.lexsort((at_ms, gpu))
    last = order[np.append(gpu[order][1:] != gpu[order][:-1], True)] if len(order) else order
    pairs = zip(at_ms[last].tolist(), gpu[last].tolist(), strict=True)
    db.executemany("UPDATE gpu SET last_ms = ?1 WHERE id = ?2 AND (last_ms IS NULL OR last_ms < ?1)", pairs)


def newest(db: sqlite3.Connection, since_ms: int) -> tuple[Index, Ints]:
    """Number and newest instant of each GPU that has a reading at or after `since_ms`."""
    since_ms = max(-(2**63), min(since_ms, 2**63 - 1))
    found = db.execute("SELECT id, last_ms FROM gpu WHERE last_ms >= ?", (since_ms,)).fetchall()
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].astype(np.int32), table[:, 1]


def known_gpus(db: sqlite3.Connection, numbers: Collection[int] | None = None) -> dict[int, Gpu]:
    """GPUs by number; of `numbers` alone where they are given."""
    query = f"SELECT id, {GPU_COLUMNS} FROM gpu WHERE simulated >= 0"
    if numbers is None:
        found = db.execute(query)
    else:
        found = db.execute(f"{query} AND id IN (SELECT value FROM json_each(?))", (json.dumps([*numbers]),))
    return {int(row[0]): read_gpu(row[1:]) for row in found}


@dataclass(frozen=True, slots=True)
class Roster:
    """Every GPU: `uuids` by number, and `rank`, int32 by number, the place of its UUID in their order.

    `lost` holds, bool by number, for those of which nothing but the number is known; None where there is none.
    """

    uuids: Mapping[int, str]
    rank: Index
    lost: Flags | None = None

    def sorted(self, gpu: Index) -> Index:
        """The different ones of `gpu`, numbers of GPUs, by UUID."""
        some = np.unique(gpu)
        return some[np.argsort(self.rank[some])]


class Rosters:
    """The newest roster: a GPU keeps its number for ever, so it is read again only when there are new ones."""

    def __init__(self) -> None:
        self._newest = Roster({}, np.zeros(1, np.int32))

    def at(self, db: sqlite3.Connection) -> Roster:
        """A roster with at least the GPUs that `db` has now."""
        newest = self._newest
        (count,) = db.execute("SELECT COUNT(*) FROM gpu").fetchone()
        if count > len(newest.uuids):
            rows = db.execute("SELECT id, uuid, simulated FROM gpu").fetchall()
            uuids = {number: uuid for number, uuid, _ in rows}
            lost = [number for number, _, simulated in rows if simulated == LOST]
            self._newest = newest = Roster(uuids, _ranks(uuids), flags_of(lost) if lost else None)
        return newest


def flags(db: sqlite3.Connection, gpus: Collection[str]) -> Flags:
    """bool by number: whether the GPU is one of `gpus`."""
    query = "SELECT id FROM gpu WHERE uuid IN (SELECT value FROM json_each(?))"
    return flags_of([number for (number,) in db.execute(query, (json.dumps(sorted(set(gpus))),))])


def flags_of(numbers: Sequence[int]) -> Flags:
    """bool by number: whether it is one of `numbers`."""
    flags = np.zeros(max(numbers, default=0) + 1, dtype=np.bool_)
    flags[numbers] = True
    return flags


def _ranks(uuids: Mapping[int, str]) -> Index:
    ranks = np.zeros(max(uuids, default=0) + 1, np.int32)
    ordered = sorted(uuids, key=uuids.__getitem__)
    ranks[ordered] = np.arange(len(ordered), dtype=np.int32)
    return ranks
