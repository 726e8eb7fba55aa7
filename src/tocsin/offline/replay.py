"""`tocsin replay`: the rules that judge the fleet, over recorded telemetry, scored by the ticket clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.collector.replay.recording import ReplayRecording
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import HOUR, Clock, SystemClock, to_iso
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, SubjectKind
from tocsin.domain.progress import track
from tocsin.domain.reading import Reading
from tocsin.domain.words import counted
from tocsin.forecaster.evaluation.ticket_clock import (
    DRAWS,
    SCORABLE_INSTANTS,
    SKILL_FIGURE,
    Alert,
    Found,
    IncidentLog,
    NullAlert,
    Nulls,
    TicketScore,
    by_node,
    figures,
    figures_above,
    nulls,
    read_incidents,
    scorable,
    score,
    skilful,
)
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.schema import RuleSet

BIAS = (
    "Every recorded window surrounds an incident, so precision is flattered: on a fleet in normal operation more "
    "alerts would have no incident behind them."
)
CLOCK = "Lead is measured to the day on which the operator logged the incident, 00:00 UTC, not to the fault itself."
SHOWN_OPENINGS = 20


@dataclass(frozen=True, slots=True)
class Opening:
    """A finding that opened at `at_ms`; `host` and `gpu` (its UUID) are empty where it is about more than one."""

    at_ms: int
    host: str
    gpu: str
    rule: str
    sentence: str

    def as_json(self) -> dict[str, object]:
        """Null for a host or GPU that is none."""
        return {
            "at": to_iso(self.at_ms),
            "host": self.host or None,
            "gpu": self.gpu or None,
            "rule": self.rule,
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class TicketResult:
    """Alerts scored by the ticket clock. `unscorable` incidents had too little telemetry before them."""

    score: TicketScore
    nulls: Nulls
    alerts: tuple[Alert, ...]
    unscorable: int

    def rule_at(self, node: str, at_ms: int | None) -> str | None:
        """The rule that started on `node` at `at_ms`; the first by name where several did."""
        return next((a.rule for a in self.alerts if a.node == node and a.at_ms == at_ms), None)


def _hours(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / HOUR, 2)


def _null(null: NullAlert) -> dict[str, object]:
    rounded = {
        name: {"mean": round(s.mean, 4), "p95": round(s.p95, 4), "reached": round(s.reached, 4)}
        for name, s in null.spreads.items()
    }
    return {"draws": null.draws, **rounded}


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Figures of one replay.

    `findings` counts by rule how often it opened, `openings` are these in the order of time; `ticket` is None
    without an incident log.
    """

    rows: int
    seconds: float
    gpus: int
    readings: int
    events: int
    findings: Mapping[str, int]
    openings: tuple[Opening, ...]
    dropped: Mapping[str, int]
    ticket: TicketResult | None
    problems: tuple[str, ...]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, object]:
        """The document of ``tocsin replay --json``; instants are ISO 8601, leads hours."""
        ticket = self.ticket
        return {
            "clock": "ticket",
            "incidents": [self._incident(ticket, one) for one in ticket.score.found] if ticket else [],
            "episodes": self._episodes(ticket.score) if ticket else None,
            "null": self._nulls(ticket.nulls) if ticket else None,
            "skill": self._skill(ticket) if ticket else None,
            "unscorable": ticket.unscorable if ticket else 0,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second),
            "seconds": round(self.seconds, 3),
            "gpus": self.gpus,
            "readings": self.readings,
            "events": self.events,
            "findings": dict(self.findings),
            "openings": [one.as_json() for one in self.openings],
            "dropped": dict(self.dropped),
            "problems": list(self.problems),
            "bias": BIAS,
        }

    @staticmethod
    def _incident(ticket: TicketResult, one: Found) -> dict[str, object]:
        return {
            "node": one.incident.node,
            "incident_date": to_iso(one.incident.day_ms)[:10],
            "first_alert": None if one.start_ms is None else to_iso(one.start_ms),
            "rule": ticket.rule_at(one.incident.node, one.start_ms),
            "lead_hours": _hours(one.lead_ms),
            "fresh_lead_hours": _hours(one.fresh_lead_ms),
        }

    @staticmethod
    def _episodes(score: TicketScore) -> dict[str, object]:
        return {
            "count": score.starts,
            "followed": score.followed,
            "precision": None if score.precision is None else round(score.precision, 4),
            "per_node_day": round(score.per_node_day, 4),
            "node_days": round(score.node_days, 2),
        }

    @staticmethod
    def _nulls(nulls: Nulls) -> dict[str, object]:
        return {
            "always_on": _null(nulls.always_on),
            "coin": _null(nulls.coin),
            "shifts": _null(nulls.shifts),
        }

    @staticmethod
    def _skill(ticket: TicketResult) -> dict[str, object]:
        shifts = ticket.nulls.shifts.spreads[SKILL_FIGURE]
        return {
            "figure": SKILL_FIGURE,
            "value": figures(ticket.score)[SKILL_FIGURE],
            "shifts_p95": shifts.p95,
            "shifts_reached": round(shifts.reached, 4),
            "above": skilful(ticket.score, ticket.nulls.shifts),
            "figures_above": figures_above(ticket.score, ticket.nulls.shifts),
        }

    def as_text(self) -> str:
        lines = [
            f"{counted(self.rows, 'line')} in {self.seconds:.1f} s ({self.rows_per_second:,.0f}/s): "
            f"{counted(self.gpus, 'GPU')}, {counted(self.readings, 'reading')}, "
            f"{counted(self.events, 'XID transition')}",
            "findings opened: " + (", ".join(f"{rule} {n}" for rule, n in self.findings.items()) or "none"),
        ]
        if self.openings:
            lines += ["", *_opening_lines(self.openings)]
        if self.ticket is not None:
            lines += ["", *_ticket_lines(self.ticket)]
        if self.problems:
            lines += ["", *(f"problem: {problem}" for problem in self.problems)]
        return "\n".join(lines) + "\n"


def _opening_lines(openings: Sequence[Opening]) -> list[str]:
    """A table of the first `SHOWN_OPENINGS`, as wide as these need, and how many more there are."""
    shown = [
        (to_iso(one.at_ms)[:16].replace("T", " "), one.host or "-", one.gpu or "-", one.rule, one.sentence)
        for one in openings[:SHOWN_OPENINGS]
    ]
    rows = [("opened", "host", "GPU", "rule", "sentence"), *shown]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(4)), row[4]]) for row in rows]
    more = len(openings) - SHOWN_OPENINGS
    return [*lines, f"and {more:,} more (see --json)"] if more > 0 else lines


def _lead(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / HOUR:.1f} h"


def _ticket_lines(ticket: TicketResult) -> list[str]:
    score = ticket.score
    lines = [f"{'node':<24} {'logged':<10} {'first alert':<20} {'lead':>8} {'fresh':>8}  rule"]
    for one in score.found:
        alert = "not found" if one.start_ms is None else to_iso(one.start_ms)[:16].replace("T", " ")
        rule = ticket.rule_at(one.incident.node, one.start_ms) or ""
        lines.append(
            f"{one.incident.node:<24} {to_iso(one.incident.day_ms)[:10]} {alert:<20} "
            f"{_lead(one.lead_ms):>8} {_lead(one.fresh_lead_ms):>8}  {rule}".rstrip()
        )
    precision = "none" if score.precision is None else f"{score.precision:.2f}"
    if ticket.unscorable:
        left_out = counted(ticket.unscorable, "incident")
        lines.append(f"{left_out} not scored: telemetry at fewer than {SCORABLE_INSTANTS} instants of the 48 h before")
    lines += [
        "",
        f"{score.count()} of {len(score.found)} found; {counted(score.starts, 'start')}, {score.followed} followed: "
        f"precision {precision}, {score.per_node_day:.3f} starts per node-day over {score.node_days:.1f} node-days",
        "",
        f"{'figure':<14} {'alerts':>8} {'always on':>10} "
        f"{'coin':>8} {'p95':>8} {'shifts':>8} {'p95':>8} {'reached':>8}",
    ]
    n = ticket.nulls
    for name, value in figures(score).items():
        always, coin, shift = (null.spreads[name] for null in (n.always_on, n.coin, n.shifts))
        lines.append(
            f"{name:<14} {value:>8.3g} {always.mean:>10.3g} {coin.mean:>8.3g} {coin.p95:>8.3g} "
            f"{shift.mean:>8.3g} {shift.p95:>8.3g} {shift.reached:>8.3g}"
        )
    above = figures_above(score, n.shifts)
    verdict = "above" if skilful(score, n.shifts) else "NOT above"
    lines += [
        "",
        f"{SKILL_FIGURE} is {verdict} the 95th percentile of the shifts; above it by any figure: "
        f"{', '.join(above) or 'none'}.",
        BIAS,
        CLOCK,
    ]
    return lines


@dataclass(frozen=True, slots=True)
class _ReplayRun:
    """What the rules said: alerts that count for the ticket clock, and every finding as it opened."""

    alerts: list[Alert]
    opened: list[Opening]
    dropped: Counter[str]


def _node(finding: Finding) -> str:
    subject = finding.subject
    return subject.name if subject.kind is SubjectKind.HOST else subject.host


def _opening(at_ms: int, finding: Finding) -> Opening:
    subject = finding.subject
    gpu = subject.name if subject.kind is SubjectKind.GPU else ""
    return Opening(at_ms, _node(finding), gpu, finding.rule, finding.sentence)


def steps(recording: ReplayRecording) -> Iterator[tuple[int, list[Reading], list[Event]]]:
    """Every instant at which any host was observed, with what is new there: a host without GPU telemetry passes
    time, so that rules about silence see it."""
    events = recording.events()
    place = 0
    instants = recording.instants()
    following = next(instants, None)
    for at_ms in np.unique(np.concatenate(list(recording.observed.values()))).tolist():
        readings: list[Reading] = []
        while following is not None and following[0] <= at_ms:
            readings += following[1]
            following = next(instants, None)
        first = place
        while place < len(events) and events[place].at_ms <= at_ms:
            place += 1
        yield at_ms, readings, events[first:place]


def _judge(recording: ReplayRecording, ruleset: RuleSet) -> _ReplayRun:
    engine = RuleEngine(ruleset)
    run = _ReplayRun([], [], Counter())
    total = np.unique(np.concatenate(list(recording.observed.values()))).size
    for at_ms, readings, events in track(steps(recording), "replay", total):
        evaluation = engine.step(Inputs(now_ms=at_ms, readings=readings, events=events))
        run.dropped.update(evaluation.dropped)
        for finding in evaluation.opened:
            run.opened.append(_opening(at_ms, finding))
            if finding.is_hardware_fault:
                run.alerts.append(Alert(at_ms, _node(finding), finding.rule))
    return run


def _score(run: _ReplayRun, recording: ReplayRecording, log: IncidentLog, seed: int, draws: int) -> TicketResult:
    times = by_node(run.alerts)
    return TicketResult(
        score=score(times, log.incidents, recording.observed),
        nulls=nulls(times, log.incidents, recording.observed, seed=seed, draws=draws),
        alerts=tuple(sorted(run.alerts)),
        unscorable=len(log.incidents) - len(scorable(log.incidents, recording.observed)),
    )


def run_replay(
    paths: Sequence[Path],
    incidents_csv: Path | None,
    ruleset: RuleSet,
    *,
    clock: Clock | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> ReplayReport:
    """Read `paths`, run `ruleset` over every recorded instant, and score its alerts against `incidents_csv` if given.

    An alert is evaluated with what was recorded up to its instant alone. `clock` measures how long it took; `seed`
    and `draws` are those of the null alerts. Raises InputError where nothing can be read, and for an incident log that
    cannot be used before any recording is read; what is wrong with a part is in the report's `problems`.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic()
    log = None if incidents_csv is None else read_incidents(incidents_csv)
    recording = read_recording(paths)
    run = _judge(recording, ruleset)
    ticket, problems = None, list(recording.problems)
    if log is not None:
        ticket = _score(run, recording, log, seed, draws)
        problems += log.problems
    return ReplayReport(
        rows=recording.rows,
        seconds=clock.monotonic() - begun,
        gpus=len(recording.tracks),
        readings=sum(int(track.at_ms.size) for track in recording.tracks),
        events=len(recording.events()),
        findings=dict(sorted(Counter(one.rule for one in run.opened).items())),
        openings=tuple(run.opened),
        dropped=dict(sorted(run.dropped.items())),
        ticket=ticket,
        problems=tuple(str(problem) for problem in problems),
    )
