"""Which GPUs and hosts there are, and the small integers that let numpy group them."""

from __future__ import annotations

import numpy as np

from tocsin.domain.identity import Gpu
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.rules.table import Table

NO_CODE = -1
"""Code of a row that belongs to no group, such as a GPU whose model is not known."""


def host_key(host: str) -> str:
    """Key of the row that stands for a whole host; no UUID looks like it."""
    return f"host:{host}"


class Codes:
    """Small integers for texts, in order of first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def of(self, text: str) -> int:
        """The code of `text`; NO_CODE where it is empty."""
        return self._codes.setdefault(text, len(self._codes)) if text else NO_CODE


class Roster:
    """One row for each GPU, MIG instance, and host that events name, in a table of its own.

    `gpus[row]` is the GPU; a host's row has one with an empty UUID. `host`, `rack` and `model` hold group codes, `pool`
    the row of the pool's table, `physical` is true for whole GPUs, `simulated` for those of a simulator.
    `version` changes with any of it.
    """

    def __init__(self, pools: Table) -> None:
        self.table = Table()
        self.gpus: list[Gpu] = []
        self.subjects: list[Subject] = []
        self.host = self.table.vector(np.int64, NO_CODE)
        self.rack = self.table.vector(np.int64, NO_CODE)
        self.model = self.table.vector(np.int64, NO_CODE)
        self.pool = self.table.vector(np.int64, NO_CODE)
        self.physical = self.table.vector(np.bool_, False)
        self.simulated = self.table.vector(np.bool_, False)
        self.version = 0
        self._pools = pools
        self._codes = Codes()
        self._by_host: dict[str, set[int]] = {}
        self._changed: list[int] = []

    def admit(self, gpu: Gpu) -> int:
        """The row of `gpu`, with its attributes as they are now; `settle` must follow."""
        row = self.table.rows.get(gpu.uuid)
        if row is None:
            row = self.table.row(gpu.uuid)
            self._put(row, gpu)
        elif self.gpus[row] is not gpu and _differ(self.gpus[row], gpu):
            self._put(row, gpu)
        return row

    def admit_named(self, uuid: str, host: str) -> int:
        """The row of what an event or a prediction names: a GPU, or the host where `uuid` is empty."""
        key = uuid or host_key(host)
        row = self.table.rows.get(key)
        if row is None:
            row = self.table.row(key)
            self._put(row, Gpu(uuid, host))
        return row

    def on_host(self, host: str) -> list[int]:
        """Rows of everything on `host`, in ascending order."""
        return sorted(self._by_host.get(host, ()))

    def _put(self, row: int, gpu: Gpu) -> None:
        if row == len(self.gpus):
            self.gpus.append(gpu)
            self.subjects.append(_subject(gpu))
        else:
            self._by_host.get(self.gpus[row].host, set()).discard(row)
            self.gpus[row] = gpu
            self.subjects[row] = _subject(gpu)
        self._by_host.setdefault(gpu.host, set()).add(row)
        self._changed.append(row)

    def settle(self) -> None:
        """Bring vectors and codes up to date with the rows admitted since the last call."""
        if not self._changed:
            return
        for row in self._changed:
            if self.gpus[row].uuid:
                self._pools.row(self.gpus[row].pool)
        self.table.settle()
        self._pools.settle()
        for row in self._changed:
            self._write_codes(row, self.gpus[row])
        self._changed.clear()
        self.version += 1

    def _write_codes(self, row: int, gpu: Gpu) -> None:
        self.host.v[row] = self._codes.of(gpu.host)
        self.rack.v[row] = self._codes.of(gpu.rack)
        self.model.v[row] = self._codes.of(gpu.model)
        self.pool.v[row] = self._pools.rows[gpu.pool] if gpu.uuid else NO_CODE
        self.physical.v[row] = bool(gpu.uuid) and not gpu.is_mig
        self.simulated.v[row] = gpu.simulated

    def release(self) -> list[int]:
        """Give back the rows that leave; returns them."""
        rows = self.table.release()
        for row in rows:
            self._by_host.get(self.gpus[row].host, set()).discard(row)
        if rows:
            self.version += 1
        return rows


def _subject(gpu: Gpu) -> Subject:
    if not gpu.uuid:
        return Subject(SubjectKind.HOST, gpu.host, host=gpu.host)
    return Subject(SubjectKind.GPU, gpu.uuid, host=gpu.host, pool=gpu.pool)


def _differ(one: Gpu, other: Gpu) -> bool:
    return (
        one.host != other.host
        or one.index != other.index
        or one.model != other.model
        or one.pool != other.pool
        or one.rack != other.rack
        or one.parent != other.parent
        or one.mig_profile != other.mig_profile
        or one.simulated != other.simulated
        or one.labels != other.labels
    )
