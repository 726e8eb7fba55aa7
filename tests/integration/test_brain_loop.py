"""The brain over a store and a journal, driven by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.api.service import LineBody
from tocsin.client.client import Client
from tocsin.client.control import IngestResult
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, ManualClock
from tocsin.domain.decision import DecisionState, Ruling
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing
from tocsin.forecaster.features.heat import stored_onsets
from tocsin.forecaster.live.risk_inputs import SeenGpus
from tocsin.journal.files import read_entries
from tocsin.journal.verify import verify
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.store.line_protocol.encode import encode
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.fake_service import serving

GPUS = 16


def settings_in(folder: Path, **actions: object) -> Settings:
    wanted = {"mode": "propose", "confirmations": 2, "boot_grace_seconds": 0, "managed_pools": ["default"], **actions}
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "actions": wanted,
        }
    )


class Fleet:
    """A small healthy fleet whose readings the test changes."""

    def __init__(self, folder: Path, **actions: object) -> None:
        self.settings = settings_in(folder, **actions)
        self.clock = ManualClock(T0)
        self.running: RunningBrain = open_brain(self.settings, self.clock, propose=True)

    @property
    def service(self) -> BrainService:
        return BrainService(self.running.brain)

    def minute(self, *events: object, filled: float = 0.5, **hot: float) -> None:
        """One minute: a reading of each GPU (temperature by ``gpu<n>``, memory of the first), then an evaluation."""
        self.clock.advance(MINUTE)
        now = self.clock.now_ms()
        readings = [
            reading(
                gpu(n, host=f"node-{n // 8}"),
                now,
                temperature_celsius=hot.get(f"gpu{n}", 50.0 + n % 3 + (now // MINUTE) % 2),
                power_watts=200.0 + (now // MINUTE) % 7,
                utilization_ratio=0.5,
                memory_used_ratio=0.5 if n else filled,
            )
            for n in range(GPUS)
        ]
        self.running.brain.accept(Batch(readings=readings, events=events))  # type: ignore[arg-type]
        self.running.brain.tick()

    def restart(self) -> None:
        self.running.stop()
        self.running = open_brain(self.settings, self.clock, propose=True)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.running.stop()
    assert verify(made.settings.journal.path).ok


def throttles(fleet: Fleet) -> list:  # type: ignore[type-arg]
    return [d for d in fleet.service.decisions(100) if d.action == "throttle"]


def test_a_hot_gpu_is_found_decided_held_approved_and_done(fleet: Fleet) -> None:
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    (decision,) = throttles(fleet)
    assert decision.state == DecisionState.HELD
    assert "approval" in decision.held_by
    assert decision.approvable
    assert "node-0" in decision.sentence
    assert fleet.service.summary().findings["warning" if "warning" in fleet.service.summary().findings else "critical"]
    fleet.service.approve(decision.id, "anna")
    fleet.minute(gpu3=91.0)
    after = fleet.service.decision(decision.id)
    assert after.approved_by == "anna"
    assert after.state in (DecisionState.VERIFYING, DecisionState.DONE)
    with pytest.raises(Conflict, match=r"tocsin status lists those that wait$"):
        fleet.service.approve(decision.id, "anna")


def test_a_restart_repeats_and_forgets_nothing(fleet: Fleet) -> None:
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    before = {d.id: (d.state, d.sentence) for d in fleet.service.decisions(100)}
    opened = [e.payload["id"] for e in read_entries(fleet.settings.journal.path, kinds=["finding_opened"])]
    fleet.restart()
    fleet.minute(gpu3=91.0)
    assert {d.id for d in fleet.service.decisions(100)} == set(before)
    again = [e.payload["id"] for e in read_entries(fleet.settings.journal.path, kinds=["finding_opened"])]
    assert again == opened
    assert fleet.running.brain.journal.epoch == 2


def test_memory_that_fills_up_is_foretold_through_a_restart_and_taken_back(fleet: Fleet) -> None:
    for minute in range(-6, 22):
        fleet.minute(filled=0.84 + 0.005 * max(minute, 0))
        if minute == 12:
            fleet.restart()
    (said,) = [one for one in fleet.service.predictions() if one.target == "out_of_memory"]
    assert "node-0 GPU 0: memory grows without a plateau" in said.sentence
    assert said.evidence
    (found,) = [one for one in fleet.service.findings() if one.rule == "out_of_memory_predicted"]
    assert found.sentence == said.sentence
    journal = [e.payload for e in read_entries(fleet.settings.journal.path, kinds=["prediction"])]
    assert [one["target"] for one in journal] == ["out_of_memory"]
    for _ in range(30):
        fleet.minute()
    assert [one for one in fleet.service.predictions() if one.target == "out_of_memory"] == []
    assert fleet.service.findings() == []


def test_an_xid_is_found_though_what_fills_up_cannot_be_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreRejected("too wide")

    fleet.minute()
    monkeypatch.setattr(fleet.running.brain.forecasts, "put", refuse)
    fleet.minute(xid(79, gpu(5, host="node-0"), fleet.clock.now_ms()))
    assert any("79" in finding.sentence for finding in fleet.service.findings())


def test_a_warning_of_a_model_goes_on_record_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    brain = fleet.running.brain
    fleet.minute()

    def warn(seen: SeenGpus, now_ms: int) -> list[Prediction]:
        subject = Subject(SubjectKind.GPU, seen.gpus[0].uuid, seen.gpus[0].host)
        made = Prediction(subject, "hardware_fault", now_ms, DAY, PredictionStatus.LIKELY, "m", "1", "it fails")
        brain.forecasts.put([made], "m")
        return [made]

    monkeypatch.setattr(brain.forecasts, "run_risk", warn)
    for _ in range(12):
        fleet.minute()
        brain.forecast()
    told = [e.payload for e in read_entries(fleet.settings.journal.path, kinds=["prediction"])]
    assert [one["sentence"] for one in told] == ["it fails"]


def _asked_of(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[SeenGpus]:
    """What the risk is asked of from now on; it answers nothing."""
    told: list[SeenGpus] = []

    def listen(seen: SeenGpus, _now_ms: int) -> list[Prediction]:
        told.append(seen)
        return []

    monkeypatch.setattr(fleet.running.brain.forecasts, "run_risk", listen)
    return told


def test_the_risk_is_told_which_gpus_are_more_than_their_host_has(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain, told = fleet.running.brain, _asked_of(fleet, monkeypatch)
    fleet.minute()
    brain.forecast()
    more = [gpu(n, host="node-1") for n in range(GPUS, GPUS + 3)]
    for _ in range(12):
        brain.accept(Batch(readings=[reading(one, fleet.clock.now_ms(), power_watts=200.0) for one in more]))
        fleet.minute()
        brain.forecast()
    assert (told[0].surplus, told[-1].surplus) == (frozenset(), frozenset(one.uuid for one in more))
    assert told[-1].surplus < {one.uuid for one in told[-1].gpus}


def test_the_risk_is_told_which_gpus_hardware_slows_for_heat_and_the_store_has_the_onset(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain, told = fleet.running.brain, _asked_of(fleet, monkeypatch)
    hot, onset_ms = gpu(GPUS, host="node-9", pool="default"), fleet.clock.now_ms() + 6 * MINUTE
    for _ in range(12):
        slowed = 0x40 if fleet.clock.now_ms() >= onset_ms else 0
        brain.accept(Batch(readings=[reading(hot, fleet.clock.now_ms(), clocks_event_reasons_bitmask=slowed)]))
        fleet.minute()
        brain.forecast()
    assert (told[0].slowed, told[-1].slowed) == (frozenset(), frozenset({hot.uuid}))
    (onset,) = stored_onsets(brain.store, T0, fleet.clock.now_ms() + 1)
    assert (onset.device, onset.at_ms, onset.fault_class) == (hot.uuid, onset_ms, "thermal")


def test_findings_and_incidents_open_once_and_close_once(fleet: Fleet) -> None:
    for step in range(40):
        fleet.minute(**({"gpu3": 91.0} if step < 8 else {}))
    kinds = [(e.kind, e.payload["id"]) for e in read_entries(fleet.settings.journal.path) if "id" in e.payload]
    opened = [name for kind, name in kinds if kind == "finding_opened"]
    cleared = [name for kind, name in kinds if kind == "finding_cleared"]
    assert opened
    assert len(opened) == len(set(opened))
    assert sorted(opened) == sorted(cleared)
    incidents = [name for kind, name in kinds if kind == "incident_opened"]
    assert sorted(incidents) == sorted(name for kind, name in kinds if kind == "incident_closed")
    assert fleet.service.findings() == []


def ingested(fleet: Fleet, text: str) -> IngestResult:
    (kept,) = fleet.service.ingest([LineBody(text, "ms")])
    assert isinstance(kept, IngestResult)
    return kept


def test_an_xid_through_line_protocol_is_one_incident_however_often_it_comes(fleet: Fleet) -> None:
    fleet.minute()
    text = encode(Batch(events=[xid(79, gpu(5, host="node-0"), fleet.clock.now_ms())]))
    for _ in range(3):
        ingested(fleet, text)
        fleet.minute()
    incidents = [i for i in fleet.service.incidents() if i.root.category == "hardware"]
    assert len(incidents) == 1
    assert "79" in incidents[0].root.sentence
    detail = fleet.service.gpu("GPU-00000005")
    assert [event.code for event in detail.events] == [79]
    assert detail.summary.state in ("critical", "warning")


def test_an_old_event_never_leads_to_an_action(fleet: Fleet) -> None:
    fleet.minute()
    old = fleet.clock.now_ms() - 40 * 24 * 60 * MINUTE
    ingested(fleet, encode(Batch(events=[xid(79, gpu(5, host="node-0"), old)])))
    for _ in range(4):
        fleet.minute()
    assert [d for d in fleet.service.decisions(100) if d.subject.name == "GPU-00000005"] == []


def test_ingest_keeps_the_good_lines_and_names_the_bad(fleet: Fleet) -> None:
    fleet.minute()
    now = fleet.clock.now_ms()
    known = replace(gpu(2), host=fleet.service.owner_against("GPU-00000002", ""))
    good = encode(Batch(readings=[reading(known, now, power_watts=321)]), info=False).strip()
    future = encode(Batch(readings=[reading(known, now + 120 * MINUTE, power_watts=1)]), info=False).strip()
    result = ingested(fleet, f"{good}\nnot a line at all\n{future}\n")
    assert result.readings == 1
    assert [line.number for line in result.rejected] == [2, 3]
    assert fleet.service.gpu("GPU-00000002").values["gpu_power_watts"] == 321.0


def test_pause_holds_actions_and_survives_a_restart(fleet: Fleet) -> None:
    fleet.minute()
    fleet.service.pause("anna", "maintenance")
    fleet.restart()
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    (decision,) = throttles(fleet)
    assert "pause" in decision.held_by
    summary = fleet.service.summary()
    assert (summary.paused, summary.paused_by, summary.paused_reason) == (True, "anna", "maintenance")
    fleet.service.resume("bob")
    fleet.minute(gpu3=91.0)
    assert "pause" not in fleet.service.decision(decision.id).held_by


def test_a_lost_gpu_reads_as_lost(fleet: Fleet) -> None:
    fleet.minute()
    fleet.clock.advance(MINUTE)
    lost = reading(gpu(7, host="node-0"), fleet.clock.now_ms(), missing={"gpu_temperature_celsius": Missing.LOST})
    fleet.running.brain.accept(Batch(readings=[lost]))
    fleet.running.brain.tick()
    assert fleet.service.gpu("GPU-00000007").summary.state == "lost"


def test_the_scoreboard_counts_what_would_have_been_done(fleet: Fleet) -> None:
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    board = fleet.service.scoreboard()
    assert board.decisions >= 1
    assert sum(rule.decisions for rule in board.rules) == board.decisions
    assert board.held_by


def test_a_rejection_counts_against_the_rule_unless_the_person_says_that_it_was_right(fleet: Fleet) -> None:
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    (decision,) = throttles(fleet)

    def settled() -> list[int]:
        return [one.settled - one.right for one in fleet.service.rule_records() if one.rule == decision.rule]

    with serving(fleet.service) as url, Client(url) as client:  # type: ignore[arg-type]  # any service will do
        assert client.reject(decision.id, "it is drained tonight", right=True).state is DecisionState.REJECTED
        assert settled() == [0]
        for _ in range(6):
            fleet.minute(gpu12=91.0)
        other = next(one for one in throttles(fleet) if one.state is DecisionState.HELD)
        assert other.rule == decision.rule
        client.reject(other.id, "the sensor lies")
        assert settled() == [1]
    said = [one.payload.get("statement") for one in fleet.running.brain.journal.entries(kinds=["rejection"])]
    assert said == ["right", None]


def test_a_new_journal_starts_a_brain_that_may_act_paused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, mode="act")
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    assert fleet.service.summary().paused
    assert all(d.overall is not Ruling.ALLOW for d in throttles(fleet))
    fleet.service.resume("anna")
    fleet.restart()
    assert not fleet.service.summary().paused
    fleet.running.stop()


def test_forecasts_reach_the_store_and_the_service(fleet: Fleet) -> None:
    for step in range(90):
        fleet.minute(gpu3=50.0 + step * 0.3)
    fleet.running.brain.forecast()
    predictions = [p for p in fleet.service.predictions() if p.subject.name == "GPU-00000003" and p.eta_ms]
    assert predictions, "a straight ramp towards the threshold is predicted"
    assert predictions[0].metric == "gpu_temperature_celsius"
    # A kind that its record, or at first the prior, has muted is made to be judged and told to nobody.
    assert bool(fleet.service.gpu("GPU-00000003").summary.prediction) is not predictions[0].muted
    stored = fleet.running.brain.store.predictions(0, fleet.clock.now_ms() + 1, gpu="GPU-00000003")
    assert predictions[0].id in {p.id for p in stored}


def test_a_failing_worker_costs_a_forecast_and_nothing_else(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.minute()

    def broken(*_: object) -> None:
        raise Conflict("no")

    monkeypatch.setattr(fleet.running.worker, "submit", broken)
    fleet.running.brain.forecast()
    assert fleet.running.brain.forecasts.failed == 1
    fleet.minute()


def test_a_finding_that_is_older_than_the_warm_up_keeps_its_decision_over_restarts(fleet: Fleet) -> None:
    for _ in range(100):
        fleet.minute(gpu3=91.0)
    before = {d.id for d in fleet.service.decisions(100)}
    opened = [e.payload["id"] for e in read_entries(fleet.settings.journal.path, kinds=["finding_opened"])]
    for _ in range(2):
        fleet.restart()
        for _ in range(5):
            fleet.minute(gpu3=91.0)
    again = [e.payload["id"] for e in read_entries(fleet.settings.journal.path, kinds=["finding_opened"])]
    assert again == opened
    late = [d for d in fleet.service.decisions(100) if d.id not in before]
    assert [d.sentence for d in late] == []


def test_predictions_in_force_survive_a_restart(fleet: Fleet) -> None:
    for step in range(90):
        fleet.minute(gpu3=50.0 + step * 0.3)
    fleet.running.brain.forecast()
    before = {p.id for p in fleet.service.predictions() if p.eta_ms}
    assert before
    fleet.restart()
    assert before <= {p.id for p in fleet.service.predictions()}


def test_a_store_that_does_not_answer_holds_up_no_decision(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        fleet.minute()
    store = fleet.running.brain.store
    write = store.write

    def refuse(batch: Batch) -> None:
        if batch.findings:
            raise StoreUnavailable("down")
        write(batch)

    monkeypatch.setattr(store, "write", refuse)
    for _ in range(6):
        fleet.minute(gpu3=91.0)
    assert throttles(fleet)
    assert store.findings(0, fleet.clock.now_ms() + 1) == []
    monkeypatch.setattr(store, "write", write)
    fleet.minute(gpu3=91.0)
    assert store.findings(0, fleet.clock.now_ms() + 1)
