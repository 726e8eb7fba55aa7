"""Daily snapshots of drives: where they lie, what they weigh, and that nothing of later rows reaches them."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin_benchmarks.backblaze.drive_models import PRIOR_DAYS, record
from tocsin_benchmarks.backblaze.drives import Drives, read_drives
from tocsin_benchmarks.backblaze.folds import starts
from tocsin_benchmarks.backblaze.snapshots import (
    FRESH_H,
    STEPS,
    Sampling,
    daily,
    examples,
    snapshots,
    stratum,
)
from tocsin_testing import drive_data

ALL = Sampling(10**9, 10**9, 0)


@pytest.fixture
def fleet(tmp_path: Path) -> Drives:
    return read_drives(drive_data.write(tmp_path / "fleet", drive_data.fleet(60)))


def one(tmp_path: Path, *rows: list[drive_data.Row]) -> Drives:
    table = drive_data.frame([row for drive in rows for row in drive])
    return read_drives(drive_data.write(tmp_path / "few", table))


def test_snapshots_lie_on_whole_days(tmp_path: Path) -> None:
    drives = one(tmp_path, drive_data.drive("A1", [(7, 30), (30, 151)], fails=True, zero=7))
    made = snapshots(drives, starts(drives), ALL)
    assert made.hour.tolist() == [7, 31, 55, 79, 103, 127]
    table = examples(drives, record(drives), made)
    label, known = table.label(48 * HOUR)
    assert known.all()
    assert label.tolist() == [False, False, False, False, True, True]
    assert ((table.at_ms - drive_data.FIRST_DAY * DAY) % DAY == 0).all()


def test_unfinished_windows_are_left_out(tmp_path: Path) -> None:
    drives = one(tmp_path, drive_data.drive("A1", [(0, 120)]))
    assert snapshots(drives, starts(drives), ALL).hour.tolist() == [0, 24, 48, 72]


def test_sampling_keeps_failures_and_weighs_the_rest(fleet: Drives) -> None:
    whole = snapshots(fleet, starts(fleet), ALL)
    some = snapshots(fleet, starts(fleet), Sampling(50, 200, 3))
    assert (whole.weight == 1).all()
    assert some.weight.sum() == pytest.approx(whole.weight.sum())
    ahead = fleet.fail_hour[some.drive] - some.hour <= 48
    assert (some.weight[ahead] == 1).all()
    every = fleet.fail_hour[whole.drive] - whole.hour <= 48
    assert ahead.sum() == every.sum() > 0
    assert (~ahead).sum() == 250


def test_fresh_changes_are_a_stratum_of_their_own(tmp_path: Path) -> None:
    old = [row for n in range(3) for row in drive_data.drive(f"B{n}", [(0, 900), (900, 4_000)], smart_5=[2.0, 4.0])]
    whole_table = pl.concat([drive_data.fleet(60), drive_data.frame(old)])
    fleet = read_drives(drive_data.write(tmp_path / "fleet", whole_table))
    whole = snapshots(fleet, starts(fleet), ALL)
    some = snapshots(fleet, starts(fleet), Sampling(60, 50, 3, fresh=40))
    assert some.weight.sum() == pytest.approx(whole.weight.sum())
    kept = record(fleet)
    every, few = examples(fleet, kept, whole), examples(fleet, kept, some)
    quiet, of_few = ~every.label(48 * HOUR)[0], ~few.label(48 * HOUR)[0]
    for number, wanted in enumerate((50, 60, 40)):
        rows = of_few & (stratum(few) == number)
        total = int((quiet & (stratum(every) == number)).sum())
        assert rows.sum() == min(wanted, total) > 0
        assert few.weight[rows] == pytest.approx(total / rows.sum())


def test_a_stratum_is_known_from_features(tmp_path: Path) -> None:
    rows = drive_data.drive("A1", [(0, 48), (48, 900)], smart_5=[0.0, 3.0], smart_12=[1.0, 1.0])
    drives = one(tmp_path, rows)
    made = snapshots(drives, starts(drives), ALL)
    expected = np.where(made.hour < 48, 0, np.where(made.hour <= 48 + FRESH_H, 2, 1))
    assert stratum(examples(drives, record(drives), made)).tolist() == expected.tolist()


def test_the_day_of_the_week_is_that_of_the_decision(tmp_path: Path) -> None:
    drives = one(tmp_path, drive_data.drive("A1", [(0, 480)]))
    made = snapshots(drives, starts(drives), ALL)
    table = examples(drives, record(drives), made)
    days = [datetime.fromtimestamp(at / 1000, UTC).weekday() for at in table.at_ms.tolist()]
    assert table.column("weekday").tolist() == days
    assert table.column("workdays_ahead").tolist() == [(one < 5) + ((one + 1) % 7 < 5) for one in days]


def test_another_seed_is_another_sample(fleet: Drives) -> None:
    first, again, other = (snapshots(fleet, starts(fleet), Sampling(50, 50, seed)) for seed in (1, 1, 2))
    assert first.hour.tolist() == again.hour.tolist()
    assert first.hour.tolist() != other.hour.tolist()


def test_nothing_is_decided_before_its_day(fleet: Drives) -> None:
    since = np.full(len(fleet), drive_data.FIRST_DAY + 100.0)
    made = snapshots(fleet, since, Sampling(100, 100, 0))
    assert fleet.day(made.drive, made.hour).min() >= drive_data.FIRST_DAY + 100


def test_every_day_of_the_drives_asked_for(fleet: Drives) -> None:
    weight = np.zeros(len(fleet))
    weight[[2, 5]] = 1.0, 4.0
    made = daily(fleet, starts(fleet), weight)
    whole = snapshots(fleet, starts(fleet), ALL)
    kept = np.isin(whole.drive, [2, 5])
    assert made.hour.tolist() == whole.hour[kept].tolist()
    assert set(zip(made.drive.tolist(), made.weight.tolist(), strict=True)) == {(2, 1.0), (5, 4.0)}


def test_features_come_from_the_past(fleet: Drives) -> None:
    made = snapshots(fleet, starts(fleet), Sampling(40, 40, 0))
    day = drive_data.FIRST_DAY + 200.0
    early = made.take(fleet.day(made.drive, made.hour) < day)
    whole = examples(fleet, record(fleet), early)
    cut = fleet.until(day)
    place = np.searchsorted(cut.serial, fleet.serial[early.drive]).astype(np.int32)
    known = examples(cut, record(cut), replace(early, drive=place))
    np.testing.assert_array_equal(whole.features, known.features)
    rows = np.arange(len(whole))
    np.testing.assert_array_equal(whole.sequences.take(rows), known.sequences.take(rows))
    assert (whole.seen_ms <= whole.at_ms).all()


def test_levels_changes_and_ages(tmp_path: Path) -> None:
    rows = drive_data.drive(
        "A1", [(0, 240), (240, 250), (250, 900)], smart_5=[2.0, 10.0, 14.0], smart_12=[1.0, 1.0, 2.0]
    )
    drives = one(tmp_path, rows)
    made = snapshots(drives, starts(drives), ALL)
    table = examples(drives, record(drives), made.take(made.hour == 264))
    values = {name: float(table.column(name)[0]) for name in table.names}
    assert values["smart_5_log"] == pytest.approx(np.log1p(14))
    assert values["smart_5_change_1d"] == pytest.approx(np.log1p(4))
    assert values["smart_5_change_3d"] == pytest.approx(np.log1p(12))
    assert values["smart_5_change_90d"] == pytest.approx(np.log1p(12))
    assert values["smart_5_changes_7d"] == 2
    assert values["smart_5_unchanged_log_h"] == pytest.approx(np.log1p(14))
    assert values["smart_12_changes_30d"] == 1
    assert values["defect_kinds"] == 1
    assert values["defects_change_1d"] == pytest.approx(np.log1p(4))
    assert np.isnan(values["smart_187_log"])
    assert values["age_log_h"] == pytest.approx(np.log1p(264))
    assert (values["maker_ST"], values["maker_HGST"]) == (1, 0)


def test_first_report_of_an_attribute_is_no_change(tmp_path: Path) -> None:
    rows = drive_data.drive("A1", [(0, 240), (240, 900)], smart_5=[0.0, 0.0], smart_187=[float("nan"), 7.0])
    drives = one(tmp_path, rows)
    made = snapshots(drives, starts(drives), ALL)
    table = examples(drives, record(drives), made.take(made.hour == 264))
    assert table.column("smart_187_change_3d")[0] == 0
    assert table.column("smart_187_changes_7d")[0] == 0


def test_sequences_hold_the_last_days(tmp_path: Path) -> None:
    drives = one(tmp_path, drive_data.drive("A1", [(0, 50), (50, 400)], smart_5=[1.0, 4.0]))
    made = snapshots(drives, starts(drives), ALL)
    table = examples(drives, record(drives), made)
    assert table.sequences is not None
    past = table.sequences.take(np.flatnonzero(made.hour == 96))[0]
    place = table.sequences.channels.index("smart_5_log")
    level, change = past[:, place], past[:, table.sequences.channels.index("smart_5_change")]
    assert past.shape[0] == STEPS
    assert np.isnan(level[:-5]).all()
    assert np.expm1(level[-5:]).tolist() == pytest.approx([1, 1, 1, 4, 4])
    assert change[-4:].tolist() == pytest.approx([0, 0, np.log1p(3), 0])


def test_record_of_a_model_counts_up_to_the_day(tmp_path: Path) -> None:
    rows = [drive_data.drive(f"A{number}", [(0, 2400)], fails=number == 0) for number in range(4)]
    drives = one(tmp_path, *rows)
    kept = record(drives)
    days = drive_data.FIRST_DAY + np.array([0.0, 50.0, 99.0, 100.0, 5_000.0])
    found = kept.look(np.full(5, "ST4000DM000"), days)
    assert np.expm1(found[:, 2]) == pytest.approx([0, 200, 396, 400, 400], rel=1e-4)
    before, after = found[2, 0], found[3, 0]
    assert after > before
    assert found[4].tolist() == found[3].tolist()
    assert np.exp(before) == pytest.approx(1 / PRIOR_DAYS, rel=0.02)
    assert np.isnan(kept.look(np.array(["never seen"]), days[:1])).all()


def test_no_snapshot_at_all_is_refused(tmp_path: Path) -> None:
    drives = one(tmp_path, drive_data.drive("A1", [(0, 20)]))
    with pytest.raises(InputError, match="no drive has a daily snapshot"):
        examples(drives, record(drives), snapshots(drives, starts(drives), ALL))
