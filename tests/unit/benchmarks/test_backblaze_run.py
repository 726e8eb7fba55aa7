"""The whole way from a folder of drives to the report, and who is judged when a test folder is given."""

import math
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import Request, Result
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin_benchmarks.backblaze.drive_models import record
from tocsin_benchmarks.backblaze.drives import read_drives
from tocsin_benchmarks.backblaze.folds import cut_day, given_fold, own_folds, parts
from tocsin_benchmarks.backblaze.models import MODELS, QUICK_SIZES
from tocsin_benchmarks.backblaze.protocol import run
from tocsin_benchmarks.backblaze.sections import BARS, alarm_draws, first_alarms
from tocsin_testing import drive_data, needs

CUT = drive_data.FIRST_DAY + 250.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_data.write(tmp_path_factory.mktemp("drives"), drive_data.fleet(150))


@pytest.fixture(scope="module")
def report(folder: Path) -> Result:
    return run(Request(folder, quick=True, draws=10, leak=True))


def test_own_folds_part_drives_and_time(folder: Path) -> None:
    drives = read_drives(folder)
    cut = cut_day(drives)
    judged = []
    for fold in own_folds(drives):
        assert not set(fold.train.serial) & set(fold.test.serial)
        assert fold.train.end_day.max() <= cut < fold.test.end_day.min()
        assert (fold.since == cut).all()
        judged += fold.test.serial.tolist()
    assert sorted(judged) == drives.serial[drives.end_day > cut].tolist()


def test_drives_set_aside_are_not_learned_from(folder: Path) -> None:
    fold = next(own_folds(read_drives(folder)))
    made = parts(fold, QUICK_SIZES, 0)
    assert not set(made.learn.devices) & set(made.tune.devices)
    assert not (set(made.learn.devices) | set(made.tune.devices)) & set(made.test.devices)
    assert made.learn.at_ms.max() + 2 * DAY <= made.test.at_ms.min()
    assert set(fold.test.serial[fold.test.failed]) <= {made.sweep.devices[one] for one in np.unique(made.sweep.device)}


def test_the_record_of_drive_models_goes_on_while_drives_are_judged(folder: Path) -> None:
    drives = read_drives(folder)
    for fold in own_folds(drives):
        counted = record(fold.counted)
        at = np.array([fold.cut, fold.cut + 30.0])
        model = np.full(2, fold.test.model[0])
        frozen, live = record(fold.train).look(model, at), counted.look(model, at)
        assert not set(fold.counted.serial) & set(fold.test.serial)
        assert frozen[0].tolist() == pytest.approx(live[0].tolist())
        assert frozen[1].tolist() == frozen[0].tolist()
        assert live[1, 2] > live[0, 2]
        # Up to the start of a day it knows what was known by then, and no more.
        known = record(fold.counted.until(fold.cut + 30.0)).look(model, at)
        np.testing.assert_allclose(known, live, rtol=1e-6)


def test_judged_rows_look_at_the_live_record(folder: Path) -> None:
    fold = next(own_folds(read_drives(folder)))
    made = parts(fold, QUICK_SIZES, 0)
    seen = made.test.column("model_drives_log")
    late = made.test.at_ms >= (fold.cut + 20) * DAY
    end = record(fold.train).look(fold.test.model[made.test.device[late]], np.full(int(late.sum()), fold.cut))
    assert (seen[late] > end[:, 2]).all()


def test_report_has_the_figures_of_the_protocol(report: Result) -> None:
    section, _leak = report.sections
    assert {*MODELS, "always healthy", "base-rate table", "recency rule"} <= set(section.models)
    ensemble = section.models["ensemble"]
    assert {name: one.bar for name, one in ensemble.items() if one.bar is not None} == BARS
    for name in ("roc_auc", "auprc", "auprc_x_base", "recall_at_1pct", "precision_at_0.1pct", "brier"):
        assert math.isfinite(ensemble[name].value)
    assert section.models["always healthy"]["auprc_x_base"].value == pytest.approx(1.0)
    assert ensemble["roc_auc"].value > 0.7
    titles = [table.title for table in section.tables]
    assert "Reliability of ensemble" in titles
    assert any(title.startswith("Failing drives") for title in titles)
    assert section.population["base_rate"] < 0.01
    assert 0 <= section.population["silent_share"] <= 1


def test_difference_is_that_of_the_figures(report: Result) -> None:
    models = report.sections[0].models
    pair = models["ensemble minus boosting"]["roc_auc"]
    assert pair.value == pytest.approx(models["ensemble"]["roc_auc"].value - models["boosting"]["roc_auc"].value)
    assert pair.low is not None
    assert pair.low <= pair.value + 1e-9 or pair.low <= pair.high


def test_same_seed_same_report_and_other_drives(folder: Path, tmp_path: Path) -> None:
    other = drive_data.write(tmp_path / "other", drive_data.fleet(60, 1, "X"))
    request = Request(folder, other, quick=True, draws=5)
    first, again = run(request), run(request)
    assert first.sections == again.sections
    assert [section.title for section in first.sections] == ["Failure within 48 h: other drives, same time"]


def test_later_rows_of_the_same_drives(folder: Path, tmp_path: Path) -> None:
    early, late = _cut_in_two(folder, tmp_path)
    fold = given_fold(early, late)
    assert fold.shared.all()
    assert fold.cut == CUT
    assert (fold.since == CUT).all()
    made = parts(fold, QUICK_SIZES, 0)
    assert made.test.at_ms.min() >= CUT * DAY
    assert made.test.history_ms.min() > 200 * DAY
    assert made.learn.at_ms.max() + 2 * DAY <= CUT * DAY
    shifted = drive_data.fleet(40, 5, "X")
    both = drive_data.write(late, shifted, "more.parquet")
    fold = given_fold(early, both)
    assert (fold.since[~fold.shared] < CUT).any()
    assert (fold.since[fold.shared] == CUT).all()


def _cut_in_two(folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The same drives before and after a day, as rows of their own."""
    import polars as pl

    table = pl.read_parquet(folder / "drives.parquet")
    limit = pl.col("min_hours") + int((CUT - drive_data.FIRST_DAY) * 24)
    before = table.filter(pl.col("tstart") < limit).with_columns(
        fails=pl.when(pl.col("tstop") <= limit).then(pl.col("fails")).otherwise(0.0),
        tstop=pl.min_horizontal("tstop", limit),
    )
    after = table.filter(pl.col("tstop") > limit).with_columns(tstart=pl.max_horizontal("tstart", limit))
    return drive_data.write(tmp_path / "early", before), drive_data.write(tmp_path / "late", after)


def test_judging_what_was_learned_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="no drive has a daily snapshot"):
        run(Request(folder, folder, quick=True, draws=2))


def test_leak_is_shown_apart(report: Result) -> None:
    assert "leak" in report.sections[-1].title
    assert "leak_factor" in report.sections[-1].models["row-random split (leak)"]


def _sweep(events: dict[int, int], days: int = 10) -> tuple[Examples, dict[tuple[int, int], int]]:
    """Ten days of drives that fail at the given days, if at all; and where a drive's day is."""
    cells = [(one, day) for one, event in events.items() for day in range(min(days, event))]
    device, at = (np.array(column) for column in zip(*cells, strict=True))
    event_ms = np.array([events[one] * DAY if events[one] < 99 else NEVER for one, _ in cells])
    none = np.zeros(len(cells), np.int64)
    table = Examples(
        tuple(f"d{one}" for one in events), device.astype(np.int32), ("m",), none.astype(np.int32), at * DAY, (),
        np.zeros((len(cells), 0), np.float32), at * DAY, none, event_ms, none, np.full(len(cells), ""),
        np.where(event_ms == NEVER, 5.0, 1.0),
    )  # fmt: skip
    return table, {cell: row for row, cell in enumerate(cells)}


def test_first_alarms_count_once() -> None:
    sweep, row = _sweep({0: 8, 1: 9, 2: 7, 3: 99, 4: 99})
    alarm = np.zeros(len(sweep), np.bool_)
    alarm[[row[0, 6], row[0, 7], row[1, 3], row[1, 8], row[3, 5]]] = True
    found = first_alarms(sweep, alarm)
    assert found.lead_ms.tolist() == [2 * DAY, 6 * DAY, 0, 0, 0]
    values = {name: float(one[0]) for name, one in alarm_draws(sweep, alarm, 3, 0).items()}
    assert values["hit"] == pytest.approx(1 / 3)
    assert values["warned"] == values["warned_24h"] == values["warned_48h"] == pytest.approx(2 / 3)
    assert values["precision"] == pytest.approx(1 / 7)
    assert values["false_per_1000_days"] == pytest.approx(1000 * 6 / (8 + 9 + 7 + 100))


@pytest.mark.data
def test_shape_of_the_recorded_set() -> None:
    drives = read_drives(needs.data("backblaze_hds"))
    assert len(drives) > 10_000
    assert 0.01 < drives.failed.mean() < 0.2
    assert (drives.stop > drives.start).all()
    assert drives.values.shape == (len(drives.start), 9)
