"""What the running service says over the recordings: `tocsin replay --live`, by both clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR, to_iso
from tocsin.forecaster.evaluation.result import Figure, ReportSection, ReportTable, SectionPlace
from tocsin.forecaster.evaluation.ticket_clock import BAR_PER_NODE_DAY, DRAWS, IncidentLog, figures
from tocsin.offline.live_score import LEAST_PRECISION, MOST_REACHED, SHARES, EventClock, Said, TicketClock
from tocsin.runtime.live_replay import LiveReport, run_live_replay
from tocsin_benchmarks.gwdg.tables import LEADS_MS
from tocsin_benchmarks.gwdg.tidy import files_of, read_logs

SERVICE = "the running service"
QUICK_DRAWS = 100
SELDOM_S = 6 * 3600.0
"""Between two forecasts of a quick run."""
TICKET, EVENT = "Said, by the ticket clock", "Said, by the event clock"
NOTES = (
    "Scored are notifications about machines: of the categories hardware, power, thermal and telemetry. What is said "
    "of memory that runs full, of pools and of fragmentation is counted beside them. That this is not about machines "
    "was decided with the openings of all rules in view, as was which rules ship, and that metrics which GPUs off the "
    "bus no longer have, and the silence of a node that all of them are on, are the same cause and no statement of "
    "their own; no span, level or hold-back was chosen on the node that it is judged on.",
    "The service evaluates at each recorded instant, ten minutes apart, and forecasts at its own cadence. It runs from "
    "the first window to the last without a restart; between windows it sees nothing, and its clock jumps.",
    "The risk model that ships is not heard of real GPUs: it has not passed its gate (docs/models.md).",
    "Tried and dropped: critical findings alone (6 of 7 found); silence held back for 72 h after another sign (one "
    "start less, and precision no longer above the shifts); a detector of unusual values (research.md).",
    "Every window was recorded around an incident, so precision is flattered.",
)


def live_sections(folder: Path, *, seed: int, quick: bool, most_files: int | None) -> list[ReportSection]:
    """Both clocks over the windows in `folder`. Raises InputError where there is no window or no log."""
    windows, logs = files_of(folder)
    read = read_logs(logs)
    settings = Settings.model_validate({"forecast": {"models": str(folder / "no-models-of-a-site")}})
    if quick:
        forecast = settings.forecast.model_copy(update={"every_seconds": SELDOM_S})
        settings = settings.model_copy(update={"forecast": forecast})
    log = IncidentLog(read.incidents, list(read.problems))
    report = run_live_replay(windows[:most_files], log, settings, seed=seed, draws=QUICK_DRAWS if quick else DRAWS)
    assert report.score.ticket is not None
    return [_ticket(report, report.score.ticket), _event(report, report.score.event)]


def _ticket(report: LiveReport, ticket: TicketClock) -> ReportSection:
    score = ticket.score
    population: dict[str, float | int | str] = {
        "node_days": score.node_days,
        "incidents_scored": len(score.found),
        "starts": score.starts,
        "starts_followed": score.followed,
        "notifications": len(report.score.said.statements),
    }
    tables = (_incidents(ticket), _nulls(ticket), _statements(report.score.said))
    verdict = "above" if ticket.verdict else "NOT above"
    note = f"By the joint bar, all five at once, what was said is {verdict} what knows nothing."
    place = SectionPlace.SERVICE
    return ReportSection(TICKET, {SERVICE: ticket_bars(ticket)}, population, tables, (), (note, *NOTES), place)


def ticket_bars(ticket: TicketClock) -> dict[str, Figure]:
    """The five figures of the joint bar, the bar itself, and how much of what knows nothing reaches it."""
    score = ticket.score
    total = len(score.found)
    leads = [one.lead_ms for one in score.found]
    made = {}
    for name, least_ms in LEADS_MS.items():
        hits = [lead is not None and (least_ms is None or lead >= least_ms) for lead in leads]
        # As many as the bar asks for: 6 of 7 is a share of 0.857.
        share = ticket.bar[name] / total if total else SHARES[name]
        made[f"{name}_share"] = Figure(float(np.mean(hits)) if hits else float("nan"), bar=share)
    made["start_precision"] = Figure(score.precision or 0.0, bar=LEAST_PRECISION)
    made["starts_per_node_day"] = Figure(score.per_node_day, bar=BAR_PER_NODE_DAY, least=False)
    made["all_at_once"] = Figure(float(ticket.held), bar=1.0)
    for name, value in ticket.null_shares().items():
        most = 0.0 if name == "always on" else MOST_REACHED
        made[f"reached_by_{name.replace(' ', '_')}"] = Figure(value, bar=most, least=False)
    return made


def _incidents(ticket: TicketClock) -> ReportTable:
    rows = [
        (
            one.incident.node,
            to_iso(one.incident.day_ms)[:10],
            None if one.start_ms is None else to_iso(one.start_ms)[:16],
            None if one.lead_ms is None else one.lead_ms / HOUR,
        )
        for one in ticket.score.found
    ]
    return ReportTable("Incidents", ("node", "logged day", "start", "lead h"), rows)


def _nulls(ticket: TicketClock) -> ReportTable:
    start, time = ticket.by_start, ticket.by_time
    rows = [
        (
            name,
            value,
            start.always_on.spreads[name].mean,
            start.coin.spreads[name].p95,
            start.shifts.spreads[name].p95,
            start.shifts.spreads[name].reached,
            time.shifts.spreads[name].p95,
            time.shifts.spreads[name].reached,
        )
        for name, value in figures(ticket.score, ticket.bar).items()
    ]
    head = (
        "figure", "said", "always on", "coin, 95 %", "shifted starts, 95 %", "that reach it",
        "shifted time in alarm, 95 %", "that reach it",
    )  # fmt: skip
    return ReportTable("What knows nothing", head, rows)


def _statements(said: Said) -> ReportTable:
    told = Counter((one.rule, one.level, "yes" if one.about_machines else "no") for one in said.statements)
    rows = [(rule, level, scored, number) for (rule, level, scored), number in sorted(told.items())]
    return ReportTable("Notifications", ("rule", "level", "scored", "number"), rows)


def _event(report: LiveReport, event: EventClock) -> ReportSection:
    rows: Sequence[tuple[str, float, float]] = [(name, mean, p95) for name, (mean, p95) in event.nulls.items()]
    models: Mapping[str, Mapping[str, Figure]] = {
        SERVICE: {
            "warned_of": Figure(float(event.warned)),
            "announced": Figure(float(event.announced)),
            "minutes_to_the_announcement": Figure(float("nan") if event.delay_minutes is None else event.delay_minutes),
            "warnings": Figure(float(event.warnings)),
            "warnings_followed": Figure(float(event.followed)),
        }
    }
    notes = (
        "An event is the first hardware event of a node, those of several GPUs within a day being one. Warned of: "
        "something was said within 48 h before. Announced: within 24 h from it on. A warning is a start that no event "
        "came before within a day; followed: an event within 48 h.",
        "No bar is set: of these events the telemetry showed next to nothing before they happened.",
    )
    population: dict[str, float | int | str] = {"node_days": report.score.node_days, "events": event.events}
    table = ReportTable("Warned of, by what knows nothing", ("alarm", "mean", "95 %"), rows)
    return ReportSection(EVENT, models, population, (table,), (), notes, SectionPlace.SERVICE)
