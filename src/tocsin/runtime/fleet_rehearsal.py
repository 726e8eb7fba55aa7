"""`tocsin rehearse fleet`: the service over a simulated fleet, and whether what it said was right.

It is the service's own path: readings to the store, rules, incidents, forecasts, decisions, guards and notifications of
a brain that `open_brain` builds, in step with the fleet's time. Only two things differ from a brain in the field. All
its work is done in one thread, one piece after another, and messages end in a list instead of at a receiver.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.actions.model.policy import milliseconds
from tocsin.actions.notifications.channel import Delivery, Message
from tocsin.actions.notifications.fanout import ChannelQueue, FanOut
from tocsin.client.models_pager import EarlyWarnings, PagerReport, PagerScore, StatementScore
from tocsin.config.cloud import AwsSettings, CloudSettings, ScaleWebhookSettings
from tocsin.config.grafana import GrafanaSettings
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.config.notify import ChannelSettings
from tocsin.config.settings import Settings, StoreKind, TopologySettings, WebhookSettings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, MINUTE, Clock, ManualClock, from_iso
from tocsin.domain.decision import Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import ActionKind, Category, Subject, SubjectKind
from tocsin.domain.reading import Reading
from tocsin.queries.early_warnings import SignalTable, Warned, score_early
from tocsin.queries.pager_journal import LEDGER, breaker_trips, decided, trips_by_forecast
from tocsin.queries.pager_score import (
    FAULTS,
    QUIET,
    SOFTWARE,
    Cause,
    PagerAlert,
    Truth,
    by_fault_kind,
    page_at_random,
    page_every_finding,
    page_nothing,
    score_alerts,
    unjudged_alerts,
    wrong_alerts,
)
from tocsin.queries.series_cache import SeriesCache
from tocsin.queries.statement_score import RULE, cases_of, score_rules, score_statements
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.interpreter import rare_collections
from tocsin.runtime.lockstep import Lockstep
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.jobs import POOLS
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec

START_MS = from_iso("2026-01-05T00:00:00Z")
"""A Monday; every rehearsal begins then."""
INTERVAL_MS = MINUTE
STEPS_PER_DAY = DAY // INTERVAL_MS
LOOK_STEPS = 60
COLLECT_STEPS = 720
"""Between two full garbage collections (own choice)."""
SOFTWARE_SCALE, BENIGN_SCALE = 1.0, 30.0
"""Rates of software life: crashes, leaks and fragmentation as published, signs that lead to nothing thirty times."""
RESET_MS = 60 * MINUTE
"""A person closes a breaker that has tripped after this long, so that the next trip counts."""
PERSON = "rehearsal"

USED = "gpu_memory_used_ratio"
COUNTED = (
    "gpu_pcie_replay_total",
    "gpu_ecc_corrected_volatile_total",
    "gpu_nvlink_crc_flit_errors_total",
    "gpu_nvlink_crc_data_errors_total",
)
"""Errors whose sum within the hour is the signal of links, bus and memory."""
LEAKS = frozenset({"memory_leak"})
LINKS = frozenset({"nvlink_recovery", "fallen_off_bus", "row_remap", "row_remap_failure"})
USED_RISE, COUNTED_RISE = 0.01, 10.0


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """What is rehearsed. `software` adds software life to a fleet; without it all faults go by `fault_scale`."""

    gpus: int
    days: float
    seed: int
    fault_scale: float
    software: bool = False
    scenario: Path | None = None

    @property
    def life(self) -> str:
        """What the fleet lives through, by which the bars go."""
        if self.fault_scale > 0:
            return FAULTS
        return SOFTWARE if self.software else QUIET

    def spec(self) -> FleetSpec:
        return FleetSpec(
            gpus=self.gpus,
            seed=self.seed,
            start_ms=START_MS,
            interval_ms=INTERVAL_MS,
            fault_rate_scale=self.fault_scale,
            scenario=scenario_of(self.scenario),
            software_rate_scale=SOFTWARE_SCALE if self.software else None,
            benign_rate_scale=BENIGN_SCALE if self.software else None,
            under_way=True,
        )


def rehearsal_settings(settings: Settings, folder: Path) -> Settings:
    """`settings` with everything below `folder` and nobody outside: every rule proposes, so that the breaker counts,
    and nobody approves. Rules, forecasts, planning and the budget of pages are those of `settings`."""
    store = settings.store.model_copy(update={"kind": StoreKind.SQLITE, "path": folder / "store.db"})
    journal = settings.journal.model_copy(
        update={"path": folder / "journal.db", "witness": None, "key_file": None, "by_hand": folder / "by-hand.db"}
    )
    alone: dict[str, object] = {
        "mode": Mode.PROPOSE,
        "executors": ["journal_only"],
        "pool_executors": {},
        "lease_file": None,
    }
    actions = settings.actions.model_copy(update={**alone, "managed_pools": list(POOLS)})
    forecast = settings.forecast.model_copy(update={"worker": False, "models": folder / "models", "retrain_hours": 0.0})
    outside = {
        "webhook": WebhookSettings(),
        "grafana": GrafanaSettings(),
        "kubernetes": KubernetesSettings(),
        "slurm": SlurmSettings(),
        "cloud": CloudSettings(),
        "scale_webhook": ScaleWebhookSettings(),
        "aws": AwsSettings(),
        "topology": TopologySettings(),
    }
    mine = {"store": store, "journal": journal, "actions": actions, "forecast": forecast}
    return settings.model_copy(update={**mine, **outside})


def is_wide(subjects: Sequence[Subject]) -> bool:
    """Whether nothing of this is a GPU or host, of which alone the simulator has faults."""
    return all(one.kind in (SubjectKind.POOL, SubjectKind.FLEET) for one in subjects)


class AlertLog:
    """A channel that keeps what a receiver would have got, at the instant at which it would."""

    name = "rehearsal"
    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.alerts: list[PagerAlert] = []
        self.warned: list[tuple[Category, Subject, int]] = []
        """Category, subject and instant of each notification in a message that is more than a note."""

    def send(self, messages: Sequence[Message]) -> Delivery:
        for message in messages:
            if not message.resolved:
                self._take(message)
        return Delivery(True, "kept", 1)

    def _take(self, message: Message) -> None:
        at_ms = self._clock.now_ms()
        level = max((decision.alert_level for decision in message.decisions), key=lambda one: one.rank)
        subjects = [decision.subject for decision in message.decisions]
        places, wide = frozenset(one.name for one in subjects), is_wide(subjects)
        self.alerts.append(PagerAlert(at_ms, level, message.first.rule, places, message.summary, wide))
        self.warned += [(decision.category, decision.subject, at_ms) for decision in message.decisions]

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class SignalRecorder:
    """What simple ways of warning look at, kept from the readings as they come."""

    gpus: tuple[str, ...]
    at_ms: list[int] = field(default_factory=list)
    used: list[npt.NDArray[np.float64]] = field(default_factory=list)
    counted: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def take(self, readings: Sequence[Reading], at_ms: int) -> None:
        self.at_ms.append(at_ms)
        self.used.append(np.array([reading.values.get(USED, np.nan) for reading in readings]))
        self.counted.append(np.array([sum(reading.values.get(name, 0.0) for name in COUNTED) for reading in readings]))

    def memory(self) -> SignalTable:
        return SignalTable(np.array(self.at_ms), self.gpus, np.array(self.used), USED_RISE)

    def errors(self) -> SignalTable:
        """Errors within the hour before, of the first hour unknown; counters that began again count from zero."""
        counted = np.array(self.counted)
        grown = np.diff(counted, axis=0, prepend=counted[:1]).clip(0.0, None).cumsum(axis=0)
        back = int(60 * MINUTE // INTERVAL_MS)
        hourly = np.full_like(grown, np.nan)
        hourly[back:] = grown[back:] - grown[:-back]
        return SignalTable(np.array(self.at_ms), self.gpus, hourly, COUNTED_RISE)


def causes_of(fleet: SimulatedFleet) -> list[Cause]:
    """The simulator's own account of what was wrong."""
    hard = {(one.kind, one.gpu, one.first_ms): one for one in fleet.hard_faults}
    hosts = {gpu.uuid: gpu.host for gpu in fleet.gpus}
    causes = []
    for fault in fleet.faults:
        one = hard.get((fault.kind, fault.gpu, fault.started_ms))
        causes.append(
            Cause(
                kind=fault.kind,
                places=frozenset({fault.gpu, hosts[fault.gpu]}) if one is None else one.places,
                first_ms=fault.started_ms,
                onset_ms=one.onset_ms if one is not None else fault.onset_ms or fleet.now_ms + DAY,
                shown_ms=None if one is None else one.shown_ms,
                ended_ms=fault.ended_ms,
                hard=one is not None,
                # Heat at which hardware slows a GPU is there, whatever it would have come to.
                benign=fault.benign and one is None,
                precursor=not fault.abrupt,
                own=frozenset({fault.gpu}) if one is None else one.own,
            )
        )
    return causes


class FleetRehearsal:
    """One rehearsal; `folder` takes its store and journal."""

    def __init__(self, plan: RehearsalPlan, settings: Settings, folder: Path) -> None:
        self.plan = plan
        self.fleet = SimulatedFleet(plan.spec())
        self.clock = ManualClock(self.fleet.now_ms)
        self.log = AlertLog(self.clock)
        mine = rehearsal_settings(settings, folder)
        receiver = ChannelSettings(name=self.log.name, kind="slack")
        queue = ChannelQueue(self.log, self.clock, receiver)
        notifier = FanOut([queue], threads=False, pages=mine.notify.pages_per_12h)
        self.running: RunningBrain = open_brain(
            mine, self.clock, propose=True, pools=self.fleet.pools, notifier=notifier
        )
        self.brain: Brain = self.running.brain
        self.lockstep = Lockstep(self.running, self.clock, without={"evaluate"})
        self.signals = SignalRecorder(tuple(gpu.uuid for gpu in self.fleet.gpus))
        self.notes: dict[str, PagerAlert] = {}
        self._tripped_ms: int | None = None
        self._looks = 0
        self._muted: Counter[str] = Counter()

    def step(self) -> None:
        """One interval: read, keep, evaluate, and do what else is due."""
        batch = self.fleet.step()
        self.clock.advance(self.fleet.now_ms - self.clock.now_ms())
        self.signals.take(batch.readings, self.clock.now_ms())
        self.brain.accept(batch)
        self.brain.tick()
        self._note()
        self._close_breaker()
        self._look_at_kinds()
        self.lockstep.catch_up()

    def _note(self) -> None:
        for incident in self.brain.incidents:
            if incident.alert_level is AlertLevel.NOTE and incident.id not in self.notes:
                subjects = [member.subject for member in incident.members]
                places, wide = frozenset(one.name for one in subjects), is_wide(subjects)
                alert = PagerAlert(self.clock.now_ms(), AlertLevel.NOTE, incident.root.rule, places, wide=wide)
                self.notes[incident.id] = alert

    def _look_at_kinds(self) -> None:
        """Once an hour, which kinds of statements are muted."""
        if len(self.signals.at_ms) % LOOK_STEPS == 0:
            self._looks += 1
            self._muted.update({one.kind: int(one.muted) for one in self.brain.forecasts.kinds(self.clock.now_ms())})
            self._muted.update({one.kind: int(one.muted) for one in self.brain.signs})

    def _close_breaker(self) -> None:
        controls, now_ms = self.brain.actions.controls(), self.clock.now_ms()
        if controls.breaker is None:
            self._tripped_ms = None
        elif self._tripped_ms is None:
            self._tripped_ms = now_ms
        elif now_ms - self._tripped_ms >= RESET_MS:
            self.brain.actions.operator.reset_breaker(PERSON)

    def run(self, progress: Callable[[float], None] = lambda _steps: None) -> PagerReport:
        """All of it; deterministic for a plan and settings. Raises Unavailable where a part of the service fails."""
        with rare_collections():
            for number in range(1, round(self.plan.days * STEPS_PER_DAY) + 1):
                self.step()
                progress(1.0)
                if number % COLLECT_STEPS == 0:
                    gc.collect()
        return self.report()

    # ------------------------------------------------------------------ what came of it

    def truth(self, entries: Sequence[Entry] = ()) -> Truth:
        """The simulator's own account of what was wrong, as causes, and the trips of the breaker in `entries`."""
        limits = self.brain.settings.actions
        window_ms = milliseconds(limits.breaker_window_seconds)
        trips = breaker_trips(entries, limits.breaker_root_causes, window_ms)
        return Truth(causes_of(self.fleet), self.clock.now_ms(), trips, START_MS)

    def findings(self) -> list[PagerAlert]:
        """Every finding that opened."""
        found = []
        for entry in self.brain.journal.entries(kinds={EntryKind.FINDING_OPENED}):
            finding = entry.payload["finding"]
            assert isinstance(finding, dict)
            places = frozenset({str(finding["subject"]["name"])})
            found.append(PagerAlert(entry.at_ms, AlertLevel.NOTE, str(finding["rule"]), places))
        return found

    def report(self) -> PagerReport:
        """What was said up to now against what came."""
        entries = list(self.brain.journal.entries(kinds=set(LEDGER)))
        truth, alerts = self.truth(entries), [*self.log.alerts, *self.notes.values()]
        score = score_alerts(alerts, truth)
        expects = frozenset(rule.name for rule in self.brain.ruleset if rule.expects)
        made = [entry.payload for entry in entries if entry.kind == EntryKind.DECISION]
        return PagerReport(
            **score.model_dump(),
            simulated=True,
            under_way=True,
            days=self.plan.days,
            gpus=self.plan.gpus,
            hard_faults=len(truth.due()),
            decisions=len({str(one["id"]) for one in made if one["action"] != ActionKind.NOTIFY}),
            decided=decided(entries),
            breaker_trips=sum(entry.kind == EntryKind.BREAKER_TRIPPED for entry in entries),
            breaker_trips_by_forecast=trips_by_forecast(entries, expects),
            statements=self._statements(alerts, truth),
            faults=by_fault_kind(alerts, truth),
            wrong=wrong_alerts(alerts, truth),
            not_judged=unjudged_alerts(alerts, truth),
            early=self._early(truth),
            nulls=self._nulls(truth, score.pages),
        )

    def _statements(self, alerts: Sequence[PagerAlert], truth: Truth) -> list[StatementScore]:
        series = SeriesCache(self.brain.store, self.brain.gpus, START_MS, truth.end_ms)
        made = self.brain.store.predictions(START_MS, truth.end_ms + 1)
        shares = {kind: count / self._looks for kind, count in self._muted.items()}
        rules = {kind: share for kind, share in shares.items() if kind.startswith(RULE)}
        muted = {kind: share for kind, share in shares.items() if kind not in rules}
        cases = cases_of(made, series.between, truth.end_ms, truth)
        return [*score_rules(alerts, truth, rules), *score_statements(cases, muted)]

    def _early(self, truth: Truth) -> list[EarlyWarnings]:
        seed = self.plan.seed
        memory = [Warned(at, who.name) for kind, who, at in self.log.warned if kind is Category.MEMORY]
        hardware = [Warned(at, who.name) for kind, who, at in self.log.warned if kind is Category.HARDWARE]
        struck = [cause for cause in truth.causes if cause.hard and not cause.benign]
        return [
            score_early("memory leaks", memory, LEAKS, truth, self.signals.memory(), seed),
            score_early("links, bus and remaps", hardware, LINKS, truth, self.signals.errors(), seed, struck=struck),
        ]

    def _nulls(self, truth: Truth, pages: int) -> dict[str, PagerScore]:
        findings = self.findings()
        random = page_at_random(pages, self.signals.gpus, START_MS, truth.end_ms, self.plan.seed)
        ways = {
            "page every finding": page_every_finding(findings),
            "page nothing": page_nothing(findings),
            "page at random as often": random,
        }
        return {name: score_alerts(alerts, truth) for name, alerts in ways.items()}


def rehearse_fleet(
    plan: RehearsalPlan, settings: Settings, progress: Callable[[float], None] = lambda _steps: None
) -> PagerReport:
    """One rehearsal from start to end; nothing of it stays but the report. The same plan gives the same report."""
    with tempfile.TemporaryDirectory(prefix="tocsin-rehearsal-") as folder:
        rehearsal = FleetRehearsal(plan, settings, Path(folder))
        try:
            return rehearsal.run(progress)
        finally:
            rehearsal.running.stop()
