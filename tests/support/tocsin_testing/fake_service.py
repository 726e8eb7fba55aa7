"""A `Service` over the fleet of `fake_fleet`: approvals, pauses and the journal work, nothing else moves."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from pydantic import JsonValue

from tocsin.actions.model.earning import proven_share
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.api.service import Detail, LineBody
from tocsin.client.control import (
    BreakerOut,
    ControlState,
    IngestResult,
    InjectionOut,
    ManualAction,
    ManualActionOut,
    OrderTaken,
    Readiness,
    RejectedLine,
    ReleaseOut,
)
from tocsin.client.errors import NotFound
from tocsin.client.models import (
    ActionScore,
    Attention,
    DecisionOut,
    FindingOut,
    FleetMap,
    FleetSummary,
    GpuDetail,
    GpuState,
    GpuSummary,
    HazardScore,
    IncidentOut,
    PeerBand,
    PeerGroup,
    PredictionScore,
    ReliabilityBin,
    RuleScore,
    Scoreboard,
    SeriesResponse,
)
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Card, Cards, CardState
from tocsin.client.models_changes import Change, ChangeKind, Changes
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_pager import PagerReport
from tocsin.client.models_report import MorningReport, ReportSentence, ReportTopic
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.models_what_if import WhatIfOut, WhatIfRequest
from tocsin.collector.push.fleet import Admits, PushedFleet, Taken
from tocsin.collector.push.samples import PushedSeries
from tocsin.config.access import ApiSettings
from tocsin.config.cell import CellSettings
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE, ManualClock, SystemClock, to_iso
from tocsin.domain.decision import DecisionState, Mode, Ruling
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, Verification
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.finding import ActionKind, Severity, Subject, SubjectKind
from tocsin.domain.order import Order, OrderReport
from tocsin.domain.prediction import Prediction
from tocsin.journal.bundle import FILES, pack
from tocsin.journal.port import NotLeading
from tocsin.queries.cells import CellQueries
from tocsin.queries.what_if import change_of
from tocsin.runtime.brain.orders import OrderService
from tocsin.store.line_protocol.decode import Admit
from tocsin.store.line_protocol.grammar import parse_head
from tocsin.store.port import StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import fake_ahead, fake_drift, fake_now, fake_usage
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_decisions import FakeDecisions
from tocsin_testing.fake_silences import FakeSilences

_LONGEST_S = 10.0
"""How long a slow fleet makes people wait at most."""
FAULTS = ("thermal_drift", "gsp_timeout")


def _refusal(line: str, admit: Admit | None) -> str:
    head, *rest = line.split(" ")
    if len(rest) != 2 or not rest[1].isdecimal():
        return "no timestamp"
    if admit is None:
        return ""
    measurement, tags = parse_head(head)
    uuids = tuple(tags[name] for name in ("gpu_uuid", "mig_uuid") if name in tags)
    return admit(measurement, tags.get("host", ""), uuids)


class FakeService(FakeDecisions):
    """Set `store_down`, `broken`, `busy` or `not_ready` to make it fail, clear `gate` to make it slow.

    `simulated` says what the fleet claims to be. With `hosts` the fleet has that many instead of 8, and some trouble
    all over; it is made once.
    """

    def __init__(self, *, simulated: bool = True, hosts: int | None = None) -> None:
        self._hosts = hosts
        self._large: list[GpuSummary] = []
        self._map: FleetMap | None = None
        self.simulated = simulated
        self.store_down = False
        self.broken = False
        self.busy = False
        self.gate = threading.Event()
        self.gate.set()
        self.working = False
        self.prices = fake_ahead.PRICES
        self.not_ready: list[str] = []
        self.standby = ""
        self.lines: list[str] = []
        self.precisions: list[str] = []
        self.pushed_fleet = PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000, 256)
        self.refusals: Counter[str] = Counter()
        self.calls_back: Counter[tuple[str, str]] = Counter()
        self.order_service = OrderService(OrderQueue(ManualClock(fleet.NOW_MS)), OwnMetrics())
        self._lock = threading.Lock()
        self._decisions = {decision.id: decision for decision in fleet.decisions()}
        self.silences = FakeSilences(self)
        self.cells = CellQueries("fleet", CellSettings(), None, SystemClock())
        self._paused: tuple[str, str] | None = None
        self._tripped = True
        self._journal: list[Entry] = []
        self._record("service_started", "tocsin", {"version": "test"})

    def _record(self, kind: str, actor: str, payload: dict[str, object]) -> None:
        previous = self._journal[-1].hash if self._journal else ""
        seq = len(self._journal) + 1
        digest = hashlib.sha256(f"{previous}{seq}{kind}{actor}".encode()).hexdigest()
        entry = Entry(
            seq=seq,
            epoch=1,
            at_ms=fleet.NOW_MS + seq,
            kind=kind,
            actor=actor,
            payload=payload,
            simulated=self.simulated,
            hash=digest,
            previous_hash=previous,
        )
        self._journal.append(entry)

    def _check(self) -> None:
        self.gate.wait(_LONGEST_S)
        if self.broken:
            raise RuntimeError("a defect")
        if self.busy:
            raise Unavailable("the store is busy")

    def ready(self) -> Readiness:
        return Readiness(ready=not self.not_ready, reasons=self.not_ready)

    def now_ms(self) -> int:
        return fleet.NOW_MS

    def gpus(self) -> list[GpuSummary]:
        self._check()
        if self._hosts is None:
            return self._made(fleet.HOSTS)
        with self._lock:
            self._large = self._large or self._made(self._hosts)
            return self._large

    def _made(self, hosts: int) -> list[GpuSummary]:
        made = [
            fleet.gpu_summary(host, index, simulated=self.simulated)
            for host in range(hosts)
            for index in range(fleet.PER_HOST)
        ]
        if self._hosts is None:
            return made
        told = {f.subject.name for f in fleet.FINDINGS}
        states = (fake_now.background(*divmod(n, fleet.PER_HOST)) for n in range(len(made)))
        return [
            gpu if gpu.uuid in told or state is GpuState.OK else gpu.model_copy(update={"state": state})
            for gpu, state in zip(made, states, strict=True)
        ]

    def fleet_map(self) -> FleetMap:
        made = self._map if self._map is not None and self._hosts is not None else fake_now.map_of(self.gpus())
        if made != self._map:
            self._map = made
        return self._map or made

    def attention(self, limit: int) -> Attention:
        return fake_now.attention_of(self.gpus(), self.findings(), limit)

    def cards(self, limit: int, state: CardState | None = None, *, hidden: bool = False) -> Cards:
        made = fake_now.cards_of(self.incidents(), list(self._decisions.values()))
        marked = [self.silences.marked(one) for one in made.items]
        kept = [one for one in marked if (state is None or one.state is state) and (one.hidden is not None) is hidden]
        by = {one.hidden.id for one in marked if one.hidden is not None}
        return Cards(
            total=len(kept),
            items=kept[:limit],
            waiting=made.waiting,
            hidden=sum(one.hidden is not None for one in marked),
            snoozes=len(by),
        )

    def card(self, card_id: str) -> Card:
        every = [*self.cards(1_000).items, *self.cards(1_000, hidden=True).items]
        found = next((one for one in every if one.id == card_id), None)
        if found is None:
            raise NotFound(f"no card {card_id}")
        return found

    def evidence(self, uuid: str, start_ms: int, end_ms: int, with_owners: bool) -> Iterator[bytes]:
        self._where(uuid)
        said = f"{uuid} {start_ms} {end_ms} {with_owners}\n".encode()
        return iter([pack({name: said if name == "README.txt" else b"" for name in FILES})])

    def peers(
        self, uuid: str, by: PeerGroup, metrics: Sequence[str], start_ms: int, end_ms: int, points: int
    ) -> PeerBand:
        return fake_now.peers_of(self._where(uuid), by, metrics, start_ms, end_ms, points)

    def summary(self) -> FleetSummary:
        gpus = self.gpus()
        control = self._control()
        states = Counter(gpu.state for gpu in gpus)
        return FleetSummary(
            version="test",
            now=to_iso(fleet.NOW_MS),
            simulated=self.simulated,
            mode=Mode.PROPOSE,
            executor="journal_only",
            paused=control.paused,
            paused_by=control.paused_by,
            paused_reason=control.paused_reason,
            breaker=control.breaker,
            gpus=len(gpus),
            hosts=len({gpu.host for gpu in gpus}),
            pools=2,
            states={state: states[state] for state in GpuState if states[state]},
            readings=184_320,
            last_reading=to_iso(fleet.NOW_MS - 8_000),
            last_reading_age_s=8.0,
            utilization_ratio=sum(gpu.utilization_ratio or 0.0 for gpu in gpus) / max(1, len(gpus)),
            memory_used_ratio=sum(gpu.memory_used_ratio or 0.0 for gpu in gpus) / max(1, len(gpus)),
            power_watts=sum(gpu.power_watts or 0.0 for gpu in gpus),
            findings={severity: sum(f.severity is severity for f in self.findings()) for severity in Severity},
            incidents=len(self.incidents()),
            predictions=3,
            decisions=len(self._decisions),
            decisions_held=len(self.decisions(100, DecisionState.HELD)),
            decisions_approvable=sum(d.approvable for d in self._decisions.values()),
        )

    def _where(self, uuid: str) -> tuple[int, int]:
        for host in range(fleet.HOSTS if self._hosts is None else self._hosts):
            for index in range(fleet.PER_HOST):
                if fleet.uuid(host, index) == uuid:
                    return host, index
        raise NotFound(f"no GPU {uuid} has been read")

    def gpu(self, uuid: str) -> GpuDetail:
        where = self._where(uuid)
        lost = where == fleet.LOST
        return GpuDetail(
            summary=fleet.gpu_summary(*where, simulated=self.simulated),
            serial=f"16520{where[0]}{where[1]}",
            pci_bus_id=f"00000000:{where[1] + 7:02x}:00.0",
            values={} if lost else {name: f(*where, fleet.NOW_MS) for name, f in fleet.METRICS.items()},
            missing=dict.fromkeys(fleet.METRICS, "lost") if lost else {"gpu_fan_speed_ratio": "unsupported"},
            events=[event for event in fleet.EVENTS if event.gpu == uuid],
            findings=[f for f in fleet.FINDINGS if f.subject.name == uuid],
            predictions=[p for p in fleet.PREDICTIONS if p.subject.name == uuid],
            decisions=[d for d in self._decisions.values() if d.subject.name == uuid],
        )

    def series(self, uuid: str, metrics: Sequence[str], start_ms: int, end_ms: int, max_points: int) -> SeriesResponse:
        where = self._where(uuid)
        until = min(end_ms, fleet.NOW_MS)
        step = max(60_000, -(-(until - start_ms) // max_points))
        at = list(range(start_ms, until, step))
        gone = fleet.LOST_MS if where == fleet.LOST else fleet.NOW_MS
        gap = {*range(len(at) // 3, len(at) // 3 + 3), *(i for i, at_ms in enumerate(at) if at_ms >= gone)}
        return SeriesResponse(
            gpu=uuid,
            start=to_iso(start_ms),
            end=to_iso(end_ms),
            at=[to_iso(at_ms) for at_ms in at],
            metrics={
                name: [
                    None if i in gap or name not in fleet.METRICS else fleet.METRICS[name](*where, at_ms)
                    for i, at_ms in enumerate(at)
                ]
                for name in metrics
            },
            points=len(at),
        )

    def findings(self) -> list[FindingOut]:
        return [*fleet.FINDINGS, fleet.POOL_FINDING]

    def incidents(self) -> list[IncidentOut]:
        return [
            IncidentOut(root=f, members=(f,), opened_ms=f.started_ms, last_ms=f.last_ms, sentence=f.sentence)
            for f in self.findings()
        ]

    def predictions(self) -> list[Prediction]:
        return fleet.PREDICTIONS

    def decisions(self, limit: int, state: DecisionState | None = None) -> list[DecisionOut]:
        found = [d for d in self._decisions.values() if state is None or d.state is state]
        return sorted(found, key=lambda one: not one.approvable)[:limit]

    def decision(self, decision_id: str) -> DecisionOut:
        found = self._decisions.get(decision_id)
        if found is None:
            raise NotFound(f"no decision {decision_id} is on record")
        return found

    def _settle(self, decision_id: str, actor: str, update: dict[str, object], kind: str) -> DecisionOut:
        with self._lock:
            found = self.decision(decision_id)
            if not found.approvable:
                raise Conflict(
                    f"decision {decision_id} is {found.state}; only one that waits for a person can be settled"
                )
            settled = replace(found, **update, approvable=False)
            self._decisions[decision_id] = settled
            self._record(kind, actor, {"decision": decision_id})
            return settled

    def approve(self, decision_id: str, actor: str) -> DecisionOut:
        update: dict[str, object] = {"state": DecisionState.APPROVED, "approved_by": actor}
        return self._settle(decision_id, actor, update, "approval")

    def alike(self, decision_id: str) -> list[DecisionOut]:
        one = self.decision(decision_id)
        return [
            other
            for other in self.decisions(1_000, None)
            if other.approvable and (other.incident, other.action) == (one.incident, one.action) and other.id != one.id
        ]

    def reject(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> DecisionOut:
        update: dict[str, object] = {"state": DecisionState.REJECTED, "rejected_by": actor, "overall": Ruling.DENY}
        return self._settle(decision_id, actor, update, "rejection")

    def _control(self) -> ControlState:
        breaker = BreakerOut(
            tripped=self._tripped,
            root_causes=3 if self._tripped else 0,
            limit=3,
            since=to_iso(fleet.NOW_MS) if self._tripped else None,
            reason="3 root causes within 1 h" if self._tripped else "",
        )
        who, why = self._paused or ("", "")
        return ControlState(paused=self._paused is not None, paused_by=who, paused_reason=why, breaker=breaker)

    def record_manual(self, deed: ManualAction, actor: str) -> ManualActionOut:
        self._record("manual_action", actor, deed.model_dump(mode="json"))
        return ManualActionOut(seq=self._journal[-1].seq)

    def pause(self, actor: str, reason: str) -> ControlState:
        self._paused = (actor, reason)
        self._record("pause", actor, {"reason": reason})
        return self._control()

    def resume(self, actor: str) -> ControlState:
        self._paused = None
        self._record("resume", actor, {})
        return self._control()

    def reset_breaker(self, actor: str) -> ControlState:
        self._tripped = False
        self._record("breaker_reset", actor, {})
        return self._control()

    def journal(self, after: int, limit: int, kinds: Collection[str] | None = None) -> list[Entry]:
        found = [e for e in self._journal if e.seq > after and (not kinds or e.kind in kinds)]
        return found[:limit]

    def verify_journal(self, after: int, previous: str) -> Verification:
        return Verification(ok=True, events=len(self._journal), head=len(self._journal))

    def diagnoses(self, host: str = "") -> list[Diagnosis]:
        return [one for one in fleet.DIAGNOSES if not host or host in one.hosts]

    def planning_state(self) -> dict[str, Any]:
        return {"nodes": [], "gpus": [], "works": []}

    def forecast(self, limit: int) -> ForecastOut:
        self._check()
        return fake_ahead.forecast(limit, self._hosts or fleet.HOSTS, simulated=self.simulated)

    def capacity(self) -> CapacityOut:
        if self.working:
            raise Unavailable("the capacity forecast is being worked out; ask again in a few seconds")
        return fake_ahead.capacity(simulated=self.simulated)

    def fragmentation(self, limit: int) -> FragmentationOut:
        self._check()
        return fake_ahead.fragmentation(limit, self._hosts or fleet.HOSTS, simulated=self.simulated)

    def plan(self, planner: Planner) -> PlansOut:
        if self.working:
            raise Unavailable(f"the plan of {planner} is being worked out; ask again in a few seconds")
        return fake_ahead.plan(planner, simulated=self.simulated)

    def cost(self, start_ms: int, end_ms: int) -> CostOut:
        return fake_ahead.cost(start_ms, end_ms, simulated=self.simulated, prices=self.prices)

    def usage(self, first_day: int, last_day: int, by: Sequence[UsageBy], limit: int) -> UsageOut:
        self._check()
        return fake_usage.usage(fleet.NOW_MS, first_day, last_day, list(by), limit, simulated=self.simulated)

    def right_size(self, first_day: int, last_day: int, limit: int) -> RightSizeOut:
        return fake_usage.right_size(fleet.NOW_MS, first_day, last_day, limit, simulated=self.simulated)

    def pager_report(self) -> PagerReport:
        return PagerReport(
            simulated=False, days=14.0, gpus=256, hard_faults=3, pages=4, pages_right=3, recall=1.0, prompt_recall=0.67,
            pages_per_cause=1.0, unknown={"precision": "a journal does not tell what was not wrong"},
        )  # fmt: skip

    def morning_report(self, hours: int) -> MorningReport:
        said = {
            ReportTopic.HAPPENED: ("1 fault began in the last 24 h, 0 of them over.", "过去 24 小时新增 1 起故障。"),
            ReportTopic.DID: ("Tocsin carried out no action.", "Tocsin 未执行动作。"),
            ReportTopic.WRONG: ("Nothing settled yet: no forecast came due.", "尚无定论：没有到期的预测。"),
            ReportTopic.WAITS: ("1 action waits for your yes.", "1 个动作等待批准。"),
            ReportTopic.EXPECT: ("No forecast stands.", "没有有效预测。"),
        }
        sentences = [ReportSentence(topic=topic, text=en, text_zh=zh) for topic, (en, zh) in said.items()]
        start = to_iso(self.now_ms() - hours * HOUR)
        return MorningReport(start=start, end=to_iso(self.now_ms()), mode=Mode.PROPOSE, sentences=sentences)

    def drift(self, pool: str, components: Sequence[str]) -> DriftOut:
        self._check()
        return fake_drift.drift(self.now_ms(), pool, components, simulated=self.simulated)

    def changes(self, hours: int, limit: int) -> Changes:
        told = [
            (4, ChangeKind.ACTION, "drain gpu-node-03 GPU 2: done", "排空 gpu-node-03 GPU 2：已完成"),
            (9, ChangeKind.CARD, "gpu-node-03 GPU 2: too hot", "gpu-node-03 GPU 2：温度过高"),
            *((10 + n, ChangeKind.NODE, f"Host new-{n} is new", f"新主机 new-{n}") for n in range(12)),
        ]
        made = [
            Change(at=to_iso(self.now_ms() - minutes * MINUTE), kind=kind, text=english, text_zh=chinese)
            for minutes, kind, english, chinese in told
        ]
        start = to_iso(self.now_ms() - hours * HOUR)
        return Changes(start=start, end=to_iso(self.now_ms()), total=len(made), items=made[:limit])

    def what_if(self, asked: WhatIfRequest) -> WhatIfOut:
        start = to_iso(self.now_ms() - 30 * DAY)
        change = change_of(asked, Mode.ACT, lambda _rule: False, waived=False).sentence
        return WhatIfOut(start=start, end=to_iso(self.now_ms()), change=change, decisions=3, would_run=2, still_held=1)

    def rule_records(self) -> list[RuleRecord]:
        """One that is far from it, one that acts, one that fell back."""

        def record(rule: str, mode: Mode, counts: tuple[int, int, int, int], lacking: str, since: str) -> RuleRecord:
            settled, right, measured, reached = counts
            return RuleRecord(
                rule=rule,
                simulated=self.simulated,
                mode_set=Mode.ACT,
                mode=mode,
                waived=False,
                settled=settled,
                right=right,
                measured=measured,
                reached=reached,
                lacking=lacking,
                settled_needed=20,
                right_needed=0.85,
                reached_needed=0.8,
                right_proven=proven_share(right, settled),
                reached_proven=proven_share(reached, measured),
                since=since or None,
            )

        return [
            record(
                "row-remap-pending", Mode.PROPOSE, (3, 3, 2, 2), "Rule row-remap-pending has 3 of 20 settled cases.", ""
            ),
            record("temperature-high", Mode.ACT, (41, 40, 38, 37), "", "2026-11-15T08:00:00.000Z"),
            record(
                "xid-fatal",
                Mode.PROPOSE,
                (21, 20, 20, 20),
                "Rule xid-fatal has right in 20 of 21 cases, which proves 81 % of 85 %.",
                "2026-11-17T09:30:00.000Z",
            ),
        ]

    def scoreboard(self) -> Scoreboard:
        rules = [
            RuleScore(rule="temperature-high", action=ActionKind.PLACE_ELSEWHERE, decisions=41, would_have_acted=29,
                      held_by={"cooldown": 8, "evidence": 4}, confirmed=17, unconfirmed=9, pending=3),
            RuleScore(rule="xid-fatal", action=ActionKind.DRAIN, decisions=6, would_have_acted=4,
                      held_by={"capacity": 2}, confirmed=4),
            RuleScore(rule="row-remap-pending", action=ActionKind.RESET_GPU, decisions=9, would_have_acted=3,
                      held_by={"maintenance": 5, "max_per_host": 1}, confirmed=2, unconfirmed=1),
            RuleScore(rule="mig-fragmentation", action=ActionKind.DEFRAGMENT, decisions=12, would_have_acted=12,
                      unconfirmed=10, pending=2),
        ]  # fmt: skip
        held: Counter[str] = Counter()
        for rule in rules:
            held.update(rule.held_by)
        return Scoreboard(
            since=to_iso(fleet.NOW_MS - 14 * DAY),
            until=to_iso(fleet.NOW_MS),
            mode=Mode.PROPOSE,
            simulated=self.simulated,
            decisions=sum(rule.decisions for rule in rules),
            would_have_acted=sum(rule.would_have_acted for rule in rules),
            held=sum(held.values()),
            confirmed=sum(rule.confirmed for rule in rules),
            held_by=dict(held),
            rules=rules,
            predictions=PredictionScore(
                made=63,
                hits=38,
                misses=17,
                pending=8,
                not_enough_data=5,
                within_interval=31,
                lead_s=[1_800.0 * (1 + (7 * i) % 23) for i in range(38)],
            ),
            crossings=[
                PredictionScore(
                    model="holt",
                    model_version="1",
                    made=58,
                    hits=36,
                    misses=15,
                    pending=7,
                    not_enough_data=5,
                    within_interval=30,
                    lead_s=[1_800.0 * (1 + (7 * i) % 23) for i in range(36)],
                ),
                PredictionScore(
                    model="filling",
                    model_version="2",
                    made=5,
                    hits=2,
                    misses=2,
                    pending=1,
                    within_interval=1,
                    lead_s=[3_600.0, 5_400.0],
                ),
            ],
            actions=[
                ActionScore(
                    action=ActionKind.THROTTLE,
                    tried=7,
                    worked=6,
                    effects={"gpu_temperature_celsius_change": -6.2, "celsius_bought_per_watt": 0.065},
                    measured={"gpu_temperature_celsius_change": 6, "celsius_bought_per_watt": 6},
                ),
            ],
            hazards=[
                HazardScore(
                    model="hazard",
                    target="hardware_fault",
                    horizon_s=172_800.0,
                    predictions=5180,
                    pending=96,
                    gpu_days=1291.5,
                    onsets=9,
                    alarms=7,
                    false_alarms=3,
                    precision=0.57,
                    recall=0.44,
                    false_alarms_per_1000_gpu_days=2.323,
                    onset_recall=0.444,
                    onset_recall_24h=0.333,
                    lead_s=[3_600.0 * hours for hours in (3, 26, 36, 70)],
                    roc_auc=0.84,
                    auprc=0.11,
                    base_rate=0.0139,
                    brier=0.0128,
                    calibration_error=0.004,
                    approved=4,
                    rejected=1,
                    operator_precision=0.8,
                    onset_recall_low=0.19,
                    onset_recall_high=0.73,
                    model_version="3",
                    reliability=[
                        ReliabilityBin(
                            low=low,
                            high=high,
                            gpu_days=days,
                            stated=stated,
                            observed=seen,
                            predictions=int(4 * days),
                            observed_low=seen / 3,
                            observed_high=min(1.0, top),
                        )
                        for low, high, days, stated, seen, top in [
                            (0.0, 0.0001, 900.0, 0.00008, 0.0, 0.008),
                            (0.001, 0.003, 240.0, 0.0021, 0.004, 0.03),
                            (0.01, 0.03, 96.0, 0.019, 0.021, 0.11),
                            (0.1, 0.2, 40.0, 0.14, 0.2, 0.44),
                            (0.4, 0.5, 15.5, 0.46, 0.57, 0.86),
                        ]
                    ],
                ),
                HazardScore(
                    model="hazard", model_version="4", target="hardware_fault", horizon_s=172_800.0, pending=64
                ),
            ],
        )

    def ingest(self, bodies: Sequence[LineBody]) -> list[IngestResult | Exception]:
        if self.store_down:
            return [StoreUnavailable("the store does not answer") for _ in bodies]
        return [self._ingested(body) for body in bodies]

    def _ingested(self, body: LineBody) -> IngestResult:
        rejected, kept = [], 0
        for number, line in enumerate(body.text.split("\n"), start=1):
            if not line:
                continue
            if problem := _refusal(line, body.admit):
                rejected.append(RejectedLine(number=number, problem=problem))
            else:
                kept += 1
                self.lines.append(line)
        self.precisions.append(body.precision)
        return IngestResult(readings=kept, rejected=rejected)

    def pushed(self, series: Sequence[PushedSeries], sender: str, admits: Admits, broken: int) -> Taken:
        return self.pushed_fleet.take(series, sender, admits, fleet.NOW_MS)

    def take_alerts(self, alerts: Sequence[JsonValue], admits: Admits) -> None:
        """The fake keeps none."""

    def inject(self, kind: str, gpu: str, actor: str) -> InjectionOut:
        if kind not in FAULTS:
            raise InputError("kind", kind, "is no fault", f"use one of {', '.join(FAULTS)}")
        self._where(gpu)
        if not self.simulated:
            raise Conflict(f"{gpu} is real; faults are injected into simulated GPUs alone")
        self._record("injection", actor, {"kind": kind, "gpu": gpu})
        return InjectionOut(kind=kind, gpu=gpu, at=to_iso(fleet.NOW_MS), sentence=f"{kind} starts on {gpu}")

    def release(
        self, kind: Literal["host", "gpu"], name: str, actor: str, reason: str, *, right: bool = False
    ) -> ReleaseOut:
        known = [gpu for gpu in self.gpus() if name == (gpu.host if kind == "host" else gpu.uuid)]
        if not known:
            raise NotFound(f"no {kind} {name} is known")
        self._record("hold_off", actor, {"subject": f"{kind}:{name}", "reason": reason})
        subject = Subject(kind=SubjectKind(kind), name=name, host=known[0].host, pool=known[0].pool)
        return ReleaseOut(subject=subject, held_off_until=to_iso(fleet.NOW_MS + DAY))

    def orders(self, host: str) -> list[Order]:
        return self.order_service.orders(host)

    def report_order(self, order_id: str, sent: OrderReport) -> OrderTaken:
        return self.order_service.report(order_id, sent)

    def same_jobs(self, gpus: Collection[str]) -> set[str]:
        return set(gpus)

    def owner_against(self, gpu: str, host: str) -> str:
        return next((one.host for one in self.gpus() if one.uuid == gpu and one.host != host), "")

    def record_access(self, event: Literal["login", "logout", "login_locked"], actor: str, detail: Detail) -> None:
        self._record(event, actor, dict(detail))

    def must_lead(self) -> None:
        if self.standby:
            raise NotLeading(self.standby)

    def record_reads(self, rows: Sequence[Mapping[str, object]], left_out: int) -> None:
        self._record("reads", "tocsin", {"reads": list(rows), "left_out": left_out})

    def refused(self, reason: str) -> None:
        self.refusals[reason] += 1

    def came_back(self, desk: str, outcome: str) -> None:
        self.calls_back[desk, outcome] += 1

    def metrics(self) -> bytes:
        return b"# HELP tocsin_gpus GPUs known.\n# TYPE tocsin_gpus gauge\ntocsin_gpus 64.0\n"


@contextmanager
def serving(service: FakeService, settings: ApiSettings | None = None) -> Iterator[str]:
    """The API over `service` on a free port of the loopback address; yields its base URL."""
    wanted = settings or ApiSettings()
    server = ApiServer(create_app(service, wanted), settings=wanted, refused=service.refused)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
