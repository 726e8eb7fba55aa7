"""`tocsin replay --live`: a recording through the running brain, and what it told people, scored.

The brain is the one that `tocsin brain` starts, over a store and a journal of its own in a temporary folder: readings
and events are stored, features and forecasts are made of what is stored, rules evaluated, findings collapsed, decisions
made, guarded and notified. Only the clock is the recording's. Nothing leaves the process: no channel, webhook, manager
or executor of the settings is used, and no mode but `observe`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tocsin.actions.model.decision_json import load_decision
from tocsin.collector.replay.recording import ReplayRecording
from tocsin.collector.replay.source import read_recording
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, Clock, ManualClock, SystemClock
from tocsin.domain.decision import Decision
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.progress import track
from tocsin.domain.words import counted
from tocsin.forecaster.evaluation.ticket_clock import DRAWS, IncidentLog, node_days, read_incidents
from tocsin.offline.live_score import (
    LiveScore,
    Said,
    Statement,
    event_clock,
    node_onsets,
    score_json,
    score_lines,
    ticket_clock,
)
from tocsin.offline.replay import BIAS, CLOCK, steps
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.brain import Brain

_OF_SITE = ("rules", "topology", "fragmentation", "forecast", "planning", "simulation")
"""Sections of the settings that decide what is said; the others say with whom the service speaks."""


@dataclass(frozen=True, slots=True)
class LiveReport:
    """One run. `predictions` counts what models said, `model` is the sentence about the risk model that was heard, or
    why none was."""

    rows: int
    seconds: float
    gpus: int
    evaluations: int
    predictions: int
    score: LiveScore
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The document of ``tocsin replay --live --json``."""
        return {
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "gpus": self.gpus,
            "evaluations": self.evaluations,
            "predictions": self.predictions,
            **score_json(self.score),
            "problems": list(self.problems),
            "bias": BIAS,
        }

    def as_text(self) -> str:
        lines = [
            f"{counted(self.rows, 'line')} through the running service in {self.seconds:.0f} s: "
            f"{counted(self.gpus, 'GPU')}, {counted(self.evaluations, 'evaluation')}, "
            f"{counted(self.predictions, 'prediction')}",
            *score_lines(self.score),
            BIAS,
            *([] if self.score.ticket is None else [CLOCK]),
        ]
        return "\n".join([*lines, *(f"problem: {problem}" for problem in self.problems)]) + "\n"


def run_live_replay(
    paths: Sequence[Path],
    incidents: Path | IncidentLog | None,
    settings: Settings,
    *,
    clock: Clock | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> LiveReport:
    """Send the recording in `paths` through a brain of `settings` and score what it says; `incidents` are the
    operator's log, or its file.

    The service evaluates once at each recorded instant and forecasts at its own cadence, where instants are as dense.
    Raises InputError as `tocsin.offline.replay.run_replay` does.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic()
    log = read_incidents(incidents) if isinstance(incidents, Path) else incidents
    recording = read_recording(paths)
    with tempfile.TemporaryDirectory(prefix="tocsin-live-") as folder:
        run = _through(recording, live_settings(settings, Path(folder)))
    return LiveReport(
        rows=recording.rows,
        seconds=clock.monotonic() - begun,
        gpus=len(recording.tracks),
        evaluations=run.evaluations,
        predictions=run.predictions,
        score=_scored(run.said(), recording, log, seed, draws),
        problems=tuple(str(one) for one in (*recording.problems, *(log.problems if log else ()))),
    )


def live_settings(settings: Settings, folder: Path) -> Settings:
    """What decides what is said as `settings` have it, all state below `folder`, and nobody to speak with."""
    own = Settings(**{name: getattr(settings, name) for name in _OF_SITE})
    store = own.store.model_copy(update={"kind": StoreKind.SQLITE, "path": folder / "store.db"})
    journal = own.journal.model_copy(update={"path": folder / "journal.db"})
    forecast = own.forecast.model_copy(update={"worker": False, "retrain_hours": 0.0})
    return own.model_copy(update={"store": store, "journal": journal, "forecast": forecast})


def _scored(said: Said, recording: ReplayRecording, log: IncidentLog | None, seed: int, draws: int) -> LiveScore:
    onsets = node_onsets(recording.events(), [one.gpu for one in recording.tracks])
    observed = recording.observed
    return LiveScore(
        said=said,
        event=event_clock(said, onsets, observed, seed=seed, draws=draws),
        ticket=None if log is None else ticket_clock(said, log.incidents, observed, seed=seed, draws=draws),
        node_days=node_days(observed),
    )


@dataclass
class _LiveRun:
    """Gathers what was told, and where it still held."""

    brain: Brain
    statements: list[Statement] = field(default_factory=list)
    alarm: dict[str, list[int]] = field(default_factory=dict)
    evaluations: int = 0
    predictions: int = 0
    _read: int = 0
    _hosts: dict[str, str] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _meant: dict[str, Decision] = field(default_factory=dict)

    def step(self, now_ms: int, batch: Batch) -> None:
        """One instant of the recording, as the threads of a running brain take it."""
        brain = self.brain
        brain.accept(batch)
        brain.forecast()
        brain.tick()
        self.evaluations += 1
        self._hosts |= {finding.id: _host(finding.subject) for finding in brain.active}
        self._hear()
        standing = [incident.members for incident in brain.incidents]
        told = {one.id for members in standing if any(it.id in self._told for it in members) for one in members}
        for node in {self._hosts[one.id] for one in brain.active if one.id in told | self._told} - {""}:
            self.alarm.setdefault(node, []).append(now_ms)

    def _hear(self) -> None:
        """Take up the notifications that the journal has had since the last look."""
        journal = self.brain.journal
        for entry in journal.entries(after=self._read, kinds={EntryKind.DECISION, EntryKind.NOTIFICATION}):
            if entry.kind == EntryKind.DECISION:
                decision = load_decision(dict(entry.payload))
                if decision.action is ActionKind.NOTIFY:
                    self._meant[decision.id] = decision
            elif entry.payload.get("ok") and (meant := self._meant.pop(str(entry.payload["decision"]), None)):
                self._take(meant, entry.at_ms)
        self._read = journal.head

    def _take(self, decision: Decision, at_ms: int) -> None:
        nodes = {_host(decision.subject), *(self._hosts.get(one, "") for one in decision.findings)} - {""}
        made = Statement(
            at_ms, tuple(sorted(nodes)), decision.rule, str(decision.alert_level), decision.category,
            decision.sentence,
        )  # fmt: skip
        self.statements.append(made)
        if made.about_machines:
            self._told |= set(decision.findings)

    def said(self) -> Said:
        alarm = {node: np.array(at_ms, np.int64) for node, at_ms in sorted(self.alarm.items())}
        return Said(tuple(self.statements), alarm)


def _host(subject: Subject) -> str:
    return subject.name if subject.kind is SubjectKind.HOST else subject.host


def _through(recording: ReplayRecording, settings: Settings) -> _LiveRun:
    instants = np.unique(np.concatenate(list(recording.observed.values())))
    clock = ManualClock(int(instants[0]))
    running = open_brain(settings, clock)
    run = _LiveRun(running.brain)
    pruned_ms = int(instants[0])
    try:
        for at_ms, readings, events in track(steps(recording), "replay", instants.size):
            clock.advance(at_ms - clock.now_ms())
            run.step(at_ms, Batch(readings, events))
            if at_ms - pruned_ms >= DAY:
                running.brain.prune()
                pruned_ms = at_ms
        run.predictions = running.brain.forecasts.made
    finally:
        running.stop()
    return run
