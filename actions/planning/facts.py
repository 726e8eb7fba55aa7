"""What managers and training hooks tell of work, in the terms of the planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.actions.planning.state import Budget


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What readings do not tell of a piece of work; see `Work` for the meaning of each.

    `gang` names the job that it is a part of, where its manager runs a job as several pieces.
    """

    priority: int = 0
    budgets: tuple[str, ...] = ()
    lost_s: float | None = None
    restart_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_s: float | None = None
    ends_in_s: float | None = None
    cpus: float = 0.0
    memory_bytes: float = 0.0
    data_hosts: tuple[str, ...] = ()
    movable: bool = True
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """What GPU work may have of a host: CPUs, and memory in bytes."""

    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """The work that a manager runs, by id (`tocsin.actions.planning.build.work_id`), its budgets, and room by host."""

    facts: Mapping[str, WorkloadFacts] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    rooms: Mapping[str, Room] = field(default_factory=dict)
