"""Power limits under the budgets of racks and of the facility: who gives way first, how much, and what is due now."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.actions.planning.plan import RULES, Intent, Plan, Refusal, Step, StepKind, subject_of_gpu
from tocsin.actions.planning.simulation import Simulation
from tocsin.actions.planning.state import FleetState, Slot
from tocsin.domain.decision import ThrottleParameters
from tocsin.domain.finding import ActionKind, Subject
from tocsin.domain.grouping import grouped
from tocsin.domain.phrase import Phrase, say, say_count

GRAIN_W = 10
"""Limits are asked for in steps of so many watts, so that small shifts of the plan change no decision (own choice)."""


STEP_SHARE = 0.01
"""A limit is raised in steps of this share of the limit that was found (own choice)."""
BEND = 3.2
"""Throughput lost at a limit of x of the full one is BEND (1 - x)^2: about 6.5 % for 600 of 700 W, between what
inference and training were measured to lose there (5 to 8 %, 10 to 15 %); own curve."""
FLOOR_SHARE = 0.6
"""No GPU goes below this share of the board's default, nor below what the board takes."""
IDLE_WEIGHT = 1e-3
"""Weight of a GPU without work: it gets what nobody else wants, and has some when work comes."""


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """Watts for the GPUs of the whole facility and of single racks; infinite where nothing binds."""

    facility: float = math.inf
    racks: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _PowerGroup:
    """GPUs whose limits move together: those that one job holds, or one GPU that has none or several."""

    name: str
    slots: list[Slot]
    weight: float
    share: float = 0.0
    """Of the way from floor to full, 0 to 1."""


def power_caps(state: FleetState, budget: PowerBudget) -> Plan:
    """Limits that keep every budget and lose least throughput, weighted by priority.

    All limits begin at their floors; step by step the GPUs gain whose next watt is worth most, all of a job alike,
    until a rack or the facility is full. A GPU whose limits are not known counts in no budget and is refused. Where the
    floors alone do not fit nothing is planned: work must leave. No limit falls when the facility's budget rises.
    """
    known = [slot for slot in state.gpus.values() if _range(slot) is not None]
    unknown = say("its power limits are not known")
    refused = [Refusal(slot.uuid, unknown) for slot in state.gpus.values() if not _range(slot)]
    before = _figures(state, known)
    short = _floors_too_high(state, known, budget)
    if short:
        left = say("Leave all power limits: the floors alone do not fit.")
        return _plan(state, left, (), [*short, *refused], before)
    limits = _fill(state, _groups(state, known), budget)
    steps = tuple(
        _step(slot, limits[slot.uuid])
        for slot in known
        if slot.limit_watts is not None and limits[slot.uuid] < slot.limit_watts - 0.5
    )
    Simulation(state).run(steps)
    return _plan(
        state, say("Lower the power limit of {gpus}.", gpus=say_count(len(steps), "GPU")), steps, refused, before
    )


def _plan(
    state: FleetState, said: Phrase, steps: tuple[Step, ...], refused: Iterable[Refusal], before: Mapping[str, float]
) -> Plan:
    after = Simulation(state).run(steps)
    slots = [slot for slot in after.gpus.values() if _range(slot) is not None]
    return Plan("power", said, steps, tuple(refused), before, _figures(after, slots), simulated=state.simulated)


def _range(slot: Slot) -> tuple[float, float] | None:
    """Floor and full limit in watts; None where they are not known."""
    if slot.limit_watts is None or slot.least_watts is None:
        return None
    default = slot.default_watts if slot.default_watts is not None else slot.limit_watts
    return min(slot.limit_watts, max(slot.least_watts, FLOOR_SHARE * default)), slot.limit_watts


def _figures(state: FleetState, slots: Iterable[Slot]) -> dict[str, float]:
    watts: dict[str, float] = {"facility_watts": 0.0}
    for slot in slots:
        name = f"rack_watts {state.nodes[slot.host].rack}"
        watts[name] = watts.get(name, 0.0) + (slot.limit_watts or 0.0)
        watts["facility_watts"] += slot.limit_watts or 0.0
    return watts


def _by_rack(state: FleetState, watts: Mapping[str, float]) -> dict[str, float]:
    """Watts of single GPUs added up by rack, and under the empty name those of all."""
    sums = {"": math.fsum(watts.values())}
    for uuid, one in watts.items():
        rack = state.nodes[state.gpus[uuid].host].rack
        if rack:
            sums[rack] = sums.get(rack, 0.0) + one
    return sums


def _floors_too_high(state: FleetState, slots: Iterable[Slot], budget: PowerBudget) -> list[Refusal]:
    floors = _by_rack(state, {slot.uuid: _watts(slot, 0.0) for slot in slots})
    limits = {"": budget.facility, **budget.racks}
    return [
        Refusal(
            f"rack {name}" if name else "facility",
            say("the floors need {n} W of {most} W; work must leave", n=f"{watts:.0f}", most=f"{limits[name]:.0f}"),
        )
        for name, watts in floors.items()
        if watts > limits.get(name, math.inf) + 1e-6
    ]


def _groups(state: FleetState, slots: Iterable[Slot]) -> list[_PowerGroup]:
    """GPUs joined by every job that holds several of them; a gang is one job."""
    leader: dict[str, str] = {slot.uuid: slot.uuid for slot in slots}

    def find(uuid: str) -> str:
        while leader[uuid] != uuid:
            leader[uuid] = leader[leader[uuid]]
            uuid = leader[uuid]
        return uuid

    weights: dict[str, float] = {}
    for works in grouped((work.unit, work) for work in state.works.values()).values():
        held = [hold.gpu for work in works for hold in work.holds if hold.gpu in leader]
        for uuid in held:
            leader[find(uuid)] = find(held[0])
            weights[uuid] = max(weights.get(uuid, 0.0), 1.0 + max(0, *(work.priority for work in works), 0))
    groups: dict[str, _PowerGroup] = {}
    for slot in slots:
        name = find(slot.uuid)
        group = groups.setdefault(name, _PowerGroup(name, [], IDLE_WEIGHT))
        group.slots.append(slot)
        group.weight = max(group.weight, weights.get(slot.uuid, 0.0))
    return list(groups.values())


def _fill(state: FleetState, groups: list[_PowerGroup], budget: PowerBudget) -> dict[str, float]:
    left = {"": budget.facility, **budget.racks}
    racks = [{state.nodes[slot.host].rack for slot in group.slots} for group in groups]
    for group in groups:
        _spend(left, _by_rack(state, {slot.uuid: _watts(slot, 0.0) for slot in group.slots}))
    heap = [(-_worth(group), group.name, number) for number, group in enumerate(groups)]
    heapq.heapify(heap)
    full: set[str] = set()
    while heap:
        _, name, number = heapq.heappop(heap)
        group = groups[number]
        if group.share >= 1.0 or racks[number] & full:
            continue
        share = min(1.0, group.share + STEP_SHARE)
        more = {slot.uuid: _watts(slot, share) - _watts(slot, group.share) for slot in group.slots}
        wanted = _by_rack(state, more)
        tight = {name for name, watts in wanted.items() if watts > left.get(name, math.inf) + 1e-9}
        if "" in tight:
            break
        if tight:
            full |= tight
            continue
        _spend(left, wanted)
        group.share = share
        heapq.heappush(heap, (-_worth(group), name, number))
    return {slot.uuid: math.floor(_watts(slot, group.share) + 1e-6) for group in groups for slot in group.slots}


def _watts(slot: Slot, share: float) -> float:
    found = _range(slot)
    assert found is not None
    return found[0] + share * (found[1] - found[0])


def _worth(group: _PowerGroup) -> float:
    """What the next watt gains: weight x slope of the throughput, relative to the full limit."""
    slot = group.slots[0]
    full = slot.limit_watts or 1.0
    return group.weight * 2.0 * BEND * (1.0 - _watts(slot, group.share) / full) / full


def _spend(left: dict[str, float], watts: Mapping[str, float]) -> None:
    for name in left.keys() & watts.keys():
        left[name] -= watts[name]


def _step(slot: Slot, watts: float) -> Step:
    return Step(
        StepKind.POWER_LIMIT,
        slot.uuid,
        say("Lower the power limit of {gpu} on {host} from {was} to {watts} W.", **_change(slot, watts)),
        amount=float(watts),
    )


def _change(slot: Slot, watts: float) -> dict[str, str]:
    return {"gpu": slot.uuid, "host": slot.host, "was": f"{slot.limit_watts:.0f}", "watts": f"{watts:.0f}"}


@dataclass(frozen=True, slots=True)
class Cap:
    """A power limit that a decision has set: on `gpus` (all ranks of a job), to be given back up to `was_watts`."""

    subject: Subject
    gpus: tuple[str, ...]
    was_watts: float
    parameters: ThrottleParameters = field(default_factory=ThrottleParameters)


def follow_power(
    state: FleetState, budget: PowerBudget, caps: Sequence[Cap], held: Iterable[str] = ()
) -> tuple[Plan, list[Intent]]:
    """The plan as if nothing had been limited yet, and what it asks for now.

    A limit that stands stays while that plan wants one on any of its GPUs, and as long as the budgets would not hold
    without it; so nothing swings. While a GPU is lost, none is given back: what it draws is in no sum. Where the
    present limits break a budget others give way: a GPU takes one order at a time, so a limit that stands is lowered no
    further, nor are the GPUs that are `held` by orders of other rules.
    """
    plan = power_caps(_uncapped(state, caps), budget)
    lowered = {step.subject for step in plan.steps}
    kept = [cap for cap in caps if not lowered.isdisjoint(cap.gpus)]
    given_back = [cap for cap in caps if cap not in kept]
    lost = any(not slot.healthy and slot.limit_watts is None for slot in state.gpus.values())
    if lost or not _holds(_uncapped(state, given_back), budget):
        kept = list(caps)
    intents = [_keep(cap, state) for cap in kept]
    present = power_caps(_pinned(state, [*held, *(uuid for cap in kept for uuid in cap.gpus)]), budget)
    return plan, [*intents, *_lower(state, present.steps)]


def _uncapped(state: FleetState, caps: Iterable[Cap]) -> FleetState:
    was: dict[str, float] = {}
    for cap in caps:
        for uuid in cap.gpus:
            was[uuid] = max(was.get(uuid, 0.0), cap.was_watts)
    slots = [state.gpus[uuid] for uuid in was if uuid in state.gpus]
    raised = [replace(one, limit_watts=max(was[one.uuid], one.limit_watts or 0.0)) for one in slots]
    return state.with_nodes([], raised)


def _pinned(state: FleetState, gpus: Iterable[str]) -> FleetState:
    """The state in which the limits of `gpus` can fall no further."""
    slots = [state.gpus[uuid] for uuid in gpus if uuid in state.gpus]
    return state.with_nodes([], [replace(slot, least_watts=slot.limit_watts) for slot in slots])


def _holds(state: FleetState, budget: PowerBudget) -> bool:
    known = {slot.uuid: slot.limit_watts or 0.0 for slot in state.gpus.values() if _range(slot) is not None}
    limits = {**budget.racks, "": budget.facility}
    return all(value <= limits.get(name, math.inf) + 1e-6 for name, value in _by_rack(state, known).items())


def _keep(cap: Cap, state: FleetState) -> Intent:
    watts = f"{cap.parameters.power_limit_watts or 0.0:.0f}"
    template = "Keep the power limit of {gpu} at {watts} W: the power budget would not hold without it."
    said = say(template, gpu=cap.subject.name, watts=watts)
    return Intent(RULES["power"], cap.subject, ActionKind.THROTTLE, said, cap.parameters, simulated=state.simulated)


def _lower(state: FleetState, steps: Sequence[Step]) -> list[Intent]:
    """One intent for each job, since all ranks of a job are limited alike, and for each GPU without one."""
    seen: set[str] = set()
    made = []
    for step in sorted(steps, key=lambda one: one.subject):
        jobs = {work.gang or work.id for work in state.on_gpu.get(step.subject, ())} or {step.subject}
        name = min(jobs)
        if len(jobs) == 1 and name in seen:
            continue
        seen.add(name)
        made.append(_limit(state, step))
    return made


def _limit(state: FleetState, step: Step) -> Intent:
    slot = state.gpus[step.subject]
    assert slot.limit_watts is not None
    assert slot.least_watts is not None
    watts = max(math.ceil(slot.least_watts), int(step.amount) // GRAIN_W * GRAIN_W)
    return Intent(
        RULES["power"],
        subject_of_gpu(state, slot.uuid, f"{watts} W"),
        ActionKind.THROTTLE,
        say(
            "Lower the power limit of {gpu} on {host} from {was} to {watts} W: "
            "the limits together are above the power budget.",
            **_change(slot, watts),
        ),
        ThrottleParameters(power_limit_watts=watts, was_watts=round(slot.limit_watts)),
        simulated=state.simulated,
    )
