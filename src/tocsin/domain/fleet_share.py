"""What the cells of a fleet tell each other of themselves, so that the limits of actions are limits of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PoolShare:
    """GPUs of one pool in some cells: those that count, and those of them that are healthy, fresh and in service."""

    counted: int = 0
    usable: int = 0

    @property
    def lacking(self) -> int:
        return self.counted - self.usable


@dataclass(frozen=True, slots=True)
class PastRow:
    """What a person said of a subject in one cell and is to hold wherever it is: a hold-off by the subject's key, or a
    silence by its id. It holds in [`starts_ms`, `until_ms`)."""

    kind: str
    name: str
    starts_ms: int
    until_ms: int
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellShare:
    """What one cell has now.

    `gpus` is how many it has, `managed` how many managed ones count, `hosts` where they are. `outside` are the GPUs
    that others than Tocsin have out of service: the key of each as a subject, its host and racks. `takings` are the
    disruptive decisions in effect, in the form of `tocsin.actions.model.budget.taking_of`. `limits` are its settings by
    their names in `actions` and `actions.limits`, `past` what people said here of GPUs and hosts.
    `heard` are the GPUs that are freshly read, MIG instances among them, with their hosts, None where only the limits
    are looked at.
    """

    managed: int
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    pools: Mapping[str, PoolShare] = field(default_factory=dict)
    outside: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    takings: tuple[Mapping[str, Any], ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    past: tuple[PastRow, ...] = ()
    heard: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RestOfFleet:
    """What the other cells have together; without another cell all of it is nothing.

    Of a cell that has not counted lately `managed` has no GPU, and `pools` none that is usable; what it has out of
    service is counted as long as nobody has settled it. `out` are GPUs out of service, `subjects` those under a
    disruptive action; `hosts` and `racks` have their number by place. `attempts` has the instants of starts by subject
    and action, `host_attempts` those of disruptive ones by host, both of the last 24 hours. `causes` are the root
    causes that count for the breaker. `limits` are the strictest of the other cells. `past` is what people said of GPUs
    and hosts there, with the cell.
    """

    cells: tuple[str, ...] = ()
    managed: int = 0
    out: int = 0
    subjects: int = 0
    hosts: Mapping[str, int] = field(default_factory=dict)
    racks: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, PoolShare] = field(default_factory=dict)
    attempts: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    host_attempts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    past: tuple[tuple[str, PastRow], ...] = ()

    def pool(self, name: str) -> PoolShare:
        return self.pools.get(name, PoolShare())
