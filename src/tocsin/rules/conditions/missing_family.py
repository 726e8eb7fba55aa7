"""Kind ``missing_family``: a GPU whose readings have lost a whole family of metrics."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.domain.finding import evidence_of
from tocsin.domain.phrase import say, word_in_chinese
from tocsin.rules.conditions.base import Condition, Duration, Probe, Report, World
from tocsin.rules.layout import FAMILIES
from tocsin.rules.schema import did_you_mean
from tocsin.rules.table import Bools, Ints


class MissingFamily(Condition):
    """Holds where a GPU had metrics of a family and now reports without any of them, since the first such reading.

    What all GPUs on several hosts have lost is a change of configuration and does not count, nor does what has been
    gone for `memory`.
    """

    words = frozenset({"families"})
    kind: Literal["missing_family"]
    families: list[str] = Field(min_length=1)
    """Families of the metric table to watch."""
    memory: Duration = 7 * DAY
    """How long a family that was there is expected back: a GPU that is lost to its host may await its repair that long
    (own choice)."""

    def check(self) -> None:
        for name in self.families:
            if name not in FAMILIES:
                raise InputError("families", name, "no such family", did_you_mean(name, FAMILIES))

    def bind(self, world: World) -> Probe:
        return MissingFamilyProbe(self, world)

    def meaning(self) -> str:
        return f"all metrics of a family gone, not from the whole fleet at once: {', '.join(self.families)}"


class MissingFamilyProbe(Probe):
    """Remembers when each family was last there, and since when it is not; all arrays have shape (families, rows)."""

    heeds_events = False

    def __init__(self, condition: MissingFamily, world: World) -> None:
        self._names = condition.families
        self._memory = condition.memory
        self._frame = world.frame
        self._table = world.frame.gpus
        self._bits = np.array([[1 << FAMILIES.index(name)] for name in self._names], dtype=np.int64)
        self._seen = self._table.vector(np.int64, 0, depth=len(self._names), timeline=True)
        self._gone = self._table.vector(np.int64, 0, depth=len(self._names), timeline=True)
        self._lost = self._table.vector(np.bool_, False, depth=len(self._names), timeline=True)

    def update(self) -> None:
        rows = np.flatnonzero(self._table.updated.v)
        if not rows.size:
            return
        at = self._table.at.v[rows]
        here = (self._frame.families.v[rows] & self._bits) != 0
        seen = np.where(here, at, self._seen.v[:, rows])
        self._seen.v[:, rows] = seen
        gone = self._gone.v[:, rows]
        self._gone.v[:, rows] = np.where(here | (seen == 0), 0, np.where(gone > 0, gone, at))
        self._lost.v[:, rows] = ~here & (seen > 0) & (at - seen <= self._memory)

    def _missed(self) -> Bools:
        lost: Bools = self._lost.v
        if not lost.any():
            return lost
        live = ~self._frame.stale.v
        have = (self._seen.v == self._table.at.v) & live & (self._seen.v > 0)
        missed: Bools = lost & live & (have.any(axis=1) | ~self._on_several_hosts())[:, None]
        return missed

    def _on_several_hosts(self) -> Bools:
        hosts = self._frame.roster.host.v
        spread = [np.unique(hosts[seen > 0]).size > 1 for seen in self._seen.v]
        return np.array(spread, dtype=np.bool_)

    def true(self) -> Bools:
        return np.asarray(self._missed().any(axis=0), dtype=np.bool_)

    def known(self) -> Bools:
        return ~self._frame.stale.v

    def since(self) -> Ints | None:
        never = np.iinfo(np.int64).max
        since: Ints = np.where(self._missed(), self._gone.v, never).min(axis=0)
        return since

    def report(self, row: int) -> Report:
        missed = self._missed()[:, row]
        gone = [(name, int(self._seen.v[i, row])) for i, name in enumerate(self._names) if missed[i]]
        evidence = tuple(evidence_of(f"family:{name}", say("last seen"), at) for name, at in gone)
        families = [name for name, _ in gone]
        words = {"families": ", ".join(families), "families_zh": "、".join(map(word_in_chinese, families))}
        return Report(evidence=evidence, words=words)
