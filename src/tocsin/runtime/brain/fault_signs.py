"""Open faults, shown at their Kubernetes nodes by the brain that is active, in every mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.signs import Fault, Signs
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import SECOND
from tocsin.domain.finding import Category, Finding, Incident
from tocsin.domain.reading import Reading
from tocsin.runtime.brain.brain import Brain

log = structlog.get_logger()

SIGN_SECONDS = 10.0
"""Time between two looks, as of managers."""
_FAULTY = frozenset({Category.HARDWARE, Category.THERMAL, Category.POWER})
"""Kinds of trouble that are the node's own: load and programs are not."""


def open_signs(brain: Brain) -> FaultSigns | None:
    """What shows faults where settings ask for it. Raises InputError as the connection does."""
    settings = brain.settings.kubernetes
    if not settings.show_faults:
        return None
    return FaultSigns(brain, Signs(Cluster(connect(settings), dry_run=settings.dry_run)))


class FaultSigns:
    """Shows what the last evaluation found."""

    def __init__(self, brain: Brain, signs: Signs) -> None:
        self._brain = brain
        self._signs = signs
        self._problem = ""

    def look(self) -> None:
        """Bring conditions and Events up to date; nothing while another brain is active, or this one has just begun."""
        brain, actions = self._brain, self._brain.settings.actions
        now_ms = brain.clock.now_ms()
        if not may_show(brain, now_ms):
            return
        seen = hosts_seen(brain.memory.latest(), now_ms - round(actions.fresh_seconds * SECOND))
        try:
            count = self._signs.show(faults_by_host(brain.incidents), seen, now_ms)
        except KubeError as error:
            self._say(str(error))
            return
        for outcome, counts in (("written", count.written), ("refused", count.refused)):
            for kind, number in counts.items():
                brain.metrics.count("tocsin_kubernetes_signs_total", number, kind=kind, outcome=outcome)
        self._say(count.problem)

    def _say(self, problem: str) -> None:
        """Log a problem once, until it is over or another one."""
        if problem and problem != self._problem:
            log.warning("faults are not shown at the nodes", problem=problem)
        self._problem = problem


def may_show(brain: Brain, now_ms: int) -> bool:
    """Whether this brain is the active one, and has seen the fleet: before that nothing proves that a fault is over."""
    settled = brain.evaluations and now_ms >= brain.started_ms + brain.settings.actions.boot_grace_seconds * SECOND
    return bool(settled) and (brain.lease is None or brain.lease.held())


def hosts_seen(readings: Iterable[Reading], since_ms: int) -> dict[str, bool]:
    """Each host with GPUs, and whether one of them was read since then."""
    seen: dict[str, bool] = {}
    for reading in readings:
        host = reading.gpu.host
        seen[host] = seen.get(host, False) or reading.at_ms >= since_ms
    return seen


def faults_by_host(incidents: Iterable[Incident]) -> Mapping[str, list[Fault]]:
    """The open faults of each host, pages first."""
    found: dict[str, list[tuple[int, Fault]]] = {}
    for incident in incidents:
        hosts: dict[str, list[Finding]] = {}
        for member in incident.members:
            if member.subject.host and member.id not in incident.cleared and _is_fault(member):
                hosts.setdefault(member.subject.host, []).append(member)
        for host, members in hosts.items():
            worst = max(members, key=lambda one: one.alert_level.rank)
            fault = Fault(incident.id, worst.rule, incident.sentence, str(incident.root.action))
            found.setdefault(host, []).append((-worst.alert_level.rank, fault))
    return {host: [one for _, one in sorted(faults, key=lambda pair: pair[0])] for host, faults in found.items()}


def _is_fault(finding: Finding) -> bool:
    told = finding.category in _FAULTY and finding.alert_level is not AlertLevel.NOTE
    return told and not finding.simulated and not finding.expected
