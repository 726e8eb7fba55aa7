"""The brain: judge, decide, guard, act and record, over store and journal.

Its state is the store and the journal; it can be killed at any instant and started again on the same files.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from operator import is_not

import structlog

from tocsin.actions.guards.silence import WITHHOLDING
from tocsin.actions.loop.loop import SPENT, WITHHELD, ActionLoop
from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.decision_log import LEDGER_PART
from tocsin.actions.model.ledger_entry import DecisionStatus, StepReport
from tocsin.actions.model.ranks import JobOnGpu
from tocsin.actions.model.steady import STEP_MS
from tocsin.actions.model.view import Confirmations, FleetView
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.foresight import Proposals, alone
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, SECOND, Clock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, Unavailable
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident, Severity
from tocsin.domain.fragmentation import TaskClass
from tocsin.domain.grouping import in_parts
from tocsin.domain.place import PlaceKind
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.sign_record import SignRecord
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.capacity.filling import FillingWatch
from tocsin.forecaster.features.heat import heat_of
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.forecaster.live.risk_inputs import SeenGpus, repairs_of
from tocsin.journal.port import LiveJournal
from tocsin.journal.witness import WitnessKeeper
from tocsin.queries.card_life import CardLife
from tocsin.queries.fleet_state import KnownWork, RunningMix, mix_of, workloads_of
from tocsin.rules.engine import Evaluation, Inputs
from tocsin.rules.incidents import OpenIncidents
from tocsin.rules.schema import RuleSet
from tocsin.runtime.brain.action_state import errors_of
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.expectations import Expectations, ModelWatch
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.runtime.brain.forecasts import FleetForecasts
from tocsin.runtime.brain.foretelling import FORETELLING_PART, ForetellingRules
from tocsin.runtime.brain.lease import Lease
from tocsin.runtime.brain.managers import Managers
from tocsin.runtime.brain.orders import OrderService
from tocsin.runtime.brain.owner_lines import NO_ROOM, OTHER_HOST, TOO_MANY, OwnerRoom, believed, bounded, places_of
from tocsin.runtime.brain.ownership import Ownership
from tocsin.runtime.brain.past_reader import SAMPLE_SPAN_MS
from tocsin.runtime.brain.recorder import RECORDER_PART, Recorder
from tocsin.runtime.brain.rule_keeper import RuleKeeper
from tocsin.runtime.brain.seen_fleet import FleetSight, SeenFleet, touched_by
from tocsin.runtime.brain.taking import Taking
from tocsin.runtime.brain.topology_watch import TopologyWatch
from tocsin.runtime.brain.usage_keeper import Counted, UsageKeeper, UsageParts
from tocsin.runtime.brain.version_watch import VersionWatch
from tocsin.store.port import Store, StoreUnavailable
from tocsin.store.upkeep import look_after
from tocsin.telemetry.metrics import OwnMetrics
from tocsin.topology.claims import Claim
from tocsin.topology.topology import Topology

log = structlog.get_logger()

CHECKPOINT_ENTRIES = 5_000
"""Entries that a start or a takeover checks and reads at most, beside those of one evaluation; some 0.5 s of one core.
Nobody acts meanwhile."""
EVENT_MEMORY_MS = DAY
"""How far back events are given to the rules again at start, and how long they explain incidents."""
LOADED = 500
"""Readings, and predictions, that the rules take in at a time; between these, as between the other parts of an
evaluation, events are judged."""
FORGET_MS = DAY
"""A GPU without a reading for this long has left the fleet."""
SEEN_BACK_MS = (0, HOUR, 4 * HOUR, 12 * HOUR)
"""At a start a GPU is no newcomer where the store has it at one of these times before, whatever the service missed."""
DELIVERIES = {"notified": "delivered", "notification_tries_failed": "retried", "notifications_lost": "failed"}
"""Counts of the action loop to the outcomes of ``tocsin_deliveries_total``."""


@dataclass(frozen=True)
class BrainParts:
    """What a brain is made of. Its parts are given once; nothing is replaced while it runs.

    `pools` tells the state of the pools; `lease` is None where one brain alone acts on the fleet; `wake` is set when
    there is something to judge before the next evaluation is due; `site` is what the site's file says of places. This
    brain goes on from what the one before has seen, `handover`, by whose rules; None where the store is asked.
    """

    settings: Settings
    clock: Clock
    metrics: OwnMetrics
    store: Store
    journal: LiveJournal
    ruleset: RuleSet
    actions: ActionLoop
    forecasts: FleetForecasts
    managers: Managers
    orders: OrderService
    lease: Lease | None
    pools: Callable[[], Sequence[PoolState]]
    usage: UsageParts
    witnesses: Sequence[WitnessKeeper] = ()
    site: Sequence[Claim] = ()
    handover: Handover | None = None
    wake: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Handover:
    """What a brain has seen of the fleet by its end: the next one in its process need not read the past again.

    `watched` is since when it has without a break, on the monotonic clock; None where that counts for nothing.
    """

    memory: FleetMemory
    rules: RuleKeeper
    filling: FillingWatch | None = None
    counted: Counted | None = None
    watched: float | None = None


class Brain:
    """Store, journal, rules, forecasts and actions at work; `tick` is one evaluation of the whole state.

    It is a `tocsin.queries.live.LiveBrain`.
    """

    def __init__(self, parts: BrainParts) -> None:
        self.settings = settings = parts.settings
        self.clock = clock = parts.clock
        self.metrics = metrics = parts.metrics
        self.store = parts.store
        self.journal = journal = parts.journal
        self.actions = parts.actions
        self.forecasts, self.managers = parts.forecasts, parts.managers
        self.orders, self.lease, self.witnesses = parts.orders, parts.lease, parts.witnesses
        self._pools = parts.pools
        self._wake = parts.wake
        handover = parts.handover or Handover(FleetMemory(), RuleKeeper(parts.ruleset))
        self.memory, self.rules, self._taking = handover.memory, handover.rules, Taking(self._keep)
        settle_ms = round(settings.actions.newcomer_seconds * SECOND)
        self.owners = Ownership(settings.api.limits.gpus_per_host, settle_ms, self._replaced)
        self._owner_room = OwnerRoom()
        self._counting = self._counting_of(parts)
        self.versions = VersionWatch(journal)
        self.proposals = Proposals()
        self.recorder = Recorder(journal)
        self._open = OpenIncidents(self.recorder.held(), clock.now_ms())
        self._foretelling = ForetellingRules(journal, parts.ruleset.foretelling, settings.rules.least_precision)
        self.started_ms = clock.now_ms()
        self._watched = self._unbroken = self._begun = clock.monotonic()
        self.alert_silences = AlertSilences()
        self.active, self.signs = list[Finding](), list[SignRecord]()
        self.incidents: list[Incident] = []
        self.evaluations, self.evaluated_at = 0, clock.monotonic()
        self.ruleset = parts.ruleset
        self.topology, self._running = TopologyWatch(parts.site, metrics), RunningMix()
        self._known_work, self._loaded = dict[str, KnownWork](), tuple[Reading, ...]()
        self.usage, self._expected = self._usage_of(parts), self._expected_of(parts)
        self._confirmations = Confirmations(round(settings.rules.evaluate_seconds * SECOND / 2))
        self._unsaved, self._counted = list[Finding](), Counter[str]()
        self._guard, self._acting = threading.Lock(), False
        self._sight = FleetSight(self.memory, self._counting)
        self._start(parts.handover)
        for keeper in self.witnesses:
            keeper.listen(self.actions.operator.stop_for)

    def _usage_of(self, parts: BrainParts) -> UsageKeeper:
        settings, clock, metrics = parts.settings.usage, parts.clock, parts.metrics
        facts = parts.managers.work
        counted = None if parts.handover is None else parts.handover.counted
        return UsageKeeper(
            parts.store, parts.usage, settings, clock, metrics, self.memory.gpu, lambda: facts().facts, counted
        )

    def _counting_of(self, parts: BrainParts) -> Counting:
        listed = {claim.subject.name for claim in parts.site if claim.subject.kind is PlaceKind.GPU}
        acting = parts.settings.actions
        return Counting(self.owners, acting.unshown_gpus_per_host, acting.managed_label, listed)

    def _expected_of(self, parts: BrainParts) -> Expectations:
        store, journal, metrics = parts.store, parts.journal, parts.metrics
        models = ModelWatch(ModelRegistry(parts.settings.forecast.models), store, journal, metrics)
        filling = None if parts.handover is None else parts.handover.filling
        return Expectations(parts.forecasts, models, store, journal, metrics, parts.clock, filling)

    def _start(self, seen: Handover | None) -> None:
        """Go on where the last brain ended, by what it has `seen` or else by the store."""
        if self.journal.leads:
            begun = {"epoch": self.journal.epoch, "mode": self.settings.actions.mode}
            self.journal.append(EntryKind.SERVICE_STARTED, begun)
        now = self.started_ms
        # On standby not all events are seen: those that came late, and what the active brain noted itself. Readings
        # newer than its last look come with the next one, in service as on standby; unless that was long ago.
        events = self.store.events(now - EVENT_MEMORY_MS, now + 1)
        fresh = seen is not None and self._sees(self.memory.latest(), now)
        readings = [] if fresh else list(self.store.latest(now - FORGET_MS))
        if seen and fresh and seen.watched is not None:
            self._watched = self._unbroken = seen.watched
        self.memory.recall(self._with_room(Batch(readings=readings, events=events)))
        first = next((entry.at_ms for entry in self.journal.entries(limit=1)), now)
        self.owners.seed(self.memory.latest(), first, self._seen_before(now - self.owners.newcomer_ms))
        self.versions.recall(self.memory.latest(), now, first)
        held = self.recorder.open_of({rule.name for rule in self.ruleset})
        if seen:
            self.rules.go_on(self.store, held)
        else:
            repaired, before = self.actions.controls().repaired, self.versions.before
            self.rules.warm(self.store, self.settings, self.clock, self.memory.known, repaired, before, held)
        self.rules.engine.adopt(self.recorder.open_of(self.ruleset.recalling))
        self._expected.recall(self.gpus, now)
        self.usage.recover(now)

    def handover(self) -> Handover:
        """What it has seen, once it has ended."""
        return Handover(self.memory, self.rules, self._expected.filling, self.usage.counted(), self._unbroken)

    def _seen_before(self, before_ms: int) -> set[str]:
        """UUIDs of GPUs that were read at one of some instants before `before_ms`."""
        spans = ((before_ms - back_ms - SAMPLE_SPAN_MS, before_ms - back_ms) for back_ms in SEEN_BACK_MS)
        return {uuid for start, end in spans for uuid in self.store.columns((), start, end).gpus}

    def pools(self) -> Sequence[PoolState]:
        """The pools as they are known now."""
        return self._pools()

    def hear_silences(self, found: AlertSilences) -> None:
        """What people have silenced at Alertmanager, as of now."""
        self.alert_silences = found

    def accept(self, batch: Batch) -> None:
        """Keep readings and events: durable on return. Raises StoreUnavailable or StoreRejected, and NotLeading on
        standby: what is told to this brain alone, the active one never sees."""
        if (problem := self.accept_all([batch])[0]) is not None:
            raise problem

    def accept_all(self, batches: Sequence[Batch]) -> list[Exception | None]:
        """As `accept` for each, kept together; what was raised for each."""
        return self._taking.take(batches)

    def _keep(self, batch: Batch) -> None:
        self.journal.must_lead()
        admitted = self._admitted(batch)
        self.store.write(admitted)
        self._remember(admitted)
        self.metrics.count("tocsin_store_writes_total", store=self.settings.store.kind)

    def take_stored(self, batch: Batch) -> Batch:
        """Take over what others have written to the store; what of it may be kept."""
        admitted = self._admitted(batch)
        self._remember(admitted)
        return admitted

    def _admitted(self, batch: Batch) -> Batch:
        batch = self._with_own_work(batch)
        refused = self.owners.refuse(batch, self.clock.now_ms())
        for (what, reason), count in refused.reasons.items():
            self.metrics.count("tocsin_dropped_total", count, what=what, reason=reason)
        if not refused.reasons and not refused.told:
            return self._with_room(batch)
        readings = [one for place, one in enumerate(batch.readings) if place not in refused.readings]
        events = [one for place, one in enumerate(batch.events) if place not in refused.events]
        return self._with_room(replace(batch, readings=readings, events=[*events, *refused.told]))

    def _with_room(self, batch: Batch) -> Batch:
        """`batch` with no more owners of a host than are remembered of one."""
        fitted = [self._owner_room.fitted(reading) for reading in batch.readings]
        more = sum(count for _, count in fitted)
        if not more:
            return batch
        self.metrics.count("tocsin_dropped_total", more, what="owner", reason=NO_ROOM)
        return replace(batch, readings=[reading for reading, _ in fitted])

    def owner_against(self, gpu: str, host: str) -> str:
        """The other host that reports a GPU; empty where `host` may. That it tried becomes an event."""
        owner, told = self.owners.against(gpu, host, self.clock.now_ms())
        if told:
            self.store.write(Batch(events=told))
            self._remember(Batch(events=told))
        return owner

    def _replaced(self, old: str, new: str) -> bool:
        nodes = self.managers.nodes()
        return new in nodes and old not in nodes

    def _with_own_work(self, batch: Batch) -> Batch:
        """`batch` with no more owners than a GPU can have, and no names of work that is on other hosts alone."""
        if not any(reading.owners for reading in batch.readings):
            return batch
        few = [bounded(reading) for reading in batch.readings]
        if more := sum(count for _, count in few):
            self.metrics.count("tocsin_dropped_total", more, what="owner", reason=TOO_MANY)
            batch = replace(batch, readings=[reading for reading, _ in few])
        nodes = self.managers.nodes()
        places = lru_cache(maxsize=1)(lambda: places_of(nodes))
        looked = [believed(reading, nodes.get(reading.gpu.host), places) for reading in batch.readings]
        wrong = sum(count for _, count in looked)
        if not wrong:
            return batch
        self.metrics.count("tocsin_dropped_total", wrong, what="owner", reason=OTHER_HOST)
        return replace(batch, readings=[reading for reading, _ in looked])

    def _remember(self, batch: Batch) -> None:
        self.memory.put(batch)
        self.usage.take(batch.readings)
        self._expected.take(batch.readings, self.clock.now_ms())
        if batch.events:
            self._wake.set()

    def tick(self) -> None:
        """Judge the whole state once and do what follows from it."""
        with self._guard, self._timed():
            self._evaluate()
        self.evaluated_at = self.clock.monotonic()

    def judge_events(self) -> None:
        """Judge the events that came since the last evaluation alone, and do what follows from them."""
        with self._guard, self._timed():
            seen = self._seen_now()
            if seen is None:
                self._evaluate()
            elif events := self.memory.take_events():
                self._judge(seen, events)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = self.clock.monotonic()
        yield
        self.evaluations += 1
        self.metrics.observe("tocsin_rule_evaluation_seconds", self.clock.monotonic() - begun)

    def _seen_now(self) -> SeenFleet | None:
        """What events can be judged against; None where all is to be judged: at the start, on standby, where this brain
        has just begun to act, and where the last look is too old."""
        now, seen = self.clock.now_ms(), self._sight.seen
        most_ms = 2 * round(self.settings.rules.evaluate_seconds * SECOND)
        recent = seen is not None and 0 <= now - seen.at_ms <= most_ms
        return seen if recent and not self._settling(now) and self.may_act() is self._acting else None

    def _settling(self, now_ms: int) -> bool:
        grace_ms = self.settings.actions.boot_grace_seconds * SECOND
        return self.rules.warming is not None or now_ms < self._watching_since(now_ms) + grace_ms

    def _evaluate(self) -> None:
        """One evaluation. Events that come meanwhile are judged between its parts, against what the last one saw."""
        now = self.clock.now_ms()
        self._forget(now)
        self._look_ahead(now)
        readings, predictions = self.memory.latest(), self.forecasts.current(now)
        if not self._sees(readings, now):
            self._unbroken = self.clock.monotonic()
        nodes = self.managers.nodes()
        workloads = workloads_of(readings, nodes, blind=self.managers.blind(), known=self._known_work)
        now = self._after_events(now)
        topology = self._topology_now(readings, nodes, workloads)
        now = self._after_events(now)
        self._counting.look([reading.gpu for reading in readings], nodes, now)
        inputs = self._inputs(now, readings, predictions)
        self._turn_to_past(now)
        now = self._load_ahead(now, readings, predictions)
        settling = self._settling(now)
        inputs = replace(inputs, now_ms=now, events=self.memory.take_events())
        evaluation = self.rules.engine.step(inputs)
        self._conclude(evaluation, now, topology, settling=settling)
        if not self.journal.leads:
            # On standby all is judged and nothing recorded: the active brain does that.
            self._lead()
            return
        changed = self._record([] if settling else self.recorder.continued(evaluation.cleared), keep_gone=settling)
        now = self._after_events(now)
        fleet = SeenFleet(now, predictions, topology, workloads, nodes)
        seen = self._sight.look(fleet, lambda: self.active, self.managers.nodes, lambda: self._after_events(now))
        view = self._view(max(now, self.clock.now_ms()), seen, self.managers.blind())
        self._count(self.actions.step(view, self.incidents, predictions, self._open.resting))
        self._save(changed)
        self._checkpoint()

    def _turn_to_past(self, now_ms: int) -> None:
        """Let the rules take up what is known of the past by now."""

        def events() -> Sequence[Event]:
            return self.memory.events_since(now_ms - EVENT_MEMORY_MS)

        if self.rules.turn(events, lambda: self.recorder.open_of({rule.name for rule in self.ruleset})):
            # The other engine has none of them, and judges no event before it has.
            self._loaded, self._sight.seen = (), None

    def _forget(self, now_ms: int) -> None:
        gone = self.memory.forget(now_ms - FORGET_MS)
        self.owners.forget(gone)
        self._owner_room.forget(gone)
        self._expected.forget([*gone, *self._moved(now_ms)])

    def _moved(self, now_ms: int) -> list[Gpu]:
        """Let go of GPUs that are silent here and that another cell reads by now: they are that one's to speak of.

        Asked for before anything is judged: a brain that starts knows them from the store, and must not warn of them.
        """
        before_ms = now_ms - self.actions.policy.fresh_ms
        if not (moved := self.actions.moved(self.memory.silent(before_ms))):
            return []
        gone = self.memory.let_go(moved, before_ms)
        uuids = {gpu.uuid for gpu in gone}
        self.rules.leave(uuids)
        self.forecasts.forget(uuids)
        for cell, count in Counter(moved[uuid] for uuid in uuids).items():
            self.metrics.count("tocsin_gpus_moved_total", count, cell=cell)
            log.info("GPUs that are silent here report to another cell: it has them from now on", cell=cell, gpus=count)
        return gone

    def _load_ahead(self, now_ms: int, readings: tuple[Reading, ...], predictions: Sequence[Prediction]) -> int:
        """Give the rules what they are to judge, some at a time; returns the instant to go on at."""
        last, self._loaded = self._loaded, readings
        same = len(readings) == len(last)
        for part in in_parts([*compress(readings, map(is_not, readings, last))] if same else readings, LOADED):
            self.rules.engine.load_ahead(now_ms, part)
            now_ms = self._after_events(now_ms)
        for said in in_parts(self.rules.engine.unseen(predictions), LOADED):
            self.rules.engine.foretell_ahead(said)
            now_ms = self._after_events(now_ms)
        return now_ms

    def _after_events(self, now_ms: int) -> int:
        """Judge what has come since `now_ms`; returns the instant to go on at."""
        seen = self._seen_now()
        if seen is None or not (events := self.memory.take_events()):
            return now_ms
        self._judge(seen, events)
        return max(now_ms, self.clock.now_ms())

    def _judge(self, seen: SeenFleet, events: Sequence[Event]) -> None:
        now = self.clock.now_ms()
        readings = self.memory.newest((), {event.host for event in events})
        evaluation = self.rules.engine.judge_events(Inputs(now, readings, events))
        self._conclude(evaluation, now, seen.topology)
        changed = self._record(self.recorder.continued(evaluation.cleared), keep_gone=False)
        nodes = self.managers.nodes()
        self._counting.look_at_new([reading.gpu for reading in readings], nodes, now)
        seen = self._sight.after(events, self.active, nodes)
        view = self._view(now, seen, self.managers.blind())
        self._count(self.actions.step_alone(view, touched_by(events, self.incidents), seen.predictions))
        self._save(changed)

    def _conclude(self, evaluation: Evaluation, now_ms: int, topology: Topology, *, settling: bool = False) -> None:
        """What holds by `evaluation`, and the incidents that it makes."""
        for reason, dropped in evaluation.dropped.items():
            self.metrics.count("tocsin_dropped_total", dropped, what=reason.split("_")[0], reason=reason)
        ruled = self._foretelling.levelled(self.recorder.continued(self.rules.with_open(evaluation.active)), now_ms)
        planned = self.recorder.continued(self.proposals.findings)
        self.active = [*ruled, *planned]
        events = self.memory.events_since(now_ms - EVENT_MEMORY_MS)
        self.incidents = [
            *self._open.step(ruled, events, topology, now_ms, keep_gone=settling),
            *alone(planned),
        ]

    def _record(self, cleared: Sequence[Finding], *, keep_gone: bool) -> list[Finding]:
        """Put on record what this evaluation changed; `cleared` are findings that hold no more. Returns what the store
        is to have of it, once what follows has begun: a store that is slow holds up no action."""
        resting = self._open.resting
        opened = self.recorder.record(self.active, self.incidents, keep_gone=keep_gone, resting=resting)
        self._foretelling.opened(opened)
        self.signs = self._foretelling.records(self.clock.now_ms())
        for finding in opened:
            self.metrics.count("tocsin_findings_opened_total", rule=finding.rule)
        return [*opened, *cleared]

    def follow(self) -> None:
        """On standby: take in what the active brain has put on record."""
        with self._guard:
            self._take_followed()

    def _take_followed(self) -> None:
        while entries := self.journal.follow():
            self.recorder.follow(entries)
            self.actions.follow(entries)
            self.versions.follow(entries)

    def _look_ahead(self, now_ms: int) -> None:
        """Before an evaluation: what fills up; on standby what the active brain has recorded."""
        if self.journal.leads:
            self._expected.look_at_filling(now_ms)
            return
        try:
            self._take_followed()
        except Unavailable as error:
            # With a database that is away what is known stays as it is.
            log.info("the journal cannot be followed", problem=str(error))

    def _inputs(self, now_ms: int, readings: Sequence[Reading], predictions: Sequence[Prediction]) -> Inputs:
        """What an evaluation sees, but for the events."""
        mix, repaired = self._mix(readings), self.actions.controls().repaired
        before = self.versions.look(readings, now_ms)
        surplus = self._counting.surplus
        return Inputs(now_ms, readings, (), predictions, list(self._pools()), mix, repaired, before, surplus)

    def _topology_now(
        self, readings: Sequence[Reading], nodes: Mapping[str, NodeState], workloads: Mapping[str, JobOnGpu]
    ) -> Topology:
        """Where everything is, with all GPUs and MIG instances of each job."""
        jobs = {uuid: one.job for uuid, one in workloads.items() if one.job}
        return self.topology.now([reading.gpu for reading in readings], nodes, jobs)

    def _checkpoint(self) -> None:
        """Put on file what the journal came to, so that the next start reads only what follows.

        Nothing that either part is made of is recorded meanwhile: findings by this thread alone, decisions under the
        lock of their log, and what others append is neither.
        """
        saved = self.journal.checkpoint
        if self.journal.head - (saved.seq if saved else 0) < CHECKPOINT_ENTRIES:
            return
        with self.actions.held():
            seq, ledger = self.journal.head, self.actions.folded()
        parts = {RECORDER_PART: self.recorder.state(), FORETELLING_PART: self._foretelling.state()}
        try:
            self.journal.save(seq, {LEDGER_PART: ledger, **parts})
        except OSError as error:
            log.warning("journal checkpoint cannot be written", error=str(error))

    def _sees(self, readings: Sequence[Reading], now_ms: int) -> bool:
        """Whether any of `readings` is fresh."""
        return any(one.at_ms >= now_ms - self.actions.policy.fresh_ms for one in readings)

    def _watching_since(self, now_ms: int) -> int:
        """When it began to watch, in service or on standby before, on the wall clock as it shows now: a step of that
        clock ends no boot grace. What goes on as it was recorded, until the past is known, is no watching."""
        if self.rules.warming is not None:
            return now_ms
        since_ms = self.started_ms - round((self._begun - self._watched) * SECOND)
        today_ms = now_ms - round((self.clock.monotonic() - self._watched) * SECOND)
        return today_ms if abs(today_ms - since_ms) > STEP_MS else since_ms

    def _mix(self, readings: Sequence[Reading]) -> Sequence[TaskClass]:
        """The kinds of tasks that may come: as planners take it."""
        return mix_of(self.settings.fragmentation.task_mix, readings, self._running.now)[0]

    def _save(self, findings: list[Finding]) -> None:
        """Store findings; a store that does not answer holds up no action, and they are written later."""
        self._unsaved += findings
        if not self._unsaved:
            return
        try:
            self.store.write(Batch(findings=self._unsaved))
            self._unsaved = []
        except StoreUnavailable as error:
            self.metrics.count(
                "tocsin_store_write_failures_total", store=self.settings.store.kind, reason="unavailable"
            )
            log.warning("findings wait for the store", findings=len(self._unsaved), error=str(error))

    def _view(self, now_ms: int, seen: SeenFleet, blind: bool) -> FleetView:
        active = self._lead()
        return FleetView(
            now_ms=now_ms,
            started_ms=self._watching_since(now_ms),
            gpus=seen.groups.gpus,
            groups=seen.groups,
            findings={finding.id: finding for finding in self.active},
            incidents=tuple(self.incidents),
            confirmations=self._confirmations.update(self.active, now_ms),
            pools={pool.name: pool for pool in self._pools()},
            nodes=seen.nodes,
            blind=blind,
            errors=errors_of(self.memory.events_since(now_ms - EVENT_MEMORY_MS)),
            figures={f"{name}|fleet": value for name, value in self.rules.engine.figures.items()},
            active=active,
            foresight=self.proposals.foresight,
            alert_silences=self.alert_silences,
        )

    def may_act(self) -> bool:
        """Whether this brain is the one that acts for the fleet."""
        return self.journal.leads and (self.lease is None or self.lease.held())

    def _lead(self) -> bool:
        """`may_act`; what this brain has ordered of the nodes rests while it may not."""
        active = self.may_act()
        if active and not self._acting:
            self.orders.renew_epoch()
        self._acting = active
        self.orders.halt(not active or self.actions.controls().paused is not None)
        self.metrics.set("tocsin_brain_active", float(active))
        return active

    def _count(self, report: StepReport) -> None:
        fleet = self.rules.engine.fleet
        if fleet is not None:
            self.metrics.set("tocsin_fleet_free_gpus", fleet.free)
            self.metrics.set("tocsin_fleet_fragmented_gpus", fleet.fragmented)
            self.metrics.set("tocsin_fleet_stranded_gpus", fleet.stranded)
            self.metrics.set("tocsin_fleet_unusable_gpus", fleet.unusable)
        for severity in Severity:
            active = sum(finding.severity is severity for finding in self.active)
            self.metrics.set("tocsin_findings_active", active, severity=severity)
        for name, outcome in DELIVERIES.items():
            self.metrics.count("tocsin_deliveries_total", self._more(report, name), outcome=outcome)
        for by in WITHHOLDING:
            self.metrics.count("tocsin_notifications_withheld_total", self._more(report, WITHHELD + by), reason=by)
        self.metrics.count("tocsin_budget_refusals_total", self._more(report, SPENT))
        new, concluded = set(report.created), set(report.concluded)
        for status in report.decisions:
            if status.decision.id in new:
                self.metrics.count("tocsin_decisions_total", action=status.decision.action)
                for verdict in status.verdicts:
                    self.metrics.count("tocsin_verdicts_total", ruling=verdict.ruling, guard=verdict.guard)
            if status.decision.id in concluded and status.outcome is not None:
                ended = status.outcome
                self.metrics.count("tocsin_executions_total", executor=ended.executor, status=ended.status)

    def _more(self, report: StepReport, name: str) -> int:
        """By how much a count of the action loop has grown since the last report."""
        before, self._counted[name] = self._counted[name], report.counts.get(name, 0)
        return self._counted[name] - before

    def forecast(self) -> None:
        """Forecast the fleet if it is due; blocks while models run, so it has a thread of its own."""
        now = self.clock.now_ms()
        if self.forecasts.due(now):
            readings = self.memory.latest()
            gpus = [reading.gpu for reading in readings if not reading.is_lost]
            repaired, slowed = repairs_of(gpus, self.actions.controls().repaired), frozenset(heat_of(self.active))
            seen = SeenGpus(gpus, self._counting.surplus, repaired, slowed=slowed)
            self._expected.forecast(seen, readings, self._pools(), now)

    def pool_pasts(self) -> Sequence[PoolPast]:
        """The hourly past of every pool, as of the last forecast."""
        return self._expected.pool_pasts()

    def prune(self) -> None:
        """Look after the store: compact, roll up and remove what is due."""
        try:
            done = look_after(self.store, self.settings.store, self.clock.now_ms())
        except Conflict as error:
            log.info("somebody else looks after the store", reason=str(error))
            return
        self.metrics.set("tocsin_store_damaged_segments", done.damaged)
        self.metrics.set("tocsin_store_damaged_rows", done.damaged_rows)

    @property
    def card_life(self) -> CardLife:
        """What the journal has of causes that ended."""
        return self.recorder.cards

    def statuses(self, *, final: bool = True) -> list[DecisionStatus]:
        """Every decision on record, as it stands; without `final` those that are not over."""
        return self.actions.statuses(final=final)

    def close(self) -> None:
        """Record the end and let go of files; safe to call once evaluation has stopped."""
        self.actions.close()
        if self.lease is not None:
            self.lease.release()
        if self.journal.leads:
            self._end_record()
        for keeper in self.witnesses:
            keeper.close()
        self.journal.close()
        self.usage.close()
        self.store.close()

    def _end_record(self) -> None:
        try:
            self._checkpoint()
            self.journal.append(EntryKind.SERVICE_STOPPED, {"epoch": self.journal.epoch})
        except Unavailable as error:
            log.warning("the end of this brain is not on record", error=str(error))

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs of the fleet, by UUID."""
        return [reading.gpu for reading in self.memory.latest()]
