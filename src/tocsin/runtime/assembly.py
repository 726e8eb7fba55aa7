"""Putting a brain together from settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.actions.executors.registry import Dependencies, SimulatedPort, build_executor
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.loop.routing import build_routing
from tocsin.actions.loop.workers import Threads
from tocsin.actions.model.policy import Policy
from tocsin.actions.notifications.fanout import build_notifier
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.actions.planning.foresight import PLANNED
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.subject import Subject
from tocsin.forecaster.live.place import RiskPlace
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.journal.chain import Entry
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.rules.load import load_rules
from tocsin.runtime.annotation_targets import GrafanaPlace, Place, StorePlace
from tocsin.runtime.annotations import LOOK_SECONDS as LOOK_SECONDS_MARKS
from tocsin.runtime.annotations import Annotations
from tocsin.runtime.brain import Brain
from tocsin.runtime.brain_page import BrainPage
from tocsin.runtime.forecasts import Forecasts
from tocsin.runtime.lease import LEASE_LOOK_SECONDS, open_lease
from tocsin.runtime.managers import LOOK_SECONDS, TIDY_SECONDS, Managers
from tocsin.runtime.orders import OrderService, open_board
from tocsin.runtime.plan_watch import PlanWatch
from tocsin.runtime.retrain import Retrainer
from tocsin.runtime.runner import Periodic
from tocsin.store.annotations import KeepsAnnotations
from tocsin.store.factory import open_store
from tocsin.store.upkeep import interrupt
from tocsin.telemetry.metrics import OwnMetrics

RETRAIN_LOOK_SECONDS = 600.0
"""Time between two looks whether a training is due."""
PRUNE_SECONDS = 300.0
"""Time between two rounds of looking after the store: most find nothing that is due."""


@dataclass
class RunningBrain:
    """A brain with its threads."""

    brain: Brain
    worker: ForecastWorker
    threads: list[Periodic]
    sender: WebhookSender | None
    annotations: Annotations | None = None

    def start(self, *, evaluate: bool = True) -> None:
        """Start the threads; without `evaluate` somebody else calls the brain's `tick`."""
        for thread in self.threads:
            if evaluate or thread.name != "evaluate":
                thread.start()

    def evaluations(self) -> int:
        """How many evaluations have begun."""
        return sum(thread.calls for thread in self.threads if thread.name == "evaluate")

    def stop(self) -> None:
        """Stop the threads, end the worker process and close the files."""
        for thread in self.threads:
            thread.signal()
        self.brain.forecasts.stop()
        interrupt(self.brain.store)
        self.worker.close()
        for thread in self.threads:
            thread.stop()
        if self.annotations is not None:
            self.annotations.close()
        self.brain.close()
        if self.sender is not None:
            self.sender.close()


def _risk_place(settings: Settings) -> RiskPlace | None:
    """None where the worker's process could not read the store: one in memory is in this process alone."""
    forecast = settings.forecast
    if settings.store.kind is StoreKind.MEMORY and forecast.worker:
        return None
    state = settings.store.path.with_name(f"{settings.store.path.name}.features.npz")
    return RiskPlace(settings.store, forecast.models, state, forecast.warm_days, forecast.alarm_share)


def open_brain(
    settings: Settings, clock: Clock, *, propose: bool = False, fleet: SimulatedPort | None = None
) -> RunningBrain:
    """A brain over the store and the journal that `settings` name; nothing runs yet.

    With `propose` every rule that would only observe proposes, as far as the service's own mode allows. Executor
    `simulated` acts on `fleet`.
    """
    metrics = OwnMetrics()
    ruleset = load_rules(settings.rules.path, settings.rules.xid_overrides)
    store = open_store(settings.store)
    store.init()
    journal = Journal.open(settings.journal.path, clock)
    for kind in EntryKind:
        # From zero on: Prometheus takes a series that begins at one for no increase.
        metrics.count("tocsin_journal_entries_total", 0, kind=kind)
    journal.on_append = lambda entries: _count(metrics, entries)
    modes = {rule.name: Mode.PROPOSE if propose and rule.mode is Mode.OBSERVE else rule.mode for rule in ruleset}
    policy = Policy(settings.actions, modes | dict.fromkeys(PLANNED, settings.planning.mode))
    sender = WebhookSender(settings.webhook, clock) if settings.webhook.url else None
    board = open_board(settings.node, clock)
    means = Dependencies(sender, settings, clock, orders=board, fleet=fleet, own=metrics)
    routing = build_routing(settings.actions, lambda name: build_executor(name, means))
    if journal.head == 0 and settings.actions.mode is Mode.ACT:
        # Without the old journal nothing says what was already done or what a person forbade.
        reason = "the journal is new: resume once no other brain acts on this fleet"
        journal.append(EntryKind.PAUSE, {"reason": reason})
    notifier = build_notifier(settings, sender, clock, metrics)
    actions = ActionLoop(journal, routing, clock, policy, notifier, Threads())
    worker = ForecastWorker(settings.forecast, place=_risk_place(settings), store=store)
    forecasts = Forecasts(store, worker, settings.forecast)
    brain = Brain(settings, clock, store, journal, ruleset, actions, forecasts, metrics)
    brain.managers = Managers(routing.executors, clock, metrics)
    board.nodes = brain.managers.nodes
    brain.lease = open_lease(settings, clock)
    brain.desk = OrderService(board, metrics)
    metrics.set_function("tocsin_forecast_worker_deaths", lambda: float(worker.deaths))
    metrics.registry.register(BrainPage(brain))
    annotations = open_annotations(brain)
    return RunningBrain(brain, worker, _threads(brain, annotations), sender, annotations)


def _count(metrics: OwnMetrics, entries: Sequence[Entry]) -> None:
    for entry in entries:
        metrics.count("tocsin_journal_entries_total", kind=entry.kind)


def open_annotations(brain: Brain) -> Annotations | None:
    """What shows the journal above charts; None where there is no place for it."""
    settings, places = brain.settings.grafana, list[Place]()
    if settings.url:
        places.append(GrafanaPlace(settings))
    if isinstance(brain.store, KeepsAnnotations):
        places.append(StorePlace(brain.store))
    if not places:
        return None

    def decision_of(name: str) -> Decision | None:
        return next((status.decision for status in brain.statuses() if status.decision.id == name), None)

    def subject_of(name: str) -> Subject | None:
        return next((incident.root.subject for incident in brain.incidents if incident.id == name), None)

    return Annotations(brain.journal, places, brain.clock, brain.metrics, decision_of, subject_of)


def _threads(brain: Brain, annotations: Annotations | None) -> list[Periodic]:
    settings, clock, metrics = brain.settings, brain.clock, brain.metrics
    fresh = settings.actions.fresh_seconds

    def failed(name: str) -> None:
        metrics.count("tocsin_loop_failures_total", loop=name)

    evaluate = Periodic("evaluate", brain.tick, settings.rules.evaluate_seconds, clock, failed)
    brain.on_event = evaluate.nudge
    threads = [
        evaluate,
        Periodic("managers", brain.managers.look, LOOK_SECONDS, clock, failed),
        Periodic("tidy", brain.managers.tidy, TIDY_SECONDS, clock, failed),
        Periodic("plans", PlanWatch(brain).look, min(settings.planning.look_seconds, fresh / 2), clock, failed),
        Periodic("forecast", brain.forecast, min(settings.forecast.every_seconds, 60.0), clock, failed),
        Periodic("retrain", Retrainer(settings, clock, metrics).tick, RETRAIN_LOOK_SECONDS, clock, failed),
        Periodic("prune", brain.prune, PRUNE_SECONDS, clock, failed),
    ]
    if annotations is not None:
        threads.append(Periodic("annotations", annotations.tick, LOOK_SECONDS_MARKS, clock, failed))
    if brain.lease is not None:
        threads.append(Periodic("lease", brain.lease.tick, LEASE_LOOK_SECONDS, clock, failed))
    return threads
