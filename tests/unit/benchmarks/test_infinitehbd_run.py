"""Rows and rates of the cluster, and the whole way from folders of traces to the report."""

from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import Request, Result
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin_benchmarks.infinitehbd.data import Cluster, cluster_of, read_trace
from tocsin_benchmarks.infinitehbd.examples import ANY, GPU, HORIZON_MS, Target, examples
from tocsin_benchmarks.infinitehbd.protocol import run
from tocsin_testing import event_sets, needs

Entries = list[dict[str, object]]
RATE = "rate"


@pytest.fixture(scope="module")
def entries() -> Entries:
    return event_sets.trace_entries()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, entries: Entries) -> Path:
    return event_sets.write_trace(tmp_path_factory.mktemp("trace"), entries)


@pytest.fixture(scope="module")
def report(folder: Path) -> Result:
    return run(Request(folder, quick=True, draws=5))


def _table(cluster: Cluster, target: Target = ANY, until_day: int | None = None) -> Examples:
    everyone = np.ones(len(cluster.nodes), dtype=np.bool_)
    end_ms = cluster.until_ms if until_day is None else until_day * DAY
    return examples(cluster, target, 0, end_ms, everyone, everyone)


def _days(entry: dict[str, object]) -> float:
    return float(str(entry["event_time"]))


def test_rows_are_nodes_in_service_with_their_next_fault(folder: Path) -> None:
    cluster = cluster_of(read_trace(folder))
    for target in (ANY, GPU):
        table = _table(cluster, target)
        label, known = table.label(HORIZON_MS)
        assert known.all()
        for node in range(20):
            mine = (cluster.node == node) & (cluster.is_gpu | (not target.gpu_only))
            for row in np.flatnonzero(table.device == node):
                later = cluster.start_ms[mine & (cluster.start_ms > table.at_ms[row])]
                assert table.event_ms[row] == (later.min() if later.size else NEVER)
                every = cluster.node == node
                down = (cluster.start_ms[every] <= table.at_ms[row]) & (cluster.end_ms[every] > table.at_ms[row])
                assert not down.any()
        assert label.sum() > 20
        assert set(table.event_class[label]) <= ({"GPU"} if target.gpu_only else {"GPU", "NIC"})


def test_another_future_changes_no_feature(folder: Path, entries: Entries, tmp_path: Path) -> None:
    day = 100
    past = [one for one in entries if _days(one) <= day]
    nodes = sorted({str(one["node_id"]) for one in entries})
    fault = {"Level": "Hardware Failure", "Class": "Fan", "Desc": "x"}
    future: Entries = [
        {"node_id": node, "event_time": day + 0.5, "event_type": "fault_start", "fault_type": fault} for node in nodes
    ]
    end: Entries = [{"node_id": nodes[0], "event_time": 200.0, "event_type": "fault_end", "fault_type": fault}]
    other = cluster_of(read_trace(event_sets.write_trace(tmp_path, [*past, *future, *end])))
    one, two = _table(cluster_of(read_trace(folder)), GPU), _table(other, GPU)
    for table in (one, two):
        assert (table.seen_ms <= table.at_ms).all()
    first, second = (table.take(table.at_ms <= day * DAY) for table in (one, two))
    assert first.devices == second.devices
    np.testing.assert_array_equal(first.device, second.device)
    np.testing.assert_array_equal(first.features, second.features)


def test_the_rate_is_higher_soon_after_a_repair(folder: Path) -> None:
    cluster = cluster_of(read_trace(folder))
    for target in (ANY, GPU):
        table = _table(cluster, target)
        rate = table.column("log_rate") - table.column("weekday")
        days = table.column("repair_days")
        never = rate[np.isnan(days)]
        assert np.ptp(never) == pytest.approx(0.0, abs=1e-5)
        assert rate[days < 1].min() > rate[days > 100].max() > never.max()


def test_a_busy_weekday_is_learned(tmp_path: Path) -> None:
    fault = {"Level": "", "Class": "GPU", "Desc": ""}
    busy: Entries = [
        {"node_id": f"n{day}", "event_time": day + 0.5, "event_type": "fault_start", "fault_type": fault}
        for day in range(3, 200, 7)
    ]
    table = _table(cluster_of(read_trace(event_sets.write_trace(tmp_path, busy))))
    late = table.at_ms > 150 * DAY
    weekday = table.at_ms // DAY % 7
    near = (weekday == 2) | (weekday == 3)
    assert table.column("weekday")[late & near].min() > 0.3
    assert table.column("weekday")[late & ~near].max() < 0.0


def test_both_targets_in_both_ways_with_bars_and_trivial_predictors(report: Result) -> None:
    assert len(report.sections) == 4
    titles = [one.title for one in report.sections]
    assert "any fault" in titles[0]
    assert "GPU faults" in titles[2]
    assert [report.sections[i].models[RATE]["roc_auc"].bar for i in range(4)] == [0.58, None, 0.69, None]
    for section in report.sections:
        assert {RATE, "hazard", "always healthy", "base-rate table", "recency rule"} == set(section.models)
        assert section.models[RATE]["roc_auc"].value > 0.65
        assert section.models["always healthy"]["roc_auc"].value == 0.5


def test_the_same_run_gives_the_same_report_with_the_leak_when_asked(folder: Path, report: Result) -> None:
    again = run(Request(folder, quick=True, draws=5, leak=True))
    assert [again.sections[i] for i in (0, 1, 3, 4)] == list(report.sections)
    assert "leak_factor" in again.sections[2].models["row-random split (leak)"]


def test_a_test_folder_that_goes_on_in_time(entries: Entries, tmp_path: Path) -> None:
    train = event_sets.write_trace(tmp_path / "a", [one for one in entries if _days(one) < 130])
    test = event_sets.write_trace(tmp_path / "b", [one for one in entries if _days(one) >= 130])
    sections = run(Request(train, test, quick=True, draws=2)).sections
    assert [one.title for one in sections] == [
        "Time-disjoint: after the end of train, any fault",
        "Time-disjoint: after the end of train, GPU faults",
    ]
    assert sections[0].models[RATE]["roc_auc"].bar == 0.58
    assert sections[0].models[RATE]["roc_auc"].value > 0.6


def test_a_test_folder_with_nodes_of_its_own(entries: Entries, tmp_path: Path) -> None:
    even = [int(str(one["node_id"])[-1]) % 2 == 0 for one in entries]
    train = event_sets.write_trace(tmp_path / "a", [one for one, is_even in zip(entries, even, strict=True) if is_even])
    test = event_sets.write_trace(
        tmp_path / "b", [one for one, is_even in zip(entries, even, strict=True) if not is_even]
    )
    sections = run(Request(train, test, quick=True, draws=0)).sections
    assert {one.title.split(":")[0] for one in sections} == {"Node-disjoint"}
    assert all(int(one.population["devices"]) <= 220 for one in sections)


def test_a_trace_that_is_too_short(entries: Entries, tmp_path: Path) -> None:
    folder = event_sets.write_trace(tmp_path, [one for one in entries if _days(one) < 100])
    with pytest.raises(InputError, match="ends before day 122"):
        run(Request(folder, quick=True))
    with pytest.raises(InputError, match="that train does not tell"):
        run(Request(folder, folder, quick=True))


@pytest.mark.data
def test_the_real_trace() -> None:
    cluster = cluster_of(read_trace(needs.data("infinitehbd")))
    assert len(cluster.nodes) == 400
    assert cluster.start_ms.size > 300
    report = run(Request(needs.data("infinitehbd"), quick=True, draws=2))
    any_fault, _, gpu, _ = report.sections
    assert any_fault.models[RATE]["roc_auc"].holds
    assert gpu.models[RATE]["roc_auc"].holds
    assert HORIZON_MS == 48 * HOUR
