"""Putting a brain together from settings, and `tocsin brain`, which serves it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from tocsin.accounting.prices import PriceList, price_list_of, read_prices
from tocsin.accounting.table import UsageTable
from tocsin.actions.executors.registry import Dependencies, SimulatedPort, build_executor
from tocsin.actions.loop.execution import Threads
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.loop.routing import Routing, build_routing
from tocsin.actions.model.earning import check_waived, waived_in_words
from tocsin.actions.model.policy import Policy
from tocsin.actions.notifications.fanout import FanOut, build_notifier
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.actions.planning.foresight import PLANNED
from tocsin.api.app import create_app
from tocsin.api.read_audit import ReadAudit
from tocsin.api.routes_slack import SlackPresses
from tocsin.api.server import ApiServer
from tocsin.api.starting import Starting
from tocsin.config.address import is_loopback, split_address
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Subject
from tocsin.domain.pool import PoolState
from tocsin.forecaster.live.risk_inputs import RiskInputs
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.journal.journal import Journal
from tocsin.journal.port import LiveJournal
from tocsin.journal.witness import NO_WITNESS, WitnessKeeper
from tocsin.queries.service import BrainService
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.runtime.brain.annotations import ANNOTATE_SECONDS, Annotations, AnnotationTarget, GrafanaTarget, StoreTarget
from tocsin.runtime.brain.brain import Brain, BrainParts, Handover
from tocsin.runtime.brain.fault_signs import SIGN_SECONDS, open_signs
from tocsin.runtime.brain.follower import Follower, open_followers
from tocsin.runtime.brain.forecasts import FleetForecasts
from tocsin.runtime.brain.journal_upkeep import ARCHIVE_SECONDS, JournalUpkeep
from tocsin.runtime.brain.lease import LEASE_LOOK_SECONDS, Lease, looking, open_lease
from tocsin.runtime.brain.managers import LOOK_SECONDS, TIDY_SECONDS, Managers
from tocsin.runtime.brain.metrics_page import BrainPage
from tocsin.runtime.brain.node_conditions import CONDITION_SECONDS, open_conditions
from tocsin.runtime.brain.orders import OrderService, open_queue
from tocsin.runtime.brain.past_reader import PAST_SECONDS, PastReader
from tocsin.runtime.brain.periodic import Periodic
from tocsin.runtime.brain.plan_watch import PlanWatch
from tocsin.runtime.brain.pod_role import POD_ROLE_SECONDS, open_pod_role
from tocsin.runtime.brain.report_watch import REPORT_LOOK_SECONDS, ReportWatch
from tocsin.runtime.brain.retrain import Retrainer
from tocsin.runtime.brain.slurm_signs import open_slurm_signs
from tocsin.runtime.brain.store_follower import FOLLOWED
from tocsin.runtime.brain.succession import SharedJournal, Succession, refuse_other_leases
from tocsin.runtime.brain.ticket_evidence import TicketEvidence
from tocsin.runtime.brain.token_reviews import open_token_reviews
from tocsin.runtime.brain.usage_keeper import WRITE_SECONDS, UsageParts
from tocsin.runtime.brain.warm_up import WARM_SECONDS
from tocsin.runtime.brain.witnesses import open_witnesses, watch_journal
from tocsin.runtime.service_manager import ServiceManager
from tocsin.runtime.state_files import (
    brain_files,
    features_path,
    plain_despite_key,
    require_encryption,
    usage_path,
)
from tocsin.store.annotations import KeepsAnnotations
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin.store.upkeep import interrupt
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.claims import Claim
from tocsin.topology.site_file import read_site_file

log = structlog.get_logger()

RETRAIN_LOOK_SECONDS = 600.0
"""Time between two looks whether a training is due."""
ON_STANDBY = frozenset({"evaluate", "managers", "past", "warm_up", "usage", "pod_role"})
"""Threads of a brain that stands by, beside its followers: what it takes to see the fleet, and nothing that changes
anything but its own sums of usage and the label of its own pod."""
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
    followers: Sequence[Follower] = ()

    def start(self, *, evaluate: bool = True) -> None:
        """Start the threads; without `evaluate` somebody else calls the brain's `tick`."""
        for follower in self.followers:
            if follower.before_start:
                follower.look()
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
        if self.brain.rules.warming is not None:
            self.brain.rules.warming.pause()
        interrupt(self.brain.store)
        self.worker.close()
        for thread in self.threads:
            thread.stop()
        if self.annotations is not None:
            self.annotations.close()
        for follower in self.followers:
            follower.close()
        self.brain.close()
        if self.sender is not None:
            self.sender.close()


def risk_place(settings: Settings) -> RiskInputs | None:
    """None where the worker's process could not read the store: one in memory is in this process alone."""
    forecast = settings.forecast
    if settings.store.kind is StoreKind.MEMORY and forecast.worker:
        return None
    return RiskInputs(
        settings.store,
        forecast.models,
        features_path(settings),
        forecast.warm_days,
        forecast.alarm_share,
        forecast.least_precision,
    )


def _opened_store(settings: Settings) -> Store:
    store = open_store(settings.store)
    store.init()
    return store


def _usage_table(settings: Settings) -> UsageTable:
    path = usage_path(settings)
    table = UsageTable(path)
    if table.kept_elsewhere:
        log.warning("another brain keeps the file of usage; this one counts in memory", path=str(path))
    if table.damaged:
        log.error("the file of usage was damaged and is put aside; a new one begins", path=str(path))
    return table


def open_brain(
    settings: Settings,
    clock: Clock,
    *,
    propose: bool = False,
    fleet: SimulatedPort | None = None,
    pools: Callable[[], Sequence[PoolState]] | None = None,
    notifier: FanOut | None = None,
    place: SharedJournal | None = None,
) -> RunningBrain:
    """A brain over the store and the journal file that `settings` name, or that of `place`; nothing runs yet.

    With `propose` rules that only observe propose, as far as the service's mode allows. Executor `simulated` acts on
    `fleet`. `pools` tells the state of pools, else those of the settings are elastic; `notifier` replaces the channels.
    """
    metrics, (ruleset, site, price_list), store = OwnMetrics(), _tables(settings, place), _opened_store(settings)
    (journal, witnesses), lease = _open_journal(settings, clock, metrics, place), _lease_of(settings, clock, place)
    sender = WebhookSender(settings.webhook, clock) if settings.webhook.url.get_secret_value() else None
    routing = _routing(Dependencies(sender, settings, clock, queue := open_queue(settings.node, clock), fleet, metrics))
    evidence, worker = TicketEvidence(), ForecastWorker(settings.forecast, place=risk_place(settings), store=store)
    told = notifier or build_notifier(settings, sender, clock, metrics, evidence)
    parts = BrainParts(
        settings=settings,
        clock=clock,
        metrics=metrics,
        store=store,
        journal=journal,
        ruleset=ruleset,
        actions=_action_loop(journal, routing, clock, _policy(settings, ruleset, propose), told, lease, place),
        forecasts=FleetForecasts(store, worker, settings.forecast),
        managers=Managers(routing.executors, clock, metrics),
        orders=OrderService(queue, metrics),
        lease=lease,
        pools=pools or (lambda: [PoolState(name, None, elastic=True) for name in settings.actions.elastic_pools]),
        usage=UsageParts(_usage_table(settings), price_list),
        witnesses=witnesses,
        site=site,
        handover=None if place is None else place.handover,
    )
    return _running(parts, worker, sender, evidence)


def _lease_of(settings: Settings, clock: Clock, place: SharedJournal | None) -> Lease | None:
    return open_lease(settings, clock) if place is None else place.lease


def _action_loop(
    journal: LiveJournal,
    routing: Routing,
    clock: Clock,
    policy: Policy,
    told: FanOut,
    lease: Lease | None,
    place: SharedJournal | None,
) -> ActionLoop:
    def may_act() -> bool:
        return lease is None or lease.held()

    workers, budget = Threads(), None if place is None else place.budget
    return ActionLoop(
        journal, routing, clock, policy, told, workers, may_act=may_act, leads=journal.leads, budget=budget
    )


def _tables(settings: Settings, place: SharedJournal | None) -> tuple[RuleSet, list[Claim], PriceList]:
    """The rules, which stay the same at a takeover, and what the site's files say of places and prices. Raises
    InputError before anything is opened."""
    file, prices, waived = settings.topology.file, settings.usage.price_file, settings.actions.earn_waived
    rules, handover = settings.rules, None if place is None else place.handover
    ruleset = load_rules(rules.path, rules.xid_overrides) if handover is None else handover.rules.ruleset
    check_waived(waived, {*PLANNED, *(rule.name for rule in ruleset)})
    if said := waived_in_words(waived):
        log.warning(said)
    listed = price_list_of(settings.prices.prices(), None if prices is None else read_prices(prices))
    return ruleset, [] if file is None else read_site_file(file), listed


def _routing(dependencies: Dependencies) -> Routing:
    return build_routing(dependencies.settings.actions, lambda name: build_executor(name, dependencies))


def _open_journal(
    settings: Settings, clock: Clock, metrics: OwnMetrics, place: SharedJournal | None
) -> tuple[LiveJournal, list[WitnessKeeper]]:
    """The journal, with its entries counted, and its witnesses. Paused are one that is older than what a witness has
    seen, and a new one where the brain would act at once."""
    journal = Journal.open(settings.journal.path, clock, settings.journal.key_file) if place is None else place.journal
    for kind in EntryKind:
        # From zero on: Prometheus takes a series that begins at one for no increase.
        metrics.count("tocsin_journal_entries_total", 0, kind=kind)
    if not journal.leads:
        return journal, []
    before = journal.on_append

    def count(entries: Sequence[Entry]) -> None:
        before(entries)
        for entry in entries:
            metrics.count("tocsin_journal_entries_total", kind=entry.kind)

    journal.on_append = count
    witnesses = watch_journal(journal, open_witnesses(settings), settings.journal.witness_seconds, metrics)
    doubt = "" if place is None else place.doubt
    if journal.head == 0 and settings.actions.mode is Mode.ACT:
        # Without the old journal nothing says what was already done or what a person forbade.
        doubt = "the journal is new: resume once no other brain acts on this fleet"
    if doubt:
        journal.append(EntryKind.PAUSE, {"reason": doubt})
    return journal, witnesses


def _policy(settings: Settings, ruleset: RuleSet, propose: bool) -> Policy:
    modes = {
        rule.name: Mode.PROPOSE if propose and rule.table.mode is Mode.OBSERVE else rule.table.mode for rule in ruleset
    }
    return Policy(settings.actions, modes | dict.fromkeys(PLANNED, settings.planning.mode))


def _running(
    parts: BrainParts, worker: ForecastWorker, sender: WebhookSender | None, evidence: TicketEvidence
) -> RunningBrain:
    # The queue of orders sees the nodes that the managers show.
    parts.orders.queue.nodes = parts.managers.nodes
    try:
        brain = Brain(parts)
    except Exception:
        # The next one needs the file of usage, and a worker of its own.
        parts.usage.table.close()
        worker.close()
        parts.store.close()
        raise
    evidence.serve(brain)
    brain.metrics.set_function("tocsin_forecast_worker_deaths", lambda: float(worker.deaths))
    brain.metrics.registry.register(BrainPage(brain))
    # On standby others show.
    annotations = open_annotations(brain) if brain.journal.leads else None
    followers = open_followers(brain)
    threads = _threads(brain, parts.wake, annotations, followers)
    return RunningBrain(brain, worker, threads, sender, annotations, followers)


def open_annotations(brain: Brain) -> Annotations | None:
    """What shows the journal above charts; None where there is no place for it."""
    settings, targets = brain.settings.grafana, list[AnnotationTarget]()
    if settings.url:
        targets.append(GrafanaTarget(settings))
    if isinstance(brain.store, KeepsAnnotations):
        targets.append(StoreTarget(brain.store))
    if not targets:
        return None

    def decision_of(name: str) -> Decision | None:
        return next((status.decision for status in brain.statuses() if status.decision.id == name), None)

    def subject_of(name: str) -> Subject | None:
        return next((incident.root.subject for incident in brain.incidents if incident.id == name), None)

    return Annotations(brain.journal, targets, brain.clock, brain.metrics, decision_of, subject_of)


def _threads(
    brain: Brain,
    wake: threading.Event,
    annotations: Annotations | None,
    followers: Sequence[Follower],
) -> list[Periodic]:
    settings, clock, metrics = brain.settings, brain.clock, brain.metrics
    fresh = settings.actions.fresh_seconds

    def failed(name: str) -> None:
        metrics.count("tocsin_loop_failures_total", loop=name)

    threads = [
        Periodic("evaluate", brain.tick, settings.rules.evaluate_seconds, clock, failed, wake, brain.judge_events),
        Periodic("managers", brain.managers.look, LOOK_SECONDS, clock, failed),
        Periodic("past", _past_reader(brain).look, PAST_SECONDS, clock, failed),
        Periodic("tidy", brain.managers.tidy, TIDY_SECONDS, clock, failed),
        Periodic("plans", PlanWatch(brain).look, min(settings.planning.look_seconds, fresh / 2), clock, failed),
        Periodic("forecast", brain.forecast, min(settings.forecast.every_seconds, 60.0), clock, failed),
        Periodic("retrain", Retrainer(settings, clock, metrics).tick, RETRAIN_LOOK_SECONDS, clock, failed),
        Periodic("usage", brain.usage.look, WRITE_SECONDS, clock, failed, brain.usage.wake),
        Periodic("prune", brain.prune, PRUNE_SECONDS, clock, failed),
        Periodic("archive", JournalUpkeep(brain).look, ARCHIVE_SECONDS, clock, failed),
    ]
    if settings.notify.report_at:
        reports = ReportWatch(brain, BrainService(brain).morning_report)
        threads.append(Periodic("report", reports.look, REPORT_LOOK_SECONDS, clock, failed))
    threads += _at_nodes(brain, failed)
    if annotations is not None:
        threads.append(Periodic("annotations", annotations.tick, ANNOTATE_SECONDS, clock, failed))
    if brain.lease is not None:
        threads.append(Periodic("lease", looking(brain.lease, wake), LEASE_LOOK_SECONDS, clock, failed))
    if brain.rules.warming is not None:
        threads.append(Periodic("warm_up", brain.rules.warming.look, WARM_SECONDS, clock, failed))
    kept = [thread for thread in threads if brain.journal.leads or thread.name in ON_STANDBY]
    return [*kept, *(Periodic(one.name, one.look, one.every_seconds, clock, failed) for one in followers)]


def _past_reader(brain: Brain) -> PastReader:
    return PastReader(brain.store, brain.ruleset.wanted, brain.started_ms, brain.rules.hear_past)


def _at_nodes(brain: Brain, failed: Callable[[str], None]) -> list[Periodic]:
    """What is shown and read at the nodes of managers, and shown at the own pod, where settings ask for it."""
    threads, clock = list[Periodic](), brain.clock
    signs = open_signs(brain)
    if signs is not None:
        threads.append(Periodic("signs", signs.look, SIGN_SECONDS, clock, failed))
    shown = open_slurm_signs(brain)
    if shown is not None:
        threads.append(Periodic("slurm_signs", shown.look, SIGN_SECONDS, clock, failed))
    conditions = open_conditions(brain)
    if conditions is not None:
        threads.append(Periodic("conditions", conditions.look, CONDITION_SECONDS, clock, failed))
    role = open_pod_role(brain.settings.kubernetes, brain.may_act, clock)
    if role is not None:
        threads.append(Periodic("pod_role", role.look, POD_ROLE_SECONDS, clock, failed))
    return threads


def run_brain(settings: Settings, clock: Clock, stop: threading.Event, announce: Callable[[str], None]) -> None:
    """A brain with its API, until `stop` is set; `announce` gets a line with the URL once the API answers in full.

    The port is open before the store and the journal are read, which may take a minute: until then it says so.
    """
    require_encryption(settings, brain_files(settings))
    host, port = split_address(settings.api.listen, "api.listen")
    starting = Starting()
    server = ApiServer(starting, host, port, settings.api, starting.refuse)
    server.start()
    told = threading.Event()

    def begin(place: SharedJournal | None) -> ServedBrain:
        made = ServedBrain(settings, clock, starting, place)
        if not told.is_set():
            told.set()
            announce(f"api: {server.url}")
            _warn(made.running, host, announce)
        made.running.start()
        return made

    try:
        if settings.cell.fleet and not settings.journal.url.get_secret_value():
            remedy = "set journal.url: the cells of a fleet share its database"
            raise InputError("cell.fleet", settings.cell.fleet, "needs a journal in PostgreSQL", remedy)
        if settings.journal.url.get_secret_value():
            refuse_other_leases(settings)
            Succession(settings, clock, stop, begin).run()
        else:
            served = begin(None)
            try:
                ServiceManager().stand_by(stop, served.evaluations)
            finally:
                server.stop()
                served.stop()
    finally:
        server.stop()


class ServedBrain:
    """A brain whose API answers in place of the one before it; nothing of it runs yet."""

    def __init__(self, settings: Settings, clock: Clock, starting: Starting, place: SharedJournal | None) -> None:
        starting.app = None
        self.running = open_brain(settings, clock, place=place)
        service = BrainService(self.running.brain, directory=None if place is None else place.fleet)
        self._cells = service.cells
        starting.refused = service.refused
        self._reviews = open_token_reviews(settings, self.running.brain.metrics)
        app = create_app(service, settings.api, clock, self._reviews)
        self._slack: SlackPresses = app.state.slack
        self._reads: ReadAudit = app.state.read_audit
        every = settings.api.audit_reads.every_seconds
        self.running.threads.append(Periodic("reads", self._reads.look, every, clock))
        starting.app = app
        self._starting = starting

    def evaluations(self) -> int:
        """How many evaluations have begun."""
        return self.running.evaluations()

    def follow(self) -> None:
        """On standby: take in what the active brain has put on record."""
        self.running.brain.follow()

    def handover(self) -> Handover | None:
        """What it has seen; None where the store is on this host alone, and nothing came here on standby."""
        shared = self.running.brain.settings.store.kind in FOLLOWED
        return self.running.brain.handover() if shared else None

    def stop(self) -> None:
        """Answer no more, and end it."""
        self._starting.app = None
        self._reads.look()
        self._slack.replies.close()
        self._cells.close()
        if self._reviews is not None:
            self._reviews.close()
        self.running.stop()


def _warn(running: RunningBrain, host: str, announce: Callable[[str], None]) -> None:
    """Say what of the settings a person may not have meant."""
    settings = running.brain.settings
    if settings.api.open_to_loopback and not is_loopback(host):
        announce("no api.tokens are set: requests from other hosts are refused, agents on other nodes among them")
    elif settings.api.tls_certificate is None and not is_loopback(host):
        announce("no api.tls_certificate is set: tokens and passwords travel in the clear")
    if plain := plain_despite_key(brain_files(settings)):
        announce(f"{len(plain)} files are plain though there is a key, {plain[0]} among them: tocsin at-rest encrypt")
    if not running.brain.witnesses and settings.actions.mode is not Mode.OBSERVE:
        announce(NO_WITNESS)
