"""The brain: judge, decide, guard, act and record, over store and journal.

Its state is the store and the journal; it can be killed at any instant and started again on the same files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import structlog

from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.status import DecisionStatus, StepReport
from tocsin.actions.model.view import Confirmations, FleetView, GpuView
from tocsin.actions.planning.foresight import Proposals, alone
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import Category, Finding, Incident, Severity
from tocsin.domain.fragmentation_fleet import Task
from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Reading
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.queries.task_mix import mix_of
from tocsin.queries.workloads import works
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.incidents import collapse
from tocsin.rules.schema import RuleSet
from tocsin.runtime.expectations import Expectations
from tocsin.runtime.forecasts import Forecasts
from tocsin.runtime.lease import Lease
from tocsin.runtime.managers import Managers
from tocsin.runtime.memory import FleetMemory, Snapshot
from tocsin.runtime.model_watch import ModelWatch
from tocsin.runtime.orders import OrderService, open_board
from tocsin.runtime.recorder import Recorder
from tocsin.store.port import Store, StoreUnavailable
from tocsin.store.upkeep import look_after
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

WARM_UP_MS = 30 * MINUTE
"""How much past is put whole through the rules at start, so that a `for` of a rule survives a restart."""
SAMPLE_MS = 2 * HOUR
"""Of the day before that one reading of each GPU is put through in each of these, for rules that look back so far."""
SAMPLE_SPAN_MS = 2 * MINUTE
"""How long such a sample is: at least one interval of any agent."""
EVENT_MEMORY_MS = DAY
"""How far back events are given to the rules again at start, and how long they explain incidents."""
FORGET_MS = DAY
"""A GPU without a reading for this long has left the fleet."""
DELIVERIES = {"notified": "delivered", "notification_tries_failed": "retried", "notifications_lost": "failed"}
"""Counts of the action loop to the outcomes of ``tocsin_deliveries_total``."""


class Brain:
    """Wires store, journal, rules, forecasts and actions; `tick` is one evaluation of the whole state."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        journal: Journal,
        ruleset: RuleSet,
        actions: ActionLoop,
        forecasts: Forecasts,
        metrics: OwnMetrics,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.store = store
        self.journal = journal
        self.actions = actions
        self.forecasts = forecasts
        self.metrics = metrics
        self.desk = OrderService(open_board(settings.node, clock), metrics)
        self.memory = FleetMemory()
        self.started_ms = clock.now_ms()
        self.active: list[Finding] = []
        self.incidents: list[Incident] = []
        self._engine = RuleEngine(ruleset)
        self.recorder = Recorder(journal, journal.entries())
        self._pools: Callable[[], Sequence[PoolState]] = self._configured_pools
        self._confirmations = Confirmations(round(settings.rules.evaluate_seconds * SECOND / 2))
        self.evaluated = False
        self.evaluated_at = clock.monotonic()
        self._unsaved: list[Finding] = []
        models = ModelWatch(ModelRegistry(settings.forecast.models), store, journal, metrics)
        self._expected = Expectations(forecasts, models, store, journal, metrics, clock)
        self._deliveries = dict.fromkeys(DELIVERIES, 0)
        self._guard = threading.Lock()
        self.managers = Managers((), clock, metrics)
        self.proposals = Proposals()
        self.lease: Lease | None = None
        self._active = False
        self.on_event: Callable[[], None] = lambda: None
        self._start()

    def _start(self) -> None:
        self.journal.append(
            EntryKind.SERVICE_STARTED, {"epoch": self.journal.epoch, "mode": self.settings.actions.mode}
        )
        now = self.started_ms
        events = self.store.events(now - EVENT_MEMORY_MS, now + 1)
        self.memory.put(Batch(readings=self.store.latest(now - FORGET_MS), events=events))
        self._engine.warm(_history(self._past(now), round(self.settings.rules.evaluate_seconds * SECOND)))
        self._expected.recall(self.gpus, now)

    def _past(self, now_ms: int) -> Iterator[Reading]:
        for start in range(now_ms - EVENT_MEMORY_MS, now_ms - WARM_UP_MS, SAMPLE_MS):
            seen: dict[str, Reading] = {}
            for reading in self.store.readings(start, start + SAMPLE_SPAN_MS):
                seen.setdefault(reading.gpu.uuid, reading)
            yield from sorted(seen.values(), key=lambda reading: reading.at_ms)
        yield from self.store.readings(now_ms - WARM_UP_MS, now_ms + 1)

    def _configured_pools(self) -> list[PoolState]:
        return [PoolState(name, None, elastic=True) for name in self.settings.actions.elastic_pools]

    def use_pools(self, pools: Callable[[], Sequence[PoolState]]) -> None:
        """Take the state of the pools from a scheduler, or from the simulator."""
        self._pools = pools

    def pools(self) -> Sequence[PoolState]:
        """The pools as they are known now."""
        return self._pools()

    def accept(self, batch: Batch) -> None:
        """Keep readings and events: durable on return. Raises StoreUnavailable or StoreRejected."""
        self.store.write(batch)
        self.memory.put(batch)
        self._expected.take(batch.readings, self.clock.now_ms())
        if batch.events:
            self.on_event()
        self.metrics.count("tocsin_store_writes_total", store=self.settings.store.kind)

    def tick(self) -> None:
        """Judge the whole state once and do what follows from it."""
        begun = self.clock.monotonic()
        with self._guard:
            now = self.clock.now_ms()
            self.memory.forget(now - FORGET_MS)
            self._expected.look_at_filling(now)
            snapshot = self.memory.take()
            predictions = self.forecasts.current(now)
            evaluation = self._engine.step(
                Inputs(now, snapshot.readings, snapshot.events, predictions, list(self._pools()), self._mix(snapshot))
            )
            for reason, dropped in evaluation.dropped.items():
                self.metrics.count("tocsin_dropped_total", dropped, what=reason.split("_")[0], reason=reason)
            ruled = self.recorder.continued(evaluation.active)
            planned = self.recorder.continued(self.proposals.findings())
            self.active = [*ruled, *planned]
            self.incidents = [*collapse(ruled, self.memory.events_since(now - EVENT_MEMORY_MS)), *alone(planned)]
            settling = now < self.started_ms + self.settings.actions.boot_grace_seconds * SECOND
            cleared = [] if settling else self.recorder.continued(evaluation.cleared)
            opened = self.recorder.record(self.active, self.incidents, keep_gone=settling)
            for finding in opened:
                self.metrics.count("tocsin_findings_opened_total", rule=finding.rule)
            self._keep([*opened, *cleared])
            self._count(self.actions.step(self._view(now, snapshot.readings), self.incidents, predictions))
        self.evaluated = True
        self.evaluated_at = self.clock.monotonic()
        self.metrics.observe("tocsin_rule_evaluation_seconds", self.evaluated_at - begun)

    def _mix(self, snapshot: Snapshot) -> Sequence[Task]:
        """The kinds of tasks that may come: as planners take it."""
        return mix_of(self.settings.fragmentation.task_mix, snapshot.readings)[0]

    def _keep(self, findings: list[Finding]) -> None:
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

    def _view(self, now_ms: int, readings: Sequence[Reading]) -> FleetView:
        nodes, blind, active = self.managers.nodes(), self.managers.blind(), self._lead()
        work = works(readings, nodes, blind=blind)
        sick = {
            f.subject.name for f in self.active if f.category is Category.HARDWARE and f.severity is Severity.CRITICAL
        }
        gpus = {
            reading.gpu.uuid: GpuView(
                gpu=reading.gpu,
                last_reading_ms=reading.at_ms,
                healthy=reading.gpu.uuid not in sick and not is_lost(reading),
                under_action=reading.gpu.host in nodes and not nodes[reading.gpu.host].schedulable,
                values=reading.values,
                job=work[reading.gpu.uuid].job,
                told=work[reading.gpu.uuid].told,
            )
            for reading in readings
        }
        return FleetView(
            now_ms=now_ms,
            started_ms=self.started_ms,
            gpus=gpus,
            findings={finding.id: finding for finding in self.active},
            incidents=tuple(self.incidents),
            confirmations=self._confirmations.update(self.active, now_ms),
            pools={pool.name: pool for pool in self._pools()},
            nodes=nodes,
            blind=blind,
            active=active,
            foresight=self.proposals.foresight(),
        )

    def _lead(self) -> bool:
        """Whether this brain acts for the fleet; what it has ordered of the nodes rests while it does not."""
        active = self.lease is None or self.lease.held()
        if active and not self._active:
            self.desk.renew_epoch()
        self._active = active
        self.desk.halt(not active or self.actions.controls().paused is not None)
        self.metrics.set("tocsin_brain_active", float(active))
        return active

    def _count(self, report: StepReport) -> None:
        fleet = self._engine.fleet
        if fleet is not None:
            self.metrics.set("tocsin_fleet_free_gpus", fleet.free)
            self.metrics.set("tocsin_fleet_fragmented_gpus", fleet.fragmented)
            self.metrics.set("tocsin_fleet_stranded_gpus", fleet.stranded)
        for severity in Severity:
            active = sum(finding.severity is severity for finding in self.active)
            self.metrics.set("tocsin_findings_active", active, severity=severity)
        for name, outcome in DELIVERIES.items():
            total = report.counts.get(name, 0)
            self.metrics.count("tocsin_deliveries_total", total - self._deliveries[name], outcome=outcome)
            self._deliveries[name] = total
        new, concluded = set(report.created), set(report.concluded)
        for status in report.decisions:
            if status.decision.id in new:
                self.metrics.count("tocsin_decisions_total", action=status.decision.action)
                for verdict in status.verdicts:
                    self.metrics.count("tocsin_verdicts_total", ruling=verdict.ruling, guard=verdict.guard)
            if status.decision.id in concluded and status.outcome is not None:
                ended = status.outcome
                self.metrics.count("tocsin_executions_total", executor=ended.executor, status=ended.status)

    def forecast(self) -> None:
        """Forecast the fleet if it is due; blocks while models run, so it has a thread of its own."""
        now = self.clock.now_ms()
        if self.forecasts.due(now):
            readings = self.memory.latest()
            gpus = [reading.gpu for reading in readings if not is_lost(reading)]
            self._expected.forecast(gpus, readings, self._pools(), now)

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

    def statuses(self) -> list[DecisionStatus]:
        """Every decision on record, as it stands."""
        return self.actions.statuses()

    def close(self) -> None:
        """Record the end and let go of files; safe to call once evaluation has stopped."""
        self.actions.close()
        if self.lease is not None:
            self.lease.release()
        self.journal.append(EntryKind.SERVICE_STOPPED, {"epoch": self.journal.epoch})
        self.journal.close()
        self.store.close()

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs of the fleet, by UUID."""
        return [reading.gpu for reading in self.memory.latest()]


def is_lost(reading: Reading) -> bool:
    """Whether the GPU answered nothing at all."""
    return not reading.values and Missing.LOST in reading.missing.values()


def _history(readings: Iterable[Reading], step_ms: int) -> Iterator[Inputs]:
    """Past readings as evaluations every `step_ms` saw them; hosts read at instants of their own."""
    for _, group in groupby(readings, key=lambda reading: reading.at_ms // step_ms):
        newest = {reading.gpu.uuid: reading for reading in group}
        yield Inputs(max(reading.at_ms for reading in newest.values()), tuple(newest.values()))
