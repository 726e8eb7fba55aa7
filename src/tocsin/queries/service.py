"""What the API serves, over a brain."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from prometheus_client import generate_latest
from pydantic import JsonValue

from tocsin import __version__
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.scope import base_key
from tocsin.api.service import Detail, LineBody, Service
from tocsin.api.tenancy import Names
from tocsin.client import control, models
from tocsin.client.errors import NotFound
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Card, Cards, CardState
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_pager import PagerReport
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.models_what_if import WhatIfOut, WhatIfRequest
from tocsin.client.wire import extended
from tocsin.collector.push.fleet import Admits, PushedFleet, Taken
from tocsin.collector.push.samples import PushedSeries
from tocsin.domain.clock import DAY, SECOND, Clock, SystemClock, optional_iso, to_iso
from tocsin.domain.decision import DecisionState, Mode
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, EntryKind, Verification
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.metrics import nearest, spec_of
from tocsin.domain.order import Order, OrderReport
from tocsin.domain.prediction import Prediction, PredictionStatus, soonest_each
from tocsin.domain.reading import Reading
from tocsin.domain.silence import SilenceKind
from tocsin.forecaster.diagnosis.fleet import PAST_METRICS, PAST_MS, STAGE_METRICS, STAGE_MS, DiagnosisInputs, diagnose
from tocsin.forecaster.features.heat import heat_of
from tocsin.journal.export import export
from tocsin.journal.port import NotLeading
from tocsin.journal.witness import in_words
from tocsin.queries import attention, timeline, views
from tocsin.queries.background import BackgroundTasks
from tocsin.queries.cache import Cache, by_effort
from tocsin.queries.card_tickets import with_tickets
from tocsin.queries.cards import CardInputs, MadeCard, forecast_levels, make_cards
from tocsin.queries.cells import CellQueries, Directory
from tocsin.queries.changes import changes_now
from tocsin.queries.cost import CostQueries
from tocsin.queries.cost_hours import CostHours
from tocsin.queries.drift import drift_now
from tocsin.queries.evidence import Asked, evidence
from tocsin.queries.fleet_map import MEMORY_USED, UTILIZATION, FleetMapSource, ratios
from tocsin.queries.fleet_state import same_jobs, state_document
from tocsin.queries.foreign_alerts import ForeignAlerts
from tocsin.queries.fragmentation import fragmentation
from tocsin.queries.heard import heard, least_heard
from tocsin.queries.live import LiveBrain
from tocsin.queries.morning_report import report_now, stated_cases
from tocsin.queries.outlook import ForecastQueries, gate_verdict
from tocsin.queries.pager_journal import report_of
from tocsin.queries.plans import plans_now
from tocsin.queries.rule_records import rule_records
from tocsin.queries.scoreboard import Followed, score_crossings, score_hazards, scoreboard
from tocsin.queries.silences import SilenceService
from tocsin.queries.statement_score import StatedCase
from tocsin.queries.tenants import FleetNames, TenantService
from tocsin.queries.usage import UsageQueries
from tocsin.queries.views import peer_band
from tocsin.queries.what_if import what_if_now
from tocsin.store.line_protocol.decode import Decoded, decode
from tocsin.store.port import Store


def diagnose_fleet(
    store: Store, latest: Sequence[Reading], filling: Sequence[Prediction], now_ms: int, host: str = ""
) -> list[Diagnosis]:
    """Diagnose the GPUs of `latest`, or those on `host`, with the forecasts `filling`; a job keeps only its GPUs there.

    Raises StoreUnavailable.
    """
    chosen = [reading for reading in latest if not host or reading.gpu.host == host]
    gpus = [reading.gpu for reading in chosen]
    uuids = [gpu.uuid for gpu in gpus]
    return diagnose(
        DiagnosisInputs(
            now_ms,
            gpus,
            {reading.gpu.uuid: reading.owners for reading in chosen},
            store.columns(STAGE_METRICS, now_ms - STAGE_MS, now_ms + 1, uuids),
            store.columns(PAST_METRICS, now_ms - PAST_MS, now_ms + 1, uuids),
            filling,
        )
    )


EVENTS_SHOWN_MS = 7 * DAY
"""How far back a GPU's page shows events and findings."""


class Injector(Protocol):
    """What can make a simulated GPU fail."""

    def inject(self, kind: str, gpu: str) -> tuple[str, int, str]:
        """Start a failure; returns the GPU's UUID, the instant and a sentence. Raises InputError."""


VERIFY_WAIT_SECONDS = 5.0
"""How long a slice of a check of the journal, or an evidence bundle, waits for those of others."""
EVIDENCE_PIECE = 65_536
"""Bytes of an evidence bundle that are sent at once."""


class BrainService:
    """Implements `tocsin.api.service.Service` over a running brain.

    `wall` is the clock that people wait by: that of a simulated fleet runs ahead. `directory` lists the cells of the
    fleet, where this is not the whole of it.
    """

    def __init__(
        self,
        brain: LiveBrain,
        injector: Injector | None = None,
        wall: Clock | None = None,
        directory: Directory | None = None,
    ) -> None:
        wall = wall or SystemClock()
        self._brain, cell = brain, brain.settings.journal.cell
        self.cells = CellQueries(cell, brain.settings.cell, directory, wall, self._standby)
        self._injector = injector
        self._fresh_ms = int(brain.settings.actions.fresh_seconds * SECOND)
        self._alerts = ForeignAlerts(brain.memory.latest, lambda: brain.alert_silences)
        self._pushed = PushedFleet(
            brain.settings.promql, brain.metrics, self._newest, self._fresh_ms, brain.settings.api.limits.gpus_per_host
        )
        self._fleet_map = FleetMapSource(brain)
        self._levels, self._signs = forecast_levels(brain.ruleset), frozenset(brain.ruleset.foretelling)
        self._least = least_heard(brain.ruleset)
        self._verifying = threading.Lock()
        self._gathering = threading.Lock()
        self._asking = threading.Lock()
        self._wall = wall
        # It reads all predictions that are stored, which is much for one who only looks, and every open page asks.
        self._scores = Cache[str, models.Scoreboard](wall.monotonic, by_effort, most=1)
        self._reports = Cache[str, PagerReport](wall.monotonic, by_effort, most=1)
        # Kept apart: what was just carried out must not wait for forecasts that came due.
        self._stated = Cache[int, list[StatedCase]](wall.monotonic, by_effort, most=4)
        self._morning = Cache[int, MorningReport](wall.monotonic, by_effort, most=4)
        self._names = Cache[frozenset[str], FleetNames](wall.monotonic, by_effort, most=1)
        self._drift = Cache[tuple[str, ...], DriftOut](wall.monotonic, by_effort, most=8)
        self._changes = Cache[tuple[int, int], Changes](wall.monotonic, by_effort, most=4)
        self._tasks = BackgroundTasks(wall, apart=brain.settings.forecast.worker)
        hours = CostHours(brain.store, brain.clock, wall)
        self._outlook = ForecastQueries(brain, self._tasks, hours, lambda: self.scoreboard().hazards, wall.monotonic)
        self._costs = CostQueries(brain, hours, wall.monotonic)
        self._usage = UsageQueries(brain)
        self.silences = SilenceService(brain, self.made_cards, self._made_card)

    def now_ms(self) -> int:
        return self._brain.clock.now_ms()

    def ready(self) -> control.Readiness:
        if not self._brain.journal.leads:
            # What asks this is what sends agents and people here.
            return control.Readiness(ready=False, reasons=[self._standby()])
        reasons = [] if self._brain.evaluations else ["the first evaluation has not finished"]
        return control.Readiness(ready=not reasons, reasons=reasons)

    def _standby(self) -> str:
        try:
            self._brain.journal.must_lead()
        except NotLeading as error:
            return str(error)
        return ""

    # ------------------------------------------------------------------ reading

    def summary(self) -> models.FleetSummary:
        brain, snapshot = self._brain, self._fleet_map.look()
        now, seen = snapshot.now_ms, snapshot.readings
        statuses = brain.statuses()
        newest = max((reading.at_ms for reading in seen), default=None)
        simulated = any(reading.gpu.simulated for reading in seen)
        # What repeats itself in a simulated fleet, or only watches, harms nobody.
        harmless = simulated or brain.settings.actions.mode is Mode.OBSERVE
        expected = brain.forecasts.current(now)
        gate, tripped = gate_verdict(expected), brain.actions.controls().breaker
        return models.FleetSummary(
            version=__version__,
            now=to_iso(now),
            simulated=simulated,
            mode=brain.settings.actions.mode,
            executor=", ".join(brain.settings.actions.executors),
            **dict(self._control()),
            breaker_reason_zh=tripped.reason_zh if tripped is not None else "",
            journal_witness="" if harmless or not brain.journal.leads else in_words(brain.witnesses),
            gpus=len(seen),
            hosts=len({reading.gpu.host for reading in seen}),
            pools=len({reading.gpu.pool for reading in seen}),
            states=dict(snapshot.counts),
            readings=brain.memory.count,
            last_reading=optional_iso(newest),
            last_reading_age_s=None if newest is None else max(0.0, (now - newest) / SECOND),
            utilization_ratio=views.mean(ratios(seen, UTILIZATION)),
            memory_used_ratio=views.mean(ratios(seen, MEMORY_USED)),
            power_watts=sum(one.values.get("gpu_power_watts", 0.0) for one in seen) if seen else None,
            findings=dict(Counter(finding.severity for finding in brain.active)),
            levels=dict(Counter(incident.alert_level for incident in brain.incidents)),
            muted=self._muted_lines(now),
            incidents=len(brain.incidents),
            predictions=len(soonest_each(one for one in expected if one.is_ahead and not one.muted)),
            risk_model="" if gate is None else gate.sentence,
            decisions=len(statuses),
            decisions_held=sum(status.state is DecisionState.HELD for status in statuses),
            decisions_approvable=views.waiting(statuses),
        )

    def _muted_lines(self, now_ms: int) -> list[str]:
        """What its own record has silenced."""
        kinds, rules = self._brain.forecasts.kinds(now_ms), self._brain.signs
        return [one.line for one in kinds if one.muted] + [one.line for one in rules if one.muted]

    def fleet_map(self) -> models.FleetMap:
        return self._fleet_map.look().map

    def attention(self, limit: int) -> models.Attention:
        brain, snapshot = self._brain, self._fleet_map.look()
        settings = brain.settings
        predictions, prices = heard(brain.forecasts.current(snapshot.now_ms), self._least), settings.prices.prices()
        found = attention.attention(snapshot, brain.incidents, predictions, settings.actions.cost, prices, limit)
        return found.model_copy(update={"waiting": views.waiting(brain.statuses())})

    def cards(self, limit: int, state: CardState | None = None, *, hidden: bool = False) -> Cards:
        made = [one.card for one in self.made_cards()]
        wanted = [one for one in made if (one.state is not CardState.RESOLVED if state is None else one.state is state)]
        wanted = [one for one in wanted if (one.hidden is not None) is hidden]
        by = {one.hidden.id: one.hidden.silence for one in made if one.hidden is not None}
        return Cards(
            total=len(wanted),
            items=wanted[:limit],
            waiting=views.waiting(self._brain.statuses()),
            hidden=sum(one.hidden is not None for one in made),
            snoozes=sum(kind is SilenceKind.SNOOZE for kind in by.values()),
            maintenances=sum(kind is SilenceKind.MAINTENANCE for kind in by.values()),
        )

    def card(self, card_id: str) -> Card:
        return self._made_card(card_id).card

    def _made_card(self, card_id: str) -> MadeCard:
        found = next((one for one in self.made_cards() if card_id in one.ids), None)
        if found is None:
            raise NotFound(f"no card {card_id}; tocsin cards or GET /v1/cards lists them")
        return found

    def made_cards(self) -> list[MadeCard]:
        """Every card, with the incidents that it stands for."""
        brain, snapshot = self._brain, self._fleet_map.look()
        inputs = CardInputs(
            snapshot,
            brain.incidents,
            brain.statuses(),
            heard(brain.forecasts.current(snapshot.now_ms), self._least),
            self._levels,
            self._signs,
            brain.card_life,
            brain.actions.controls(),
            brain.settings.actions.cost,
            brain.settings.prices.prices(),
            self._fresh_ms,
            brain.alert_silences,
            brain.settings.journal.cell,
        )
        return with_tickets(self._alerts.on(make_cards(inputs), snapshot.now_ms), brain.actions.tickets())

    def peers(
        self, uuid: str, by: models.PeerGroup, metrics: Sequence[str], start_ms: int, end_ms: int, points: int
    ) -> models.PeerBand:
        brain, reading = self._brain, self._reading(uuid)
        latest, nodes = brain.memory.latest(), brain.managers.nodes()
        return peer_band(brain.store, reading, latest, nodes, by, metrics, start_ms, end_ms, points)

    def gpus(self) -> list[models.GpuSummary]:
        brain, now = self._brain, self.now_ms()
        findings = grouped((one.subject.name, one) for one in brain.active)
        predictions = grouped((one.subject.name, one) for one in brain.forecasts.current(now))
        found = [
            views.gpu_summary(
                one, findings.get(one.gpu.uuid, ()), predictions.get(one.gpu.uuid, ()), now, self._fresh_ms
            )
            for one in brain.memory.latest()
        ]
        return sorted(found, key=lambda gpu: (gpu.host, -1 if gpu.index is None else gpu.index, gpu.uuid))

    def gpu(self, uuid: str) -> models.GpuDetail:
        brain, now = self._brain, self.now_ms()
        reading = self._reading(uuid)
        active = [one for one in brain.active if one.subject.name == uuid]
        ids = {finding.id for finding in active}
        past = [f for f in brain.store.findings(now - EVENTS_SHOWN_MS, now + 1) if f.subject.name == uuid]
        predictions = [one for one in brain.forecasts.current(now) if one.subject.name == uuid]
        return models.GpuDetail(
            summary=views.gpu_summary(reading, active, predictions, now, self._fresh_ms),
            serial=reading.gpu.serial,
            pci_bus_id=reading.gpu.pci_bus_id,
            labels=dict(reading.gpu.labels),
            values=dict(reading.values),
            missing={name: reason.label for name, reason in reading.missing.items()},
            owners=list(reading.owners),
            events=list(brain.store.events(now - EVENTS_SHOWN_MS, now + 1, uuid)),
            findings=[
                extended(models.FindingOut, one, evidence_zh=tuple(piece.text_zh for piece in one.evidence))
                for one in active
            ]
            + [extended(models.FindingOut, finding, active=False) for finding in past if finding.id not in ids],
            predictions=predictions,
            decisions=[
                views.decision_out(status) for status in brain.statuses() if status.decision.subject.name == uuid
            ],
        )

    def _reading(self, uuid: str) -> Reading:
        reading = self._brain.memory.reading(uuid)
        if reading is None:
            raise NotFound(f"no GPU {uuid}; GET /v1/gpus lists them")
        return reading

    def evidence(self, uuid: str, start_ms: int, end_ms: int, with_owners: bool) -> Iterator[bytes]:
        asked = Asked(self._reading(uuid).gpu, start_ms, end_ms, with_owners)
        # One at a time: it reads much, and holds what it made in memory.
        if not self._gathering.acquire(timeout=VERIFY_WAIT_SECONDS):
            raise Unavailable("another evidence bundle is being made; ask again in a few seconds")
        try:
            made = evidence(self._brain, asked, self._wall.monotonic)
        finally:
            self._gathering.release()
        return (made[at : at + EVIDENCE_PIECE] for at in range(0, len(made), EVIDENCE_PIECE))

    def series(
        self, uuid: str, metrics: Sequence[str], start_ms: int, end_ms: int, max_points: int
    ) -> models.SeriesResponse:
        self._reading(uuid)
        for name in metrics:
            if spec_of(name) is None:
                raise InputError("metrics", name, "is not in the metric table", f"did you mean {nearest(name)}?")
        found = self._brain.store.series(uuid, metrics, start_ms, end_ms)
        return views.series_out(found, start_ms, end_ms, max_points)

    def findings(self) -> list[models.FindingOut]:
        active = sorted(self._brain.active, key=lambda f: (-f.severity.rank, f.started_ms, f.id))
        return [extended(models.FindingOut, finding) for finding in active]

    def incidents(self) -> list[models.IncidentOut]:
        found = sorted(
            self._brain.incidents, key=lambda i: (-i.alert_level.rank, -i.root.severity.rank, i.opened_ms, i.id)
        )
        return [views.incident_out(incident) for incident in found]

    def predictions(self) -> list[Prediction]:
        rank = list(PredictionStatus).index
        return sorted(
            self._brain.forecasts.current(self.now_ms()),
            key=lambda p: (rank(p.status), p.eta_ms or p.at_ms, p.subject.key, p.target),
        )

    def decisions(self, limit: int, state: DecisionState | None = None) -> list[models.DecisionOut]:
        return views.decisions_out((one for one in self._brain.statuses() if state in (None, one.state)), limit)

    def decision(self, decision_id: str) -> models.DecisionOut:
        return views.decision_out(self._status(decision_id))

    def _status(self, decision_id: str) -> DecisionStatus:
        for status in self._brain.statuses():
            if status.decision.id == decision_id:
                return status
        raise NotFound(f"no decision {decision_id}; tocsin status or GET /v1/decisions lists them")

    def journal(self, after: int, limit: int, kinds: Collection[str] | None = None) -> list[Entry]:
        wanted = timeline.kinds_of(kinds) if kinds else None
        return list(self._brain.journal.entries(after=after, kinds=wanted, limit=limit))

    def timeline(self, query: models.TimelineQuery, offset: int, limit: int) -> models.Timeline:
        return timeline.timeline(self._brain, query, offset, limit)

    def story(self, decision_id: str) -> models.DecisionStory:
        return timeline.story(self._brain, self._status(decision_id))

    def undo(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> models.UndoOut:
        self._status(decision_id)
        undoing = self._brain.actions.operator.undo(decision_id, actor, reason, right=right)
        return timeline.undone(self._brain, decision_id, undoing)

    def journal_page(self, query: models.JournalQuery, before: int | None, limit: int) -> models.JournalPage:
        return timeline.journal_page(self._brain.journal, query, before, limit)

    def export_journal(self, form: models.ExportForm, query: models.JournalQuery, after: int) -> Iterator[str]:
        kinds = timeline.kinds_of(query.kinds)
        journal = self._brain.journal
        return export(journal, form, since_ms=query.start_ms, until_ms=query.end_ms, after=after, kinds=kinds)

    def verify_journal(self, after: int, previous: str) -> Verification:
        # One at a time: however many ask, a slice takes no more than one core.
        if not self._verifying.acquire(timeout=VERIFY_WAIT_SECONDS):
            raise Unavailable("another check of the journal is under way; ask again in a few seconds")
        try:
            return self._brain.journal.verify_slice(self._brain.journal.key, after, previous)
        finally:
            self._verifying.release()

    def scoreboard(self) -> models.Scoreboard:
        return self._scores.get("scoreboard", self._score)

    def pager_report(self) -> PagerReport:
        return self._reports.get("pager", lambda: report_of(self._brain, self.now_ms()))

    def _score(self) -> models.Scoreboard:
        brain, now = self._brain, self.now_ms()
        since = now - int(brain.settings.store.minute_days * DAY)
        made = brain.store.predictions(since, now + 1)
        statuses, events = brain.statuses(), brain.store.events(since, now + 1)
        heat = heat_of(brain.store.findings(since, now + 1))
        # A GPU that has left was last observed when something was last said of it.
        observed = {p.subject.name: p.at_ms for p in sorted(made, key=lambda p: p.at_ms)}
        observed |= {reading.gpu.uuid: reading.at_ms for reading in brain.memory.latest()}
        crossings, by_model = score_crossings(
            made, lambda gpu, metric, *span: brain.store.series(gpu, [metric], *span), now
        )
        board = scoreboard(
            statuses,
            events,
            crossings,
            crossings=by_model,
            hazards=score_hazards(made, Followed(events, statuses, brain.store.gpus(), observed, now, heat)),
            experience=brain.actions.controls().experience,
            mode=brain.settings.actions.mode,
            simulated=any(gpu.simulated for gpu in brain.gpus),
            since_ms=min((status.decision.at_ms for status in statuses), default=now),
            now_ms=now,
        )
        kinds = [*map(views.kind_score, brain.forecasts.kinds(now)), *map(views.sign_score, brain.signs)]
        return board.model_copy(update={"kinds": kinds})

    def morning_report(self, hours: int) -> MorningReport:
        cases = self._stated.get(hours, lambda: stated_cases(self._brain, hours))

        def made() -> MorningReport:
            return report_now(self._brain, [one.card for one in self.made_cards()], cases, hours)

        return self._morning.get(hours, made)

    def drift(self, pool: str, components: Sequence[str]) -> DriftOut:
        return self._drift.get((pool, *sorted(components)), lambda: drift_now(self._brain, pool, components))

    def changes(self, hours: int, limit: int) -> Changes:
        return self._changes.get((hours, limit), lambda: changes_now(self._brain, hours, limit))

    def what_if(self, asked: WhatIfRequest) -> WhatIfOut:
        # One at a time: it reads a month of the journal.
        if not self._asking.acquire(timeout=VERIFY_WAIT_SECONDS):
            raise Unavailable("another what-if question is being answered; ask again in a few seconds")
        try:
            return what_if_now(self._brain, asked)
        finally:
            self._asking.release()

    def rule_records(self) -> list[RuleRecord]:
        return rule_records(self._brain)

    def diagnoses(self, host: str = "") -> list[Diagnosis]:
        return self.diagnosed(self._brain.memory.latest(), host)

    def planning_state(self) -> dict[str, Any]:
        return state_document(self._brain, self.now_ms())

    # ------------------------------------------------------------------ ahead

    def forecast(self, limit: int) -> ForecastOut:
        return self._outlook.forecast(limit)

    def capacity(self) -> CapacityOut:
        return self._outlook.capacity()

    def fragmentation(self, limit: int) -> FragmentationOut:
        return fragmentation(self._brain, limit)

    def plan(self, planner: Planner) -> PlansOut:
        return plans_now(self._brain, self._tasks, planner)

    def cost(self, start_ms: int, end_ms: int) -> CostOut:
        return self._costs.cost(start_ms, end_ms)

    def for_tenant(self, name: str, namespaces: frozenset[str]) -> Service:
        # It has what is shown, and refuses by itself what it has not.
        return cast(Service, TenantService(self, self._brain, name, namespaces))

    def names_of_others(self, namespaces: frozenset[str], vocabulary: frozenset[str]) -> Names:
        # What is said of cells must stay whole, also where somebody's namespace has the name of one.
        words = vocabulary | {one.name for one in self.cells.known()}
        return self._names.get(words, lambda: FleetNames.of(self._brain, words)).others(namespaces)

    def usage_of(
        self, first_day: int, last_day: int, by: Sequence[UsageBy], limit: int, whose: frozenset[str]
    ) -> UsageOut:
        """As `usage`, of the work of some namespaces and accounts alone."""
        return self._usage.usage(first_day, last_day, by, limit, whose)

    def right_size_of(self, first_day: int, last_day: int, limit: int, whose: frozenset[str]) -> RightSizeOut:
        """As `right_size`, of the jobs of some namespaces and accounts alone."""
        return self._usage.right_size(first_day, last_day, limit, whose)

    def diagnosed(self, readings: Sequence[Reading], host: str = "") -> list[Diagnosis]:
        """As `diagnoses`, of the GPUs of `readings` alone."""
        brain, now_ms = self._brain, self.now_ms()
        return diagnose_fleet(brain.store, readings, brain.forecasts.current(now_ms), now_ms, host)

    def usage(self, first_day: int, last_day: int, by: Sequence[UsageBy], limit: int) -> UsageOut:
        return self._usage.usage(first_day, last_day, by, limit)

    def right_size(self, first_day: int, last_day: int, limit: int) -> RightSizeOut:
        return self._usage.right_size(first_day, last_day, limit)

    def metrics(self) -> bytes:
        return generate_latest(self._brain.metrics.registry)

    # ------------------------------------------------------------------ control

    def _control(self) -> control.ControlState:
        controls = self._brain.actions.controls()
        return views.control_out(controls, self._brain.settings.actions.breaker_root_causes)

    def approve(self, decision_id: str, actor: str) -> models.DecisionOut:
        self._status(decision_id)
        self._brain.actions.operator.approve(decision_id, actor)
        return self.decision(decision_id)

    def alike(self, decision_id: str) -> list[models.DecisionOut]:
        return [views.decision_out(one) for one in timeline.alike(self._brain, self._status(decision_id))]

    def reject(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> models.DecisionOut:
        self._status(decision_id)
        self._brain.actions.operator.reject(decision_id, actor, reason, right=right)
        return self.decision(decision_id)

    def release(
        self, kind: Literal["host", "gpu"], name: str, actor: str, reason: str, *, right: bool = False
    ) -> control.ReleaseOut:
        subject = self._subject(kind, name)
        self._brain.actions.operator.release(subject, actor, reason, right=right)
        # What still reports has not moved: only who is silent gives up what it owns.
        silent_ms = self.now_ms() - int(self._brain.settings.actions.fresh_seconds * SECOND)
        own = [one for one in self._known() if name in (one.gpu.uuid, one.gpu.host)]
        silent = [one.gpu for one in own if one.at_ms < silent_ms]
        self._brain.owners.forget(silent)
        until_ms = self._brain.actions.controls().hold_offs[base_key(subject)].until_ms
        left = len(own) - len(silent)
        return control.ReleaseOut(
            subject=subject, held_off_until=to_iso(until_ms), given_up=len(silent), still_reported=left
        )

    def _known(self) -> list[Reading]:
        """Also what was let go of: nobody else here may report it until it is forgotten, or a person releases it."""
        return [*self._brain.memory.latest(), *self._brain.memory.left()]

    def _subject(self, kind: Literal["host", "gpu"], name: str) -> Subject:
        if kind == "gpu":
            found = next((one.gpu for one in self._known() if one.gpu.uuid == name), None) or self._reading(name).gpu
            return Subject(SubjectKind.GPU, name, found.host, found.pool)
        pools = {one.gpu.pool for one in self._known() if one.gpu.host == name}
        if not pools:
            raise NotFound(f"no host {name}; GET /v1/gpus lists them")
        return Subject(SubjectKind.HOST, name, name, pools.pop() if len(pools) == 1 else "")

    def record_manual(self, deed: control.ManualAction, actor: str) -> control.ManualActionOut:
        payload = deed.model_dump(mode="json")
        return control.ManualActionOut(
            seq=self._brain.journal.append(EntryKind.MANUAL_ACTION, payload, actor=actor).seq
        )

    def pause(self, actor: str, reason: str) -> control.ControlState:
        self._brain.actions.operator.pause(actor, reason)
        return self._control()

    def resume(self, actor: str) -> control.ControlState:
        self._brain.actions.operator.resume(actor)
        return self._control()

    def reset_breaker(self, actor: str) -> control.ControlState:
        self._brain.actions.operator.reset_breaker(actor)
        return self._control()

    # ------------------------------------------------------------------ access

    def same_jobs(self, gpus: Collection[str]) -> set[str]:
        return same_jobs(self._brain.memory.latest(), self._brain.managers, gpus)

    def owner_against(self, gpu: str, host: str) -> str:
        return self._brain.owner_against(gpu, host)

    def record_access(self, event: Literal["login", "logout", "login_locked"], actor: str, detail: Detail) -> None:
        self._brain.journal.append(EntryKind(event), detail, actor=actor)

    def must_lead(self) -> None:
        self._brain.journal.must_lead()

    def record_reads(self, rows: Sequence[Mapping[str, object]], left_out: int) -> None:
        self._brain.journal.append(EntryKind.READS, {"reads": list(rows), "left_out": left_out})
        self._brain.metrics.count("tocsin_api_reads_left_out_total", left_out)

    def refused(self, reason: str) -> None:
        self._brain.metrics.count("tocsin_api_refused_total", reason=reason)

    def came_back(self, desk: str, outcome: str) -> None:
        self._brain.metrics.count("tocsin_desk_calls_total", desk=desk, outcome=outcome)

    # ------------------------------------------------------------------ writing

    def orders(self, host: str) -> list[Order]:
        # An agent that is asked for nothing takes its limits back: only the active brain may say so.
        self._brain.journal.must_lead()
        return self._brain.orders.orders(host)

    def report_order(self, order_id: str, sent: OrderReport) -> control.OrderTaken:
        self._brain.journal.must_lead()
        return self._brain.orders.report(order_id, sent)

    def ingest(self, bodies: Sequence[LineBody]) -> list[control.IngestResult | Exception]:
        found = [self._decoded(body) for body in bodies]
        problems = iter(self._brain.accept_all([one.batch for one in found if isinstance(one, Decoded)]))
        told, lines = list[control.IngestResult | Exception](), Counter[str]()
        for one in found:
            if isinstance(one, Exception):
                told.append(one)
            elif (problem := next(problems)) is not None:
                told.append(problem)
            else:
                lines.update(accepted=len(one.batch), rejected=one.refused)
                told.append(_ingested(one))
        for outcome, count in lines.items():
            self._brain.metrics.count("tocsin_api_lines_total", count, outcome=outcome)
        return told

    def _decoded(self, body: LineBody) -> Decoded | Exception:
        try:
            return decode(body.text, precision=body.precision, now_ms=self.now_ms(), admit=body.admit)
        except Exception as error:  # noqa: BLE001  # told to the one who sent it
            return error

    def pushed(self, series: Sequence[PushedSeries], sender: str, admits: Admits, broken: int) -> Taken:
        taken = self._pushed.take(series, sender, admits, self.now_ms())
        for outcome, number in (*taken.outcomes.items(), ("broken", broken)):
            self._brain.metrics.count("tocsin_received_samples_total", number, outcome=outcome)
        return taken

    def _newest(self, uuid: str) -> tuple[Reading | None, bool]:
        return self._brain.memory.reading(uuid), self._brain.memory.is_recalled(uuid)

    def take_alerts(self, alerts: Sequence[JsonValue], admits: Admits) -> None:
        for outcome, number in self._alerts.take(alerts, admits, self.now_ms()).items():
            self._brain.metrics.count("tocsin_received_alerts_total", number, outcome=outcome)

    def inject(self, kind: str, gpu: str, actor: str) -> control.InjectionOut:
        if self._injector is None:
            raise Conflict(
                "a failure can be injected only into a fleet that the service itself simulates (tocsin demo)"
            )
        uuid, at_ms, sentence = self._injector.inject(kind, gpu)
        self._brain.journal.append(
            EntryKind.INJECTION, {"kind": kind, "gpu": uuid, "at_ms": at_ms}, actor=actor, simulated=True
        )
        return control.InjectionOut(kind=kind, gpu=uuid, at=to_iso(at_ms), sentence=sentence)


def _ingested(found: Decoded) -> control.IngestResult:
    batch = found.batch
    return control.IngestResult(
        readings=len(batch.readings),
        events=len(batch.events),
        findings=len(batch.findings),
        predictions=len(batch.predictions),
        rejected=[control.RejectedLine(number=line.number, problem=line.problem) for line in found.rejected],
        rejected_more=found.refused - len(found.rejected),
        warnings=list(found.warnings),
    )
