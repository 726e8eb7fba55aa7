"""What stands now, on the brain's page: states, decisions, controls, and no more predictions than are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tocsin.domain.clock import HOUR
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.queries.views import decision_out
from tocsin.runtime.brain.metrics_page import LISTED, BrainPage, labels_of, urgency
from tocsin.runtime.demo import Demo, demo_settings
from tocsin.telemetry.metrics import BRAIN_PAGE, PREDICTION_LABELS
from tocsin_testing.builders import T0, gpu
from tocsin_testing.dashboards import small


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = Demo(demo_settings(small(), tmp_path_factory.mktemp("page")), T0)
    for _ in range(5):
        made.step()
    yield made
    made.running.stop()


def value(demo: Demo, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(BrainPage(demo.brain))
    return registry.get_sample_value(name, labels)


def test_every_metric_of_the_page_is_on_it(demo: Demo) -> None:
    demo.brain.forecast()
    page = generate_latest(demo.brain.metrics.registry).decode()
    assert [name for name in BRAIN_PAGE if f"# TYPE {name} gauge" not in page] == []


def test_every_gpu_is_in_one_state(demo: Demo) -> None:
    states = ("ok", "warning", "critical", "stale", "lost")
    assert sum(value(demo, "tocsin_fleet_gpus", state=state) or 0 for state in states) == len(demo.brain.gpus)


def test_a_fleet_that_is_silent_is_stale(demo: Demo) -> None:
    before = demo.clock.now_ms()
    demo.clock.advance(HOUR)
    stale = value(demo, "tocsin_fleet_gpus", state="stale") or 0
    assert stale + (value(demo, "tocsin_fleet_gpus", state="critical") or 0) == len(demo.brain.gpus)
    assert value(demo, "tocsin_newest_reading_age_seconds") == 3600
    assert value(demo, "tocsin_evaluation_age_seconds") == 3600
    demo.clock.advance(before - demo.clock.now_ms())


def test_controls_are_shown_as_they_stand(demo: Demo) -> None:
    assert value(demo, "tocsin_paused") == 0
    demo.service.pause("ann", "power works")
    assert value(demo, "tocsin_paused") == 1
    demo.service.resume("ann")
    assert value(demo, "tocsin_paused") == 0
    assert value(demo, "tocsin_breaker_tripped") == 0
    assert [value(demo, "tocsin_mode", mode=mode) for mode in ("observe", "propose", "act")] == [0, 1, 0]


def test_decisions_are_counted_by_where_they_stand(demo: Demo) -> None:
    statuses = demo.brain.statuses()
    held = sum(status.state == "held" for status in statuses)
    assert value(demo, "tocsin_decisions_listed", state="held") == held
    assert value(demo, "tocsin_decisions_approvable") == sum(decision_out(status).approvable for status in statuses)


def test_entries_of_the_journal_are_counted_by_kind(demo: Demo) -> None:
    counted = demo.brain.metrics.value("tocsin_journal_entries_total", kind="decision")
    assert counted == len(list(demo.brain.journal.entries(kinds={EntryKind.DECISION}))) > 0
    assert b'tocsin_journal_entries_total{kind="breaker_tripped"} 0.0' in generate_latest(demo.brain.metrics.registry)


def prediction(number: int, **more: object) -> Prediction:
    fields: dict[str, object] = {
        "subject": Subject(SubjectKind.GPU, f"GPU-{number}", "node-1", "train"),
        "target": "hardware_fault",
        "at_ms": T0,
        "horizon_ms": HOUR,
        "status": PredictionStatus.UNLIKELY,
        "model": "m",
        "model_version": "1",
        "sentence": "s",
        "probability": number / 10_000,
        **more,
    }
    return Prediction(**fields)  # type: ignore[arg-type]


def test_of_many_predictions_the_most_urgent_have_series(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [prediction(number) for number in range(3 * LISTED)]
    many.append(prediction(1, status=PredictionStatus.LIKELY, probability=0.001, target="other"))
    many.append(prediction(2, status=PredictionStatus.NOT_ENOUGH_DATA, probability=None))
    monkeypatch.setattr(demo.brain.forecasts, "current", lambda _now: many)
    registry = CollectorRegistry()
    registry.register(BrainPage(demo.brain))
    page = generate_latest(registry).decode()
    assert page.count("\ntocsin_prediction_warning{") == LISTED
    assert page.count("\ntocsin_prediction_probability_ratio{") == LISTED
    assert 'tocsin_predictions_active{status="unlikely",target="hardware_fault"} 600.0' in page
    assert f"tocsin_predictions_unlisted {2 * LISTED + 1:.1f}" in page
    (first,) = [
        line for line in page.splitlines() if line.startswith("tocsin_prediction_warning{") and '"other"' in line
    ]
    assert first.endswith(" 1.0")


def test_warnings_come_first_then_the_likeliest_then_the_soonest() -> None:
    warns = prediction(1, status=PredictionStatus.CROSSING, probability=None, eta_ms=T0 + 2)
    sooner = prediction(2, status=PredictionStatus.CROSSING, probability=None, eta_ms=T0 + 1)
    likely, unlikely = prediction(9000), prediction(3)
    assert sorted([unlikely, likely, warns, sooner], key=urgency) == [sooner, warns, likely, unlikely]


def test_what_is_muted_warns_in_no_series_and_is_no_more_urgent_than_what_says_nothing(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    muted = prediction(9, status=PredictionStatus.CROSSING, eta_ms=T0 + 1, target="muted", muted=True)
    likely = prediction(10, status=PredictionStatus.LIKELY)
    assert sorted([muted, likely], key=urgency) == [likely, muted]
    monkeypatch.setattr(demo.brain.forecasts, "current", lambda _now: [muted, likely])
    registry = CollectorRegistry()
    registry.register(BrainPage(demo.brain))
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("tocsin_prediction_w")]
    assert sorted(('target="muted"' in line, line.rpartition(" ")[2]) for line in lines) == [
        (False, "1.0"),
        (True, "0.0"),
    ]


def test_labels_are_those_of_the_gpus_own_metrics() -> None:
    def labels(subject: Subject, *known: object, **more: object) -> dict[str, str]:
        gpus = {each.uuid: each for each in known}  # type: ignore[attr-defined]
        return dict(zip(PREDICTION_LABELS, labels_of(prediction(1, subject=subject, **more), gpus), strict=True))

    mig = gpu(5, parent="GPU-00000001")
    found = labels(Subject(SubjectKind.GPU, mig.uuid, "node-1", "train"), mig)
    assert (found["gpu_uuid"], found["part"], found["gpu_index"]) == ("GPU-00000001", mig.uuid, "5")
    gone = labels(Subject(SubjectKind.GPU, "GPU-9", "node-1", "train", detail="7"), simulated=True)
    assert (gone["gpu_uuid"], gone["gpu_index"], gone["part"], gone["simulated"]) == ("GPU-9", "", "7", "true")
    pool = labels(Subject(SubjectKind.POOL, "train"))
    assert (pool["pool"], pool["gpu_uuid"], pool["host"]) == ("train", "", "")


def test_time_left_counts_down_and_ends_at_zero(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    now = demo.clock.now_ms()
    crossing = prediction(1, status=PredictionStatus.CROSSING, eta_ms=now + 60_000, eta_low_ms=now - 5_000)
    monkeypatch.setattr(demo.brain.forecasts, "current", lambda _now: [crossing])
    labels = dict(zip(PREDICTION_LABELS, labels_of(crossing, {}), strict=True))
    assert value(demo, "tocsin_prediction_lead_seconds", bound="expected", **labels) == 60
    assert value(demo, "tocsin_prediction_lead_seconds", bound="earliest", **labels) == 0
    assert value(demo, "tocsin_prediction_lead_seconds", bound="latest", **labels) is None


def test_the_demo_writes_to_no_grafana(demo: Demo, tmp_path: Path) -> None:
    assert demo.running.annotations is None
