"""What managers (Kubernetes, Slurm) and training hooks tell of nodes and of the work on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.actions.planning.state import Budget
from tocsin.topology.claims import Claim


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as its manager (Kubernetes, Slurm) shows it.

    `schedulable` says whether it takes new work, `ready` whether it can run any, `ours` whether the manager carries
    Tocsin's own mark that Tocsin took it out of service. `reason` is the manager's, `work` names what holds GPUs there:
    ``namespace/pod`` or a job id. `jobs` has, for every pod on the node by UID and by ``namespace/name``, the job that
    it belongs to, empty where it runs by itself; None where the manager knows no pods. `held_by` are the jobs that hold
    GPUs of the node, named as in `GpuView.job`. `places` is what the manager says of where the host is. `closed` are
    UUIDs of GPUs that take no new work each for itself; None where the manager shows nothing of single GPUs. `gpus` is
    how many whole GPUs it shows there; None where it shows none, or only parts and shares of GPUs.
    """

    host: str
    schedulable: bool
    ready: bool = True
    ours: bool = False
    reason: str = ""
    work: tuple[str, ...] = ()
    jobs: Mapping[str, str] | None = None
    held_by: frozenset[str] = frozenset()
    places: tuple[Claim, ...] = ()
    closed: frozenset[str] | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What readings do not tell of a piece of work; see `Workload` for the meaning of each.

    `gang` names the job that it is a part of, where its manager runs a job as several pieces. `team`, `account` and
    `user` are whom its manager names to pay for it. `hosts` are where it runs by its manager; None where that does not
    tell: then whatever host names it.
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
    team: str = ""
    account: str = ""
    user: str = ""
    hosts: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What GPU work may have of a host: CPUs, and memory in bytes."""

    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """The work that a manager runs, by id (`tocsin.actions.planning.build.work_id`), its budgets, and room by host."""

    facts: Mapping[str, WorkloadFacts] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    rooms: Mapping[str, HostRoom] = field(default_factory=dict)
