"""The sheet of versions: a row for each component of each group of hosts that are meant to be equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin.domain.versions import VersionBefore
from tocsin.rules.sheet import Sheet
from tocsin.rules.table import Bools, Ints, SubjectTable
from tocsin.rules.version_groups import Group, HostVersions, group_of, host_versions

GONE_MS = DAY
"""Age of its newest reading at which a GPU says nothing of its group any more."""
_ANEW_MS = 10 * MINUTE
"""How often it is counted anew while no GPU changes: hosts may have gone silent."""
_LEAST_MS = MINUTE
"""Time between two counts of a fleet that changes: one of 10,000 GPUs takes as long as all rules together."""

Row = tuple[Group, str]
"""Group and component."""


class VersionSheet(Sheet):
    """`hosts` has what each host of each group tells, `before` what it had a day ago where that was not the same.

    `counted` changes with both, so that what is worked out of them is made anew.
    """

    def __init__(self) -> None:
        super().__init__([], SubjectTable())
        self.hosts: dict[Group, HostVersions] = {}
        self.before: Sequence[VersionBefore] = ()
        self.simulated: set[int] = set()
        self.counted = 0
        self._made_ms = 0
        self._version = -1
        self._members: dict[Group, Ints] = {}

    def key(self, row: int) -> Row:
        """Group and component of a row."""
        key = self.table.keys[row]
        assert isinstance(key, tuple)
        return key

    def subject(self, row: int) -> Subject:
        """The pool, with component and group as the part that is meant."""
        group, component = self.key(row)
        detail = " ".join(part for part in (component, group.model, group.role) if part)
        return Subject(SubjectKind.POOL, group.pool, pool=group.pool, detail=detail)

    def take(
        self, now_ms: int, gpus: Sequence[Gpu], version: int, at: Ints, updated: Bools, before: Sequence[VersionBefore]
    ) -> None:
        """Take in the GPUs as they are: `gpus` by row of their table, whose `version` changes with any of them.

        `at` and `updated` are those of that table; `before` tells what hosts had a day ago where it was not the same.
        """
        known = version == self._version and before is self.before
        if not self.counted or abs(now_ms - self._made_ms) >= (_ANEW_MS if known else _LEAST_MS):
            self._version, self.before, self._made_ms = version, before, now_ms
            self.counted += 1
            fresh = [row for row, gpu in enumerate(gpus) if gpu.uuid and now_ms - int(at[row]) < GONE_MS]
            self._count([gpus[row] for row in fresh])
            self._place(gpus, fresh)
        self._date(at, updated)

    def _count(self, gpus: Sequence[Gpu]) -> None:
        self.hosts = dict(sorted(host_versions(gpus).items()))
        told = {(group, key) for group, hosts in self.hosts.items() for each in hosts.values() for key in each}
        for key in sorted(told):
            self.table.row(key)
        self.table.settle()
        gone = [row for row, key in enumerate(self.table.keys) if key is not None and key not in told]
        self.table.leave(np.array(gone, dtype=np.int64))

    def _place(self, gpus: Sequence[Gpu], fresh: Sequence[int]) -> None:
        members: dict[Group, list[int]] = {}
        for row in fresh:
            if not gpus[row].is_mig:
                members.setdefault(group_of(gpus[row]), []).append(row)
        self._members = {group: np.array(rows, dtype=np.int64) for group, rows in members.items()}
        made = {group for group, rows in members.items() if any(gpus[row].simulated for row in rows)}
        self.simulated = {row for row in self._rows() if self.key(row)[0] in made}

    def _rows(self) -> list[int]:
        return [row for row, key in enumerate(self.table.keys) if key is not None]

    def _date(self, at: Ints, updated: Bools) -> None:
        """A row is as new as the newest reading of its group."""
        newest = {group: int(at[rows].max()) for group, rows in self._members.items() if updated[rows].any()}
        for row in self._rows():
            found = newest.get(self.key(row)[0])
            if found is not None:
                self.table.at.v[row] = max(int(self.table.at.v[row]), found)
                self.table.updated.v[row] = True
