"""Writes `state.tar.xz`, `expected.json.xz` and `settings.json` beside it. Runs on commit 2bd2118 alone: it imports that commit's names.

    git worktree add /tmp/old 2bd2118
    cd /tmp/old && PYTHONPATH=src:tests/support python THIS_FILE

Instants, seeds and ids are fixed. Actions run in threads, so that the order of entries may differ between two runs:
`expected.json.xz` belongs to the `state.tar.xz` that was written with it.
"""

from __future__ import annotations

import json
import lzma
import math
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.actions import catalogue
from tocsin.actions.book import Book
from tocsin.actions.channels import fanout  # noqa: F401  # the channels are registered on import
from tocsin.actions.codec import dump_decision
from tocsin.actions.cost import written_losses
from tocsin.actions.executors.protocol import ExecutionResult
from tocsin.actions.node.ranks import Rank, written
from tocsin.actions.sender import Delivery
from tocsin.client.models import SubjectOut
from tocsin.client.models_manual import ManualAction
from tocsin.client.token_file import store_token
from tocsin.collector.kernel_log_position import Position, save_position
from tocsin.collector.spool import Spool
from tocsin.config.planning import PlanningSettings
from tocsin.config.settings import Settings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, to_iso
from tocsin.domain.decision import Decision, Mode, Outcome, OutcomeStatus, Ruling, Verdict
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing
from tocsin.domain.owner import Owner
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Reading
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.forecaster.artefact import Card
from tocsin.forecaster.examples import NEVER, Examples
from tocsin.forecaster.features import Plan
from tocsin.forecaster.features.table import names_of
from tocsin.forecaster.lifecycle.shelf import Shelf, Shelved
from tocsin.forecaster.live.place import RiskPlace
from tocsin.forecaster.live.watch import RiskWatch
from tocsin.forecaster.scorers import registry
from tocsin.journal.backup import backup as backup_journal
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.journal.reader import read_entries
from tocsin.journal.verify import verify
from tocsin.runtime import demo as demos
from tocsin.runtime.annotations import Annotations
from tocsin.runtime.assembly import open_brain
from tocsin.runtime.service import BrainService
from tocsin.store.lineprotocol import encode
from tocsin.store.sqlite import SqliteStore
from tocsin.store.upkeep import Retention
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import action_world, planned_world
from tocsin_testing.action_world import World, finding, settings
from tocsin_testing.node_world import FakePower, Node
from tocsin_testing.planned_world import PlannedWorld
from tocsin_testing.planning import fleet, on, work

HERE = Path(__file__).parent
T0 = 1_795_000_000_000
RETENTION = Retention(DAY, 2 * DAY, 10_000 * DAY)

# ------------------------------------------------------------------------------------------------ what is expected


def plain(value: Any) -> Any:
    """`value` as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {"|".join(k) if isinstance(k, tuple) else str(k): plain(one) for k, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def fold(path: Path) -> dict[str, Any]:
    """What the ledger makes of a journal."""
    journal = Journal.open(path, ManualClock(T0))
    book = Book(journal)
    controls = book.ledger.controls()
    told = book.ledger.told
    found = {
        "decisions": {
            record.decision.id: {
                **{name: plain(value) for name, value in dump_decision(record.decision).items()},
                "state": record.state,
                "overall": record.overall,
                "verdicts": plain(record.verdicts),
                "outcome": plain(record.outcome),
                "approved_by": record.approved_by,
                "reason": record.reason,
                "updated_ms": record.updated_ms,
                "executor": record.executor,
                "detail": record.detail,
                "attempts": record.attempts,
                "lasting": record.lasting,
                "changed": record.changed,
                "before": record.before,
                "effect": record.effect,
                "checked": record.checked,
                "seen": record.seen,
                "steps": record.steps,
            }
            for record in book.records()
        },
        "controls": {
            "paused": plain(controls.paused),
            "breaker": plain(controls.breaker),
            "approvals": plain(controls.approvals),
            "rejections": plain(controls.rejections),
            "hold_offs": plain(controls.hold_offs),
            "started": plain(controls.started),
            "attempts": plain(controls.attempts),
            "effects": sorted(controls.effects),
            "busy": plain(controls.busy),
            "renewals": plain(controls.renewals),
            "cancelled": plain(controls.cancelled),
            "finished": plain(controls.finished),
            "doubtful": plain(controls.doubtful),
            "confirmed": plain(controls.confirmed),
            "failures": plain(controls.failures),
            "experience": plain(controls.experience),
            "capping": plain(controls.capping),
        },
        "known": sorted(book.ledger.known),
        "ended": book.ledger.ended,
        "causes": book.ledger.causes,
        "open": {c: {m: sorted(keys) for m, keys in one.items()} for c, one in told.open.items()},
        "told": {key: plain(dict(told.done(key))) for key in sorted(book.ledger.known) if told.done(key)},
    }
    journal.close()
    return found


def journal_facts(path: Path) -> dict[str, Any]:
    """How long a journal is, what it is made of, how it ends, and what the ledger makes of it."""
    result = verify(path)
    assert result.ok, result
    entries = list(read_entries(path))
    kinds: dict[str, int] = {}
    for entry in entries:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    return {"events": result.events, "kinds": dict(sorted(kinds.items())), "last": entries[-1].hash, "fold": fold(path)}


def series(store: SqliteStore, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """Every reading, in order."""
    return [
        {
            "gpu": one.gpu.uuid,
            "at_ms": one.at_ms,
            "values": dict(one.values),
            "missing": {name: int(reason) for name, reason in one.missing.items()},
            "owners": [owner.as_json() for owner in one.owners],
        }
        for one in store.readings(start_ms, end_ms)
    ]


CHARTED = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total", 'gpu_nvlink_up{link="0"}')


def whole(values: Any) -> Any:
    """An array with null for what is not there."""
    return [[None if math.isnan(one) else one for one in row] for row in values.tolist()]


def charted(found: Any) -> dict[str, Any]:
    """A series of one GPU."""
    return {"gpu": found.gpu, "metrics": found.metrics, "at_ms": found.at_ms.tolist(), "values": whole(found.values)}


def sums(store: SqliteStore, start_ms: int, end_ms: int) -> dict[str, Any]:
    """Readings by GPU, values and their sum by metric, reasons, owners."""
    gpus: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    values: dict[str, list[float]] = {}
    for one in store.readings(start_ms, end_ms):
        gpus[one.gpu.uuid] += 1
        for name, value in one.values.items():
            counts[name] += 1
            values.setdefault(name, []).append(value)
        missing.update(f"{name} {int(reason)}" for name, reason in one.missing.items())
        owners.update(json.dumps(owner.as_json(), sort_keys=True) for owner in one.owners)
    added = {name: math.fsum(found) for name, found in values.items()}
    return {"gpus": gpus, "counts": counts, "sums": added, "missing": missing, "owners": owners}


def store_facts(path: Path, now_ms: int, *, every: bool) -> dict[str, Any]:
    """What a store answers; all its readings where `every` is wanted."""
    store = SqliteStore(path)
    store.init()
    everything = (0, now_ms + DAY)
    first = store.gpus()[0].uuid
    columns = store.columns(CHARTED, *everything)
    low, high = store.extremes(first, CHARTED, *everything)
    found = {
        "gpus": [plain(asdict(one)) for one in store.gpus()],
        "sums": sums(store, *everything),
        "series": charted(store.series(first, CHARTED, *everything)),
        "extremes": [charted(low), charted(high)],
        "columns": [[columns.gpus[n] for n in columns.gpu], columns.at_ms.tolist(), whole(columns.values)],
        "latest": [[one.gpu.uuid, one.at_ms] for one in store.latest(0)],
        "events": [{"id": one.id, **plain(one)} for one in store.events(*everything)],
        "findings": [{"id": one.id, **plain(one)} for one in store.findings(*everything)],
        "predictions": [{"id": one.id, **plain(one)} for one in store.predictions(*everything)],
    }
    if every:
        found["readings"] = series(store, *everything)
    store.close()
    return found


class Shown:
    """A place for annotations, named as Grafana's."""

    name = "grafana"

    def __init__(self) -> None:
        self.keys: list[str] = []

    def put(self, mark: Any, doubtful: bool) -> Delivery:  # noqa: ARG002
        self.keys.append(mark.key)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """Nothing is open."""


def annotations(journal: Journal, place: Shown) -> Annotations:
    """What shows the marks of `journal` at `place`, from where its file says."""
    return Annotations(journal, [place], ManualClock(T0), OwnMetrics(), lambda _name: None, lambda _name: None)


def brain_facts(folder: Path, now_ms: int) -> dict[str, Any]:
    """What a brain over the files of another one answers before its first evaluation."""
    chosen = {
        "store": {"path": folder / "store.db"},
        "journal": {"path": folder / "journal.db"},
        "forecast": {"worker": False, "models": folder / "models"},
        "actions": {"mode": "act"},
    }
    running = open_brain(Settings.model_validate(chosen), ManualClock(now_ms))
    service = BrainService(running.brain)
    told = sorted({event.gpu for event in running.brain.store.events(0, now_ms + 1) if event.gpu})
    details = {uuid: json.loads(service.gpu(uuid).model_dump_json()) for uuid in told}
    shown = ("summary", "labels", "values", "missing", "owners", "events", "findings", "decisions")
    place = Shown()
    annotations(running.brain.journal, place).tick()
    found = {
        "decisions": [json.loads(one.model_dump_json()) for one in service.decisions(1000)],
        "scoreboard": json.loads(service.scoreboard().model_dump_json()),
        "gpu_uuids": [one.uuid for one in running.brain.gpus],
        "gpus": {uuid: {name: one[name] for name in shown} for uuid, one in details.items()},
        "epoch": running.brain.journal.epoch,
        "annotated": place.keys,
    }
    running.stop()
    return found


# ------------------------------------------------------------------------------------------------ journals

VERDICTS = (Verdict("managed", Ruling.ALLOW, ""), Verdict("budget", Ruling.HOLD, "too many at once", T0 + HOUR))
GPU = Subject(SubjectKind.GPU, "GPU-0-0", "node-0", "default")
HOST = Subject(SubjectKind.HOST, "node-1", "node-1", "default")
POOL = Subject(SubjectKind.POOL, "train", pool="train", detail="+2 nodes")
MIG = Subject(SubjectKind.GPU, "GPU-0-1", "node-0", "default", "GPU-0-1 to GPU-1-0@4")
RANKS = written((Rank("node-0", "GPU-0-0"), Rank("node-1", "GPU-1-0")))
ABOUT = {"host": "node-0", "pool": "default", "metric": "gpu_temperature_celsius", "pods": "ml/a-0,ml/b", "jobs": "71,72"}
AHEAD = {"prediction": "0123456789abcdef", "eta_ms": str(T0 + HOUR), "forecast_zh": "一小时后过热"}
LOSSES = written_losses({ActionKind.NOTIFY: 4.25, ActionKind.CORDON: 2.5, ActionKind.MIGRATE: 3.125})
MOVED = {"from": "GPU-0-0@0", "to": "GPU-1-0@4", "work": "pod/ml/a-0", "to_host": "node-1"}
GAIN = {"gain_gpu_hours": "12.5", "cost_gpu_hours": "0.25", "plan_gain_gpu_hours": "20", "plan_cost_gpu_hours": "1"}
CATALOGUE: list[tuple[ActionKind, Subject, dict[str, str]]] = [
    (ActionKind.NOTIFY, GPU, ABOUT | AHEAD | {"intended": "drain", "proposes": "00112233445566ff"}),
    (ActionKind.NOTIFY, GPU, {"escalates": "00112233445566ff", "intended": "reset_gpu"}),
    (ActionKind.NOTIFY, Subject(SubjectKind.FLEET, "fleet"), {}),
    (ActionKind.THROTTLE, GPU, ABOUT | AHEAD | {"ranks": RANKS, "expected_losses": LOSSES}),
    (ActionKind.THROTTLE, replace(GPU, name="GPU-2-0", host="node-2"), {"power_limit_watts": "450", "was_watts": "700"}),
    (ActionKind.THROTTLE, replace(GPU, name="GPU-2-1", host="node-2"), {"sm_clock_max_mhz": "1200"}),
    (ActionKind.RESTORE, GPU, {"power_limit_watts": "700", "was_watts": "700", "undoes": "x|throttle|1"}),
    (ActionKind.RESTORE, GPU, {"undoes": "x|throttle|1", "asked_by": "anna"}),
    (ActionKind.PLACE_ELSEWHERE, HOST, {"host": "node-1", "pool": "default"}),
    (ActionKind.DEFRAGMENT, GPU, ABOUT | {"ranks": RANKS, "work": "pod/ml/a-0,job/71", "to_host": "node-1,node-2 node-3"}),
    (ActionKind.DEFRAGMENT, HOST, {"host": "node-1", "mig_config": "all-1g.10gb"}),
    (ActionKind.SCALE_OUT, POOL, {"pool": "train", "nodes": "2", "gpus": "16"}),
    (ActionKind.SCALE_OUT, POOL, {"pool": "train", "gpus": "8", "before": "x|drain|1"}),
    (ActionKind.SCALE_OUT, POOL, {"pool": "train", "replicas": "5"}),
    (ActionKind.SCALE_IN, replace(POOL, detail="-1 node"), {"pool": "train", "nodes": "1", "gpus": "8", "node": "node-3"}),
    (ActionKind.SCALE_IN, POOL, {"pool": "train", "instance": "i-0abc", "host": "node-3"}),
    (ActionKind.CHECKPOINT, GPU, ABOUT | {"ranks": RANKS, "deadline_ms": str(T0 + HOUR)}),
    (ActionKind.MIGRATE, MIG, MOVED | GAIN),
    (ActionKind.MIGRATE, HOST, {"host": "node-1", "work": "pod/ml/a-0,job/71", "to_host": "node-2,"}),
    (ActionKind.CORDON, HOST, ABOUT | AHEAD | {"expected_losses": LOSSES, "deadline_ms": str(T0 + HOUR)}),
    (ActionKind.UNCORDON, HOST, {"undoes": "x|cordon|1", "host": "node-1"}),
    (ActionKind.DRAIN, HOST, ABOUT | {"deadline_ms": str(T0 + HOUR)}),
    (ActionKind.RESET_GPU, GPU, ABOUT),
    (ActionKind.REBOOT_NODE, HOST, ABOUT),
    (ActionKind.RMA_TICKET, GPU, ABOUT | {"evidence": "xid:79 at 2026-11-18T17:46:40Z: fell off; serial 165"}),
]
ENDS = [
    (OutcomeStatus.SUCCEEDED, True, {"drain_seconds": 12.5}),
    (OutcomeStatus.FAILED, False, {}),
    (OutcomeStatus.UNVERIFIED, True, {}),
    (None, False, {}),
]


def made(number: int, action: ActionKind, subject: Subject, parameters: dict[str, str]) -> Decision:
    key = f"rule-{number}|{subject.key}|{action}|{T0}"
    cause = {} if action is ActionKind.NOTIFY else {"cause": key}
    return Decision(
        rule=f"rule-{number}",
        subject=subject,
        action=action,
        mode=list(Mode)[number % 3],
        severity=list(Severity)[number % 3],
        category=list(Category)[number % len(Category)],
        at_ms=T0 + number,
        expires_ms=T0 + HOUR + number,
        key=key,
        sentence=f"Sentence {number}.",
        findings=(f"{number:016x}",),
        incident=f"{number:016x}",
        parameters=parameters | cause,
        simulated=number % 4 == 3,
    )


def write_catalogue(path: Path) -> None:
    """A decision of every kind of action with every parameter that is written, each taken to one of several ends."""
    clock = ManualClock(T0)
    journal = Journal.open(path, clock)
    book = Book(journal)
    for number, (action, subject, parameters) in enumerate(CATALOGUE):
        clock.advance(SECOND)
        one = made(number, action, subject, parameters)
        book.decided(one)
        record = book.ledger.records[one.key]
        cause = {"cause": one.key} if number % 2 else {}
        book.judged(record, VERDICTS if number % 3 else VERDICTS[:1], "hold" if number % 3 else "allow", **cause)
        status, in_effect, effect = ENDS[number % len(ENDS)]
        if action is not ActionKind.NOTIFY and number % 5 != 4:
            book.started(one, "kubernetes", {"gpu_temperature_celsius": 91.5})
            if status is not None:
                book.ended(record, Outcome(one.id, status, "kubernetes", clock.now_ms(), "as said", 2, effect), in_effect=in_effect)
    journal.append(EntryKind.EFFECT_ENDED, {"keys": [made(4, *CATALOGUE[4]).key], "reason": "the node has left the fleet"})
    manual = ManualAction(
        id="00112233445566ff",
        phase="begun",
        action="drain",
        subject=SubjectOut(kind=SubjectKind.HOST, name="node-1"),
        reason="its fan is broken",
        parameters={"grace_seconds": "30"},
        manager="kubernetes https://example",
        by="anna@admin",
    )
    journal.append(EntryKind.MANUAL_ACTION, manual.model_dump(mode="json"), actor="anna")
    ended = manual.model_copy(update={"phase": "ended", "status": "succeeded", "detail": "2 pods left"})
    journal.append(EntryKind.MANUAL_ACTION, ended.model_dump(mode="json"), actor="anna")
    journal.append(EntryKind.LOGIN, {"role": "operator", "by": "password"}, actor="anna")
    journal.append(EntryKind.LOGIN_LOCKED, {"user": "eve", "tries": 5}, actor="tocsin")
    journal.append(EntryKind.LOGOUT, {}, actor="anna")
    journal.append(EntryKind.IMPORT_DONE, {"source": "prometheus", "readings": 12})
    served = {"version": "one", "actor": "anna", "at_ms": T0, "back": False}
    journal.append(EntryKind.MODEL_IN_SERVICE, served, actor="anna")
    journal.close()


def prediction(uuid: str, host: str, at_ms: int) -> Prediction:
    """A crossing, with all that a prediction can hold."""
    return Prediction(
        subject=Subject(SubjectKind.GPU, uuid, host, "default"),
        target="temperature above 90",
        at_ms=at_ms,
        horizon_ms=48 * HOUR,
        status=PredictionStatus.CROSSING,
        model="trend",
        model_version="1",
        sentence="It crosses 90 degrees in 2 hours.",
        metric="gpu_temperature_celsius",
        threshold=90.0,
        value=84.5,
        probability=0.8125,
        eta_ms=at_ms + 2 * HOUR,
        eta_low_ms=at_ms + HOUR,
        eta_high_ms=at_ms + 3 * HOUR,
        coverage=0.8,
        evidence=(Evidence("gpu_temperature_celsius", "rises by 2.75 degrees an hour", at_ms, 2.75),),
        curve=((HOUR, 0.25), (2 * HOUR, 0.5)),
        sentence_zh="两小时后超过 90 度。",
        classes=(("thermal", 0.75), ("memory", 0.0625)),
    )


def write_loop(path: Path) -> None:
    """The real loop over a made-up fleet: faults of every action, people, the breaker, failures, restarts."""
    action_world.JournalDouble = lambda clock: Journal.open(path, clock)  # type: ignore[assignment,misc]
    world = World(settings(breaker_root_causes=30, hold_off_seconds=3600.0, elastic_pools=["default"]), action_world.fleet(12, 2))
    uuids = sorted(world.gpus)
    acts = [one for one in ActionKind if catalogue.ACTIONS[one] is not None]
    for uuid, action in zip(uuids, acts, strict=False):
        category = Category.MEMORY if action in (ActionKind.CHECKPOINT, ActionKind.MIGRATE) else Category.THERMAL
        more: dict[str, Any] = {"metric": "gpu_temperature_celsius", "value": 95.0, "threshold": 90.0}
        owners = (Owner(7, "python", pod="a-0", namespace="ml"), Owner(8, slurm_job="71.0"))
        world.break_gpu(uuid, rule=f"fault_{action}", action=action, category=category, owners=owners, **more)
    foreseen = [prediction(uuids[3], world.gpus[uuids[3]].host, T0)]
    for _ in range(3):
        world.step(foreseen)
    world.executor.result = ExecutionResult(True, "goes on", pending=True)
    world.executor.resumable = True  # type: ignore[misc]
    world.break_gpu("GPU-8-0", rule="slow_drain", action=ActionKind.DRAIN)
    world.step()
    world.step()
    world.executor.result = ExecutionResult(True, "drained", 2, effect={"drain_seconds": 30.0})
    world.step()
    for name, result in (("refused", ExecutionResult(False, "the manager says no", 3)), ("doubt", ExecutionResult(False, "timed out", certain=False))):
        world.executor.result = result
        world.break_gpu("GPU-8-1" if name == "refused" else "GPU-9-0", rule=name, action=ActionKind.CORDON)
        world.step()
        world.step()
    world.executor.result, world.executor.seen = ExecutionResult(True, "done"), False
    world.break_gpu("GPU-9-1", rule="unseen", action=ActionKind.CORDON)
    for _ in range(4):
        world.step()
    world.executor.seen = True
    world.notifier.delivery = Delivery(False, "no answer", 3)
    world.break_gpu("GPU-10-0", rule="told_late", action=ActionKind.NOTIFY)
    world.step()
    world.notifier.delivery = Delivery(True, "told", 1)
    world.step()
    lasting = [d for d in world.loop.controls().effects.values() if d.action is ActionKind.CORDON]
    world.loop.undo(lasting[0].id, "anna", "its job ends at noon")
    world.step()
    world.loop.pause("ben", "maintenance of the cooling")
    world.break_gpu("GPU-10-1", rule="while_paused", action=ActionKind.DRAIN)
    world.step()
    world.loop.resume("ben")
    world.step()
    world.faults.pop("fault_throttle|" + uuids[acts.index(ActionKind.THROTTLE)])
    for _ in range(5):
        world.step()
    world.loop.release(Subject(SubjectKind.HOST, "node-8", "node-8", "default"), "carl", "looked at it")
    world.restart()
    world.step()
    propose = settings(mode=Mode.PROPOSE, breaker_root_causes=2, boot_grace_seconds=0.0)
    world.policy = replace(world.policy, settings=propose) if is_dataclass(world.policy) else type(world.policy)(propose)
    world.restart()
    world.break_gpu("GPU-11-0", rule="asked_yes", action=ActionKind.CORDON)
    world.break_gpu("GPU-11-1", rule="asked_no", action=ActionKind.CHECKPOINT)
    world.step()
    for status in world.loop.statuses():
        if status.decision.rule == "asked_yes" and status.decision.action is ActionKind.CORDON:
            world.loop.approve(status.decision.id, "anna")
        if status.decision.rule == "asked_no" and status.decision.action is ActionKind.CHECKPOINT:
            world.loop.reject(status.decision.id, "ben", "not now")
    for _ in range(3):
        world.step()
    tripped = world.loop.controls().breaker
    if tripped is not None:
        world.loop.reset_breaker("carl")
    for number in range(3):
        world.break_gpu(uuids[number], rule=f"storm_{number}", action=ActionKind.CORDON)
    world.step()
    world.step()
    world.loop.pause("carl", "the storm")
    world.journal.close()  # type: ignore[attr-defined]


def write_plans(path: Path) -> None:
    """What planners ask for: migrations, scaling, power limits and their return."""
    planned_world.JournalDouble = lambda clock: Journal.open(path, clock)  # type: ignore[assignment,misc]

    def planning(*follow: str, **more: Any) -> PlanningSettings:
        return PlanningSettings.model_validate({"follow": list(follow), "effort": 500, **more})

    state = fleet(3, [work("a", on("n0", 0, 1, 2, 3)), work("b", on("n1", 0)), work("c", on("n2", 0), priority=5)], gpus=4)
    slots = [replace(one, limit_watts=700.0, least_watts=200.0, default_watts=700.0) for one in state.gpus.values()]
    world = PlannedWorld(state.with_nodes([], slots), planning("defragment"))
    for _ in range(7):
        world.step()
    world.planning = planning("power", facility_watts=8000.0)
    world.restart()
    for _ in range(8):
        world.step()
    world.planning = planning("power", facility_watts=8400.0)
    world.restart()
    for _ in range(8):
        world.step()
    world.planning = planning("scale_in")
    world.manager.state = replace(world.manager.state, pools={"p": replace(state.pools["p"], waiting_gpus=0.0, utilisation=0.1)})
    world.restart()
    for _ in range(24):
        world.step()
    world.journal.close()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ stores

RICH = Gpu(
    "GPU-00000001",
    "node-1",
    index=1,
    model="NVIDIA H100 80GB HBM3",
    serial="165",
    pci_bus_id="00000000:3b:00.0",
    pool="training",
    rack="r1",
    labels={"a b": "c,d=e", "tocsin.io/managed": "true"},
)
PLAIN = Gpu("GPU-00000002", "node-2", index=0, model="NVIDIA A100-SXM4-80GB")
SLICE = Gpu("MIG-1", "node-1", parent=RICH.uuid, mig_profile="1g.10gb", pool="training", simulated=True)
NOW = T0 + 4 * DAY


def readings(start_ms: int, end_ms: int, every_ms: int) -> list[Reading]:
    """A past of three GPUs: whole numbers, fractions, counters, variants, owners, reasons for what is missing."""
    found = []
    for step, at in enumerate(range(start_ms, end_ms, every_ms)):
        values = {
            "gpu_temperature_celsius": float(40 + step % 37),
            "gpu_power_watts": 300 + step / 7,
            "gpu_utilization_ratio": (step % 10) / 10,
            "gpu_energy_joules_total": 2.0**53 - 10_000_000 + 2.0 * step,
        }
        missing = {"gpu_fan_speed_ratio": list(Missing)[step % len(Missing)]} if step % 2 else {}
        owners: tuple[Owner, ...] = ()
        if step % 6 == 0:
            pid = variant("gpu_process_memory_used_bytes", "pid", str(step % 12 + 10))
            values |= {variant("gpu_nvlink_up", "link", "0"): 1.0, pid: 2.0**30 + step}
            missing |= {variant("gpu_nvlink_up", "link", "9"): Missing.LOST}
            owners = (
                Owner(step % 12 + 10, "python", "c0ffee", "a-0", "ml", "uid-1", "", "anna"),
                Owner(9, "train", slurm_job="71.0"),
            )
        found.append(Reading(RICH, at, values, missing, owners))
        if step % 2 == 0:
            found.append(Reading(PLAIN, at, {"gpu_temperature_celsius": 30.25, "gpu_power_watts": 70.0 + step % 3}))
        if step % 5 == 0:
            found.append(Reading(SLICE, at + 1, {"gpu_memory_used_ratio": step % 9 / 9}))
    return found


def rest() -> Batch:
    """Events, findings and predictions with every field set, and with none that can be left out."""
    deadline = Evidence("maintenance_notice:4", f"freeze; before {to_iso(NOW)}", NOW - HOUR)
    owners = (Owner(10, "python", pod="a-0", namespace="ml"),)
    full = Finding(
        "hot", Subject(SubjectKind.GPU, RICH.uuid, RICH.host, RICH.pool, "10"), Severity.CRITICAL, Category.THERMAL,
        ActionKind.THROTTLE, NOW - 2 * HOUR, NOW - HOUR, "It is too hot.", "gpu_temperature_celsius", 91.5, 90.0,
        (Evidence("gpu_temperature_celsius", "91.5 over 90", NOW - HOUR, 91.5), deadline), False, owners, True,
    )  # fmt: skip
    bare = Finding(
        "fragmented", Subject(SubjectKind.FLEET, "fleet"), Severity.INFO, Category.FRAGMENTATION, ActionKind.DEFRAGMENT,
        NOW - DAY, NOW - DAY, "Free GPUs are crumbs.", simulated=True,
    )  # fmt: skip
    ahead = prediction(RICH.uuid, RICH.host, NOW - HOUR)
    silent = Prediction(
        Subject(SubjectKind.POOL, "training", pool="training"), "capacity", NOW - 3 * HOUR, DAY,
        PredictionStatus.NOT_ENOUGH_DATA, "capacity", "2", "", reason="an hour of past is missing", simulated=True,
    )  # fmt: skip
    events = [
        Event(EventKind.XID, RICH.uuid, RICH.host, NOW - HOUR, 79, "fell off the bus", "kernel_log"),
        Event(EventKind.XID, PLAIN.uuid, PLAIN.host, NOW - HOUR + 1, 145, "NVLink", "nvml", False, Severity.CRITICAL, "reset_gpu"),
        Event(EventKind.SXID, "", "node-2", NOW - 2 * HOUR, 20034, "fatal", "kernel_log", severity=Severity.WARNING),
        Event(EventKind.MAINTENANCE_NOTICE, "", "node-1", NOW - 3 * HOUR, 4, f"freeze; before {to_iso(NOW)}", "aws"),
        Event(EventKind.GPU_LOST, SLICE.uuid, SLICE.host, NOW - 4 * HOUR, simulated=True),
    ]
    return Batch((), events, [full, bare], [ahead, silent])


def write_store(path: Path) -> None:
    """Ten-minute windows, whole minutes, readings as they were taken in segments, and the newest in hot chunks."""
    store = SqliteStore(path)
    store.init()
    for day in range(4):
        for hour in range(0, 24, 6):
            start = T0 + day * DAY + hour * HOUR
            store.write(Batch(readings(start, start + 6 * HOUR, 10 * MINUTE)))
    for step in range(NOW - 6 * HOUR - 20 * MINUTE, NOW - 6 * HOUR, 5 * MINUTE):
        store.write(Batch(readings(step, step + 5 * MINUTE, 30 * SECOND)))
    for number in range(12):
        store.maintain(NOW - 2 * HOUR + number * 5 * MINUTE, RETENTION)
    for step in range(NOW - HOUR, NOW, 10 * MINUTE):
        store.write(Batch(readings(step, step + 10 * MINUTE, 30 * SECOND)))
    store.write(rest())
    store.close()


# ------------------------------------------------------------------------------------------------ a whole brain


def brain_settings(folder: Path) -> Settings:
    """Of the brain whose files lie in `folder`."""
    base = Settings.model_validate(
        {
            "simulation": {"gpus": 16, "seed": 7, "fault_rate_scale": 3.0},
            "forecast": {"worker": False, "models": str(folder / "models")},
            "actions": {"mode": "act", "confirmations": 2, "boot_grace_seconds": 0},
        }
    )
    return demos.demo_settings(base, folder)


def write_brain(folder: Path) -> dict[str, Any]:
    """The real service over a simulated fleet: its store, its journal and what lies beside them."""
    demos.HISTORY_STEPS = 20  # type: ignore[misc]
    demo = demos.Demo(brain_settings(folder), T0)
    service, brain = demo.service, demo.brain
    marks = annotations(brain.journal, Shown())
    service.resume("anna")
    for step in range(50):
        demo.step()
        if step == 30:
            marks.tick()
        if step % 10 == 5:
            brain.forecast()
        open_ = [one for one in service.decisions(1000) if one.approvable]
        for number, one in enumerate(open_):
            if (number + step) % 4 == 1:
                service.reject(one.id, "ben", "not during the run")
            elif (number + step) % 4 != 3:
                service.approve(one.id, "anna")
        if step == 30:
            service.pause("carl", "a look at the switch")
        if step == 34:
            service.resume("carl")
    service.release("gpu", brain.gpus[3].uuid, "carl", "looked at it")
    facts = {"now_ms": brain.clock.now_ms(), "seconds": demo.steps * 60}
    demo.running.stop()
    by_hand = Journal.open(folder / "by-hand.db", ManualClock(T0))
    by_hand.append(EntryKind.MANUAL_ACTION, {"phase": "begun", "action": "drain"}, actor="anna@admin")
    by_hand.close()
    return facts


PLAN = Plan()


def examples(rows: int = 300) -> Examples:
    """GPUs of which those with many PCIe replays fail within two days; nothing else is known."""
    rng, names, begun = np.random.default_rng(1), names_of(PLAN), T0 // HOUR * HOUR
    sick = rng.random(rows) < 0.15
    features = np.full((rows, len(names)), np.nan, np.float32)
    features[:, names.index("pcie_replay.24h")] = np.where(sick, rng.normal(6, 0.5, rows), rng.normal(1, 0.5, rows))
    at_ms = begun + np.sort(rng.integers(0, 60, rows)) * 12 * HOUR
    return Examples(
        devices=tuple(f"G{n}" for n in range(rows)),
        device=np.arange(rows, dtype=np.int32),
        groups=("all",),
        group=np.zeros(rows, np.int32),
        at_ms=at_ms,
        names=names,
        features=features,
        seen_ms=at_ms,
        history_ms=np.full(rows, 30 * DAY),
        event_ms=np.where(sick, at_ms + rng.integers(1, 47, rows) * HOUR, NEVER),
        until_ms=np.full(rows, begun + 100 * DAY),
        event_class=np.where(sick, "bus", ""),
        weight=np.ones(rows),
    )


def write_models(folder: Path) -> dict[str, Any]:
    """Two versions of a small model, one in service after the other was put back."""
    shelf, table = Shelf(folder), examples()
    for version in ("one", "two"):
        scorer = registry.build("calibrated", scorer="hazard")
        scorer.fit(table)
        card = Card(
            name="risk", version=version, family="calibrated", horizons_ms=(HOUR,), features=names_of(PLAN),
            provenance="made for a test", data_hash="d", code_version="c", created_ms=T0, trained_from_ms=T0 - DAY,
            trained_to_ms=T0, rows=300, onsets=45,
        )  # fmt: skip
        shelf.add(Shelved(version, scorer, card, None))
        shelf.promote(version, T0 + (HOUR if version == "two" else 0), "anna")
    shelf.rollback(T0 + 2 * HOUR, "carl")
    few = table.features[:5, table.names.index("pcie_replay.24h")]
    return {
        "versions": shelf.versions(),
        "in_service": shelf.in_service,
        "history": plain(shelf.history()),
        "card": plain(shelf.card("one")),
        "replays": [float(one) for one in few],
        "scores": shelf.load("one").scorer.score(table)[:5].tolist(),
    }


def risks(folder: Path, *at_ms: int) -> list[list[Any]]:
    """The risk of the GPUs of ``store/store.db`` by the model in service, from the features that are kept beside it, as the
    last of several turns has it: the features are saved an hour after the first."""
    settings = StoreSettings(kind=StoreKind.SQLITE, path=folder / "store" / "store.db")
    store = SqliteStore(settings.path)
    store.init()
    place = RiskPlace(settings, folder / "models", folder / "store" / "store.db.features.npz")
    watch = RiskWatch(place, store)
    found = [watch.predict(store.gpus(), now_ms) for now_ms in at_ms][-1]
    store.close()
    return [[one.subject.name, one.target, one.model_version, one.probability] for one in found]


# ------------------------------------------------------------------------------------------------ an agent


def write_agent(folder: Path) -> dict[str, Any]:
    """Spool with batches and a refused line, limits that are held, position in the kernel log, token."""
    clock = ManualClock(T0)
    spool = Spool(folder / "spool.db", 1 << 20, clock)
    lines = []
    for number in range(3):
        part = Batch([one for one in readings(T0 + number * MINUTE, T0 + number * MINUTE + 1, MINUTE)], rest().events if number == 0 else ())
        lines.append(encode(part))
        spool.put(lines[-1], len(part.readings), len(part.events))
        clock.advance(MINUTE)
    spool.settle([], [("gpu,host=x nonsense=1 1", "no such metric")])
    spool.close()
    power = FakePower(("GPU-a", "GPU-b"))
    node = Node(folder / "limits", power=power)
    cap = node.order(key="cap", power_limit_watts="450")
    heat = node.order(gpu="GPU-b", key="heat")
    clocks = node.order(gpu="GPU-b", key="clocks", sm_clock_max_mhz="1200")
    power.celsius["GPU-b"] = 88.0
    node.worker.receive([replace(one, epoch=T0) for one in (cap, heat, clocks)])
    node.seconds(8)
    held = {"limits": dict(power.limit_mw), "locked": dict(power.locked), "markers": node.markers, "boot": node.boot}
    save_position(folder / "kernel_log.json", Position("boot-1", T0, 4711, "s=abc;i=1"))
    store_token("https://brain.example:8443/", "secret-token", to_iso(T0 + DAY), folder / "tokens.json")
    return {"spooled": lines, "epoch": T0, **plain(held)}


# ------------------------------------------------------------------------------------------------ all of it


def tidy(folder: Path) -> None:
    """Locks and maps are the writer's alone. Of the logs one stays, as a process that was killed leaves it."""
    for path in [*folder.rglob("*.lock"), *folder.rglob("*.upkeep"), *folder.rglob("*-shm")]:
        path.unlink()
    for path in folder.rglob("*-wal"):
        if path.parent.name != "store":
            with closing(sqlite3.connect(path.with_name(path.name.removesuffix("-wal")))) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            path.unlink(missing_ok=True)
    for path in folder.rglob("*-shm"):
        path.unlink()


def undated(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file that belongs to nobody, of one date."""
    member.mtime, member.uid, member.gid, member.uname, member.gname = T0 // SECOND, 0, 0, "", ""
    return member


def main() -> None:
    """Write everything below a new folder, then pack it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected: dict[str, Any] = {"commit": "2bd2118", "now_ms": NOW, "journals": {}, "stores": {}}
        for part in ("journals", "store", "brain", "agent", "backups"):
            (folder / part).mkdir()
        write_catalogue(folder / "journals" / "catalogue.db")
        write_loop(folder / "journals" / "loop.db")
        write_plans(folder / "journals" / "plans.db")
        write_store(folder / "store" / "store.db")
        expected["brain"] = write_brain(folder / "brain")
        expected["models"] = write_models(folder / "models")
        risks(folder, NOW - 3 * HOUR, NOW - 2 * HOUR)
        expected["agent"] = write_agent(folder / "agent")
        backup_journal(folder / "journals" / "loop.db", folder / "backups" / "journal.db")
        store = SqliteStore(folder / "store" / "store.db")
        store.init()
        store.backup(folder / "backups" / "store.db")
        store.close()
        tidy(folder)
        copy = folder.with_name(folder.name + "-read")
        shutil.copytree(folder, copy)
        for path in sorted((copy / "journals").glob("*.db")) + [copy / "brain" / "journal.db"]:
            expected["journals"][path.relative_to(copy).as_posix()] = journal_facts(path)
        later = expected["brain"]["now_ms"]
        expected["stores"]["store/store.db"] = store_facts(copy / "store" / "store.db", NOW, every=True)
        expected["stores"]["brain/store.db"] = store_facts(copy / "brain" / "store.db", later, every=False)
        expected["risks"] = risks(copy, NOW)
        expected["brain"] |= brain_facts(copy / "brain", later)
        shutil.rmtree(copy)
        with tarfile.open(HERE / "state.tar.xz", "w:xz", preset=9) as out:
            out.add(folder, "state", filter=undated)
        text = json.dumps(expected, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        (HERE / "expected.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
        shown = json.dumps(Settings().model_dump(mode="json"), indent=1, sort_keys=True)
        (HERE / "settings.json").write_text(shown + "\n", encoding="utf-8")
        sys.stdout.write(f"expected: {len(text)} characters\n")
        for path in sorted(HERE.iterdir()):
            sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")
        for where, one in expected["journals"].items():
            sys.stdout.write(f"{where}: {one['kinds']}\n")


if __name__ == "__main__":
    main()
