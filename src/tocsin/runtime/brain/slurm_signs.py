"""Open faults, shown in the comment of their Slurm nodes by the brain that is active, in every mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from tocsin.actions.slurm.client import Slurm, SlurmProblem
from tocsin.actions.slurm.rest import runner_of
from tocsin.actions.slurm.signs import NodeComments, ShownFaults
from tocsin.domain.clock import SECOND
from tocsin.domain.finding import Incident
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.fault_signs import faults_by_host, hosts_seen, may_show

log = structlog.get_logger()


def open_slurm_signs(brain: Brain) -> SlurmSigns | None:
    """What shows faults where settings ask for it; a dry run writes no comment.

    Raises InputError for a CA file that cannot be used.
    """
    settings = brain.settings.slurm
    if not settings.show_faults or settings.dry_run:
        return None
    return SlurmSigns(brain, NodeComments(Slurm(settings, runner_of(settings, brain.clock), brain.clock)))


class SlurmSigns:
    """Shows what the last evaluation found."""

    def __init__(self, brain: Brain, comments: NodeComments) -> None:
        self._brain = brain
        self._comments = comments
        self._problem = ""

    def look(self) -> None:
        """Bring comments up to date; nothing while another brain is active, or this one has just begun."""
        brain = self._brain
        now_ms = brain.clock.now_ms()
        if not may_show(brain, now_ms):
            return
        fresh_ms = round(brain.settings.actions.fresh_seconds * SECOND)
        seen = hosts_seen(brain.memory.latest(), now_ms - fresh_ms)
        try:
            count = self._comments.show(shown_by_host(brain.incidents), seen)
        except SlurmProblem as problem:
            self._say(str(problem))
            return
        for outcome, number in (("written", count.written), ("refused", count.refused)):
            brain.metrics.count("tocsin_slurm_comments_total", number, outcome=outcome)
        self._say(count.problem)

    def _say(self, problem: str) -> None:
        """Log a problem once, until it is over or another one."""
        if problem and problem != self._problem:
            log.warning("faults are not shown in the comments of the nodes", problem=problem)
        self._problem = problem


def shown_by_host(incidents: Iterable[Incident]) -> Mapping[str, ShownFaults]:
    """The open faults of each host as its comment tells them, the gravest in words."""
    return {
        host: ShownFaults(tuple(one.id for one in faults), faults[0].sentence)
        for host, faults in faults_by_host(incidents).items()
    }
