"""One look at this node: what its GPUs say now, judged by the rules as they stand, with one verdict."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from tocsin.collector.source import Hurries, Source
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, Clock, to_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Finding, Severity, SubjectKind
from tocsin.domain.metrics import MetricKind
from tocsin.domain.reading import Missing, Reading, sanitise
from tocsin.rules.conditions.base import Condition
from tocsin.rules.conditions.rate import Rate
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.rules.xid import XidCatalogue
from tocsin.runtime.agent.companions import Companions, Context, find_companion
from tocsin.runtime.agent.sources import open_settled
from tocsin.telemetry.metrics import OwnMetrics

BESIDE = ("kernel_log", "attribution")
"""Companions that have something to say within seconds."""


def scan_node(
    settings: Settings, source_name: str, clock: Clock, pause: Callable[[float], object], back_ms: int
) -> ScanReport:
    """Scan by source `source_name` and the rules of the settings, with the kernel's XIDs of the last `back_ms`.

    Raises InputError for a source that does not exist and Unavailable where it cannot be opened.
    """
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    with opened(settings, source_name, clock) as (source, beside, blind):
        report = scan(source, rules, clock, pause, enrich=recent(beside, back_ms))
        return replace(report, blind=("the kernel log",) if blind else ())


@contextmanager
def opened(settings: Settings, source_name: str, clock: Clock) -> Iterator[tuple[Source, Companions, bool]]:
    """A source, what has something to say beside it, and whether a kernel log that is wanted cannot be read.

    Raises InputError for a source that does not exist and Unavailable where it cannot be opened.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-scan-")))
        # The agent's state is elsewhere: a scan reads this boot's log from its start, an agent goes on.
        agent = settings.agent.model_copy(update={"spool": folder / "spool.db"})
        source = open_settled(source_name, settings, clock)
        stack.callback(source.close)
        context = Context(settings.model_copy(update={"agent": agent}), clock, OwnMetrics(), source.name)
        beside = Companions(context, [(name, find_companion(name)) for name in BESIDE])
        stack.callback(beside.close)
        wanted = settings.agent.kernel_log != "off" and context.is_this_node
        yield source, beside, wanted and "kernel_log" not in beside.names


def recent(beside: Companions, back_ms: int) -> Callable[[Batch, int], Batch]:
    """Adds what the companions know, events of the last `back_ms` alone: the kernel log goes back to the boot."""

    def enrich(batch: Batch, now_ms: int) -> Batch:
        made = beside.enrich(batch, now_ms)
        return replace(made, events=[event for event in made.events if event.at_ms >= now_ms - back_ms])

    return enrich


LOOKS_MS = SECOND
PAUSE_SECONDS = LOOKS_MS / SECOND
"""Between the two readings of a scan: rates and activity counters need a stretch of time, and NVML 100 ms at least."""
SHOWN = (
    "gpu_temperature_celsius",
    "gpu_power_watts",
    "gpu_utilization_ratio",
    "gpu_memory_used_ratio",
    "gpu_recovery_action",
    "gpu_xid_last_code",
)
"""Metrics that the report gives of each GPU."""
_LAST_XID = "gpu_xid_last_code"


class NodeHealth(IntEnum):
    """A verdict; the number is the exit code of ``tocsin scan``."""

    HEALTHY = 0
    ATTENTION = 1
    ACT_NOW = 2
    CANNOT_SEE = 3

    @property
    def label(self) -> str:
        """In words: ``act now``."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU or MIG instance: its verdict, its newest reading, what was found on it."""

    reading: Reading
    health: NodeHealth
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        gpu, missing = self.reading.gpu, Counter(reason.label for reason in self.reading.missing.values())
        return {
            "gpu": gpu.uuid,
            "index": gpu.index,
            "model": gpu.model,
            "host": gpu.host,
            "mig_profile": gpu.mig_profile,
            "simulated": gpu.simulated,
            "health": self.health.label,
            "values": {name: self.reading.values[name] for name in SHOWN if name in self.reading.values},
            "metrics": len({key.partition("{")[0] for key in self.reading.values}),
            "missing": dict(sorted(missing.items())),
            "owners": [owner.as_json() for owner in self.reading.owners],
            "findings": [finding_as_json(finding) for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The whole scan. `findings` are all of them, worst first; those of the host itself belong to no GPU.

    `blind` names what could not be looked at, `notes` say what is worth knowing and changes no verdict.
    """

    source: str
    at_ms: int
    gpus: tuple[GpuReport, ...]
    findings: tuple[Finding, ...]
    events: tuple[Event, ...]
    blind: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def health(self) -> NodeHealth:
        """The worst of all: what calls for action outranks what cannot be seen, as a node without any GPU does."""
        verdicts = [report.health for report in self.gpus] or [NodeHealth.CANNOT_SEE]
        verdicts += [health_of(finding) for finding in self.findings]
        return NodeHealth.ACT_NOW if NodeHealth.ACT_NOW in verdicts else max(verdicts)

    def as_json(self) -> dict[str, Any]:
        """The wire form of ``tocsin scan --json``."""
        return {
            "health": self.health.label,
            "exit_code": int(self.health),
            "source": self.source,
            "blind": list(self.blind),
            "at": to_iso(self.at_ms),
            "gpus": [report.as_json() for report in self.gpus],
            "findings": [finding_as_json(finding) for finding in self.findings],
            "events": [
                {
                    "kind": event.kind.value,
                    "gpu": event.gpu,
                    "code": event.code,
                    "at": to_iso(event.at_ms),
                    "message": event.message,
                }
                for event in self.events
            ],
            "notes": list(self.notes),
        }


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """What a scan says of a finding."""
    return {
        "rule": finding.rule,
        "subject": finding.subject.name,
        "severity": finding.severity.value,
        "action": finding.action.value,
        "sentence": finding.sentence,
    }


def health_of(finding: Finding) -> NodeHealth:
    """A critical finding calls for action, a warning for attention, the rest for nothing."""
    return {Severity.CRITICAL: NodeHealth.ACT_NOW, Severity.WARNING: NodeHealth.ATTENTION}.get(
        finding.severity, NodeHealth.HEALTHY
    )


def scan(
    source: Source,
    rules: RuleSet,
    clock: Clock,
    pause: Callable[[float], object],
    past: Iterable[Event] = (),
    enrich: Callable[[Batch, int], Batch] = lambda batch, _now_ms: batch,
) -> ScanReport:
    """Read `source` twice, `pause` seconds apart, and judge.

    Rules that ask for a state over some time are asked whether it holds now; those that compare with a longer past have
    none here and stay silent. `past` are events from before, such as those of the kernel log. `enrich` adds what runs
    beside the source. Raises what the source raises.
    """
    engine = RuleEngine(at_once(between_looks(rules)))
    events = list(past)
    newest: dict[str, Reading] = {}
    findings: Sequence[Finding] = ()
    for number in range(2):
        if number:
            pause(PAUSE_SECONDS)
            if isinstance(source, Hurries):
                source.hurry()
        now_ms = clock.now_ms()
        batch = enrich(source.read(now_ms), now_ms)
        readings = [sanitise(reading)[0] for reading in batch.readings]
        newest |= {reading.gpu.uuid: reading for reading in readings}
        events += batch.events
        findings = engine.step(Inputs(now_ms, readings, tuple(events))).active
    ordered = tuple(sorted(findings, key=lambda finding: -finding.severity.rank))
    reports = tuple(_report(reading, ordered) for reading in newest.values())
    notes = tuple(standing_xids(newest.values(), events, rules.xids))
    seen = tuple({event.id: event for event in events}.values())
    return ScanReport(source.name, now_ms, reports, ordered, seen, notes=notes)


def standing_xids(readings: Collection[Reading], events: Iterable[Event], xids: XidCatalogue) -> Iterator[str]:
    """A sentence for each GPU whose last-XID gauge stands at a critical number of which no event was seen.

    Such a gauge is never cleared: what it shows at the first look may be of a moment ago or of last month.
    """
    seen_xids = {(event.gpu, event.code) for event in events if event.kind is EventKind.XID}
    several = len({reading.gpu.host for reading in readings}) > 1
    for reading in readings:
        gpu, code = reading.gpu, int(reading.values.get(_LAST_XID, 0))
        if xids.of(code).severity is not Severity.CRITICAL or seen_xids & {(gpu.uuid, code), (gpu.parent, code)}:
            continue
        name = f"GPU {gpu.uuid if gpu.index is None else gpu.index}{f'/{gpu.mig_profile}' if gpu.is_mig else ''}"
        where = f"{gpu.host} {name}" if several else name
        yield f"{where}: XID {code} stands in the last-XID gauge; when it came is unknown"


def between_looks(rules: RuleSet) -> RuleSet:
    """`rules` whose counters are judged by what they grow between two looks, `LOOKS_MS` apart.

    A rate per second or less is the rate between the looks. Of any other, the looks have to show as much growth as the
    rule allows for its whole window: a counter does not fall, so the rule would hold whatever came after.
    """
    shortened = [
        replace(rule, all_=tuple(map(_shortened, rule.all_)), any_=tuple(map(_shortened, rule.any_))) for rule in rules
    ]
    return replace(rules, rules=tuple(shortened))


def _shortened(condition: Condition) -> Condition:
    if not isinstance(condition, Rate) or condition.per is None:
        return condition
    name, level = condition.comparison()
    rising = condition.metrics()[0].spec.kind is MetricKind.COUNTER and name in ("above", "at_least")
    if not rising or not isinstance(level, float):
        return condition
    allowed = level if condition.per <= LOOKS_MS else level * condition.over / LOOKS_MS
    return condition.model_copy(update={"over": LOOKS_MS, name: allowed})


def at_once(rules: RuleSet) -> RuleSet:
    """`rules` that open with the first reading in which they hold."""
    instant = [replace(rule, table=rule.table.model_copy(update={"for_": 0, "samples": 1})) for rule in rules]
    return replace(rules, rules=tuple(instant))


def _report(reading: Reading, findings: Iterable[Finding]) -> GpuReport:
    uuid = reading.gpu.uuid
    own = tuple(one for one in findings if one.subject.kind is SubjectKind.GPU and one.subject.name == uuid)
    health = max((health_of(finding) for finding in own), default=NodeHealth.HEALTHY)
    if health is not NodeHealth.ACT_NOW and not reading.values:
        lost = Missing.LOST in reading.missing.values() or Missing.RESET_REQUIRED in reading.missing.values()
        health = NodeHealth.ACT_NOW if lost else NodeHealth.CANNOT_SEE
    return GpuReport(reading, health, own)
