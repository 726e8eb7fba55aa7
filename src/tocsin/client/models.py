"""Wire models of the fleet, and of what is said and done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue

from tocsin.client.control import (
    BreakerOut,
)
from tocsin.client.scores import ActionScore, HazardScore, PredictionScore, RuleScore
from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.decision import DecisionState, Mode, Outcome, Ruling, Verdict
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity
from tocsin.domain.owner import Owner
from tocsin.domain.prediction import Prediction
from tocsin.domain.subject import Subject


class GpuState(StrEnum):
    """Worst of what is known of a GPU; the order of definition is the order of rank."""

    OK = "ok"
    STALE = "stale"
    """No fresh reading."""
    WARNING = "warning"
    CRITICAL = "critical"
    LOST = "lost"
    """It no longer answers its driver."""

    @property
    def rank(self) -> int:
        """0 for ok, 4 for lost."""
        return list(GpuState).index(self)


class FleetSummary(Wire):
    """The fleet in one object."""

    version: str
    """Version of the brain."""
    now: Instant
    """The brain's clock; simulated time in a simulated fleet."""
    simulated: bool
    """Whether any GPU of the fleet is simulated."""
    mode: Mode
    """The furthest that any rule may go."""
    executor: str = ""
    """What carries out actions."""
    paused: bool = False
    paused_by: str = ""
    paused_reason: str = ""
    breaker: BreakerOut
    gpus: Count
    hosts: Count
    pools: Count
    states: dict[GpuState, Count] = Field(default_factory=dict)
    """GPUs by state; a state that no GPU has may be left out."""
    readings: Count = 0
    """Readings taken since the brain started."""
    last_reading: Instant | None = None
    last_reading_age_s: Annotated[float, Field(ge=0)] | None = None
    utilization_ratio: Ratio | None = None
    """Mean over the GPUs that report it."""
    memory_used_ratio: Ratio | None = None
    power_watts: Annotated[float, Field(ge=0)] | None = None
    """Sum over the GPUs that report it."""
    findings: dict[Severity, Count] = Field(default_factory=dict)
    """Active findings by severity."""
    incidents: Count = 0
    """Open incidents."""
    predictions: Count = 0
    """Predictions in force that expect a crossing."""
    decisions: Count = 0
    """Decisions on record."""
    decisions_held: Count = 0
    decisions_approvable: Count = 0
    """Held decisions that wait for a person."""


class GpuSummary(Wire):
    """One GPU in a line: what it is, how it is, and the worst that is said of it."""

    uuid: str
    host: str
    index: int | None = None
    model: str = ""
    pool: str = ""
    rack: str = ""
    parent: str = ""
    """UUID of the whole GPU where this is a MIG instance."""
    mig_profile: str = ""
    simulated: bool = False
    state: GpuState
    last_reading: Instant | None = None
    last_reading_age_s: Annotated[float, Field(ge=0)] | None = None
    temperature_celsius: float | None = None
    utilization_ratio: Ratio | None = None
    memory_used_ratio: Ratio | None = None
    power_watts: Annotated[float, Field(ge=0)] | None = None
    findings: Count = 0
    """Active findings."""
    severity: Severity | None = None
    """Of the worst active finding."""
    finding: str = ""
    """Sentence of the worst active finding."""
    prediction: str = ""
    """Sentence of the most urgent prediction that expects a crossing."""
    probability: Ratio | None = None
    eta: Instant | None = None
    eta_low: Instant | None = None
    eta_high: Instant | None = None


@dataclass(frozen=True, slots=True)
class FindingOut(Finding):
    """A rule's condition that holds, or, no longer `active`, held."""

    active: bool = True


@dataclass(frozen=True, slots=True)
class IncidentOut(Incident):
    """A burst of findings under its root cause; `members` has all of them, the root among them."""

    root: FindingOut
    members: tuple[FindingOut, ...]
    active: bool = True


class DecisionOut(Wire):
    """An intended action, what each guard said of it last, and where it stands."""

    id: str
    rule: str
    subject: Wired[Subject]
    action: ActionKind
    mode: Mode
    severity: Severity
    category: Category
    at: Instant
    expires: Instant
    sentence: str
    findings: list[str] = Field(default_factory=list)
    """Ids of the findings that caused it."""
    incident: str = ""
    parameters: dict[str, str] = Field(default_factory=dict)
    simulated: bool = False
    state: DecisionState
    overall: Ruling
    """What the guards say together."""
    verdicts: list[Wired[Verdict]] = Field(default_factory=list)
    """One for each guard that was asked, in the order of asking."""
    approvable: bool = False
    """Whether a person may approve or reject it now."""
    approved_by: str = ""
    rejected_by: str = ""
    outcome: Wired[Outcome] | None = None

    @property
    def held_by(self) -> list[str]:
        """Guards that do not allow it, in the order of asking."""
        return [verdict.guard for verdict in self.verdicts if verdict.ruling is not Ruling.ALLOW]


class GpuDetail(Wire):
    """Everything that is known of one GPU now, and what was said of it lately."""

    summary: GpuSummary
    serial: str = ""
    pci_bus_id: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    values: dict[str, float] = Field(default_factory=dict)
    """Newest value by metric or variant."""
    missing: dict[str, str] = Field(default_factory=dict)
    """Reason by metric where the newest reading has no value."""
    owners: list[Wired[Owner]] = Field(default_factory=list)
    """Processes on the GPU."""
    events: list[Wired[Event]] = Field(default_factory=list)
    findings: list[Wired[FindingOut]] = Field(default_factory=list)
    predictions: list[Wired[Prediction]] = Field(default_factory=list)
    decisions: list[DecisionOut] = Field(default_factory=list)


class SeriesResponse(Wire):
    """Some metrics of one GPU over time: as many values a metric as there are instants, null where there is none."""

    gpu: str
    start: Instant
    end: Instant
    at: list[Instant]
    metrics: dict[str, list[float | None]]
    points: Count = 0
    """How many instants the store has in the span; more than `at` has where they were thinned out."""


class JournalEntryOut(Wire):
    """One entry of the hash-chained journal."""

    seq: Count
    epoch: Count
    at: Instant
    kind: str
    actor: str
    payload: dict[str, JsonValue]
    simulated: bool = False
    hash: str
    previous_hash: str = ""


class VerificationOut(Wire):
    """Whether the journal's chain holds."""

    ok: bool
    events: Count
    problem: str = ""


class Scoreboard(Wire):
    """What would have been done, and how often it would have been right."""

    since: Instant
    until: Instant
    mode: Mode
    simulated: bool
    decisions: Count
    would_have_acted: Count
    executed: Count = 0
    held: Count = 0
    confirmed: Count = 0
    held_by: dict[str, Count] = Field(default_factory=dict)
    rules: list[RuleScore] = Field(default_factory=list)
    predictions: PredictionScore = Field(default_factory=PredictionScore)
    crossings: list[PredictionScore] = Field(default_factory=list)
    """The same by model and version."""
    hazards: list[HazardScore] = Field(default_factory=list)
    """How probabilities of hardware onsets turned out, by model, target and horizon."""
    actions: list[ActionScore] = Field(default_factory=list)
    """What came of what was carried out, by kind of action."""
