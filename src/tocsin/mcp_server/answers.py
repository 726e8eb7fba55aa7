"""What the tools answer with: few fields, short texts, bounded lists.

Sentences quote nodes, drivers and people: whoever writes a log line writes into an assistant's context. They go out as
fields of data, in one line each, without control characters and cut to a length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tocsin.client import models
from tocsin.client.models_cards import Card, Cards
from tocsin.client.models_report import MorningReport
from tocsin.domain.clock import to_iso
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.prediction import Prediction
from tocsin.rules.xid_explain import Explanation, asks_for

MOST_TEXT = 400
"""Characters of one text."""
MOST_ITEMS = 50
"""Items of one list, whatever is asked for."""
FEW_ITEMS = 10
"""Items of a list inside an answer about one thing."""
SHOWN = (
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_power_watts",
    "gpu_utilization_ratio",
    "gpu_memory_used_ratio",
    "gpu_clocks_event_reasons_bitmask",
    "gpu_recovery_action",
    "gpu_xid_last_code",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
    "gpu_ecc_uncorrected_volatile_total",
    "gpu_pcie_link_width",
)
"""Metrics that an answer about one GPU has; the rest is the dashboard's."""

A = TypeVar("A")
B = TypeVar("B")
Limit = Annotated[int, Field(ge=1, le=MOST_ITEMS, description="Most items of the answer.")]


class Answer(BaseModel):
    """Base of every answer: its fields' docstrings are the schema's descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class WholeAnswer(Answer):
    """Base of answers over all cells of a fleet of several."""

    missing_cells: list[str] = Field(default_factory=list)
    """Cells that did not answer, and why: nothing of them, or only something old, is in this answer."""


class FleetStatus(WholeAnswer):
    """The fleet in a glance."""

    version: str
    now: str
    """The brain's clock, RFC 3339 in UTC; that of a simulated fleet runs ahead."""
    simulated: bool
    mode: str
    """How far any rule may go: observe, propose or act."""
    paused: bool
    breaker_tripped: bool
    gpus: int
    hosts: int
    states: dict[str, int]
    """GPUs by state."""
    last_reading_age_s: float | None
    open_incidents: int
    findings: dict[str, int]
    """Active findings by severity."""
    predictions: int
    decisions_waiting_for_a_person: int
    decisions_held: int
    cells: dict[str, int] = Field(default_factory=dict)
    """GPUs by cell; empty where one cell is the whole fleet."""


class CardLine(Answer):
    """One cause that wants attention, in a line."""

    id: str
    cell: str = ""
    """The cells that have it; empty where one cell is the whole fleet."""
    headline: str
    state: str
    level: str
    subject: str
    since: str | None
    touches_gpus: int
    touches_jobs: int
    action: str
    """What is proposed, as a sentence; empty where nothing can run."""
    obstacle: str
    """Why nothing runs, where that is so."""


class CardList(WholeAnswer):
    """Cards, the most urgent first; `total` counts what `items` leaves out as well."""

    total: int
    hidden: int
    """Open cards that a snooze or maintenance hides."""
    items: list[CardLine]


class CardDetail(CardLine):
    """One cause with what it rests on."""

    confidence: str
    next: str
    """What happens next, and when."""
    gpu_names: list[str]
    host_names: list[str]
    job_names: list[str]
    decision: str
    """Id of the decision that the action is; empty for none."""
    waiting_gpu_hours: float | None
    """Expected GPU-hours lost if nobody acts."""
    evidence: list[str]


class GpuLine(Answer):
    """One GPU in a line."""

    gpu: str
    """UUID, the name by which it is asked for."""
    cell: str = ""
    """The cell that has it; empty where one cell is the whole fleet."""
    host: str
    index: int | None
    model: str
    state: str
    finding: str
    """The worst active finding."""
    prediction: str


class GpuList(WholeAnswer):
    """GPUs that fit, the worst first."""

    total: int
    items: list[GpuLine]


class GpuHealth(GpuLine):
    """One GPU now."""

    pool: str
    simulated: bool
    last_reading_age_s: float | None
    values: dict[str, float]
    missing: dict[str, str]
    """Metrics without a value, and why."""
    findings: list[str]
    predictions: list[str]
    processes: int


class GpuEvidence(Answer):
    """What a claim about one GPU rests on; the sealed archive for its vendor is made by a person."""

    gpu: str
    host: str
    serial: str
    pci_bus_id: str
    events: list[str]
    """XIDs and other happenings, newest first."""
    findings: list[str]
    decisions: list[str]
    archive_command: str


class DecisionLine(Answer):
    """One intended action."""

    id: str
    cell: str = ""
    """The cell that has it; empty where one cell is the whole fleet."""
    at: str
    action: str
    subject: str
    state: str
    rule: str
    sentence: str
    held_by: list[str]
    """Guards that do not allow it."""
    waits_for_a_person: bool


class DecisionList(WholeAnswer):
    """Decisions, newest first."""

    items: list[DecisionLine]


class DecisionDetail(DecisionLine):
    """One intended action with what each guard said of it last, and what came of it."""

    mode: str
    verdicts: list[str]
    outcome: str
    approved_by: str
    rejected_by: str


class PredictionLine(Answer):
    """One statement about the future."""

    subject: str
    target: str
    probability: float | None
    horizon_hours: float
    eta: str | None
    sentence: str
    model: str


class PredictionList(WholeAnswer):
    """The newest prediction for each subject and target, the most urgent first."""

    total: int
    items: list[PredictionLine]


class XidMeaning(Answer):
    """What a driver error means, by Tocsin's catalogue."""

    code: int
    kind: str
    """xid, or sxid of an NVSwitch."""
    name: str
    error_class: str
    severity: str
    means: str
    tocsin_proposes: str
    vendor_asks_for: list[str]
    seen_with: list[str]
    provenance: str


class Report(WholeAnswer):
    """What happened in a span: what Tocsin did, what it got wrong, what waits, what to expect."""

    start: str
    end: str
    sentences: list[str]


def plain(text: str, most: int = MOST_TEXT) -> str:
    """`text` in one line of printable characters, cut to `most`."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def few(items: Sequence[A], say: Callable[[A], B], most: int = FEW_ITEMS) -> list[B]:
    """The first `most`, each as `say` has it."""
    return [say(item) for item in items[:most]]


def fleet_status(found: models.FleetSummary) -> FleetStatus:
    """The summary of the fleet."""
    return FleetStatus(
        version=plain(found.version),
        now=found.now,
        simulated=found.simulated,
        mode=found.mode.value,
        paused=found.paused,
        breaker_tripped=found.breaker.tripped,
        gpus=found.gpus,
        hosts=found.hosts,
        states={state.value: number for state, number in found.states.items()},
        last_reading_age_s=found.last_reading_age_s,
        open_incidents=found.incidents,
        findings={severity.value: number for severity, number in found.findings.items()},
        predictions=found.predictions,
        decisions_waiting_for_a_person=found.decisions_approvable,
        decisions_held=found.decisions_held,
    )


def card_list(found: Cards) -> CardList:
    """The cards that the brain gave."""
    return CardList(total=found.total, hidden=found.hidden, items=few(found.items, card_line, MOST_ITEMS))


def card_line(card: Card, cell: str = "") -> CardLine:
    """One card in a line."""
    return CardLine(
        id=plain(card.id),
        cell=plain(cell),
        headline=plain(card.headline),
        state=card.state.value,
        level=card.level.value,
        subject=plain(card.subject.key),
        since=card.since,
        touches_gpus=card.touches.gpus,
        touches_jobs=card.touches.jobs,
        action=plain(card.action.sentence) if card.action is not None else "",
        obstacle=plain(card.obstacle),
    )


def card_detail(card: Card, cell: str = "") -> CardDetail:
    """One card with its evidence."""
    return CardDetail(
        **card_line(card, cell).model_dump(),
        confidence=plain(card.confidence),
        next=plain(card.next),
        gpu_names=few(card.touches.gpu_names, plain),
        host_names=few(card.touches.host_names, plain),
        job_names=few(card.touches.job_names, plain),
        decision=plain(card.action.decision) if card.action is not None else "",
        waiting_gpu_hours=card.waiting_gpu_hours,
        evidence=few(card.evidence, lambda one: plain(f"{one.kind}: {one.text}")),
    )


def gpu_line(gpu: models.GpuSummary, cell: str = "") -> GpuLine:
    """One GPU in a line."""
    return GpuLine(
        gpu=plain(gpu.uuid),
        cell=plain(cell),
        host=plain(gpu.host),
        index=gpu.index,
        model=plain(gpu.model),
        state=gpu.state.value,
        finding=plain(gpu.finding),
        prediction=plain(gpu.prediction),
    )


def gpu_health(found: models.GpuDetail, cell: str = "") -> GpuHealth:
    """One GPU as it is now."""
    gpu = found.summary
    return GpuHealth(
        **gpu_line(gpu, cell).model_dump(),
        pool=plain(gpu.pool),
        simulated=gpu.simulated,
        last_reading_age_s=gpu.last_reading_age_s,
        values={name: found.values[name] for name in SHOWN if name in found.values},
        missing={name: plain(found.missing[name]) for name in SHOWN if name in found.missing},
        findings=few(found.findings, finding_text),
        predictions=few(found.predictions, lambda one: plain(one.sentence)),
        processes=len(found.owners),
    )


def gpu_evidence(found: models.GpuDetail) -> GpuEvidence:
    """Events, findings and decisions of one GPU."""
    gpu = found.summary
    newest = sorted(found.events, key=lambda one: -one.at_ms)
    return GpuEvidence(
        gpu=plain(gpu.uuid),
        host=plain(gpu.host),
        serial=plain(found.serial),
        pci_bus_id=plain(found.pci_bus_id),
        events=few(newest, event_text, 2 * FEW_ITEMS),
        findings=few(found.findings, finding_text),
        decisions=few(found.decisions, lambda one: plain(f"{one.state.value}: {one.sentence}")),
        archive_command=f"tocsin evidence {plain(gpu.uuid)}",
    )


def event_text(event: Event) -> str:
    """One happening in a line."""
    return plain(f"{to_iso(event.at_ms)} {event.kind.value} {event.code or ''}: {event.message}")


def finding_text(finding: Finding) -> str:
    """One finding in a line, with what supports it."""
    evidence = "; ".join(one.text for one in finding.evidence[:3])
    return plain(f"{finding.severity.value}: {finding.sentence} [{finding.rule}]{f' ({evidence})' if evidence else ''}")


def decision_line(decision: models.DecisionOut, cell: str = "") -> DecisionLine:
    """One decision in a line."""
    return DecisionLine(
        id=plain(decision.id),
        cell=plain(cell),
        at=to_iso(decision.at_ms),
        action=decision.action.value,
        subject=plain(decision.subject.key),
        state=decision.state.value,
        rule=plain(decision.rule),
        sentence=plain(decision.sentence),
        held_by=few(decision.held_by, plain),
        waits_for_a_person=decision.approvable,
    )


def decision_detail(decision: models.DecisionOut, cell: str = "") -> DecisionDetail:
    """One decision with its verdicts and its outcome."""
    outcome = decision.outcome
    return DecisionDetail(
        **decision_line(decision, cell).model_dump(),
        mode=decision.mode.value,
        verdicts=few(
            decision.verdicts, lambda one: plain(f"{one.guard}: {one.ruling.value}: {one.reason}"), 2 * FEW_ITEMS
        ),
        outcome=plain(f"{outcome.status.value}: {outcome.detail}") if outcome is not None else "",
        approved_by=plain(decision.approved_by),
        rejected_by=plain(decision.rejected_by),
    )


def prediction_line(prediction: Prediction) -> PredictionLine:
    """One prediction in a line."""
    return PredictionLine(
        subject=plain(prediction.subject.key),
        target=plain(prediction.target),
        probability=prediction.probability,
        horizon_hours=prediction.horizon_ms / 3_600_000,
        eta=to_iso(prediction.eta_ms) if prediction.eta_ms is not None else None,
        sentence=plain(prediction.sentence),
        model=plain(prediction.model),
    )


def xid_meaning(found: Explanation) -> XidMeaning:
    """One entry of the catalogue."""
    words = [word for word in (found.do_now, found.look_into) if word]
    return XidMeaning(
        code=found.spec.code,
        kind=found.kind,
        name=plain(found.spec.name),
        error_class=plain(found.class_name),
        severity=found.spec.severity.value,
        means=plain(found.spec.help),
        tocsin_proposes=found.spec.action.value,
        vendor_asks_for=[plain(f"{word}: {asks_for(word)}") for word in words],
        seen_with=few(found.sequences, lambda one: plain(f"{one.meaning}. {one.handling}")),
        provenance=plain(found.provenance),
    )


def report(found: MorningReport) -> Report:
    """The sentences of a report."""
    return Report(start=found.start, end=found.end, sentences=few(found.sentences, lambda one: plain(one.text)))
