"""Reading drive histories: what is refused, how rows of one drive become one history, what was known at a day."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER
from tocsin_benchmarks.backblaze.drives import ATTRIBUTES, read_drives
from tocsin_testing import drive_data

FIVE = ATTRIBUTES.index("smart_5")


def read(folder: Path, *rows: list[drive_data.Row]):
    drive_data.write(folder, drive_data.frame([row for one in rows for row in one]))
    return read_drives(folder)


def test_rows_of_a_drive_become_a_history(tmp_path: Path) -> None:
    failing = drive_data.drive("A1", [(100, 148), (148, 400)], fails=True, zero=100, smart_5=[0.0, 8.0])
    drives = read(tmp_path, drive_data.drive("B2", [(0, 96)]), failing)
    assert drives.serial.tolist() == ["A1", "B2"]
    assert drives.fail_hour.tolist() == [400, NEVER]
    assert drives.first_hour.tolist() == [100, 0]
    assert drives.last_hour.tolist() == [400, 96]
    assert drives.values[:2, FIVE].tolist() == [0.0, 8.0]
    assert np.isnan(drives.values[2]).all()
    assert drives.end_day.tolist() == [drive_data.FIRST_DAY + 12.5, drive_data.FIRST_DAY + 4.0]


def test_the_row_valid_at_an_hour(tmp_path: Path) -> None:
    drives = read(tmp_path, drive_data.drive("A1", [(10, 20), (20, 50)]), drive_data.drive("B2", [(5, 60)]))
    drive = np.array([0, 0, 0, 1, 1], np.int32)
    rows = drives.rows_at(drive, np.array([9, 19, 20, 4, 5]), drives.keys())
    assert rows.tolist() == [-1, 0, 1, -1, 2]


def test_later_folder_continues_the_history(tmp_path: Path) -> None:
    early = drive_data.drive("A1", [(0, 48), (48, 96)], smart_5=[0.0, 1.0])
    late = drive_data.drive("A1", [(48, 120), (120, 300)], fails=True, smart_5=[1.0, 9.0])
    one = drive_data.write(tmp_path / "one", drive_data.frame(early))
    two = drive_data.write(tmp_path / "two", drive_data.frame(late))
    drives = read_drives(one, two)
    assert drives.start.tolist() == [0, 48, 120]
    assert drives.stop.tolist() == [48, 120, 300]
    assert drives.fail_hour.tolist() == [300]


def test_what_was_known_at_a_day(tmp_path: Path) -> None:
    failing = drive_data.drive("A1", [(0, 48), (48, 240)], fails=True)
    drives = read(tmp_path, failing, drive_data.drive("B2", [(0, 24)], fails=True))
    then = drives.until(drive_data.FIRST_DAY + 3.0)
    assert then.fail_hour.tolist() == [NEVER, 24]
    assert then.last_hour.tolist() == [72, 24]
    assert then.stop.tolist() == [48, 72, 24]
    assert len(drives.until(drive_data.FIRST_DAY + 1.0).start) == 2
    assert drives.until(drive_data.FIRST_DAY + 10.0).failed.all()
    assert len(drives.until(float(drive_data.FIRST_DAY))) == 0


def test_attributes_may_be_missing_but_not_all(tmp_path: Path) -> None:
    table = drive_data.frame(drive_data.drive("A1", [(0, 96)], smart_5=[3.0]))
    few = table.drop([name for name in ATTRIBUTES if name != "smart_5"])
    drives = read_drives(drive_data.write(tmp_path / "few", few))
    assert drives.values[0, FIVE] == 3.0
    assert np.isnan(drives.values[0]).sum() == len(ATTRIBUTES) - 1
    with pytest.raises(InputError, match="none of the SMART columns"):
        read_drives(drive_data.write(tmp_path / "none", few.drop("smart_5")))


def test_any_parquet_file_counts(tmp_path: Path) -> None:
    for name in ("A1", "B2"):
        drive_data.write(tmp_path, drive_data.frame(drive_data.drive(name, [(0, 96)])), f"{name}.parquet")
    assert read_drives(tmp_path).serial.tolist() == ["A1", "B2"]


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        read_drives(tmp_path / "absent")
    with pytest.raises(InputError, match=r"no \*.parquet file"):
        read_drives(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(InputError, match="is not readable parquet"):
        read_drives(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (pl.col("tstart") + 1_000, "has tstop <= tstart"),
        (pl.lit(2.0).alias("fails"), "has `fails` other than 0 and 1"),
        (pl.lit(None).cast(pl.Float64).alias("min_date"), "lacks a serial number, date, hour or `fails`"),
        (pl.lit(-5).alias("tstart"), "has hours outside 0 to 1,000,000"),
        (pl.lit("many").alias("tstop"), "has a column of the wrong type"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, change: pl.Expr, problem: str) -> None:
    table = drive_data.frame(drive_data.drive("A1", [(0, 96)])).with_columns(change)
    with pytest.raises(InputError, match=problem):
        read_drives(drive_data.write(tmp_path, table))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    table = drive_data.frame(drive_data.drive("A1", [(0, 96)])).drop("tstop", "model")
    with pytest.raises(InputError, match="lacks the columns model, tstop"):
        read_drives(drive_data.write(tmp_path, table))


def test_empty_file(tmp_path: Path) -> None:
    table = drive_data.frame(drive_data.drive("A1", [(0, 96)])).clear()
    with pytest.raises(InputError, match="has no rows"):
        read_drives(drive_data.write(tmp_path, table))


def test_no_life_after_failure(tmp_path: Path) -> None:
    rows = drive_data.drive("A1", [(0, 48)], fails=True) + drive_data.drive("A1", [(48, 96)])
    with pytest.raises(InputError, match="has rows after its failure"):
        read_drives(drive_data.write(tmp_path, drive_data.frame(rows)))
