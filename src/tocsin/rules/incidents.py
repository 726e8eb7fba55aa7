"""Bursts collapsed to their root cause: what belongs together is one incident, in the place that it shares.

An incident that is open stays what it is until all of it is over. Each evaluation collapses what holds now together
with what has cleared of open incidents, and then keeps together what was together: neither the end of a cause, nor a
topology that changed, nor a late event makes two incidents of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Subject, SubjectKind
from tocsin.domain.place import Place
from tocsin.rules import incident_words
from tocsin.rules.cause_groups import OWN, CauseGroup, Symptoms, own_groups
from tocsin.rules.consequences import attach
from tocsin.rules.episodes import QUIET_MS
from tocsin.rules.shared_causes import LASTING, collapse_upward
from tocsin.rules.symptoms import Symptom, cause_rank, code_of, is_standing, is_verdict, root_order, symptom_of
from tocsin.rules.xid_explain import sequences
from tocsin.topology.topology import NO_TOPOLOGY, Topology

__all__ = ["QUIET_MS", "cause_rank", "causes", "collapse", "incident_of", "root_of", "worst_first"]


def collapse(
    findings: Iterable[Finding], events: Iterable[Event] = (), topology: Topology = NO_TOPOLOGY
) -> list[Incident]:
    """The incidents that `findings` make, most severe first, then oldest.

    Findings belong together on one GPU with less than QUIET_MS between their starts, XID `events` of that GPU bridging
    gaps. Findings of one kind on several GPUs become one incident where they cover what those share by `topology`: a
    host, rack, zone, link or job. What follows from a cause elsewhere, such as echoes on the NVLinks, goes to the cause
    that explains it best, within one NVLink domain; where none is known a host is its own. A silent or frozen GPU and
    the driver's verdict join the fault before them however long ago it was. Forecasts, load, memory and fragmentation
    stand alone; what of them is a note on GPUs is one incident for each rule and pool.

    The root is the finding nearest to the cause among those that show the cause itself and started within QUIET_MS of
    the first; where the driver has given a verdict on the root's GPU, that is the root's action. The order of the
    arguments does not matter.
    """
    symptoms, groups = causes(findings, events, topology)
    return worst_first(incident_of(symptoms, group) for group in groups)


def causes(
    findings: Iterable[Finding], events: Iterable[Event], topology: Topology
) -> tuple[Symptoms, list[CauseGroup]]:
    """`findings` in groups of one cause, as `collapse` makes incidents of them."""
    instants, by_code = _xid_instants(events)
    symptoms = Symptoms(_ordered(findings), topology, by_code)
    return symptoms, attach(symptoms, collapse_upward(symptoms, own_groups(symptoms, instants)))


def worst_first(incidents: Iterable[Incident]) -> list[Incident]:
    """`incidents`, most severe first, then oldest."""
    return sorted(incidents, key=lambda one: (-one.root.severity.rank, one.opened_ms, one.root.subject.key, one.id))


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    # A finding is told from others by its rule, subject and start, as its id is; to hash all of it costs far more.
    unique = {(one.started_ms, one.subject.key, one.rule): one for one in findings}
    return [unique[key] for key in sorted(unique)]


def _xid_instants(events: Iterable[Event]) -> tuple[dict[str, list[int]], dict[tuple[str, int], list[int]]]:
    """When each GPU reported XIDs, and when each number of them, in order."""
    instants: dict[str, list[int]] = defaultdict(list)
    by_code: dict[tuple[str, int], list[int]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.XID and event.gpu:
            instants[event.gpu].append(event.at_ms)
            by_code[event.gpu, event.code].append(event.at_ms)
    for times in by_code.values():
        times.sort()
    return instants, by_code


def incident_of(
    symptoms: Symptoms, group: CauseGroup, root: int | None = None, cleared: Collection[int] = ()
) -> Incident:
    """The incident that `group` makes, under the finding at position `root` where that is known already.

    What is at the positions `cleared` holds no more: it stays a member, and the driver's verdict among it has no say.
    """
    positions = sorted((*group.members, *group.effects))
    found = symptoms.ordered[root_of(symptoms, group) if root is None else root]
    members = [symptoms.ordered[i] for i in positions]
    decided = _with_verdict(found, [symptoms.ordered[i] for i in positions if i not in cleared])
    members = [decided if finding is found else finding for finding in members]
    last = max(finding.last_ms for finding in members)
    holding = [finding for i, finding in zip(positions, members, strict=True) if i not in cleared]
    said, said_zh = _words_of(decided, members, holding, group)
    somewhere = found.subject.kind in (SubjectKind.GPU, SubjectKind.HOST)
    place = group.place if somewhere else None
    cleared_ids = tuple(symptoms.ordered[i].id for i in positions if i in cleared)
    return Incident(decided, tuple(members), members[0].started_ms, last, said, place, cleared_ids, said_zh)


def _words_of(
    root: Finding, members: Sequence[Finding], holding: Sequence[Finding], group: CauseGroup
) -> incident_words.Words:
    """What the incident of `root` says; `holding` are those of its members that hold."""
    if is_standing(root):
        return incident_words.standing(holding or [root], group.place)
    cleared = not any(one is root for one in holding)
    hot = [one for one in holding if symptom_of(one) is Symptom.HEAT] if symptom_of(root) is Symptom.HEAT else []
    if cleared and any(one.subject.key == root.subject.key and one.started_ms > root.last_ms for one in hot):
        return incident_words.again(hot, group, root.started_ms)
    said, said_zh = incident_words.burst(root, members, group, len(group.members))
    if cleared:
        more, more_zh = incident_words.over(len(holding))
        said, said_zh = said + more, said_zh and said_zh + more_zh
    return said, said_zh


def root_of(symptoms: Symptoms, group: CauseGroup) -> int:
    """The position of the root: of what shows the cause and started early the finding nearest to it."""
    positions = sorted((*group.members, *group.effects))
    first = symptoms.start(positions[0])
    early = [i for i in group.members if symptoms.start(i) - first < QUIET_MS]
    early = early or [i for i in positions if symptoms.start(i) - first < QUIET_MS]
    return _root(symptoms, early)


def _root(symptoms: Symptoms, early: Sequence[int]) -> int:
    """The member nearest to the cause; on one GPU an XID that is known to lead to another stands before it."""
    ranked = sorted(early, key=lambda i: root_order(symptoms.ordered[i]))
    first = ranked[0]
    code = code_of(symptoms.ordered[first])
    for i in ranked[1:] if code is not None else ():
        same = symptoms.gpu[i] == symptoms.gpu[first] and symptoms.start(i) < symptoms.start(first)
        if same and (code_of(symptoms.ordered[i]), code) in _leads_to():
            return i
    return first


@cache
def _leads_to() -> frozenset[tuple[int | None, int]]:
    """Pairs of XIDs of which the first leads to the second, and not the other way round."""
    pairs = {(code, then) for one in sequences() for code in one.codes for then in one.then}
    return frozenset((code, then) for code, then in pairs if (then, code) not in pairs)


_ORDER = list(ActionKind)
_MILDER = {action: {ActionKind.RESET_GPU, *_ORDER[: _ORDER.index(action)]} for action in ActionKind}
"""What is no repair of a lost GPU for which the table asks for an action."""


def _with_verdict(root: Finding, members: Sequence[Finding]) -> Finding:
    """`root` with the action that the driver asks for on its GPU, which outranks any table.

    A GPU that is lost to its host answers no reset, and what was asked for before takes nothing from the table's word.
    """
    verdicts = [
        finding
        for finding in members
        if is_verdict(finding) and finding.subject.name == root.subject.name and finding.action is not ActionKind.NOTIFY
    ]
    if symptom_of(root) is Symptom.BUS:
        verdicts = [one for one in verdicts if one.action not in _MILDER[root.action]]
    if not verdicts or root.category is Category.APPLICATION:
        return root
    return replace(root, action=max(verdicts, key=lambda finding: (finding.last_ms, finding.id)).action)


REST_MS = DAY
"""How long what stands must be over for its incident to be past: load, memory in use and fragmentation cross their
levels many times a day, and are told of once. So does heat that a person is told of without being woken, for
`TOLD_AGAIN_MS`."""
PAGE_REST_MS = HOUR
"""The same for heat that woke somebody: later it may be another failure (own choice)."""
TOLD_AGAIN_MS = 7 * DAY
"""Heat that comes and goes is a new incident after this long, so that nobody forgets it (own choice)."""
_NEW_CAUSES = OWN - {Symptom.PROGRAM}

Key = tuple[str, str, int]


def key_of(finding: Finding) -> Key:
    """What tells a finding from others, as its id does; to hash all of it costs more."""
    return finding.rule, finding.subject.key, finding.started_ms


@dataclass(slots=True)
class HeldIncident:
    """An incident as it was left: its members as they were last seen, the root first among equals by `root`.

    `over_ms` has, of members that hold no more, the instant of the last evaluation that saw them; `rests_ms`, of one of
    which nothing holds, that of the last that saw any: None while something does.
    """

    root: Key
    members: dict[Key, Finding]
    place: Place | None
    opened_ms: int
    over_ms: dict[Key, int] = field(default_factory=dict)
    rests_ms: int | None = None

    @property
    def alive(self) -> bool:
        """Whether anything of it still holds."""
        return len(self.over_ms) < len(self.members)

    @property
    def standing(self) -> bool:
        """Whether it is about what comes and goes and breaks nothing."""
        return is_standing(self.members[self.root])

    @property
    def heat(self) -> bool:
        """Whether it is about heat of GPUs, which goes with the work and the hour; not about what cools them."""
        root = self.members[self.root]
        return root.subject.kind is SubjectKind.GPU and not root.told and symptom_of(root) is Symptom.HEAT

    @property
    def pages(self) -> bool:
        """Whether a person was woken by any of it."""
        return any(one.alert_level is AlertLevel.PAGE for one in self.members.values())

    def rests(self, now_ms: int) -> bool:
        """Whether it is over, and what of it holds again by now is the same as before."""
        if self.rests_ms is None or not (self.standing or self.heat):
            return False
        return now_ms - self.rests_ms <= (PAGE_REST_MS if self.heat and self.pages else REST_MS)

    def takes_back(self, finding: Finding) -> bool:
        """Whether `finding` can be what it was about before it rested: heat of the same GPU that asks for the same, and
        pages where that had paged."""
        before = [one for one in self.members.values() if one.subject.key == finding.subject.key and not one.told]
        if self.rests_ms is None or not self.rests_ms <= finding.started_ms <= self.opened_ms + TOLD_AGAIN_MS:
            return False
        if finding.told or all(one.action is not finding.action for one in before):
            return False
        return finding.alert_level is not AlertLevel.PAGE or any(one.alert_level is AlertLevel.PAGE for one in before)

    def look(self, live: Mapping[Key, Finding], seen_ms: int) -> None:
        """Take note of what holds now; what does not was last seen at `seen_ms`."""
        for key in self.members:
            if key in live:
                self.members[key] = live[key]
                self.over_ms.pop(key, None)
            else:
                self.over_ms.setdefault(key, seen_ms)
        if self.alive:
            self.rests_ms = None
        elif self.rests_ms is None:
            self.rests_ms = seen_ms
        self._forget_repeats()

    def _forget_repeats(self) -> None:
        """Of what comes and goes under a cause that stays, keep the newest, and nothing of what stands: else there were
        more with every day."""
        if self.standing:
            for key in [key for key in self.over_ms if key != self.root]:
                del self.members[key], self.over_ms[key]
            return
        newest: dict[tuple[str, str], int] = {}
        for rule, subject, start_ms in self.members:
            newest[rule, subject] = max(start_ms, newest.get((rule, subject), start_ms))
        for key in [key for key in self.over_ms if key != self.root and key[2] < newest[key[0], key[1]]]:
            del self.members[key], self.over_ms[key]

    def cause_over_ms(self) -> int | None:
        """When its cause was last seen; None while it goes on.

        Heat and lack of power go on as long as any of those that show the same.
        """
        kind = symptom_of(self.members[self.root])
        shown = [self.root]
        if kind in LASTING:
            shown = [key for key, finding in self.members.items() if symptom_of(finding) is kind]
        over = [self.over_ms.get(key) for key in shown]
        return None if None in over else max(at_ms for at_ms in over if at_ms is not None)


class OpenIncidents:
    """The incidents of one evaluation after another; `held` are those of before a restart, last seen at `seen_ms`.

    For one thread.
    """

    def __init__(self, held: Iterable[HeldIncident] = (), seen_ms: int = 0) -> None:
        self._held = list(held)
        self._seen_ms = seen_ms

    def step(
        self,
        findings: Sequence[Finding],
        events: Sequence[Event],
        topology: Topology,
        now_ms: int,
        *,
        keep_gone: bool = False,
    ) -> list[Incident]:
        """The incidents at `now_ms` of the `findings` that hold, as `collapse` has them.

        An open incident keeps its root and its members until all of them are over; two may still become one, and a
        cause that is nearer may still turn up. A page about a new fault never joins an incident whose cause is over.
        What stands, and heat, rests for REST_MS once nothing of it holds: it is left out, and the same incident if it
        comes back; heat that paged for PAGE_REST_MS.
        With `keep_gone` what nothing holds of is remembered: just after a start not everything has been seen again.
        """
        live = {key_of(one): one for one in findings}
        for one in self._held:
            one.look(live, self._seen_ms)
        alive = [one for one in self._held if one.alive or one.rests(now_ms)]
        gone = [one for one in self._held if not one.alive and not one.rests(now_ms)] if keep_gone else []
        _take_heat_back(alive, live)
        pool = {key: found for one in alive for key, found in one.members.items() if key in one.over_ms} | live
        made = _collapsed(list(pool.values()), events, topology, alive, pool.keys() - live.keys())
        over_ms = {key: at_ms for one in alive for key, at_ms in one.over_ms.items()}
        rests_ms = {one.root: one.rests_ms for one in alive}
        self._held = [_held(one, over_ms, rests_ms) for one in made] + gone
        self._seen_ms = now_ms
        return worst_first(one for one in made if len(one.cleared) < len(one.members))

    @property
    def resting(self) -> frozenset[str]:
        """The ids of the incidents that rest."""
        held = (one for one in self._held if one.rests(self._seen_ms))
        return frozenset(one.members[one.root].id for one in held)


def _take_heat_back(held: Sequence[HeldIncident], live: Mapping[Key, Finding]) -> None:
    """Make heat that holds again a member of the incident that rests and was about it.

    Not where it pages and that GPU did not before, where it is of another incident already, nor where the host is hot
    in a place that was not: that is another cause.
    """
    # Of several on one subject the newest takes it.
    hot = sorted((one for one in held if one.heat), key=lambda one: (one.opened_ms, one.root))
    resting = {subject: one for one in hot if one.rests_ms is not None for _, subject, _ in one.members}
    if not resting:
        return
    known = {key for one in held for key in one.members}
    before = {subject for one in hot for _, subject, _ in one.members}
    heat = {key: finding for key, finding in live.items() if symptom_of(finding) is Symptom.HEAT}
    spread = {_host_of(finding.subject) for key, finding in heat.items() if key[1] not in before}
    back = {key: finding for key, finding in heat.items() if key[1] in resting}
    apart = {key[1] for key, finding in back.items() if key in known or not resting[key[1]].takes_back(finding)}
    for key, finding in back.items():
        if key[1] not in apart and _host_of(finding.subject) not in spread:
            resting[key[1]].members[key] = finding


def _host_of(subject: Subject) -> str:
    return subject.host or subject.name


def _held(incident: Incident, over_ms: Mapping[Key, int], rests_ms: Mapping[Key, int | None]) -> HeldIncident:
    root, members = key_of(incident.root), {key_of(one): one for one in incident.members}
    mine = {key: over_ms[key] for key in members if key in over_ms}
    rests = rests_ms.get(root) if len(mine) == len(members) else None
    return HeldIncident(root, members, incident.place, incident.opened_ms, mine, rests)


def _collapsed(
    findings: Sequence[Finding],
    events: Sequence[Event],
    topology: Topology,
    held: Sequence[HeldIncident],
    cleared: Collection[Key],
) -> list[Incident]:
    symptoms, groups = causes(findings, events, topology)
    if not any(len(one.members) > 1 or one.over_ms for one in held):
        return [incident_of(symptoms, group) for group in groups]
    cohesion = _Cohesion(symptoms, groups, held)
    apart = cohesion.part_new_faults()
    cohesion.keep_together()
    over = {i for i, key in enumerate(cohesion.keys) if key in cleared}
    made = [_as_before(incident_of(symptoms, group, root, over), before) for group, root, before in cohesion.settled()]
    if apart:
        # Without the cause that is over these are seen for what they are; there are fewer of them each time.
        made += _collapsed([symptoms.ordered[i] for i in sorted(apart)], events, topology, held, cleared)
    return made


def _as_before(incident: Incident, before: HeldIncident | None) -> Incident:
    """`incident`, opened when it was opened: a first member may have been forgotten."""
    if before is None or before.opened_ms >= incident.opened_ms:
        return incident
    return replace(incident, opened_ms=before.opened_ms)


class _Cohesion:
    """Groups of one evaluation, which are changed so that what was together stays so."""

    def __init__(self, symptoms: Symptoms, groups: Sequence[CauseGroup], held: Sequence[HeldIncident]) -> None:
        self.keys = [key_of(finding) for finding in symptoms.ordered]
        self._symptoms = symptoms
        self._at = {key: i for i, key in enumerate(self.keys)}
        self._held = sorted((one for one in held if one.root in self._at), key=lambda one: (one.opened_ms, one.root))
        self._groups = list(groups)
        self._group = {i: group for group in groups for i in (*group.members, *group.effects)}
        self._pulled: set[Key] = set()

    def part_new_faults(self) -> set[int]:
        """Take what is a new fault out of groups whose cause was over before; returns the positions."""
        roots = {one.root for one in self._held}
        effects = {key for one in self._held for key in one.members} - roots
        apart: set[Key] = set()
        for one in self._held:
            over_ms = one.cause_over_ms()
            if over_ms is None or one.root in apart:
                continue
            group = self._group[self._at[one.root]]
            for i in (*group.members, *group.effects):
                key = self.keys[i]
                if key not in one.members and key not in effects and (key in roots or self._is_new_fault(i, over_ms)):
                    apart.add(key)
        for one in self._held:
            if one.root in apart:
                apart |= one.members.keys() & self._at.keys()
        self._held = [one for one in self._held if one.root not in apart]
        positions = {self._at[key] for key in apart}
        for i in positions:
            self._take(i)
        return positions

    def _is_new_fault(self, i: int, over_ms: int) -> bool:
        finding = self._symptoms.ordered[i]
        paging = finding.alert_level is AlertLevel.PAGE
        return paging and self._symptoms.kind[i] in _NEW_CAUSES and finding.started_ms > over_ms

    def _take(self, i: int) -> None:
        group = self._group.pop(i)
        (group.members if i in group.members else group.effects).remove(i)

    def keep_together(self) -> None:
        """Bring what has drifted off from an open incident back to the group of its root."""
        roots = {self._at[one.root] for one in self._held}
        for one in self._held:
            target = self._group[self._at[one.root]]
            for key in one.members:
                i = self._at.get(key)
                if i is None or self._group[i] is target:
                    continue
                self._pulled.add(one.root)
                group = self._group[i]
                strange = any(j in roots for j in (*group.members, *group.effects))
                if not strange and self.keys[root_of(self._symptoms, group)] in one.members:
                    # What came since has joined one of the incident's own, and comes along.
                    self._move(group, target)
                else:
                    self._take(i)
                    target.effects.append(i)
                    self._group[i] = target

    def _move(self, group: CauseGroup, target: CauseGroup) -> None:
        for j in (*group.members, *group.effects):
            self._group[j] = target
        if group.kind is target.kind:
            target.absorb(group)
        else:
            target.explain(group)
        group.members, group.effects = [], []

    def settled(self) -> list[tuple[CauseGroup, int, HeldIncident | None]]:
        """The groups with their roots, and the open incident that each of them is."""
        by_group: dict[int, list[HeldIncident]] = {}
        for one in self._held:
            by_group.setdefault(id(self._group[self._at[one.root]]), []).append(one)
        found = []
        for group in self._groups:
            if group.members or group.effects:
                root, before = self._root(group, by_group.get(id(group), ()))
                if before is not None and before.root in self._pulled and before.place is not None:
                    group.place = before.place
                found.append((group, root, before))
        return found

    def _root(self, group: CauseGroup, held: Sequence[HeldIncident]) -> tuple[int, HeldIncident | None]:
        """The root of `group`: that of the open incident which it is, unless something nearer to the cause came."""
        root = root_of(self._symptoms, group)
        key = self.keys[root]
        mine = next((one for one in held if key in one.members), None)
        if mine is None and held:
            best = min(held, key=lambda one: (cause_rank(one.members[one.root]), one.opened_ms, one.root))
            nearer = cause_rank(self._symptoms.ordered[root]) < cause_rank(best.members[best.root])
            mine = None if nearer else best
        return (root, None) if mine is None else (self._at[mine.root], mine)
