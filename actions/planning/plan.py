"""What a planner returns: steps in order, each with its gain, its cost and a sentence, and what was refused and why.

An `Intent` is what a plan asks for next, in the terms of decisions: an action on a subject with its reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tocsin.actions.planning.state import FleetState, GpuHold, Workload
from tocsin.domain.decision import ActionParameters
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.phrase import Phrase, in_chinese
from tocsin.domain.reading import Owner

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


class StepKind(StrEnum):
    """What one step does."""

    MOVE = "move"
    PLACE = "place"
    SCALE_OUT = "scale_out"
    WAIT_READY = "wait_ready"
    CORDON = "cordon"
    CHECKPOINT = "checkpoint"
    DRAIN = "drain"
    SCALE_IN = "scale_in"
    POWER_LIMIT = "power_limit"


@dataclass(frozen=True, slots=True)
class Move:
    """One piece of work and what it holds after; `source` is empty where it starts anew."""

    work: str
    source: tuple[GpuHold, ...]
    target: tuple[GpuHold, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, wholly done before the next begins.

    `subject` names the work, host, pool or GPU. `moves` all happen together. `amount` is in nodes for scaling, in watts
    for a power limit; `hosts` are placeholders for the nodes that are added. `wait_s` is how long after the plan the
    step begins at the earliest; `asks` says that it first asks the work for a checkpoint. Gain and cost are in
    GPU-hours.
    """

    kind: StepKind
    subject: str
    said: Phrase | str
    moves: tuple[Move, ...] = ()
    amount: float = 0.0
    wait_s: float = 0.0
    asks: bool = False
    hosts: tuple[str, ...] = ()
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0

    @property
    def sentence(self) -> str:
        return str(self.said)

    @property
    def sentence_zh(self) -> str:
        return in_chinese(self.said)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was looked at and left alone, and why."""

    subject: str
    said: Phrase | str

    @property
    def reason(self) -> str:
        return str(self.said)

    @property
    def reason_zh(self) -> str:
        return in_chinese(self.said)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, tried on a copy of the state. `before` and `after` are figures of the state by name.

    `gain_gpu_hours` is that of all steps together over `horizon_h` hours; the gains of single steps add up to it.
    """

    kind: str
    said: Phrase | str
    steps: tuple[Step, ...] = ()
    refused: tuple[Refusal, ...] = ()
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0
    horizon_h: float = 0.0
    simulated: bool = False

    @property
    def sentence(self) -> str:
        return str(self.said)

    @property
    def sentence_zh(self) -> str:
        return in_chinese(self.said)

    @property
    def moved(self) -> tuple[str, ...]:
        """Ids of all works that the plan moves or places."""
        return tuple(move.work for step in self.steps for move in step.moves)

    def as_json(self) -> dict[str, Any]:
        """The plan as `tocsin plan --json` prints it."""
        steps = [
            {"kind": one.kind, "subject": one.subject, "sentence": one.sentence, **_rest(one)} for one in self.steps
        ]
        refused = [{"subject": one.subject, "reason": one.reason} for one in self.refused]
        return {"kind": self.kind, "sentence": self.sentence, **_rest(self), "steps": steps, "refused": refused}


def _rest(one: Plan | Step) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name not in ("kind", "subject", "said")}


@dataclass(frozen=True, slots=True)
class Intent:
    """`parameters` go into the decision. `work` names what is moved, empty where nothing is."""

    rule: str
    subject: Subject
    action: ActionKind
    said: Phrase | str
    parameters: ActionParameters
    work: str = ""
    simulated: bool = False

    @property
    def sentence(self) -> str:
        return str(self.said)

    @property
    def sentence_zh(self) -> str:
        return in_chinese(self.said)

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
            sentence_zh=self.sentence_zh,
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
