"""Nodes and jobs as Slurm shows them, whichever version and form of output they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

BASES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
"""Base states of a node (slurm.h, enum node_states); every other word is a flag."""
_SYNONYMS = {
    "ALLOC": ("ALLOCATED",),
    "MIX": ("MIXED",),
    "COMP": ("IDLE", "COMPLETING"),
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("MIXED", "DRAIN"),
    "DRNG": ("MIXED", "DRAIN"),
    "POWER_SAVING": ("POWERED_DOWN",),
    "POWER": ("POWERED_DOWN",),
    "REBOOT": ("REBOOT_REQUESTED",),
    "MAINTENANCE": ("MAINT",),
}
"""Words of older versions and of sinfo's tables."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
}
"""Signs behind a state (man sinfo, NODE STATE CODES)."""
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
_CLOSED = frozenset({"DRAIN", "FAIL", "MAINT", "REBOOT_ISSUED"})
ACTIVE = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)


def split_state(words: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Base state and flags of a node's state words, such as ``["IDLE", "DRAIN"]`` or ``["down*"]``."""
    base, flags = "UNKNOWN", set[str]()
    for word in words:
        bare = word.strip().rstrip("".join(_SUFFIXES)).upper()
        flags.update(_SUFFIXES[sign] for sign in word.strip()[len(bare) :])
        for name in _SYNONYMS.get(bare, (bare,)):
            if name in BASES and base == "UNKNOWN":
                base = name
            elif name and name not in BASES:
                flags.add(name)
    return base, frozenset(flags)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. `gpus` counts its configured GPUs; `boot_s` and `busy_s` are seconds since the epoch, 0 for unknown."""

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    comment: str = ""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    boot_s: int = 0
    busy_s: int = 0

    @property
    def drained(self) -> bool:
        """Whether it takes no new work because someone said so."""
        return "DRAIN" in self.flags

    @property
    def cloud(self) -> bool:
        """Whether it comes and goes with its power."""
        return "CLOUD" in self.flags

    @property
    def off(self) -> bool:
        """Whether it is without power or on its way there."""
        return not _OFF.isdisjoint(self.flags)

    @property
    def coming_up(self) -> bool:
        """Whether it was powered up and has not reported yet."""
        return "POWERING_UP" in self.flags or "POWER_UP" in self.flags

    @property
    def ready(self) -> bool:
        return (
            self.base in ("IDLE", "MIXED", "ALLOCATED")
            and "NOT_RESPONDING" not in self.flags
            and not (self.off or self.coming_up)
        )

    @property
    def schedulable(self) -> bool:
        return self.ready and _CLOSED.isdisjoint(self.flags)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of a job array.

    `ref` is the name under which Slurm changes this one alone: ``12``, ``12_3`` for a task of an array (whose plain
    number may stand for the whole array), the leader's number for a part of a heterogeneous job. `gpus` are the indices
    of the GPUs that it holds, by node; a node is left out where that is not told. `start_s` and `end_s`, its start and
    the end of its time limit, are seconds since the epoch, 0 for unknown or no limit.
    """

    ref: str
    number: int
    state: str
    nodes: tuple[str, ...] = ()
    requeue: bool = False
    batch: bool = False
    reason: str = ""
    comment: str = ""
    admin_comment: str = ""
    required_nodes: tuple[str, ...] = ()
    folder: str = ""
    user: str = ""
    gpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    priority: int = 0
    start_s: int = 0
    end_s: int = 0

    @property
    def active(self) -> bool:
        """Whether it holds its nodes."""
        return self.state in ACTIVE

    @property
    def pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD")


@dataclass(frozen=True, slots=True)
class SlurmSnapshot:
    """All nodes by name and all jobs at one instant."""

    nodes: Mapping[str, SlurmNode]
    jobs: tuple[SlurmJob, ...] = ()

    def on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold `node`, in order of number."""
        return sorted((job for job in self.jobs if job.active and node in job.nodes), key=lambda job: job.number)
