"""Conditions that other tools keep at Kubernetes nodes, read by the brain that is active and told as events of their
hosts, which rules judge."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from tocsin.actions.kubernetes.api import KubeError, KubeNode
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.conditions import About, OthersWord, word_of_others
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.node_fault import NodeFault
from tocsin.runtime.brain.brain import Brain
from tocsin.store.port import StoreUnavailable

log = structlog.get_logger()

CONDITION_SECONDS = 30.0
"""Time between two looks: these tools write at once, and again every few minutes."""
REPEAT_MS = 5 * MINUTE
"""A condition that stays bad is told again so often: rules let go of what was not told for 15 minutes."""
MOST_NAMED = 3
"""Conditions of one node that an event names; the rest is counted."""
_FAULTS = {About.GPU: NodeFault.GPU_CONDITION, About.NODE: NodeFault.NODE_CONDITION}


def open_conditions(brain: Brain) -> ConditionWatch | None:
    """What reads them where settings ask for it. Raises InputError as the connection does."""
    settings = brain.settings.kubernetes
    if not settings.read_conditions:
        return None
    return ConditionWatch(brain, Cluster(connect(settings)))


class ConditionWatch:
    """Tells what is bad, what has changed, and what is over. For one thread."""

    def __init__(self, brain: Brain, cluster: Cluster) -> None:
        settings = brain.settings.kubernetes
        self._brain = brain
        self._cluster = cluster
        self._own = frozenset(filter(None, (settings.node_condition, settings.repair_condition)))
        self._told: dict[tuple[str, NodeFault], tuple[frozenset[str], str, int]] = {}
        self._problem = ""

    def look(self) -> None:
        """One look at the nodes that are hosts of GPUs; nothing while another brain is active."""
        brain = self._brain
        if brain.lease is not None and not brain.lease.held():
            return
        hosts = {reading.gpu.host for reading in brain.memory.latest()}
        now_ms = brain.clock.now_ms()
        told = dict(self._told)
        try:
            nodes = [node for node in self._cluster.nodes() if node.name in hosts]
            events = [event for node in nodes for event in self._news(node, told, now_ms)]
            if events:
                brain.accept(Batch(events=events))
        except (KubeError, StoreUnavailable) as error:
            self._say(str(error))
            return
        names = {node.name for node in nodes}
        self._told = {key: one for key, one in told.items() if key[0] in names}
        self._say("")

    def _news(
        self, node: KubeNode, told: dict[tuple[str, NodeFault], tuple[frozenset[str], str, int]], now_ms: int
    ) -> Iterator[Event]:
        seen = word_of_others(node, self._own)
        for about, fault in _FAULTS.items():
            kinds, text, told_ms = told.get((node.name, fault), (frozenset[str](), "", 0))
            bad = seen.bad[about]
            if bad:
                words = _named(list(bad.values()))
                if kinds != bad.keys() or not 0 <= now_ms - told_ms < REPEAT_MS:
                    told[node.name, fault] = frozenset(bad), words, now_ms
                    yield _event(node.name, fault, words, now_ms)
            elif kinds and _is_over(kinds, seen):
                del told[node.name, fault]
                yield _event(node.name, fault.over, f"over: {text}", now_ms)

    def _say(self, problem: str) -> None:
        """Log a problem once, until it is over or another one."""
        if problem and problem != self._problem:
            log.warning("conditions of the nodes are not read", problem=problem)
        self._problem = problem


def _is_over(kinds: frozenset[str], seen: OthersWord) -> bool:
    """A condition that is gone, or unknown, does not say that all is well: that lapses by itself."""
    return kinds <= seen.good


def _event(host: str, code: int, words: str, now_ms: int) -> Event:
    return Event(EventKind.NODE_FAULT, "", host, now_ms, int(code), words, "kubernetes")


def _named(words: list[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more
