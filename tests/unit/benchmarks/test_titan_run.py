"""The whole way from folders of GPU lives to the report."""

from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, from_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.figures import standard
from tocsin.forecaster.evaluation.result import Request, Result
from tocsin_benchmarks.titan.data import fleet_of, read_lives
from tocsin_benchmarks.titan.examples import examples
from tocsin_benchmarks.titan.protocol import last_year, run
from tocsin_benchmarks.titan.snapshots import HORIZON_MS, snapshots
from tocsin_benchmarks.titan.walk import Pace
from tocsin_testing import event_sets, needs

RATE = "rate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return event_sets.write_titan(tmp_path_factory.mktemp("lives"), event_sets.titan_lines())


@pytest.fixture(scope="module")
def report(folder: Path) -> Result:
    return run(Request(folder, quick=True, draws=5, leak=True))


def test_both_ways_of_splitting_with_bars_and_trivial_predictors(report: Result) -> None:
    time, device, _ = report.sections
    assert time.title.startswith("Time-disjoint: train until 2016-01-01")
    assert device.title.startswith("Time- and device-disjoint")
    assert (time.models[RATE]["roc_auc"].bar, device.models[RATE]["auprc_x_base"].bar) == (0.84, 7.0)
    for section in (time, device):
        assert {
            RATE,
            "rate, uncorrected",
            "hazard",
            "always healthy",
            "base-rate table",
            "recency rule",
            "age only",
        } == set(section.models)
        assert section.models[RATE]["roc_auc"].value > 0.65
        assert section.models["always healthy"]["roc_auc"].value == 0.5
        assert section.population["onsets"] > 20
        assert section.tables[0].rows


def test_the_same_run_gives_the_same_report(folder: Path, report: Result) -> None:
    again = run(Request(folder, quick=True, draws=5))
    assert list(again.sections) == list(report.sections[:2])


def test_the_leak_is_shown_when_asked(report: Result) -> None:
    assert "leak" in report.sections[-1].title
    assert "leak_factor" in report.sections[-1].models["row-random split (leak)"]


def _halves(tmp_path: Path, *, by_time: bool) -> tuple[Path, Path]:
    lines, cut_ms = event_sets.titan_lines(), from_iso("2016-01-01")
    if not by_time:
        parts = ([one for one in lines if int(one[0]) % 2 == half] for half in (0, 1))
    else:
        before = [not one[3] or from_iso(one[3]) < cut_ms for one in lines]
        open_ = [(*one[:3], "", "", "", "") for one in lines if one[2]]
        early = [one for one, is_early in zip(lines, before, strict=True) if is_early]
        parts = iter((early + open_, [one for one in lines if not one[3] or from_iso(one[3]) >= cut_ms]))
    first, second = (event_sets.write_titan(tmp_path / name, part) for name, part in zip("ab", parts, strict=True))
    return first, second


def test_a_test_folder_that_goes_on_in_time(tmp_path: Path) -> None:
    train, test = _halves(tmp_path, by_time=True)
    sections = run(Request(train, test, quick=True, draws=2)).sections
    titles = ["Time-disjoint", "Time- and device-disjoint, 2 folds of GPUs"]
    assert [one.title.split(":")[0] for one in sections] == titles
    assert all(one.models[RATE]["roc_auc"].value > 0.65 for one in sections)
    assert sections[1].models[RATE]["roc_auc"].bar == 0.82
    # The same GPUs and days are judged, whoever was learned from.
    whole, folds = (one.population["onsets"] for one in sections)
    assert folds == whole
    assert sections[0].models[RATE]["roc_auc"].bar == 0.84


def test_a_test_folder_with_gpus_of_its_own(tmp_path: Path) -> None:
    train, test = _halves(tmp_path, by_time=False)
    sections = run(Request(train, test, quick=True, draws=2)).sections
    assert sections[-1].title.startswith("Device-disjoint: GPUs that train never names")
    judged = sections[-1].population["devices"]
    assert isinstance(judged, int)
    assert 60 <= judged <= 73


def test_a_test_folder_that_tells_nothing_new(folder: Path) -> None:
    with pytest.raises(InputError, match="nothing in it that train does not tell"):
        run(Request(folder, folder, quick=True))


@pytest.mark.parametrize(("end", "year"), [("2016-12-31", 2016), ("2016-07-05", 2016), ("2016-05-01", 2015)])
def test_the_test_is_the_last_year_that_is_long_enough(end: str, year: int) -> None:
    assert last_year(from_iso(end)) == from_iso(f"{year}-01-01")


@pytest.mark.data
def test_the_real_machine() -> None:
    fleet = fleet_of(read_lives(needs.data("titan")))
    assert int(fleet.onset.sum()) >= 2000
    cut_ms = last_year(fleet.end_ms)
    rows = snapshots(fleet, cut_ms, fleet.end_ms, 15_000, 0, np.ones(fleet.insert_ms.size, dtype=np.bool_))
    table = examples(fleet, rows, None, Pace(56 * DAY, (120.0,)))
    figures = standard({RATE: table.column("log_rate")}, table, HORIZON_MS, draws=2, ranks=(RATE,), every_ms=DAY)
    assert figures[RATE]["roc_auc"].value > 0.8
    assert figures[RATE]["auprc_x_base"].value > 4
