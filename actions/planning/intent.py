"""What a plan asks for next: an action on a subject with its reasons, in the terms of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.actions.planning.state import FleetState, Workload
from tocsin.domain.action_parameters import ActionParameters
from tocsin.domain.finding import ActionKind, Category, Finding, Severity
from tocsin.domain.owner import Owner
from tocsin.domain.subject import Subject, SubjectKind

RULES: Mapping[str, str] = {
    "defragment": "plan_defragment",
    "mig": "plan_mig",
    "demand": "plan_demand",
    "scale_in": "plan_scale_in",
    "power": "plan_power",
}
"""Planners that can be followed, and the name that their findings and decisions have in place of a rule's."""
NODE = "node"
"""Parameter of a decision to scale in: the host that is to go."""
_CATEGORIES = {"plan_defragment": Category.FRAGMENTATION, "plan_mig": Category.FRAGMENTATION}


@dataclass(frozen=True, slots=True)
class Intent:
    """`parameters` go into the decision. `work` names what is moved, empty where nothing is."""

    rule: str
    subject: Subject
    action: ActionKind
    sentence: str
    parameters: ActionParameters
    work: str = ""
    simulated: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: its rule and its subject, the target of a move among it."""
        return self.rule, self.subject.key

    def as_finding(self, since_ms: int, now_ms: int, owners: tuple[Owner, ...] = ()) -> Finding:
        """The intent as a cause that the guards can look for: there since one look, seen last at another.

        `owners` are the processes of the work that it moves.
        """
        return Finding(
            rule=self.rule,
            subject=self.subject,
            severity=Severity.INFO,
            category=_CATEGORIES.get(self.rule, Category.CAPACITY),
            action=self.action,
            started_ms=since_ms,
            last_ms=now_ms,
            sentence=self.sentence,
            simulated=self.simulated,
            owners=owners,
        )


def subject_of_gpu(state: FleetState, uuid: str, detail: str = "") -> Subject:
    """A GPU as the subject of a decision."""
    host = state.gpus[uuid].host
    return Subject(SubjectKind.GPU, uuid, host, state.nodes[host].pool, detail)


def work_of(work: Workload) -> str:
    """The id under which managers know a piece of work: that of its gang where it is a part of one."""
    return work.gang or work.id
