"""Random storms of faults over a fleet whose causes are known, to judge how findings are collapsed.

Which errors follow which, after how long and who reports them is physics and NVIDIA's documents (XID catalogue, memory
error guide, fabric manager guide); nothing here is taken from the code under test. Times are milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import Owner
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.topology.claims import Claim, ClaimSource
from tocsin.topology.topology import NO_TOPOLOGY, Topology
from tocsin_testing.builders import T0

SECOND = 1000
MINUTE = 60 * SECOND
POLL_MS = MINUTE


@dataclass(frozen=True)
class Node:
    """One GPU of the site and the places that it is in."""

    uuid: str
    host: str
    rack: str
    domain: str
    """NVLink domain; of a host whose links end in it, the host."""
    wide: bool
    """Whether the domain has more than one host."""
    power: str
    cooling: str
    nvlink5: bool
    job: str


@dataclass
class Site:
    """A random fleet: racks of HGX hosts, and racks that are one NVLink domain, some of two racks."""

    nodes: list[Node] = field(default_factory=list)
    _indexed: dict[str, dict[str, tuple[Node, ...]]] = field(default_factory=dict)

    def of(self, what: str, name: str) -> list[Node]:
        """Nodes by one of their fields; asked first once all nodes are there."""
        if what not in self._indexed:
            self._indexed[what] = grouped((getattr(node, what), node) for node in self.nodes)
        return list(self._indexed[what].get(name, ()))

    def topology(self) -> Topology:
        """All that the site knows, as its sources would tell."""
        claims = []
        for node in self.nodes:
            host, gpu = Place(PlaceKind.HOST, node.host), Place(PlaceKind.GPU, node.uuid)
            claims += [
                Claim(host, Place(PlaceKind.RACK, node.rack), ClaimSource.SITE_FILE),
                Claim(host, Place(PlaceKind.POWER_ZONE, node.power), ClaimSource.SITE_FILE),
                Claim(host, Place(PlaceKind.COOLING_ZONE, node.cooling), ClaimSource.SITE_FILE),
            ]
            if node.wide:
                claims.append(Claim(gpu, Place(PlaceKind.NVLINK_DOMAIN, node.domain), ClaimSource.DRIVER))
        return Topology({node.uuid: node.host for node in self.nodes}, claims)


def make_site(chance: random.Random) -> Site:
    """8 to 14 racks with 200 to 900 GPUs."""
    site = Site()
    racks = chance.randint(8, 14)
    rack = 0
    while rack < racks:
        kind = chance.choices(["hgx4", "hgx5", "nvl72", "nvl36x2"], [4, 2, 3, 1])[0]
        span = 2 if kind == "nvl36x2" else 1
        hosts, gpus = (18, 4) if kind == "nvl72" else (9, 4) if kind == "nvl36x2" else (4, 8)
        for r in range(rack, rack + span):
            for h in range(hosts):
                host = f"n{r:02d}-{h:02d}"
                domain = f"fabric-{rack:02d}" if gpus == 4 else host
                for g in range(gpus):
                    site.nodes.append(
                        Node(
                            f"GPU-{r:02d}{h:02d}{g}",
                            host,
                            f"rack-{r:02d}",
                            domain,
                            gpus == 4,
                            f"feed-{r // 3}",
                            f"crah-{r // 2}",
                            kind != "hgx4",
                            "",
                        )
                    )
        rack += span
    return _with_jobs(site, chance)


def _with_jobs(site: Site, chance: random.Random) -> Site:
    """Jobs on 1 to 6 hosts that follow each other; a fifth of the hosts is idle."""
    hosts = list(dict.fromkeys(node.host for node in site.nodes))
    jobs: dict[str, str] = {}
    i = 0
    while i < len(hosts):
        size = chance.randint(1, 6)
        if chance.random() < 0.8:
            jobs |= dict.fromkeys(hosts[i : i + size], str(1000 + i))
        i += size
    return Site([replace(node, job=jobs.get(node.host, "")) for node in site.nodes])


@dataclass
class Cause:
    """One thing that went wrong. `shared` is the place that it is in where more than one GPU or host shows it."""

    number: int
    kind: str
    at_ms: int
    domains: frozenset[str]
    root: tuple[str, str] | None
    """Rule and GPU or host of the finding that shows the cause itself; None where all findings show it alike."""
    shared: Place | None = None
    by_job: bool = False


@dataclass(frozen=True)
class Happening:
    """An event, or a finding of the telemetry, before it is lost or late."""

    cause: int
    event: Event | None = None
    finding: Finding | None = None

    @property
    def at_ms(self) -> int:
        return self.event.at_ms if self.event is not None else self.finding.started_ms  # type: ignore[union-attr]

    def later(self, by_ms: int) -> Happening:
        if self.event is not None:
            return replace(self, event=replace(self.event, at_ms=self.event.at_ms + by_ms))
        assert self.finding is not None
        return replace(self, finding=replace(self.finding, started_ms=self.finding.started_ms + by_ms))


@dataclass
class Storm:
    """What happened and what is known. `truth` has the cause of each finding by id."""

    site: Site
    topology: Topology
    causes: dict[int, Cause]
    findings: list[Finding]
    events: list[Event]
    truth: dict[str, int]
    paired: bool
    lossy: bool
    blind: bool
    jobs_known: bool


class _Teller:
    """Collects what one cause makes happen."""

    def __init__(self, chance: random.Random, cause: int) -> None:
        self.chance = chance
        self.cause = cause
        self.told: list[Happening] = []

    def xid(self, node: Node, code: int, at_ms: float) -> None:
        event = Event(EventKind.XID, node.uuid, node.host, round(at_ms), code, f"Xid {code}", "kernel_log")
        self.told.append(Happening(self.cause, event))

    def sxid(self, host: str, code: int, at_ms: float) -> None:
        event = Event(EventKind.SXID, "", host, round(at_ms), code, "Fatal", "kernel_log", severity=Severity.CRITICAL)
        self.told.append(Happening(self.cause, event))

    def shows(self, node: Node, rule: str, at_ms: float, now_ms: int) -> None:
        """A finding of the telemetry, which sees by polling what began some time ago."""
        table = next(one for one in shipped_rules() if one.table.name == rule).table
        assert isinstance(table.action, ActionKind)
        subject = Subject(SubjectKind.GPU, node.uuid, node.host, "default")
        metric, value = _MEASURED.get(rule, ("", None))
        made = Finding(
            rule,
            subject,
            Severity(table.severity),
            Category(table.category),
            table.action,
            round(at_ms),
            now_ms,
            f"{node.host} {node.uuid}: {rule}",
            metric,
            value,
        )
        self.told.append(Happening(self.cause, None, made))

    def after(self, least_s: float, most_s: float) -> float:
        return self.chance.uniform(least_s, most_s) * SECOND

    def some(self, nodes: Iterable[Node], share: float) -> list[Node]:
        return [node for node in nodes if self.chance.random() < share]


_MEASURED: dict[str, tuple[str, float | None]] = {
    "temperature_high": ("gpu_temperature_celsius", 90.0),
    "thermal_slowdown": ("gpu_clocks_event_reasons_bitmask", 64.0),
    "power_brake": ("gpu_clocks_event_reasons_bitmask", 128.0),
}


@cache
def shipped_rules() -> RuleSet:
    return load_rules()


def _job_mates(site: Site, node: Node) -> list[Node]:
    mates = site.of("job", node.job) if node.job else site.of("host", node.host)
    return [mate for mate in mates if mate is not node]


def _ends(tell: _Teller, mates: Iterable[Node], at_ms: float, share: float, most_s: float = 25) -> None:
    """Programs that are cleaned up after an error elsewhere: 45 for each channel, now and then 43."""
    for mate in tell.some(mates, share):
        tell.xid(mate, tell.chance.choices([45, 43], [4, 1])[0], at_ms + tell.after(0.5, most_s))


def _nvlink_end(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, 149, at_ms)
    peers = [one for one in site.of("domain", node.domain) if one is not node]
    for peer in tell.some(peers, tell.chance.uniform(0.5, 1)):
        tell.xid(peer, 145, at_ms + tell.after(0.05, 5))
    tell.xid(node, 154, at_ms + tell.after(1, 8))
    if tell.chance.random() < 0.3:
        tell.xid(node, 48, at_ms + tell.after(0.5, 3))
    tell.xid(node, 45, at_ms + tell.after(1, 10))
    _ends(tell, [one for one in _job_mates(site, node) if one.domain == node.domain], at_ms, 0.4)
    return Cause(tell.cause, "nvlink_end", at_ms, frozenset({node.domain}), ("xid_nvlink", node.uuid))


def _nvlink_old(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    """NVLink 2 to 4: both ends of a link report 74."""
    tell.xid(node, 74, at_ms)
    peers = [one for one in site.of("domain", node.domain) if one is not node]
    for peer in tell.chance.sample(peers, tell.chance.randint(1, 3)):
        tell.xid(peer, 74, at_ms + tell.after(0.1, 3))
    tell.xid(node, 45, at_ms + tell.after(1, 10))
    tell.xid(node, 154, at_ms + tell.after(1, 8))
    _ends(tell, [one for one in _job_mates(site, node) if one.host == node.host], at_ms + 3 * SECOND, 0.4)
    return Cause(tell.cause, "nvlink_old", at_ms, frozenset({node.domain}), ("xid_nvlink", node.uuid))


def _switch(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    code, rule = tell.chance.choice(
        [(12020, "nvswitch_fabric_fatal"), (22003, "nvswitch_fabric_fatal"), (20034, "nvswitch_partition_fatal")]
    )
    tell.sxid(node.host, code, at_ms)
    for peer in tell.some(site.of("host", node.host), 0.8):
        tell.xid(peer, 74, at_ms + tell.after(0.1, 4))
    _ends(tell, site.of("host", node.host), at_ms, 0.4)
    return Cause(tell.cause, "switch", at_ms, frozenset({node.domain}), (rule, node.host))


def _bus(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, 79, at_ms)
    tell.xid(node, 154, at_ms + tell.after(0.5, 5))
    tell.xid(node, 45, at_ms + tell.after(0.5, 5))
    peers = [one for one in site.of("domain", node.domain) if one is not node]
    if tell.chance.random() < 0.5:
        for peer in tell.some(peers, 0.5):
            tell.xid(peer, 145 if node.nvlink5 else 74, at_ms + tell.after(0.1, 5))
    _ends(tell, [one for one in _job_mates(site, node) if one.host == node.host], at_ms, 0.5)
    return Cause(tell.cause, "bus", at_ms, frozenset({node.domain}), ("xid_bus", node.uuid))


def _memory(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, 48, at_ms)
    tell.xid(node, tell.chance.choice([171, 172]), at_ms + tell.after(0, 0.5))
    tell.xid(node, tell.chance.choices([63, 64], [5, 1])[0], at_ms + tell.after(0.2, 4))
    tell.xid(node, tell.chance.choice([94, 95]), at_ms + tell.after(0.1, 3))
    tell.xid(node, 45, at_ms + tell.after(1, 15))
    if tell.chance.random() < 0.5:
        tell.xid(node, 154, at_ms + tell.after(1, 10))
    _ends(tell, [one for one in _job_mates(site, node) if one.host == node.host], at_ms, 0.2)
    return Cause(tell.cause, "memory", at_ms, frozenset({node.domain}), ("xid_memory", node.uuid))


def _firmware(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, tell.chance.choice([62, 119, 119, 120]), at_ms)
    tell.xid(node, 154, at_ms + tell.after(1, 20))
    if tell.chance.random() < 0.4:
        tell.xid(node, 79, at_ms + tell.after(5, 60))
    tell.xid(node, 45, at_ms + tell.after(2, 30))
    _ends(tell, [one for one in _job_mates(site, node) if one.host == node.host], at_ms, 0.3)
    return Cause(tell.cause, "firmware", at_ms, frozenset({node.domain}), ("xid_firmware", node.uuid))


def _hang(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, 109, at_ms)
    tell.xid(node, 45, at_ms + tell.after(0.5, 10))
    return Cause(tell.cause, "hang", at_ms, frozenset({node.domain}), ("xid_firmware", node.uuid))


def _board_power(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    tell.xid(node, 54, at_ms)
    tell.xid(node, 45, at_ms + tell.after(1, 20))
    return Cause(tell.cause, "board_power", at_ms, frozenset({node.domain}), ("xid_power", node.uuid))


def _paste(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    now_ms = at_ms + 20 * MINUTE
    tell.shows(node, "temperature_high", at_ms, now_ms)
    if tell.chance.random() < 0.5:
        tell.shows(node, "thermal_slowdown", at_ms + tell.after(60, 600), now_ms)
    return Cause(tell.cause, "paste", at_ms, frozenset({node.domain}), None)


def _program(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    """A bug: all ranks of the job end with the same error, on some only the clean-up is seen."""
    ranks = site.of("job", node.job) if node.job else site.of("host", node.host)
    first = tell.chance.choice([13, 31])
    tell.xid(node, first, at_ms)
    for rank in tell.some((one for one in ranks if one is not node), 0.8):
        tell.xid(rank, first, at_ms + tell.after(0, 4))
    for rank in tell.some(ranks, 0.6):
        tell.xid(rank, tell.chance.choice([43, 45]), at_ms + tell.after(4, 20))
    return Cause(tell.cause, "program", at_ms, frozenset(one.domain for one in ranks), None, by_job=bool(node.job))


def _airflow(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    """A fan or a filter: the GPUs of the host pass their limit one after the other, as their load is."""
    now_ms = at_ms + 20 * MINUTE
    for one in site.of("host", node.host):
        hot_ms = at_ms + tell.after(0, 480)
        tell.shows(one, "temperature_high", hot_ms, now_ms)
        if tell.chance.random() < 0.4:
            tell.shows(one, "thermal_slowdown", hot_ms + tell.after(30, 300), now_ms)
    place = Place(PlaceKind.HOST, node.host)
    return Cause(tell.cause, "airflow", at_ms, frozenset({node.domain}), None, place)


def _cooling(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    now_ms = at_ms + 20 * MINUTE
    hit = site.of("cooling", node.cooling)
    for one in tell.some(hit, 0.9):
        tell.shows(one, "temperature_high", at_ms + tell.after(0, 500), now_ms)
    racks = {one.rack for one in hit}
    place = Place(PlaceKind.COOLING_ZONE, node.cooling) if len(racks) > 1 else Place(PlaceKind.RACK, node.rack)
    return Cause(tell.cause, "cooling", at_ms, frozenset(one.domain for one in hit), None, place)


def _brake(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    now_ms = at_ms + 20 * MINUTE
    hit = site.of("rack", node.rack)
    for one in hit:
        tell.shows(one, "power_brake", at_ms + tell.after(0, 60), now_ms)
    place = Place(PlaceKind.RACK, node.rack)
    return Cause(tell.cause, "brake", at_ms, frozenset(one.domain for one in hit), None, place)


def _dark(site: Site, at_ms: int, tell: _Teller, gone: list[Node], place: Place, kind: str) -> Cause:
    """Nothing of `gone` reports after its last poll; what is left of their NVLink domains sees its links fail."""
    last = {host: at_ms - tell.after(0, 60) for host in dict.fromkeys(one.host for one in gone)}
    for one in gone:
        tell.shows(one, "gpu_silent", last[one.host], at_ms + 20 * MINUTE)
    away = {one.uuid for one in gone}
    domains = frozenset(one.domain for one in gone)
    for one in site.nodes:
        if one.domain in domains and one.uuid not in away and tell.chance.random() < 0.7:
            tell.xid(one, 145, at_ms + tell.after(0.1, 5))
    return Cause(tell.cause, kind, at_ms, domains, None, place)


def _rack_dark(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    gone = site.of("rack", node.rack)
    return _dark(site, at_ms, tell, gone, Place(PlaceKind.RACK, node.rack), "rack_dark")


def _host_dark(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    gone = site.of("host", node.host)
    return _dark(site, at_ms, tell, gone, Place(PlaceKind.HOST, node.host), "host_dark")


def _pcie_switch(site: Site, node: Node, at_ms: int, tell: _Teller) -> Cause:
    """A PCIe switch or riser of a host takes the GPUs behind it along."""
    mates = site.of("host", node.host)
    hit = mates[: len(mates) // 2]
    for one in hit:
        tell.xid(one, 79, at_ms + tell.after(0, 1.5))
        tell.xid(one, 45, at_ms + tell.after(1, 10))
    _ends(tell, mates[len(hit) :], at_ms + 2 * SECOND, 0.5)
    place = Place(PlaceKind.HOST, node.host)
    return Cause(tell.cause, "pcie_switch", at_ms, frozenset({node.domain}), None, place)


Make = Callable[[Site, Node, int, _Teller], Cause]
ON_ONE_GPU: tuple[Make, ...] = (_bus, _memory, _firmware, _hang, _board_power, _paste)
WIDE: tuple[Make, ...] = (_airflow, _cooling, _brake, _rack_dark, _host_dark, _pcie_switch, _program)


def _links(node: Node, chance: random.Random) -> Make:
    if node.nvlink5:
        return _nvlink_end
    return chance.choice((_nvlink_old, _switch))


def _kind_for(node: Node, chance: random.Random, wide: bool) -> Make:
    drawn = chance.random()
    if drawn < 0.35:
        return _links(node, chance)
    return chance.choice(WIDE) if wide and drawn < 0.6 else chance.choice(ON_ONE_GPU)


def make_storm(seed: int) -> Storm:
    """The storm of `seed`: the same seed, the same storm."""
    chance = random.Random(seed)
    site = make_site(chance)
    paired, lossy = chance.random() < 0.3, chance.random() < 0.2
    blind, jobs_known = chance.random() < 0.2, chance.random() < 0.6
    told: list[Happening] = []
    causes: dict[int, Cause] = {}
    taken: set[str] = set()
    # Independent causes in places that share nothing: no rack or zone is struck twice, except by a pair.
    for _ in range(chance.randint(2, 5)):
        free = [node for node in site.nodes if not _zones(site, node) & taken]
        if not free:
            break
        node = chance.choice(free)
        at_ms = T0 + chance.randint(0, 60 * SECOND)
        _strike(site, node, at_ms, chance, causes, told, wide=not paired)
        if paired and len(causes) == 1:
            others = [one for one in site.of("domain", node.domain) if one.uuid != node.uuid]
            second_ms = at_ms + chance.randint(0, 60 * SECOND)
            _strike(site, chance.choice(others), second_ms, chance, causes, told, wide=False)
        taken |= _zones(site, node)
    if lossy:
        told = _spoilt(told, chance)
    findings, events, truth = _found(site, told, causes, chance if jobs_known else None)
    topology = NO_TOPOLOGY if blind else site.topology()
    return Storm(site, topology, causes, findings, events, truth, paired, lossy, blind, jobs_known)


def _zones(site: Site, node: Node) -> set[str]:
    """What a cause at `node` may reach: its zones, and those of its job and NVLink domain."""
    reached = [node, *site.of("domain", node.domain), *(site.of("job", node.job) if node.job else [])]
    return {name for one in reached for name in (one.power, one.cooling)}


def _strike(
    site: Site,
    node: Node,
    at_ms: int,
    chance: random.Random,
    causes: dict[int, Cause],
    told: list[Happening],
    *,
    wide: bool,
) -> None:
    tell = _Teller(chance, len(causes))
    causes[tell.cause] = _kind_for(node, chance, wide)(site, node, at_ms, tell)
    told += tell.told


def _spoilt(told: list[Happening], chance: random.Random) -> list[Happening]:
    """A fifth is lost or up to two minutes late."""
    kept = []
    for one in told:
        drawn = chance.random()
        if drawn >= 0.2:
            kept.append(one)
        elif drawn >= 0.1:
            kept.append(one.later(chance.randint(0, 120 * SECOND)))
    return kept


def _found(
    site: Site, told: list[Happening], causes: dict[int, Cause], owned: random.Random | None
) -> tuple[list[Finding], list[Event], dict[str, int]]:
    """What the shipped rules find in the events, beside what the telemetry shows."""
    by_event: dict[str, int] = {}
    for one in told:
        if one.event is not None:
            by_event.setdefault(one.event.id, one.cause)
    events = sorted({one.event.id: one.event for one in told if one.event is not None}.values(), key=lambda e: e.at_ms)
    engine = RuleEngine(shipped_rules())
    last = max((one.at_ms for one in told), default=T0)
    seen = list(engine.step(Inputs(last + 1, [], events, [], [])).active)
    causes_of: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        causes_of.setdefault((event.gpu, event.host), []).append(event)
    truth: dict[str, int] = {}
    findings: list[Finding] = []
    jobs = {node.uuid: node.job for node in site.nodes if node.job}
    for finding in seen:
        truth[finding.id] = _cause_of(finding, causes_of, by_event)
        findings.append(_owned(finding, jobs) if owned else finding)
    for one in told:
        if one.finding is not None:
            truth[one.finding.id] = one.cause
            findings.append(one.finding)
    return findings, events, truth


def _owned(finding: Finding, jobs: dict[str, str]) -> Finding:
    job = jobs.get(finding.subject.name, "")
    return replace(finding, owners=(Owner(7, "python", slurm_job=f"{job}.0"),)) if job else finding


def _cause_of(finding: Finding, events: dict[tuple[str, str], list[Event]], by_event: dict[str, int]) -> int:
    """The cause of the first of its events that has the number that speaks for it."""
    key = (finding.subject.name, finding.subject.host)
    if finding.subject.kind is SubjectKind.HOST:
        key = ("", finding.subject.name)
    codes = {round(item.value) for item in finding.evidence if item.value is not None and ":" in item.name}
    speaks = {round(finding.value)} if finding.value is not None else codes
    own = [event for event in events[key] if event.code in speaks and event.at_ms >= finding.started_ms]
    return by_event[own[0].id]
