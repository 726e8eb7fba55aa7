"""`tocsin replay`: the rules that judge the fleet, over recorded telemetry, scored by the ticket clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.collector.replay.recording import Recording
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.event import Event
from tocsin.domain.finding import Category, Finding, Severity
from tocsin.domain.progress import track
from tocsin.domain.reading import Reading
from tocsin.domain.subject import SubjectKind
from tocsin.forecaster.evaluation.ticket_clock import Alert, by_node, scorable, score
from tocsin.forecaster.evaluation.ticket_log import IncidentLog, read_incidents
from tocsin.forecaster.evaluation.ticket_nulls import DRAWS, nulls
from tocsin.offline.replay_report import Opening, ReplayReport, TicketResult
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.schema import RuleSet


@dataclass(frozen=True, slots=True)
class _Run:
    """What the rules said: alerts that count for the ticket clock, and every finding as it opened."""

    alerts: list[Alert]
    opened: list[Opening]
    dropped: Counter[str]


def counts_as_alert(finding: Finding) -> bool:
    """Whether the ticket clock counts `finding`: trouble of the GPU itself that cannot wait."""
    return finding.category is Category.HARDWARE and finding.severity is Severity.CRITICAL


def _node(finding: Finding) -> str:
    subject = finding.subject
    return subject.name if subject.kind is SubjectKind.HOST else subject.host


def _opening(at_ms: int, finding: Finding) -> Opening:
    subject = finding.subject
    gpu = subject.name if subject.kind is SubjectKind.GPU else ""
    return Opening(at_ms, _node(finding), gpu, finding.rule, finding.sentence)


def _steps(recording: Recording) -> Iterator[tuple[int, list[Reading], list[Event]]]:
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


def _judge(recording: Recording, ruleset: RuleSet) -> _Run:
    engine = RuleEngine(ruleset)
    run = _Run([], [], Counter())
    total = np.unique(np.concatenate(list(recording.observed.values()))).size
    for at_ms, readings, events in track(_steps(recording), "replay", total):
        evaluation = engine.step(Inputs(now_ms=at_ms, readings=readings, events=events))
        run.dropped.update(evaluation.dropped)
        for finding in evaluation.opened:
            run.opened.append(_opening(at_ms, finding))
            if counts_as_alert(finding):
                run.alerts.append(Alert(at_ms, _node(finding), finding.rule))
    return run


def _score(run: _Run, recording: Recording, log: IncidentLog, seed: int, draws: int) -> TicketResult:
    times = by_node(run.alerts)
    left_out = len(log.incidents) - len(scorable(log.incidents, recording.observed))
    return TicketResult(
        score=score(times, log.incidents, recording.observed),
        nulls=nulls(times, log.incidents, recording.observed, seed=seed, draws=draws),
        alerts=tuple(sorted(run.alerts)),
        unscorable=left_out,
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
