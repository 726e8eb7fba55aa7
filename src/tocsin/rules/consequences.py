"""What follows from a cause elsewhere: echoes of a failed link, clean-up, silence, the driver's verdict.

Each effect goes to the cause that explains it best, and to none that is too far away in time or in another NVLink
domain. So two causes in one domain keep their effects apart, and no chain of effects carries a cause on without end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.place import Place, PlaceKind
from tocsin.rules.cause_groups import CauseGroup, Symptoms, group_of
from tocsin.rules.episodes import QUIET_MS
from tocsin.rules.shared_causes import UNCOUNTED, collapse_words
from tocsin.rules.symptoms import Symptom, code_of

LATE_MS = 2 * MINUTE
"""How long before its cause an effect may be dated: an event can be late by that much (own choice)."""
SOON_MS = 15 * SECOND
"""How long after its cause a symptom follows that could be a cause of its own (own choice)."""
BURST_GAP_MS = 10 * SECOND
"""Silence between two bursts of effects whose cause was not reported (own choice)."""
HANG_MS = 15 * MINUTE
"""How long after a fault of firmware or bus its host may go silent: what runs there hangs, or the host restarts (own
choice)."""

UNHEARD_MS = 10 * MINUTE
"""How long after its last reading a silent GPU may tell of the fault: silence is dated by what was heard last (own
choice)."""

_COST: dict[Symptom, int] = {
    Symptom.NVLINK: 0,
    Symptom.SWITCH: 0,
    Symptom.NVLINK_SIDE: 5 * SECOND,
    Symptom.BUS: 20 * SECOND,
    Symptom.DARK: 60 * SECOND,
}
"""What explains an echo on the NVLinks: the likelier, the less (own choice; the delay in milliseconds is added)."""
_OWN_BONUS = 10 * SECOND
"""By how much a cause on the GPU of an echo is the likelier one (own choice)."""
_JITTER_MS = SECOND // 2
"""How much before its cause an effect may be dated as if it came with it: clocks and logs are read in turns."""
_EVEN: Mapping[Symptom, int] = MappingProxyType({})
_ENDS_PROGRAMS = frozenset(
    {
        Symptom.NVLINK,
        Symptom.NVLINK_SIDE,
        Symptom.SWITCH,
        Symptom.BUS,
        Symptom.DARK,
        Symptom.MEMORY,
        Symptom.FIRMWARE,
        Symptom.HANG,
        Symptom.PROGRAM,
        Symptom.OTHER,
    }
)
_REACHES_PEERS = frozenset({Symptom.NVLINK, Symptom.NVLINK_SIDE, Symptom.SWITCH, Symptom.BUS, Symptom.DARK})
_STAYS_ON_HOST = _ENDS_PROGRAMS - _REACHES_PEERS
_COST_OF_PEERS, _COST_ON_HOST, _COST_IN_DOMAIN = 10 * SECOND, 20 * SECOND, 25 * SECOND
"""What explains a clean-up on another GPU: what its GPU heard of costs nothing, these so much more (own choice)."""
_FAULTS = (_ENDS_PROGRAMS | {Symptom.POWER}) - {Symptom.DARK, Symptom.PROGRAM}
_ON_OWN_GPU = _FAULTS | {Symptom.PROGRAM, Symptom.HEAT}
_WORTH_A_WORD = _FAULTS | {Symptom.NVLINK_ECHO}
_NEAR_KINDS = 3
"""Groups of one kind on either side of an effect that are compared; a group further away would cost more."""


class Causes:
    """Groups by key and kind, by start, to find those that are near an effect."""

    def __init__(self, groups: Iterable[CauseGroup], keys: Callable[[CauseGroup], Iterable[Hashable]]) -> None:
        self._found: dict[Hashable, dict[Symptom, list[CauseGroup]]] = defaultdict(lambda: defaultdict(list))
        self._starts: dict[tuple[Hashable, Symptom], list[int]] = {}
        for group in groups:
            for key in keys(group):
                self._found[key][group.kind].append(group)
        for key, kinds in self._found.items():
            for kind, same in kinds.items():
                same.sort(key=lambda one: (one.start_ms, one.members[0]))
                self._starts[key, kind] = [one.start_ms for one in same]

    def near(self, key: Hashable, at_ms: int, kinds: Iterable[Symptom]) -> list[CauseGroup]:
        """The groups of each of `kinds` that start next before and after `at_ms`, a few of each."""
        found: list[CauseGroup] = []
        by_kind = self._found.get(key, {})
        for kind in kinds:
            same = by_kind.get(kind)
            if same:
                at = bisect_right(self._starts[key, kind], at_ms)
                found += same[max(0, at - _NEAR_KINDS) : at + _NEAR_KINDS]
        return found


def in_reach(at_ms: int, group: CauseGroup) -> bool:
    """Whether an effect at `at_ms` may follow from `group`."""
    return group.start_ms - LATE_MS <= at_ms < group.end_ms + QUIET_MS


def weight(at_ms: int, group: CauseGroup, cost: Mapping[Symptom, int] = _EVEN) -> tuple[bool, int, int, int]:
    """Sort key under which the group comes first that explains an effect at `at_ms` best: a cause comes before it."""
    late = at_ms < group.start_ms - _JITTER_MS
    return late, abs(at_ms - group.start_ms) + cost.get(group.kind, 0), group.start_ms, group.members[0]


def best(
    at_ms: int, groups: Iterable[CauseGroup], cost: Mapping[Symptom, int] = _EVEN, *, late: bool = True
) -> CauseGroup | None:
    """The group that explains an effect at `at_ms` best; None where none can. Without `late` only those before it."""
    able = [one for one in groups if in_reach(at_ms, one) and (late or at_ms >= one.start_ms - _JITTER_MS)]
    return min(able, key=lambda one: weight(at_ms, one, cost), default=None)


def attach(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """`groups` with all that follows from them; effects that nothing explains become groups of their own."""
    groups = _attach_dark(groups)
    groups = _attach_powerless(groups)
    groups = _attach_sides(symptoms, groups)
    heard: dict[str, list[tuple[int, CauseGroup]]] = defaultdict(list)
    groups = _attach_echoes(symptoms, groups, heard)
    groups = _attach_follow_ups(symptoms, groups, heard)
    groups = _attach_programs(symptoms, groups)
    groups = _attach_cleanup(symptoms, groups, heard)
    return _attach_words(symptoms, groups)


def _left(groups: Iterable[CauseGroup]) -> list[CauseGroup]:
    return [group for group in groups if group.into is None]


def _positions(symptoms: Symptoms, *kinds: Symptom) -> list[int]:
    return [i for i, kind in enumerate(symptoms.kind) if kind in kinds]


def _by_gpu(groups: Iterable[CauseGroup]) -> Causes:
    return Causes(groups, lambda one: sorted(one.gpus))


def _by_host(groups: Iterable[CauseGroup]) -> Causes:
    return Causes(groups, lambda one: sorted(one.hosts))


def _by_domain(symptoms: Symptoms, groups: Iterable[CauseGroup]) -> Causes:
    return Causes(groups, lambda one: sorted({symptoms.domain(i) for i in one.members}))


def _attach_dark(groups: list[CauseGroup]) -> list[CauseGroup]:
    """Silent GPUs belong to the newest fault before it that all of them have, a silent host to one that hangs hosts.

    What befell more than the GPU or the host that is silent explains it for `HANG_MS`: later it may be anything.
    """
    on_gpu: dict[str, list[CauseGroup]] = defaultdict(list)
    on_host = _by_host(groups)
    for group in groups:
        if group.kind in _FAULTS:
            for gpu in group.gpus:
                on_gpu[gpu].append(group)
    for dark in [one for one in groups if one.kind is Symptom.DARK]:
        # Of one GPU of it is enough: a cause has all of them.
        before = on_gpu[min(dark.gpus)] if dark.gpus else []
        able = [one for one in before if dark.gpus <= one.gpus and one.start_ms <= dark.start_ms + UNHEARD_MS]
        if dark.place.kind is not PlaceKind.GPU:
            able = [one for one in able if one.hosts == dark.hosts or dark.start_ms - one.start_ms <= HANG_MS]
        if not able and dark.place.kind is PlaceKind.HOST:
            near = on_host.near(dark.place.name, dark.start_ms, (Symptom.BUS, Symptom.FIRMWARE, Symptom.POWER))
            able = [one for one in near if -LATE_MS <= dark.start_ms - one.start_ms <= HANG_MS]
        if able:
            max(able, key=lambda one: (one.start_ms, one.members[0])).final().explain(dark)
    return _left(groups)


def _attach_powerless(groups: list[CauseGroup]) -> list[CauseGroup]:
    """What loses its power is lost or dark: groups within the place of a group about power."""
    lost = _by_host(one for one in groups if one.kind in (Symptom.BUS, Symptom.DARK))
    for cause in [one for one in groups if one.kind is Symptom.POWER and one.place.kind is not PlaceKind.GPU]:
        for host in sorted(cause.hosts):
            for other in lost.near(host, cause.start_ms, (Symptom.BUS, Symptom.DARK)):
                if other.into is None and other.hosts <= cause.hosts and in_reach(other.start_ms, cause):
                    cause.explain(other)
    return _left(groups)


def _attach_sides(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """NVLink errors that either end reports: beside a failed end or a lost GPU, else of one burst in the domain."""
    sides = [one for one in groups if one.kind is Symptom.NVLINK_SIDE]
    if not sides:
        return groups
    others = [one for one in groups if one.kind is not Symptom.NVLINK_SIDE]
    in_domain, on_gpu = _by_domain(symptoms, [one for one in others if one.kind in _COST]), _by_gpu(others)
    for side in sides:
        near = in_domain.near(symptoms.domain(side.members[0]), side.start_ms, _COST)
        cause = best(side.start_ms, [one for one in near if _beside(side.start_ms, one)], _COST)
        if cause is not None:
            cause.final().explain(side)
    alone = [one for one in sides if one.into is None]
    for side in _join_bursts(alone, _bursts_of(symptoms, alone), symptoms):
        near = in_domain.near(symptoms.domain(side.members[0]), side.start_ms, (Symptom.SWITCH,))
        late = best(side.start_ms, [one for one in near if not one.effects])
        if late is not None:
            late.explain(side)
        elif side.place.kind is PlaceKind.GPU:
            _join_own(side, on_gpu)
    return _left(groups)


def _beside(at_ms: int, group: CauseGroup) -> bool:
    """Whether a symptom at `at_ms`, which could be a cause of its own, comes with `group`."""
    most_ms = QUIET_MS if group.kind is Symptom.SWITCH else SOON_MS
    return -_JITTER_MS <= at_ms - group.start_ms <= most_ms


def _join_own(side: CauseGroup, on_gpu: Causes) -> None:
    """An NVLink error that no other GPU reports is one with what else befell its own GPU then."""
    near = on_gpu.near(side.place.name, side.start_ms, _FAULTS)
    own = best(side.start_ms, [one for one in near if one.into is None])
    if own is not None:
        own.absorb(side)
        own.place = side.place


def _join_bursts(
    groups: list[CauseGroup], key: Callable[[CauseGroup], Hashable], symptoms: Symptoms
) -> list[CauseGroup]:
    """Groups of one key as bursts: a burst ends before the next one begins, and QUIET_MS after its start at the latest.

    Single stragglers begin no burst: late events come one by one, another cause comes with all that follows it.
    """
    keyed: dict[Hashable, list[CauseGroup]] = defaultdict(list)
    for group in groups:
        keyed[key(group)].append(group)
    for same in keyed.values():
        same.sort(key=lambda one: (one.start_ms, one.members[0]))
        first = same[0]
        for at, other in enumerate(same[1:], start=1):
            begins = other.start_ms - same[at - 1].start_ms > BURST_GAP_MS and _goes_on(same, at)
            if begins or other.start_ms - first.start_ms >= QUIET_MS:
                first = other
            else:
                first.absorb(other)
                first.place = _shared(symptoms, first)
    return _left(groups)


def _bursts_of(symptoms: Symptoms, groups: Iterable[CauseGroup]) -> Callable[[CauseGroup], Hashable]:
    """The key of bursts that nothing explains: their NVLink domain, where that is more than one agent's word or three
    hosts take part; else the host in it."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for one in groups:
        hosts[symptoms.domain(one.members[0])] |= one.hosts

    def key(one: CauseGroup) -> Hashable:
        i = one.members[0]
        domain, topology = symptoms.domain(i), symptoms.topology
        name = topology.name(PlaceKind.NVLINK_DOMAIN, symptoms.gpu[i], symptoms.host[i])
        wide = topology.confirmed(Place(PlaceKind.NVLINK_DOMAIN, name)) or len(hosts[domain]) >= UNCOUNTED
        return domain if wide else (domain, symptoms.host[i])

    return key


def _goes_on(same: Sequence[CauseGroup], at: int) -> bool:
    return at + 1 < len(same) and same[at + 1].start_ms - same[at].start_ms <= BURST_GAP_MS


def _shared(symptoms: Symptoms, group: CauseGroup) -> Place:
    """The place that the GPUs of an unexplained burst share: one GPU, one host, else the NVLink domain."""
    if len(group.gpus) == 1 and len(group.hosts) < 2:
        return Place(PlaceKind.GPU, *group.gpus)
    if len(group.hosts) == 1:
        return Place(PlaceKind.HOST, *group.hosts)
    topology, first = symptoms.topology, group.members[0]
    name = topology.name(PlaceKind.NVLINK_DOMAIN, symptoms.gpu[first], symptoms.host[first])
    return Place(PlaceKind.NVLINK_DOMAIN, name) if name else group.place


def _attach_echoes(
    symptoms: Symptoms, groups: list[CauseGroup], heard: dict[str, list[tuple[int, CauseGroup]]]
) -> list[CauseGroup]:
    """Echoes go to a cause on their own GPU, else to the best of their domain; `heard` notes by GPU where they went."""
    echoes = _positions(symptoms, Symptom.NVLINK_ECHO)
    if not echoes:
        return groups
    able = [one for one in groups if one.kind in _COST]
    on_gpu, in_domain = _by_gpu(groups), _by_domain(symptoms, able)
    lone: list[CauseGroup] = []
    for i in echoes:
        gpu, at_ms = symptoms.gpu[i], symptoms.start(i)
        own = set(on_gpu.near(gpu, at_ms, _COST)) if gpu else set()
        cause = _likeliest(at_ms, own, in_domain.near(symptoms.domain(i), at_ms, _COST))
        if cause is None and gpu:
            cause = best(at_ms, on_gpu.near(gpu, at_ms, _FAULTS))
        if cause is None:
            lone.append(group_of(symptoms, [i]))
            heard[gpu].append((at_ms, lone[-1]))
        else:
            cause.final().effects.append(i)
            heard[gpu].append((at_ms, cause))
    return [*groups, *_join_bursts(lone, _bursts_of(symptoms, lone), symptoms)]


def _likeliest(at_ms: int, own: Collection[CauseGroup], others: Iterable[CauseGroup]) -> CauseGroup | None:
    """The cause of an echo: one on its own GPU before others that are about as near."""
    able = [one for one in {*own, *others} if in_reach(at_ms, one)]

    def order(one: CauseGroup) -> tuple[bool, int, int, int]:
        late, far, start_ms, first = weight(at_ms, one, _COST)
        return late, far - (_OWN_BONUS if one in own else 0), start_ms, first

    return min(able, key=order, default=None)


def _attach_follow_ups(
    symptoms: Symptoms, groups: list[CauseGroup], heard: dict[str, list[tuple[int, CauseGroup]]]
) -> list[CauseGroup]:
    """An XID 48 without a word on DRAM, SRAM or rows, right after an NVLink error of its GPU, follows from that."""
    for group in groups:
        if group.kind is not Symptom.MEMORY or len(group.members) != 1 or group.effects:
            continue
        finding = symptoms.ordered[group.members[0]]
        codes = {item.name for item in finding.evidence if item.name.startswith("xid:")}
        if code_of(finding) != 48 or codes - {"xid:48"}:
            continue
        for at_ms, cause in heard.get(symptoms.gpu[group.members[0]], ()):
            if 0 <= group.start_ms - at_ms <= SOON_MS and cause.final() is not group:
                cause.final().explain(group)
                break
    return _left(groups)


def _attach_programs(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """Faults of programs right after a hardware fault that reaches them: in their job, or on their host."""
    programs = [one for one in groups if one.kind is Symptom.PROGRAM]
    if not programs:
        return groups
    hardware = [one for one in groups if one.kind in _REACHES_PEERS]
    on_host = _by_host(hardware)
    in_job = Causes(hardware, lambda one: sorted({symptoms.job(i) for i in (*one.members, *one.effects)} - {""}))
    for program in programs:
        job, at_ms = symptoms.job(program.members[0]), program.start_ms
        if job:
            near = in_job.near(job, at_ms, _REACHES_PEERS)
        else:
            near = [one for host in sorted(program.hosts) for one in on_host.near(host, at_ms, _REACHES_PEERS)]
        cause = best(at_ms, [one for one in near if 0 <= at_ms - one.start_ms <= SOON_MS])
        if cause is not None:
            cause.final().explain(program)
    return _left(groups)


def _attach_cleanup(
    symptoms: Symptoms, groups: list[CauseGroup], heard: dict[str, list[tuple[int, CauseGroup]]]
) -> list[CauseGroup]:
    """Clean-up follows what ended the program: on its own GPU, what its GPU heard of, its host, domain or job; so does
    a reset, which on AMD takes all cards of an XGMI hive."""
    found = _positions(symptoms, Symptom.CLEANUP, Symptom.RESET)
    if not found:
        return groups
    able = [one for one in groups if one.kind in _ENDS_PROGRAMS]
    on_gpu, on_host = _by_gpu(groups), _by_host(able)
    in_domain = _by_domain(symptoms, [one for one in able if one.kind in _REACHES_PEERS])
    in_job = Causes(able, lambda one: sorted({symptoms.job(i) for i in (*one.members, *one.effects)} - {""}))
    lone: list[CauseGroup] = []
    for i in found:
        gpu, at_ms, job = symptoms.gpu[i], symptoms.start(i), symptoms.job(i)
        near = [*((one.final(), 0) for _, one in heard.get(gpu, ())), *_around(symptoms, i, on_host, in_domain)]
        cause = _first_of(at_ms, [(one, 0) for one in on_gpu.near(gpu, at_ms, _ON_OWN_GPU)], near)
        if cause is None and job:
            cause = best(at_ms, in_job.near(job, at_ms, _ENDS_PROGRAMS), late=False)
        if cause is None:
            lone.append(group_of(symptoms, [i]))
        else:
            cause.final().effects.append(i)
    return [*groups, *_join_bursts(lone, partial(_work_of, symptoms), symptoms)]


def _first_of(at_ms: int, *wider: Collection[tuple[CauseGroup, int]]) -> CauseGroup | None:
    """The best of the narrowest groups, each with its cost, that come before an effect, else that it was late for."""
    for late in (False, True):
        for groups in wider:
            able = [(one, cost) for one, cost in groups if in_reach(at_ms, one) and (late or not weight(at_ms, one)[0])]
            if able:
                return min(able, key=lambda pair: _costly(at_ms, *pair))[0]
    return None


def _costly(at_ms: int, group: CauseGroup, cost: int) -> tuple[bool, int, int, int]:
    late, far, start_ms, first = weight(at_ms, group)
    return late, far + cost, start_ms, first


def _around(symptoms: Symptoms, i: int, on_host: Causes, in_domain: Causes) -> list[tuple[CauseGroup, int]]:
    """Causes on the host of a finding, and in its domain, whose job is not known to be another; with their cost."""
    job, at_ms = symptoms.job(i), symptoms.start(i)
    near = [(one, _COST_OF_PEERS) for one in on_host.near(symptoms.host[i], at_ms, _REACHES_PEERS)]
    near += [(one, _COST_ON_HOST) for one in on_host.near(symptoms.host[i], at_ms, _STAYS_ON_HOST)]
    near += [(one, _COST_IN_DOMAIN) for one in in_domain.near(symptoms.domain(i), at_ms, _REACHES_PEERS)]
    return [(one, cost) for one, cost in near if not job or symptoms.job(one.members[0]) in ("", job)]


def _work_of(symptoms: Symptoms, group: CauseGroup) -> Hashable:
    first = group.members[0]
    where = symptoms.host[first] or symptoms.gpu[first]
    return (symptoms.job(first), symptoms.domain(first)) if symptoms.job(first) else where


def _attach_words(symptoms: Symptoms, groups: list[CauseGroup]) -> list[CauseGroup]:
    """Verdicts, frozen values and lost metrics belong to the newest fault before them on their GPU, however long ago it
    was; a verdict without one to the nearest on its host or in its domain."""
    found = _positions(symptoms, Symptom.VERDICT, Symptom.STALE)
    if not found:
        return groups
    faults: dict[str, list[tuple[int, CauseGroup]]] = defaultdict(list)
    for group in groups:
        for i in (*group.members, *group.effects):
            if symptoms.gpu[i] and symptoms.kind[i] in _WORTH_A_WORD:
                faults[symptoms.gpu[i]].append((symptoms.start(i), group))
    on_host = _by_host(one for one in groups if one.kind in _FAULTS)
    in_domain = _by_domain(symptoms, [one for one in groups if one.kind in _REACHES_PEERS])
    lone: dict[str, list[int]] = defaultdict(list)
    for i in found:
        at_ms = symptoms.start(i)
        before = [one for one in faults.get(symptoms.gpu[i], ()) if one[0] <= at_ms + QUIET_MS]
        cause = max(before, key=lambda one: (one[0], -one[1].members[0]))[1] if before else None
        if cause is None and symptoms.kind[i] is Symptom.VERDICT:
            cause = best(at_ms, on_host.near(symptoms.host[i], at_ms, _FAULTS))
            cause = cause or best(at_ms, in_domain.near(symptoms.domain(i), at_ms, _REACHES_PEERS))
        if cause is None:
            lone[symptoms.gpu[i] or symptoms.ordered[i].subject.key].append(i)
        else:
            cause.final().effects.append(i)
    return [*groups, *_lone_words(symptoms, lone)]


def _lone_words(symptoms: Symptoms, lone: dict[str, list[int]]) -> list[CauseGroup]:
    made: list[CauseGroup] = []
    for positions in lone.values():
        chain: list[int] = []
        for i in positions:
            if chain and symptoms.start(i) - symptoms.start(chain[-1]) >= QUIET_MS:
                made.append(group_of(symptoms, chain))
                chain = []
            chain.append(i)
        made.append(group_of(symptoms, chain))
    return collapse_words(symptoms, made)
