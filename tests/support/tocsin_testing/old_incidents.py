"""The collapse of version 0 as it was before places were known, to compare with: kept as plain functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from tocsin.domain.clock import SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, SubjectKind
from tocsin.rules.engine import RACK_EVIDENCE
from tocsin.rules.episodes import BURST_EVIDENCE, QUIET_MS
from tocsin.rules.symptoms import code_of, is_verdict, root_order, switch_errors
from tocsin.rules.units import show_duration
from tocsin.rules.xid import xid

NVLINK_CLASS = "nvlink"


def is_nvlink(finding: Finding) -> bool:
    """Whether `finding` is a fault of the NVLink fabric: an XID of its class or a fatal SXid."""
    code = code_of(finding)
    if code is not None:
        return xid(code).xid_class == NVLINK_CLASS
    return any(spec.fatal for spec in switch_errors(finding))


BURST_MS = 60 * SECOND
"""Gap within which faults on several GPUs of one host, rack or fabric are one burst; covers one polling interval."""

FABRIC_MS = 30 * SECOND
"""Gap within which NVLink errors count as one fault of the fabric, wherever they are."""

_FAULTS = frozenset({Category.HARDWARE, Category.POWER, Category.THERMAL, Category.TELEMETRY, Category.APPLICATION})
_SPREADING = frozenset({Category.HARDWARE, Category.POWER, Category.TELEMETRY, Category.APPLICATION})
_RACK_WIDE = frozenset({Category.HARDWARE, Category.POWER})
_BRIDGE = -1


def collapse(findings: Iterable[Finding], events: Iterable[Event] = ()) -> list[Incident]:
    """The incidents that `findings` make, most severe first, then oldest.

    Findings belong together on one GPU with less than QUIET_MS between their starts, XID `events` of that GPU bridging
    gaps; on one host, and for hardware and power on one rack, with less than BURST_MS; and NVLink errors anywhere with
    less than FABRIC_MS, since a fabric spans hosts and racks. A silent or frozen GPU and the driver's verdict join the
    fault before them however long ago it was. Load, memory and fragmentation stand alone.

    The root is the finding nearest to the cause among those that started within QUIET_MS of the first; where the driver
    has given a verdict on the root's GPU, that is the root's action. The order of the arguments does not matter.
    """
    ordered = sorted(set(findings), key=lambda finding: (finding.started_ms, finding.subject.key, finding.rule))
    groups = _Groups(len(ordered))
    _join_gpus(ordered, _xid_instants(events), groups)
    _join_consequences(ordered, groups)
    _join_bursts(ordered, groups)
    members: dict[int, list[Finding]] = defaultdict(list)
    for i, finding in enumerate(ordered):
        members[groups.find(i)].append(finding)
    incidents = [_incident(group) for group in members.values()]
    return sorted(incidents, key=lambda one: (-one.root.severity.rank, one.opened_ms, one.root.subject.key, one.id))


class _Groups:
    """Union-find over the positions of findings; the smallest position stands for its group."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = self._parent[self._parent[i]]
            i = self._parent[i]
        return i

    def join(self, i: int, j: int) -> None:
        a, b = self.find(i), self.find(j)
        self._parent[max(a, b)] = min(a, b)


def _xid_instants(events: Iterable[Event]) -> dict[str, list[int]]:
    instants: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.XID and event.gpu:
            instants[event.gpu].append(event.at_ms)
    return instants


def _by(ordered: Sequence[Finding], key: Callable[[Finding], Hashable | None]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, finding in enumerate(ordered):
        name = key(finding)
        if name is not None:
            groups[name].append(i)
    return list(groups.values())


def _join_gpus(ordered: Sequence[Finding], instants: dict[str, list[int]], groups: _Groups) -> None:
    def subject(finding: Finding) -> Hashable | None:
        kind = "fault" if finding.category in _FAULTS else finding.category
        return (finding.subject.kind, finding.subject.name, kind)

    for positions in _by(ordered, subject):
        bridges = instants.get(ordered[positions[0]].subject.name, [])
        spans = [(ordered[i].started_ms, _burst_end(ordered[i]), i) for i in positions]
        _chain([*spans, *((at, at, _BRIDGE) for at in bridges)], QUIET_MS, groups)


def _chain(spans: Iterable[tuple[int, int, int]], gap_ms: int, groups: _Groups) -> None:
    """Join the findings of spans (start, end, position) with less than `gap_ms` of silence between them."""
    reach, last = 0, _BRIDGE
    for start, end, position in sorted(spans):
        if start - reach >= gap_ms:
            last = _BRIDGE
        if position != _BRIDGE:
            if last != _BRIDGE:
                groups.join(last, position)
            last = position
        reach = max(reach, end)


def _burst_end(finding: Finding) -> int:
    ends = [item.at_ms for item in finding.evidence if item.name == BURST_EVIDENCE]
    return max([finding.started_ms, *ends])


def _join_consequences(ordered: Sequence[Finding], groups: _Groups) -> None:
    """Silence, frozen values and the driver's verdict belong to the newest fault before them on the same GPU."""
    for positions in _by(ordered, lambda f: f.subject.name if f.subject.kind is SubjectKind.GPU else None):
        faults = [i for i in positions if _is_fault(ordered[i])]
        for i in positions:
            finding = ordered[i]
            if finding.category is Category.TELEMETRY or is_verdict(finding):
                before = [j for j in faults if j != i and ordered[j].started_ms <= finding.started_ms + QUIET_MS]
                if before:
                    groups.join(before[-1], i)


def _is_fault(finding: Finding) -> bool:
    return finding.category in _RACK_WIDE and not is_verdict(finding)


def _join_bursts(ordered: Sequence[Finding], groups: _Groups) -> None:
    def host(finding: Finding) -> Hashable | None:
        return finding.subject.host or None if finding.category in _SPREADING else None

    def rack(finding: Finding) -> Hashable | None:
        return _rack(finding) or None if finding.category in _RACK_WIDE else None

    for key in (host, rack):
        for positions in _by(ordered, key):
            _chain([(ordered[i].started_ms, ordered[i].started_ms, i) for i in positions], BURST_MS, groups)
    starts = [(finding.started_ms, i) for i, finding in enumerate(ordered) if is_nvlink(finding)]
    _chain([(start, start, i) for start, i in starts], FABRIC_MS, groups)


def _rack(finding: Finding) -> str:
    return next((item.text for item in finding.evidence if item.name == RACK_EVIDENCE), "")


def _incident(members: list[Finding]) -> Incident:
    first = min(finding.started_ms for finding in members)
    early = [finding for finding in members if finding.started_ms - first < QUIET_MS]
    root = min(early, key=root_order)
    decided = _with_verdict(root, members)
    members = [decided if finding is root else finding for finding in members]
    last = max(finding.last_ms for finding in members)
    return Incident(decided, tuple(members), first, last, _sentence(decided, members))


def _with_verdict(root: Finding, members: Sequence[Finding]) -> Finding:
    """`root` with the action that the driver asks for on its GPU, which outranks any table."""
    verdicts = [
        finding
        for finding in members
        if is_verdict(finding) and finding.subject.name == root.subject.name and finding.action is not ActionKind.NOTIFY
    ]
    if not verdicts or root.category is Category.APPLICATION:
        return root
    return replace(root, action=max(verdicts, key=lambda finding: (finding.last_ms, finding.id)).action)


def _sentence(root: Finding, members: Sequence[Finding]) -> str:
    if len(members) == 1:
        return root.sentence
    subjects = len({finding.subject.key for finding in members})
    hosts = len({finding.subject.host for finding in members if finding.subject.host})
    starts = [finding.started_ms for finding in members]
    others = sorted({f"XID {code}" for finding in members if (code := code_of(finding)) not in (None, code_of(root))})
    also = f", also {', '.join(others)}" if others else ""
    span = show_duration(max(starts) - min(starts))
    return (
        f"{root.sentence} It explains {len(members)} findings on {subjects} subject{'s' if subjects != 1 else ''} of "
        f"{hosts} host{'s' if hosts != 1 else ''} within {span}{also}."
    )
