"""Models in service: promotions on record, drift and calibration measured, retraining when it is due."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.config.settings import Settings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_DRIFT, Prediction, PredictionStatus
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry, ModelVersion
from tocsin.journal.journal import Journal
from tocsin.runtime.brain.expectations import ModelWatch
from tocsin.runtime.brain.retrain import Retrainer, TrialReport
from tocsin.store.factory import open_store
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, xid


def shelve(folder: Path, *versions: str, created_ms: int = T0) -> ModelRegistry:
    shelf = ModelRegistry(folder)
    for version in versions:
        card = ModelCard(
            name="risk", version=version, family="rules", horizons_ms=(HOUR,), features=("a",), provenance="a test",
            data_hash="d" * 8, code_version="1", created_ms=created_ms, trained_from_ms=0, trained_to_ms=1,
            rows=1, onsets=1, report_digest="r" * 8, notes=("because",),
        )  # fmt: skip
        shelf.add(ModelVersion(version, registry.build("rules"), card, None))
    return shelf


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "journal.db", ManualClock(T0))


def watch(shelf: ModelRegistry, journal: Journal, metrics: OwnMetrics | None = None) -> ModelWatch:
    store = open_store(StoreSettings(kind=StoreKind.MEMORY))
    store.init()
    return ModelWatch(shelf, store, journal, metrics or OwnMetrics())


def test_every_promotion_is_journaled_once_whoever_made_it(tmp_path: Path, journal: Journal) -> None:
    shelf = shelve(tmp_path / "models", "a", "b")
    looking = watch(shelf, journal)
    looking.look([], T0)
    shelf.promote("a", T0 + 1, "ann")
    shelf.promote("b", T0 + 2, "bob")
    shelf.rollback(T0 + 3, "ann")
    looking.look([], T0 + 4)
    looking.look([], T0 + 5)
    watch(shelf, journal).look([], T0 + 6)
    told = list(journal.entries(kinds={EntryKind.MODEL_IN_SERVICE}))
    assert [(entry.payload["version"], entry.payload["before"], entry.actor) for entry in told] == [
        ("a", "prior", "ann"),
        ("b", "a", "bob"),
        ("a", "b", "ann"),
    ]
    assert told[0].payload["report_digest"] == "r" * 8
    journal.close()


def test_a_version_that_is_gone_hides_no_later_promotion(tmp_path: Path, journal: Journal) -> None:
    shelf = shelve(tmp_path / "models", "a", "b")
    shelf.promote("a", T0 + 1, "ann")
    shelf.promote("b", T0 + 2, "bob")
    shutil.rmtree(tmp_path / "models" / "a")
    watch(shelf, journal).look([], T0 + 3)
    told = [entry.payload for entry in journal.entries(kinds={EntryKind.MODEL_IN_SERVICE})]
    assert [one["version"] for one in told] == ["a", "b"]
    assert "no such version" in str(told[0]["because"])
    journal.close()


def test_a_damaged_shelf_costs_no_forecast(tmp_path: Path, journal: Journal) -> None:
    shelf = shelve(tmp_path / "models", "a")
    (tmp_path / "models" / "service.json").write_text("[")
    watch(shelf, journal).look([], T0)
    assert not list(journal.entries(kinds={EntryKind.MODEL_IN_SERVICE}))
    journal.close()


def said(number: int, at_ms: int, chance: float | None, target: str = HARDWARE_FAULT) -> Prediction:
    status = PredictionStatus.NOT_ENOUGH_DATA if chance is None else PredictionStatus.UNLIKELY
    subject = Subject(SubjectKind.GPU, gpu(number).uuid)
    return Prediction(subject, target, at_ms, 48 * HOUR, status, "m", "1", "s", probability=chance, value=0.3)


def test_what_came_due_shift_and_silence_are_measured(tmp_path: Path, journal: Journal) -> None:
    metrics = OwnMetrics()
    store = open_store(StoreSettings(kind=StoreKind.MEMORY))
    store.init()
    past = [said(n, T0, 0.2) for n in range(4)]
    store.write(Batch(events=[xid(79, gpu(0), T0 + DAY)], predictions=past))
    looking = ModelWatch(ModelRegistry(tmp_path / "models"), store, journal, metrics)
    now = T0 + 3 * DAY
    looking.look([said(0, now, 0.1), said(1, now, None), said(9, now, 0.1, MODEL_DRIFT)], now)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    assert value("tocsin_model_silent_gpus") == 1.0
    assert value("tocsin_model_shifted_features_ratio") == 0.3
    assert value("tocsin_model_matured_predictions") == 4.0
    assert value("tocsin_model_calibration_error") == pytest.approx(abs(0.8 - 1) / 4)
    journal.close()


def test_what_a_fleet_was_told_just_now_is_not_read_once_more(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look all of a large fleet has just been written: to read it is most of what a brain holds then."""
    metrics, read = OwnMetrics(), list[Prediction]()
    store = open_store(StoreSettings(kind=StoreKind.MEMORY))
    store.init()
    now = T0 + 40 * DAY
    told = [said(n, now, 0.2) for n in range(3)]
    store.write(Batch(predictions=[said(7, now - DAY, 0.2), *told]))
    ask = store.predictions

    def recorded(*span: int) -> list[Prediction]:
        read.extend(found := ask(*span))
        return found

    monkeypatch.setattr(store, "predictions", recorded)
    looking = ModelWatch(ModelRegistry(tmp_path / "models"), store, journal, metrics)
    looking.look(told, now)
    assert [one.at_ms for one in read] == [now - DAY]
    looking.look([said(8, now + 3 * DAY, 0.1)], now + 3 * DAY)
    assert metrics.registry.get_sample_value("tocsin_model_matured_predictions") == 4.0, "each counts once"
    journal.close()


class TestRetrainer:
    def retrainer(
        self, tmp_path: Path, clock: ManualClock, asked: list[tuple[str, int, int]], **more: object
    ) -> Retrainer:
        settings = Settings.model_validate(
            {"forecast": {"models": tmp_path / "models", "retrain_hours": 24, "retrain_days": 30, **more}}
        )

        def run(_: Settings, version: str, start_ms: int, end_ms: int) -> TrialReport:
            asked.append((version, start_ms, end_ms))
            if len(asked) == 1:
                raise NotEnoughData("3 onsets, 5 needed")
            return TrialReport(version, promoted=True, because=())

        self.metrics = OwnMetrics()
        return Retrainer(settings, clock, self.metrics, run)

    def test_it_is_due_after_the_interval_and_a_failure_waits_for_it_too(self, tmp_path: Path) -> None:
        clock, asked = ManualClock(T0), []  # type: ignore[var-annotated]
        made = self.retrainer(tmp_path, clock, asked)
        made.tick()
        made.tick()
        assert [one[1:] for one in asked] == [(T0 - 30 * DAY, T0)]
        assert asked[0][0].startswith("hazard-2026")
        clock.advance(23 * HOUR)
        made.tick()
        assert len(asked) == 1
        clock.advance(HOUR)
        made.tick()
        assert len(asked) == 2
        value = self.metrics.registry.get_sample_value
        assert value("tocsin_model_trainings_total", {"outcome": "failed"}) == 1.0
        assert value("tocsin_model_trainings_total", {"outcome": "promoted"}) == 1.0

    def test_a_model_that_is_young_is_waited_for(self, tmp_path: Path) -> None:
        clock, asked = ManualClock(T0), []  # type: ignore[var-annotated]
        shelve(tmp_path / "models", "young", created_ms=T0 - HOUR)
        self.retrainer(tmp_path, clock, asked).tick()
        assert asked == []

    def test_by_default_nobody_trains(self, tmp_path: Path) -> None:
        asked: list[tuple[str, int, int]] = []
        self.retrainer(tmp_path, ManualClock(T0), asked, retrain_hours=0).tick()
        assert asked == []


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False)


def test_the_commands_list_promote_and_roll_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.forecaster.lifecycle.model_registry.shipped", lambda: None)
    folder = ["--models", str(tmp_path)]
    assert invoke("models", "list", *folder).output == "no model yet: run tocsin train\n"
    shelve(tmp_path, "a", "b")
    assert invoke("models", "promote", "a", *folder).output == "ok: a serves, in place of none\n"
    assert invoke("models", "promote", "b", *folder).output == "ok: b serves, in place of a\n"
    lines = invoke("models", "list", *folder).output.splitlines()
    assert [line[:3] for line in lines] == ["  a", "* b"]
    assert invoke("models", "rollback", *folder).output == "ok: a serves again, in place of b\n"
    assert '"in_service": true' in invoke("models", "list", "--json", *folder).output
