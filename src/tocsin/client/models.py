"""Wire models of the fleet, and of what is said and done about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tocsin.client.control import BreakerOut
from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.decision import Decision, DecisionState, Mode, Outcome, Ruling, Verdict
from tocsin.domain.entry import Entry
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Finding, Incident, Severity, Subject
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Owner


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


STATE_RANKS = tuple(GpuState)
"""States by the number under which the map has them."""


SEVERITY_STATES = {
    Severity.INFO: GpuState.OK,
    Severity.WARNING: GpuState.WARNING,
    Severity.CRITICAL: GpuState.CRITICAL,
}
"""What a finding makes of its subject."""


class HostLabel(Wire):
    """One label of hosts: `of` has for each host the position of its value in `values`; empty where it has none."""

    values: list[str] = Field(default_factory=list)
    of: list[Count] = Field(default_factory=list)


class FleetMap(Wire):
    """Every GPU in columns, by rack, host and index: a row costs a few bytes where `GpuSummary` costs hundreds.

    Columns of GPUs have one entry for each; `host` and `model` are positions in `hosts` and `models`. Only what changes
    with readings and findings is here, so that an unchanged fleet has an unchanged map.
    """

    hosts: list[str] = Field(default_factory=list)
    racks: list[str] = Field(default_factory=list)
    """Rack of each host; empty where it is not known."""
    pools: list[str] = Field(default_factory=list)
    """Pool of each host: that of its first GPU."""
    models: list[str] = Field(default_factory=list)
    uuid: list[str] = Field(default_factory=list)
    host: list[Count] = Field(default_factory=list)
    model: list[Count] = Field(default_factory=list)
    index: list[int | None] = Field(default_factory=list)
    state: list[Annotated[int, Field(ge=0, lt=len(STATE_RANKS))]] = Field(default_factory=list)
    """Rank of the state: 0 ok, 1 stale, 2 warning, 3 critical, 4 lost."""
    temperature: list[float | None] = Field(default_factory=list)
    """Degrees Celsius."""
    utilization: list[Ratio | None] = Field(default_factory=list)
    memory: list[Ratio | None] = Field(default_factory=list)
    power: list[float | None] = Field(default_factory=list)
    """Watts."""
    risk: list[Ratio | None] = Field(default_factory=list)
    """The highest probability among the predictions that warn of it."""
    jobs: list[str] = Field(default_factory=list)
    job: list[Count | None] = Field(default_factory=list)
    """Position in `jobs` of the work on the GPU, None where there is none or nobody knows; empty before version 0.2."""
    labels: dict[str, HostLabel] = Field(default_factory=dict)
    """Labels by which the fleet can be told apart, at most 16."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        """Whoever draws it may walk the columns side by side."""
        columns = (self.host, self.model, self.index, self.state, self.temperature, self.utilization, self.memory)
        if {len(column) for column in (*columns, self.power, self.risk)} != {len(self.uuid)}:
            raise ValueError("columns of GPUs differ in length")
        if not len(self.hosts) == len(self.racks) == len(self.pools):
            raise ValueError("columns of hosts differ in length")
        if max(self.host, default=-1) >= len(self.hosts) or max(self.model, default=-1) >= len(self.models):
            raise ValueError("a position lies outside its list")
        if self.job and len(self.job) != len(self.uuid):
            raise ValueError("columns of GPUs differ in length")
        if max((place for place in self.job if place is not None), default=-1) >= len(self.jobs):
            raise ValueError("a position lies outside its list")
        for label in self.labels.values():
            if len(label.of) != len(self.hosts) or max(label.of, default=-1) >= len(label.values):
                raise ValueError("a label does not fit the hosts")
        return self


class AttentionItem(Wire):
    """One thing that a person should look at."""

    subject: Wired[Subject]
    index: int | None = None
    """Of the GPU, where it is about one."""
    state: GpuState
    """How bad it is now: `ok` where it is only expected."""
    severity: Severity | None = None
    level: AlertLevel | None = None
    """How soon a person should hear of it."""
    sentence: str = ""
    """What is wrong now; empty where nothing is yet."""
    since: Instant | None = None
    subjects: Count = 1
    """GPUs and hosts that it touches, the subject among them."""
    others: Count = 0
    """Further incidents about the same subject, none worse than this."""
    prediction: str = ""
    """Sentence of the most urgent prediction about the subject."""
    prediction_zh: str = ""
    probability: Ratio | None = None
    eta: Instant | None = None
    eta_low: Instant | None = None
    eta_high: Instant | None = None
    gpus: Count = 0
    """GPUs of the job on the subject, itself among them; itself alone where it is busy for nobody known; 0 if idle."""
    cost_gpu_hours: Annotated[float, Field(ge=0)] | None = None
    """Expected GPU-hours lost if nobody acts; null where no chance of a loss is known."""
    cost_money: Annotated[float, Field(ge=0)] | None = None
    """The same in `currency`; null where no price is set."""
    currency: str = ""


class Attention(Wire):
    """What needs attention, worst first; `total` counts what `items` leaves out as well."""

    total: Count = 0
    items: list[AttentionItem] = Field(default_factory=list)
    waiting: Count = 0
    """Decisions that wait for a person: what a yes would start."""


class PeerGroup(StrEnum):
    """Whom a GPU is compared with."""

    NODE = "node"
    """The GPUs of its host."""
    MODEL = "model"
    """GPUs of its model in its pool."""
    JOB = "job"
    """The GPUs of the job on it."""


class PeerBand(Wire):
    """How the peers of a GPU did over time: of each metric the 10th, 50th and 90th percentile of the peers' means.

    `at` are the middles of equal spans; a percentile is null where no peer has a value in the span.
    """

    gpu: str
    by: PeerGroup
    peers: Count
    """GPUs that the band is made of; a large group is sampled evenly."""
    group: Count
    """GPUs in the group, without the GPU itself."""
    at: list[Instant] = Field(default_factory=list)
    low: dict[str, list[float | None]] = Field(default_factory=dict)
    middle: dict[str, list[float | None]] = Field(default_factory=dict)
    high: dict[str, list[float | None]] = Field(default_factory=dict)


# Parts of the scoreboard.


class ReliabilityBin(Wire):
    """Predictions whose stated probability lies in one range."""

    low: Ratio
    high: Ratio
    gpu_days: float
    """Time for which they stood."""
    stated: Ratio
    """Mean stated probability."""
    observed: Ratio
    """Share of the time that was followed by an onset within the horizon."""
    predictions: Count = 0
    observed_low: Ratio | None = None
    """95 % interval of `observed` (Wilson), counting one trial for each horizon that passed on a GPU."""
    observed_high: Ratio | None = None


class HazardScore(Wire):
    """How the probabilities of one model turned out, those for one target and horizon.

    A prediction counts for as long as it stood. True is what a hardware onset followed within the horizon or, without
    one, what an operator approved an action on; what an operator rejected is false unless an onset followed. Figures
    that need what has not happened yet are null.
    """

    model: str
    model_version: str = ""
    target: str
    horizon_s: float
    predictions: Count = 0
    """Predictions whose outcome is known."""
    pending: Count = 0
    left_out: Count = 0
    """Predictions about GPUs that were faulted, or had been within three days."""
    gpu_days: float = 0.0
    onsets: Count = 0
    alarms: Count = 0
    """Warnings; those closer than 24 h to the one before count as one."""
    false_alarms: Count = 0
    """Warnings that no onset followed within 7 days and that no operator approved."""
    false_alarms_per_1000_gpu_days: float | None = None
    precision: Ratio | None = None
    """Share of the warned time that was true."""
    recall: Ratio | None = None
    """Share of the true time that was warned."""
    onset_recall: Ratio | None = None
    """Share of onsets with a warning within the 7 days before."""
    onset_recall_24h: Ratio | None = None
    """The same, at least 24 h before."""
    onset_recall_48h: Ratio | None = None
    onset_recall_low: Ratio | None = None
    """95 % interval of `onset_recall` (Wilson)."""
    onset_recall_high: Ratio | None = None
    lead_s: list[float] = Field(default_factory=list)
    """Time from the first warning to each onset that had one."""
    roc_auc: Ratio | None = None
    auprc: Ratio | None = None
    base_rate: Ratio | None = None
    brier: float | None = None
    calibration_error: Ratio | None = None
    reliability: list[ReliabilityBin] = Field(default_factory=list)
    approved: Count = 0
    """Actions on warned GPUs that an operator approved."""
    rejected: Count = 0
    operator_precision: Ratio | None = None
    """Share of these verdicts that were approvals."""


class RuleScore(Wire):
    """What one rule decided by way of one action, and what came of it.

    `confirmed` decisions were followed by a hardware event on their subject within the horizon, `unconfirmed` were not,
    and `pending` ones still have time.
    """

    rule: str
    action: ActionKind
    decisions: Count
    would_have_acted: Count
    """Those that at some time no guard but the mode held."""
    executed: Count = 0
    held_by: dict[str, Count] = Field(default_factory=dict)
    """Decisions by the guards that ever held them; one decision may count under several."""
    confirmed: Count = 0
    unconfirmed: Count = 0
    pending: Count = 0


class PredictionScore(Wire):
    """How predictions turned out: a hit crossed its threshold within the horizon, a miss did not.

    `model` and `model_version` are empty where all are meant.
    """

    model: str = ""
    model_version: str = ""
    made: Count = 0
    hits: Count = 0
    misses: Count = 0
    pending: Count = 0
    not_enough_data: Count = 0
    lead_s: list[float] = Field(default_factory=list)
    """Time from each hit's prediction to its crossing."""
    within_interval: Count = 0
    """Hits whose crossing fell inside the stated interval."""


class ActionScore(Wire):
    """What came of one kind of action: `effects` are means of what was measured where it worked, by name with unit."""

    action: ActionKind
    tried: Count
    worked: Count
    effects: dict[str, float] = Field(default_factory=dict)
    measured: dict[str, Count] = Field(default_factory=dict)
    """How often each effect was measured."""


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
    journal_witness: str = ""
    """What is wrong with the witnesses of the journal, or that there is none; empty: nothing."""
    breaker: BreakerOut
    breaker_reason_zh: str = ""
    """Why the breaker tripped, in Chinese."""
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
    levels: dict[AlertLevel, Count] = Field(default_factory=dict)
    """Open incidents by how soon a person should hear of them."""
    muted: list[str] = Field(default_factory=list)
    """A line for each kind of forecast that its own record has muted, and for each rule that foretells of which it has
    made notes."""
    incidents: Count = 0
    """Open incidents."""
    predictions: Count = 0
    """Predictions in force that expect a crossing."""
    risk_model: str = ""
    """Why no risk model speaks of the fleet, or of which GPUs alone; empty where there is nothing to say."""
    decisions: Count = 0
    """Decisions on record."""
    decisions_held: Count = 0
    decisions_approvable: Count = 0
    """Held decisions that wait for a person, and for nothing else: what a yes would start."""


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
    """A rule's condition that holds, or, no longer `active`, held. `evidence_zh` is the text of each piece of its
    evidence in Chinese, empty where there is English alone."""

    active: bool = True
    evidence_zh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IncidentOut(Incident):
    """A burst of findings under its root cause; `members` has all of them, the root among them."""

    root: FindingOut
    members: tuple[FindingOut, ...]
    active: bool = True
    level: AlertLevel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOut(Decision):
    """An intended action, what each guard said of it last, and where it stands. `id` is made from the key, which only
    the brain has."""

    id: str = field()
    state: DecisionState
    overall: Ruling
    """What the guards say together."""
    verdicts: tuple[Verdict, ...] = ()
    """One for each guard that was asked, in the order of asking."""
    approvable: bool = False
    """Whether a person's yes is all that is missing, so that it would start now."""
    approved_by: str = ""
    rejected_by: str = ""
    outcome: Outcome | None = None

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
    decisions: list[Wired[DecisionOut]] = Field(default_factory=list)


class SeriesResponse(Wire):
    """Some metrics of one GPU over time: as many values a metric as there are instants, null where there is none."""

    gpu: str
    start: Instant
    end: Instant
    at: list[Instant]
    metrics: dict[str, list[float | None]]
    points: Count = 0
    """How many instants the store has in the span; more than `at` has where they were thinned out."""


class KindScore(Wire):
    """How one kind of forecast did, a target of one model, or a rule that foretells: only windows that are over count.

    `settled` claims, of which `right` came true, `week` and `week_right` of them within seven days; mean `stated`
    probability and share `observed` of all cases, null without any. A `muted` kind is judged on and told to
    nobody; a rule is told as notes, and its claims are signs of 30 days.
    """

    kind: str
    settled: Count = 0
    right: Count = 0
    week: Count = 0
    week_right: Count = 0
    open: Count = 0
    """Cases whose window is not over."""
    precision: Ratio | None = None
    """What it is judged by: the week's, with what was seen in simulated fleets."""
    stated: Ratio | None = None
    observed: Ratio | None = None
    muted: bool = False
    sentence: str = ""


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
    kinds: list[KindScore] = Field(default_factory=list)
    """The record of each kind of forecast."""


# The journal in pages and the timeline of decisions, and what a client may ask of them.

ExportForm = Literal["jsonl", "cef"]


@dataclass(frozen=True, slots=True)
class JournalQuery:
    """Which entries are wanted; what is empty bounds nothing.

    `people` are entries that a person made. `text` is looked for in what the entry says, ASCII letters without regard
    to capitals: a host, a UUID, the id of a decision. The instants are a half-open span.
    """

    kinds: tuple[str, ...] = ()
    actor: str = ""
    people: bool = False
    text: str = ""
    start_ms: int | None = None
    end_ms: int | None = None


class JournalPage(Wire):
    """Entries, newest first."""

    entries: list[Wired[Entry]]
    next_before: Count | None = None
    """What to send as `before` for older ones; null where the journal's first entry was looked at."""
    reached: Instant | None = None
    """When entry `next_before` was written, the oldest one that was looked at; null where that is null."""
    head: Count
    """Number of the newest entry of the journal."""
    told: dict[str, str] = Field(default_factory=dict)
    """Sentence by id of the decisions, findings and incidents that the entries name."""
    told_zh: dict[str, str] = Field(default_factory=dict)
    """The same in Chinese, as far as there is."""
    kinds: list[str] = Field(default_factory=list)
    """Every kind that there can be."""


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """Which decisions are wanted; what is empty bounds nothing, but that notifications are left out unless asked for.

    `waiting` are those that wait for a person, False those that do not. `text` is looked for in the sentence, the rule,
    the subject, the host and the id, without regard to capitals.
    """

    states: tuple[DecisionState, ...] = ()
    actions: tuple[ActionKind, ...] = ()
    rule: str = ""
    pool: str = ""
    text: str = ""
    waiting: bool | None = None

    def wants(self, state: DecisionState, action: ActionKind, rule: str, pool: str, waiting: bool) -> bool:
        """Whether a decision is one of these, by all but its texts."""
        if action not in self.actions and (self.actions or action is ActionKind.NOTIFY):
            return False
        if (self.states and state not in self.states) or self.waiting not in (None, waiting):
            return False
        return self.rule in ("", rule) and self.pool in ("", pool)

    def found_in(self, texts: Iterable[str]) -> bool:
        """Whether `text` is in one of `texts`."""
        wanted = self.text.strip().casefold()
        return not wanted or any(wanted in one.casefold() for one in texts)


class Alternative(Wire):
    """One choice that was weighed. `notify` stands for going on as before."""

    action: ActionKind
    gpu_hours: float
    """Expected loss."""
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineItem(DecisionOut):
    """A decision with what is needed to understand it and to take it back."""

    updated_ms: int
    """Of its last entry in the journal."""
    reason: str = ""
    """Why it stands where it does; empty where the verdicts say it."""
    reason_zh: str = ""
    """The same in Chinese; empty where there is English alone."""
    asked_by: str = ""
    """Who asked for it, where no rule did."""
    inverse: ActionKind | None = None
    """What would undo it; null where nothing does."""
    undo_problem: str = ""
    """Why it cannot be undone now; empty where it can."""
    undone_by: str = ""
    """Id of the decision that undoes it and waits or runs."""
    alternatives: tuple[Alternative, ...] = ()
    """Expected losses that were weighed, the least first; empty where the rule alone named the action."""
    alike: Count = 0
    """Other decisions for the same action about the same cause that wait for a yes too."""


class TimelineMark(Wire):
    """A decision as one mark on the axis of time."""

    id: str
    at: Instant
    action: ActionKind
    state: DecisionState
    severity: Severity
    sentence: str
    cause_zh: str = ""
    """What is wrong, in Chinese; empty where there is English alone."""


class Timeline(Wire):
    """A page of decisions, newest first."""

    total: Count
    """Decisions that fit the query, on all pages."""
    offset: Count
    items: list[Wired[TimelineItem]]
    marks: list[TimelineMark]
    """The newest that fit, on all pages."""
    states: dict[DecisionState, Count] = Field(default_factory=dict)
    """Decisions on record by state, notifications left out."""
    waiting: Count = 0
    """Of these, those that wait for a person."""
    actions: list[ActionKind] = Field(default_factory=list)
    """Actions, rules and pools that there are decisions of."""
    rules: list[str] = Field(default_factory=list)
    pools: list[str] = Field(default_factory=list)


class DecisionStory(Wire):
    """One decision and all that the journal says of it."""

    decision: Wired[TimelineItem]
    entries: list[Wired[Entry]]
    """In order."""
    settle_s: float
    """Time between the end of an execution and the look at its effect."""
    runbooks_url: str = ""
    """Where the runbooks can be read; empty where the brain was not told."""


class UndoOut(Wire):
    """What undoes a decision; it runs once every guard allows it."""

    undone: str
    """Id of the decision that was done."""
    by: Wired[TimelineItem]
