"""Lines of GPU lives: what is read, what is refused, and how two folders become one fleet."""

from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, from_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER
from tocsin_benchmarks.titan.data import COLUMNS, fleet_of, read_lives

HEAD = ",".join(COLUMNS)
LIVES = (
    "A,c1-0c2s5n0,2014-01-21 10:28:50,2016-03-02 08:00:00,DBE",
    "A,c1-0c2s5n0,,2016-02-28 08:00:00,DBE",
    "A,c1-0c2s5n0,,2016-01-01 08:00:00,OTB",
    "B,c10-3c0s7n3,2014-01-21T10:28:50Z,,",
)


def _folder(tmp_path: Path, *lines: str, head: str = HEAD, name: str = "lives.csv") -> Path:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / name).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return tmp_path


def test_stays_errors_places_and_bursts(tmp_path: Path) -> None:
    fleet = fleet_of(read_lives(_folder(tmp_path, *LIVES)))
    assert fleet.devices == ("A", "B")
    assert fleet.slots == ("c1-0c2s5n0", "c10-3c0s7n3")
    assert fleet.place.tolist() == [[1, 0, 2, 5, 0], [10, 3, 0, 7, 3]]
    assert fleet.insert_ms.tolist() == [from_iso("2014-01-21T10:28:50Z")] * 2
    assert fleet.remove_ms.tolist() == [from_iso("2016-03-02T08:00:00Z"), NEVER]
    assert fleet.event_ms[0] == from_iso("2016-01-01T08:00:00Z")
    assert fleet.event_kind.tolist() == [1, 0, 0]
    assert fleet.onset.tolist() == [True, True, False]
    assert fleet.end_ms == from_iso("2016-03-02T08:00:00Z")


def test_other_columns_quotes_and_files_do_not_matter(tmp_path: Path) -> None:
    _folder(tmp_path, "1,A", head="number,SN", name="summary.csv")
    line = '"A","c1-0c2s5n0","2014-01-21 10:28:50",NA,NA,TRUE,NA'
    _folder(tmp_path, line, head='"SN","location","insert","remove","duration","out","event"', name="gc_full.csv")
    fleet = fleet_of(read_lives(tmp_path))
    assert fleet.devices == ("A",)
    assert fleet.remove_ms.tolist() == [NEVER]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("A,c1-0c2s5,2014-01-21 10:28:50,,", "no place"),
        (",c1-0c2s5n0,2014-01-21 10:28:50,,", "serial number is missing"),
        ("A,c1-0c2s5n0,yesterday,,", "no date and time"),
        ("A,c1-0c2s5n0,2014-01-21 10:28:50,,XID", "neither DBE nor OTB"),
        ("A,c1-0c2s5n0,2014-01-21 10:28:50,,DBE", "an event without remove"),
        ("A,c1-0c2s5n0,2014-01-21 10:28:50,2013-01-21 10:28:50,", "removed before"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        read_lives(_folder(tmp_path, *LIVES, line))
    assert "line 6" in str(raised.value)


def test_a_folder_without_lives(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no CSV with the columns SN, location, insert, remove, event"):
        read_lives(_folder(tmp_path, "1", head="a"))
    with pytest.raises(InputError, match="no CSV"):
        read_lives(tmp_path / "absent")


def test_lines_without_any_instant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line has an instant"):
        fleet_of(read_lives(_folder(tmp_path, "A,c1-0c2s5n0,,,")))


def test_two_folders_are_one_fleet(tmp_path: Path) -> None:
    later = (
        "B,c10-3c0s7n3,2014-01-21 10:28:50,2017-05-01 00:00:00,OTB",
        "C,c1-0c2s5n0,2016-04-01 00:00:00,,",
        LIVES[0],
    )
    train, test = read_lives(_folder(tmp_path / "a", *LIVES)), read_lives(_folder(tmp_path / "b", *later))
    fleet = fleet_of(train, test)
    assert fleet.devices == ("A", "B", "C")
    assert fleet.known.tolist() == [True, True, False]
    assert fleet.tested.tolist() == [True, True, True]
    assert len(fleet.insert_ms) == 3
    assert len(fleet.event_ms) == 4
    assert fleet.remove_ms[fleet.life_device == 1].tolist() == [from_iso("2017-05-01T00:00:00Z")]


def test_who_is_not_in_the_test_folder_is_not_observed_beyond_train(tmp_path: Path) -> None:
    train = read_lives(_folder(tmp_path / "a", *LIVES))
    test = read_lives(_folder(tmp_path / "b", "C,c1-0c2s5n1,2014-02-01 00:00:00,2018-01-01 00:00:00,DBE"))
    fleet = fleet_of(train, test)
    assert fleet.tested.tolist() == [False, False, True]
    assert fleet.remove_ms[fleet.life_device == 1].tolist() == [from_iso("2016-03-02T08:00:00Z")]


def test_bursts_chain(tmp_path: Path) -> None:
    days = (0, 5, 10, 18)
    lines = [f"A,c1-0c2s5n0,,{np.datetime64('2016-01-01') + np.timedelta64(day)} 00:00:00,DBE" for day in days]
    fleet = fleet_of(read_lives(_folder(tmp_path, *lines, LIVES[3])))
    assert np.diff(fleet.event_ms[fleet.event_device == 0]).tolist() == [5 * DAY, 5 * DAY, 8 * DAY]
    assert fleet.onset.tolist() == [True, False, False, True]
