"""What Kubernetes and Slurm show of the fleet's nodes, asked beside the loop: a slow manager holds up no decision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from tocsin.actions.model.executor import Executor, LooksAfter, ManagerUnavailable, SeesNodes, SeesWorkloads
from tocsin.actions.planning.facts import NodeState, WorkloadSeen
from tocsin.domain.clock import Clock
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

LOOK_SECONDS = 10.0
"""Time between two looks."""
TIDY_SECONDS = 60.0
"""Time between two rounds of tidying."""
BLIND_SECONDS = 60.0
"""Age of the last answer of a manager beyond which nobody's nodes are known (own choice: six looks)."""

T = TypeVar("T")

WORK_SECONDS = 180.0
"""Age beyond which what was seen of work is forgotten (own choice: three looks of the planners)."""


class Managers:
    """Keeps the nodes of every executor that sees them; safe to ask from any thread."""

    def __init__(self, executors: Sequence[Executor], clock: Clock, metrics: OwnMetrics) -> None:
        self._seers: dict[str, SeesNodes] = {each.name: each for each in executors if isinstance(each, SeesNodes)}
        self._workers = {each.name: each for each in executors if isinstance(each, SeesWorkloads)}
        self._work: dict[str, tuple[float, WorkloadSeen]] = {}
        self._tidied = {each.name: each for each in executors if isinstance(each, LooksAfter)}
        self._checked: set[str] = set()
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, Mapping[str, NodeState]]] = {}
        self._failing: set[tuple[str, str]] = set()

    def tidy(self) -> None:
        """Take back what has run out; at the first call also say which rights are lacking."""
        for name, each in self._tidied.items():
            try:
                gone = each.upkeep()
                lacking = [] if name in self._checked else each.missing_rights()
            except ManagerUnavailable as error:
                log.warning("upkeep of the manager failed", manager=name, problem=str(error))
                continue
            self._checked.add(name)
            if gone:
                log.info("expired marks removed", manager=name, nodes=list(gone))
            for need in lacking:
                log.warning("permission missing", manager=name, need=str(need))

    def look(self) -> None:
        """Ask each of them once."""
        for name, each in self._seers.items():
            up = self._ask(
                name, partial(self._nodes_of, name, each), self._seen, "cannot list the nodes of the manager"
            )
            self._metrics.set("tocsin_manager_up", up, manager=name)

    def _nodes_of(self, name: str, each: SeesNodes) -> Mapping[str, NodeState]:
        """What a manager shows now; a node that it shows as before is the same object, so that what was worked out of
        it is kept."""
        with self._lock:
            before = self._seen[name][1] if name in self._seen else {}
        return {host: before[host] if before.get(host) == node else node for host, node in each.nodes().items()}

    def look_at_work(self) -> None:
        """Ask each of them once what it runs."""
        for name, each in self._workers.items():
            self._ask(name, each.work, self._work, "cannot list the workloads of the manager")

    def _ask(self, name: str, ask: Callable[[], T], seen: dict[str, tuple[float, T]], silent: str) -> bool:
        """Whether a manager answers; that it does not is logged once, as `silent`, until it does again."""
        try:
            answer = ask()
        except ManagerUnavailable as error:
            if (name, silent) not in self._failing:
                log.warning(silent, manager=name, problem=str(error))
            self._failing.add((name, silent))
            return False
        self._failing.discard((name, silent))
        with self._lock:
            seen[name] = (self._clock.monotonic(), answer)
        return True

    def work(self) -> WorkloadSeen:
        """The work of all managers as it was last seen; what was last seen long ago is not known any more."""
        now = self._clock.monotonic()
        with self._lock:
            seen = [one for at, one in self._work.values() if now - at <= WORK_SECONDS]
        return WorkloadSeen(
            {name: fact for one in seen for name, fact in one.facts.items()},
            {name: budget for one in seen for name, budget in one.budgets.items()},
            {host: room for one in seen for host, room in one.rooms.items()},
        )

    def nodes(self) -> Mapping[str, NodeState]:
        """The nodes of all managers by host, as they were last seen.

        Of two managers that list one host, the one that has it out of service counts; the jobs of both do.
        """
        with self._lock:
            found: dict[str, NodeState] = {}
            for _, nodes in self._seen.values():
                for host, node in nodes.items():
                    found[host] = _both(found[host], node) if host in found else node
            return found

    def blind(self) -> bool:
        """Whether one of them has not answered lately."""
        now = self._clock.monotonic()
        with self._lock:
            ages = [now - self._seen[name][0] if name in self._seen else None for name in self._seers]
        return any(age is None or age > BLIND_SECONDS for age in ages)


def _both(one: NodeState, other: NodeState) -> NodeState:
    """One host as two managers show it."""
    counts = one if other.schedulable else other
    jobs = one.jobs if other.jobs is None else {**(one.jobs or {}), **other.jobs}
    held_by, places = one.held_by | other.held_by, one.places + other.places
    shown = [each.gpus for each in (one, other) if each.gpus]
    return replace(counts, jobs=jobs, held_by=held_by, places=places, gpus=max(shown, default=None))
