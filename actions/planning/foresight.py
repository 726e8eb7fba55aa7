"""What planners add to decisions: steps that they want done, and where work would go that has to leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tocsin.actions.planning.placement import together
from tocsin.actions.planning.plan import RULES, Plan, Step, work_of
from tocsin.actions.planning.state import UNSEEN, FleetState, Slot, Workload
from tocsin.actions.planning.units import PlanLimits, pinned, price, say_gpus
from tocsin.domain.decision import ActionParameters, DefragmentParameters, MigrateParameters
from tocsin.domain.finding import ActionKind, Finding, Incident, Subject, SubjectKind
from tocsin.domain.phrase import Phrase, say, say_list

MOST_NAMED = 4
"""Pieces of work that the sentence of a decision names at most; its parameters name all."""
PLANNED = frozenset(RULES.values())
"""What stands in place of a rule's name on what planners ask for."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """What a plan adds to a decision: parameters, a clause of its sentence, and why it cannot be done now."""

    parameters: ActionParameters | None = None
    words: Phrase | None = None
    obstacle: Phrase | None = None


NOTHING = PlanNote()


@dataclass(frozen=True)
class Foresight:
    """The last look of the planners. `steps` are the parameters of what they ask for, by (rule, key of the subject).

    `state` is None where no look was taken yet; `plans` are by planner.
    """

    steps: Mapping[tuple[str, str], ActionParameters] = field(default_factory=dict)
    state: FleetState | None = None
    plans: Mapping[str, Plan] = field(default_factory=dict)
    limits: PlanLimits = field(default_factory=PlanLimits)
    _left: dict[str, PlanNote] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Where the work on each subject would go: a search that many decisions ask for, in one state, time and again."""

    def leaving(self, subject: Subject) -> PlanNote:
        """Where the work on `subject` would go, or why it has to stay; nothing where no look was taken yet."""
        if self.state is None:
            return NOTHING
        key = f"{subject.kind}:{subject.name}"
        if key not in self._left:
            self._left[key] = _places(self.state, subject, self.limits)
        return self._left[key]

    def gpus_with(self, name: str) -> frozenset[str]:
        """UUIDs of the GPUs that the work which managers know as `name` holds; empty where nobody knows."""
        works = () if self.state is None else self.state.works.values()
        return frozenset(hold.gpu for work in works if work_of(work) == name for hold in work.holds)

    def work_on(self, subject: Subject) -> frozenset[str]:
        """What runs on `subject` as managers know it, all of a gang by one name; empty where nobody knows."""
        if self.state is None:
            return frozenset()
        slots = _slots(self.state, subject)
        return frozenset(work_of(work) for slot in slots for work in self.state.on_gpu.get(slot.uuid, ()))

    def note(self, root: Finding, action: ActionKind) -> PlanNote:
        """What a decision for `action` about `root` should name; nothing where no plan knows anything."""
        if root.rule in PLANNED:
            return PlanNote(self.steps.get((root.rule, root.subject.key)))
        if self.state is None:
            return NOTHING
        if action is ActionKind.MIGRATE:
            return self.leaving(root.subject)
        if action is ActionKind.DEFRAGMENT:
            steps = [step for plan in self.plans.values() for step in plan.steps]
            return _repacking(self.state, [one for one in steps if _touches(self.state, one, root.subject)])
        return NOTHING


def _places(state: FleetState, subject: Subject, limits: PlanLimits) -> PlanNote:
    """Where the work on `subject` would go and why it would stay: of a gang all of it, for it moves as one."""
    slots = _slots(state, subject)
    works = {work.id: work for slot in slots for work in state.on_gpu.get(slot.uuid, ())}
    if not works or subject.kind not in (SubjectKind.GPU, SubjectKind.HOST):
        return NOTHING
    found: list[tuple[str, tuple[str, ...]]] = []
    said: list[Phrase] = []
    stuck: list[Phrase] = []
    now = state
    for _, first in sorted({work.unit: work for work in works.values()}.items()):
        members = [one for one in state.gangs.get(first.gang, (first,)) if one.holds]
        placed, words = _place(now, members, limits)
        # What one piece is given no other may count on.
        now = now.with_works(placed)
        where = tuple(sorted({state.gpus[one.holds[0].gpu].host for one in placed}))
        found.append((work_of(first), where))
        (said if where else stuck).append(words)
    names, hosts = tuple(name for name, _ in found), tuple(hosts for _, hosts in found)
    return PlanNote(MigrateParameters(work=names, to_host=hosts), _listed(said), _listed(stuck))


def _listed(said: Sequence[Phrase]) -> Phrase | None:
    """What is said, each once and the first few alone; None where that is nothing."""
    each = list({str(one): one for one in said}.values())
    if not each:
        return None
    listed = say_list(each[:MOST_NAMED])
    return listed if len(each) <= MOST_NAMED else say("{said} and {n} more", said=listed, n=len(each) - MOST_NAMED)


def _place(state: FleetState, works: list[Workload], limits: PlanLimits) -> tuple[list[Workload], Phrase]:
    """These works of one unit where they would go, and that in words; none where they have to stay.

    A manager that puts work back on the node which it left has done nothing: none of its nodes is a place for it.
    """
    name = work_of(works[0])
    alone = [replace(work, gang="", lost_s=work.lost_s or 0.0) for work in works]
    at_once = replace(limits, patience_s=-1.0)
    reason = next((why for one in alone if (why := pinned(_open(state, one), [one], at_once))), None)
    if reason is not None:
        what = say("what runs there") if works[0].stays == UNSEEN else name
        return [], say("{work} has to stay: {reason}", work=what, reason=reason)
    # Nobody knows whether another pool would take it.
    lifted = [replace(work, holds=(), pool=work.pool or state.nodes[state.host_of(work)].pool) for work in works]
    left = {state.host_of(work) for work in works}
    closed = [replace(slot, healthy=False) for host in left for slot in state.by_host[host]]
    places = together(state.with_nodes([], closed).with_works(lifted), lifted, limits)
    if places is None:
        held = say_gpus(sum(state.held_gpus(work) for work in works))
        return [], say("no other node of its pool has room for all of {work} ({gpus})", work=name, gpus=held)
    hosts = " ".join(sorted({one.host for _, one in places}))
    prices = [price(state, work, limits) for work in works]
    known = [one.gpu_hours for one in prices if one is not None]
    goes = say("{work} to {hosts}", work=name, hosts=hosts)
    if len(known) == len(prices):
        goes = say("{move} for {cost} GPU-hours", move=goes, cost=f"{sum(known):.2f}")
    return [replace(work, holds=one.holds) for work, one in places], goes


def _open(state: FleetState, work: Workload) -> FleetState:
    node = state.nodes[state.host_of(work)]
    return state if node.schedulable else state.with_nodes([replace(node, schedulable=True)])


def _slots(state: FleetState, subject: Subject) -> tuple[Slot, ...]:
    if subject.kind is SubjectKind.HOST:
        return state.by_host.get(subject.name, ())
    slot = state.gpus.get(subject.name)
    return () if slot is None else (slot,)


def _touches(state: FleetState, step: Step, subject: Subject) -> bool:
    """Whether a step moves work to or from `subject`."""
    slots = [state.gpus[hold.gpu] for move in step.moves for hold in (*move.source, *move.target)]
    if subject.kind is SubjectKind.FLEET:
        return bool(slots)
    if subject.kind is SubjectKind.POOL:
        return any(state.nodes[slot.host].pool == subject.name for slot in slots)
    return any(subject.name in {slot.uuid, slot.host} for slot in slots)


def _repacking(state: FleetState, steps: Sequence[Step]) -> PlanNote:
    if not steps:
        return NOTHING
    moves = [(work_of(state.works[move.work]), move) for step in steps for move in step.moves]
    hosts = [state.gpus[move.target[0].gpu].host for _, move in moves]
    said = say("as planned: {steps}", steps=_one_by_one(steps[:MOST_NAMED]))
    if len(steps) > MOST_NAMED:
        said = say("{said} {n} more follow", said=said, n=len(steps) - MOST_NAMED)
    made = DefragmentParameters(work=tuple(name for name, _ in moves), to_host=tuple((host,) for host in hosts))
    return PlanNote(made, said)


def _one_by_one(steps: Sequence[Step]) -> Phrase | str:
    return reduce(lambda before, then: say("{step} {next}", step=before, next=then), (one.said for one in steps))


@dataclass
class Proposals:
    """What the planners want now, as causes that guards can look for, and what they add to decisions.

    Their thread puts whole objects in place of those of the last look, which the loop's thread reads.
    """

    findings: Sequence[Finding] = ()
    foresight: Foresight = field(default_factory=Foresight)


def alone(findings: Iterable[Finding]) -> list[Incident]:
    """An incident for each of what planners ask for: none of it explains anything else."""
    return [
        Incident(one, (one,), one.started_ms, one.last_ms, one.sentence, sentence_zh=one.sentence_zh)
        for one in findings
        if one.rule in PLANNED
    ]
