"""The planning state of a running fleet, from what the brain knows of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tocsin.actions.planning.facts import HostRoom, NodeState, WorkloadFacts
from tocsin.actions.planning.layouts import MigLayout, is_divided, is_unread, template_of
from tocsin.actions.planning.state import (
    GUESSED,
    UNMANAGED,
    UNSEEN,
    Budget,
    FleetNode,
    FleetState,
    GpuHold,
    GpuMode,
    LeftOut,
    Pool,
    Slot,
    Workload,
    share_of,
)
from tocsin.domain.finding import SubjectKind
from tocsin.domain.fragmentation import Placement, TaskClass
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Owner, Reading


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known beside readings; whatever is left out is unknown.

    `facts` are by the id of the work (`work_id`), `nodes` by host. `layouts` are of physical GPUs in MIG mode, by UUID.
    `healthy` is false for GPUs with an active hardware finding. `at_work` are UUIDs of GPUs and MIG instances that are
    not idle, whoever uses them; of a GPU in MIG mode all instances that are in no reading are meant. `rooms` are by
    host. `risk_horizon_ms` is how far ahead a failure counts.
    """

    facts: Mapping[str, WorkloadFacts] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    islands: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, MigLayout] = field(default_factory=dict)
    healthy: Mapping[str, bool] = field(default_factory=dict)
    at_work: frozenset[str] = frozenset()
    rooms: Mapping[str, HostRoom] = field(default_factory=dict)
    mix: tuple[TaskClass, ...] = ()
    demand: Mapping[str, float] = field(default_factory=dict)
    restart_s: float = 300.0
    risk_horizon_ms: int = 24 * 3_600_000


def work_id(owner: Owner) -> str:
    """The id of the work that a process belongs to: ``slurm/JOB``, ``pod/UID or namespace/name``, ``container/ID``.

    Empty for a process that nothing manages: nobody can move it.
    """
    if owner.slurm_job:
        return f"slurm/{owner.slurm_job.partition('.')[0]}"
    if owner.pod_uid or owner.pod:
        return f"pod/{owner.pod_uid or f'{owner.namespace}/{owner.pod}'}"
    return f"container/{owner.container}" if owner.container else ""


def fleet_state_from(
    readings: Iterable[Reading],
    pools: Iterable[PoolState],
    predictions: Iterable[Prediction],
    now_ms: int,
    knowledge: Knowledge | None = None,
) -> FleetState:
    """The newest reading of each GPU, what schedulers say of pools, and forecasts, as one state.

    A job on several hosts is a gang with one work on each. GPUs that several works share count as time-sliced, in equal
    shares. Processes that nothing manages are work that cannot be moved. What is at work without a known owner is work
    that stays where it is, and so does its node. A GPU in MIG mode of which no layout is known is left out.
    """
    known = knowledge or Knowledge()
    newest = {one.gpu.uuid: one for one in readings}
    whole = {uuid: one for uuid, one in newest.items() if not one.gpu.is_mig}
    parents = {one.gpu.parent for one in newest.values() if one.gpu.is_mig}
    divided = {uuid for uuid, one in whole.items() if uuid in parents or is_divided(one, ())}
    kept = {uuid: one for uuid, one in whole.items() if uuid not in divided or _is_placed(known, uuid)}
    names = {uuid: {_work_name(owner, one.gpu) for owner in one.owners} for uuid, one in newest.items() if one.owners}
    slots = {uuid: _slot(one, len(names.get(uuid, ())), known) for uuid, one in kept.items()}
    works = {work.id: work for work in _works(newest, names, slots, known)}
    works |= {work.id: work for work in _unseen(slots, works.values(), known)}
    nodes = _nodes(kept, predictions, known, now_ms)
    return FleetState(
        now_ms,
        nodes,
        slots,
        works,
        known.budgets,
        _pools(pools, nodes, slots, works, known),
        known.mix,
        known.demand,
        any(one.gpu.simulated for one in kept.values()),
        {uuid: LeftOut(uuid, whole[uuid].gpu.host, _why(known, uuid)) for uuid in sorted(divided - kept.keys())},
    )


def _is_placed(known: Knowledge, uuid: str) -> bool:
    return uuid in known.layouts and known.layouts[uuid].placed is not None


def _why(known: Knowledge, uuid: str) -> str:
    return known.layouts[uuid].reason if uuid in known.layouts else "the placement of its MIG instances is unknown"


def _placed(known: Knowledge, uuid: str) -> Mapping[str, Placement]:
    return known.layouts[uuid].placed or {} if uuid in known.layouts else {}


def _work_name(owner: Owner, gpu: Gpu) -> str:
    return work_id(owner) or f"process/{gpu.host}/{owner.pid}"


def _slot(reading: Reading, sharers: int, known: Knowledge) -> Slot:
    gpu, values = reading.gpu, reading.values
    layout = known.layouts.get(gpu.uuid)
    placed = None if layout is None else layout.placed
    mode = GpuMode.MIG if placed is not None else GpuMode.TIME_SLICE if sharers > 1 else GpuMode.EXCLUSIVE
    return Slot(
        gpu.uuid,
        gpu.host,
        gpu.model,
        mode,
        tuple(sorted(placed.values())) if placed else (),
        template_of(gpu.model),
        known.healthy.get(gpu.uuid, True),
        values.get("gpu_power_limit_watts"),
        values.get("gpu_power_limit_min_watts"),
        values.get("gpu_power_limit_default_watts"),
    )


def _works(
    newest: Mapping[str, Reading], named: Mapping[str, set[str]], slots: Mapping[str, Slot], known: Knowledge
) -> list[Workload]:
    """The works that are `named` by GPU and MIG instance."""
    held: dict[tuple[str, str], list[tuple[GpuHold, str]]] = defaultdict(list)
    for uuid, names in named.items():
        gpu = newest[uuid].gpu
        for name in sorted(names):
            if gpu.is_mig:
                placement = _placed(known, gpu.parent).get(uuid)
                if placement is not None and gpu.parent in slots:
                    held[name, gpu.host].append((GpuHold(gpu.parent, 1.0, placement[1]), placement[0]))
            elif uuid in slots and slots[uuid].mode is not GpuMode.MIG:
                held[name, gpu.host].append((GpuHold(uuid, 1.0 / len(names)), ""))
    hosts = Counter(name for name, _ in held)
    return [
        work
        for (name, host), found in sorted(held.items())
        for work in _pieces(name, host, found, hosts[name] > 1, slots, known)
    ]


def _pieces(
    name: str,
    host: str,
    found: list[tuple[GpuHold, str]],
    several: bool,
    slots: Mapping[str, Slot],
    known: Knowledge,
) -> list[Workload]:
    """The work of `name` on one host: one piece for its whole GPUs, one for each share and each instance, as a gang."""
    whole = tuple(hold for hold, profile in found if not profile and hold.share == 1.0)
    parts = [(whole, "")] if whole else []
    parts += [((hold,), profile) for hold, profile in found if profile or hold.share < 1.0]
    gang = name if several or len(parts) > 1 else ""
    pieces = []
    for number, (holds, profile) in enumerate(parts):
        suffix = f"@{host}" if several else ""
        suffix += f"#{number}" if len(parts) > 1 else ""
        gpus = 1.0 if profile else sum(hold.share for hold in holds)
        model = slots[holds[0].gpu].model
        lone = Workload(name + suffix, gpus, holds, profile, gang, model=model, restart_s=known.restart_s)
        work = _with_facts(lone, known.facts.get(name), known)
        pieces.append(replace(work, stays=GUESSED) if profile and _is_guessed(holds[0], known) else work)
    return pieces


def _is_guessed(hold: GpuHold, known: Knowledge) -> bool:
    layout = known.layouts[hold.gpu]
    return any(start == hold.start for uuid, (_, start) in _placed(known, hold.gpu).items() if uuid in layout.guessed)


def _unseen(slots: Mapping[str, Slot], works: Iterable[Workload], known: Knowledge) -> list[Workload]:
    """A piece of work on each GPU and MIG instance that is at work and that no known work holds."""
    held = {(hold.gpu, hold.start) for work in works for hold in work.holds}
    made = []
    for uuid, slot in slots.items():
        if slot.mode is GpuMode.MIG:
            for name, (profile, start) in _placed(known, uuid).items():
                busy = (uuid if is_unread(name, uuid) else name) in known.at_work
                if busy and (uuid, start) not in held:
                    made.append(_nobodys(name, GpuHold(uuid, 1.0, start), slot, profile))
        elif uuid in known.at_work and (uuid, None) not in held:
            made.append(_nobodys(uuid, GpuHold(uuid), slot))
    return made


def _nobodys(name: str, hold: GpuHold, slot: Slot, profile: str = "") -> Workload:
    work = f"unseen/{name}"
    return Workload(work, holds=(hold,), profile=profile, model=slot.model, movable=False, stays=UNSEEN)


def _with_facts(work: Workload, facts: WorkloadFacts | None, known: Knowledge) -> Workload:
    if facts is None:
        return replace(work, movable=False, stays=UNMANAGED) if work.id.startswith("process/") else work
    return replace(
        work,
        priority=facts.priority,
        budgets=facts.budgets,
        lost_s=facts.lost_s,
        restart_s=known.restart_s if facts.restart_s is None else facts.restart_s,
        checkpoint_every_s=facts.checkpoint_every_s,
        checkpoint_s=facts.checkpoint_s,
        ends_in_s=facts.ends_in_s,
        cpus=facts.cpus,
        memory_bytes=facts.memory_bytes,
        data_hosts=facts.data_hosts,
        movable=facts.movable,
        gang=facts.gang or work.gang,
    )


def _nodes(
    kept: Mapping[str, Reading], predictions: Iterable[Prediction], known: Knowledge, now_ms: int
) -> dict[str, FleetNode]:
    risk = host_risk(predictions, {uuid: one.gpu.host for uuid, one in kept.items()}, now_ms, known.risk_horizon_ms)
    nodes: dict[str, FleetNode] = {}
    for gpu in {one.gpu.host: one.gpu for one in kept.values()}.values():
        manager, room = known.nodes.get(gpu.host), known.rooms.get(gpu.host)
        nodes[gpu.host] = FleetNode(
            gpu.host,
            gpu.pool,
            gpu.rack,
            known.islands.get(gpu.host, ""),
            None if room is None else room.cpus,
            None if room is None else room.memory_bytes,
            schedulable=manager is None or (manager.schedulable and manager.ready),
            risk=risk.get(gpu.host, 0.0),
        )
    return nodes


_OF_FAILURE = (PredictionStatus.LIKELY, PredictionStatus.UNLIKELY)


def host_risk(
    predictions: Iterable[Prediction], host_of: Mapping[str, str], now_ms: int, horizon_ms: int
) -> dict[str, float]:
    """The probability that something of each host fails within the horizon: 1 - the product of what survives.

    Of several predictions about one subject the highest counts. Forecasts of thresholds and of pools count nothing, nor
    do those that tell no probability or whose horizon has passed.
    """
    worst: dict[tuple[str, str], float] = {}
    for one in predictions:
        if one.status not in _OF_FAILURE or one.at_ms + one.horizon_ms < now_ms:
            continue
        host = one.subject.name if one.subject.kind is SubjectKind.HOST else host_of.get(one.subject.name, "")
        if not host:
            continue
        # What no sign foretells is as likely on every host.
        own = one.own_curve if one.curve else ()
        chance = max((p for ahead, p in own if ahead <= horizon_ms), default=one.own_probability)
        if chance is not None:
            key = host, one.subject.key
            worst[key] = max(worst.get(key, 0.0), chance)
    survives: dict[str, float] = {}
    for (host, _), chance in worst.items():
        survives[host] = survives.get(host, 1.0) * (1.0 - min(1.0, max(0.0, chance)))
    return {host: 1.0 - share for host, share in survives.items()}


def _pools(
    states: Iterable[PoolState],
    nodes: Mapping[str, FleetNode],
    slots: Mapping[str, Slot],
    works: Mapping[str, Workload],
    known: Knowledge,
) -> dict[str, Pool]:
    held: dict[str, float] = defaultdict(float)
    size = Counter(nodes[slot.host].pool for slot in slots.values())
    for work in works.values():
        for hold in work.holds:
            slot = slots[hold.gpu]
            held[nodes[slot.host].pool] += share_of(slot, work, hold)
    waiting = {one.name: one.pending_gpus for one in states}
    return {
        name: replace(pool, waiting_gpus=waiting.get(name), utilisation=held[name] / size[name])
        for name, pool in known.pools.items()
        if size[name]
    }
