"""The file of sums: all or nothing, closed days, bounds, damage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tocsin.accounting import table as table_module
from tocsin.accounting.holders import NOBODY, OTHER, UNKNOWN, Holder
from tocsin.accounting.meter import Row, RowKey, Use
from tocsin.accounting.profile import Profile
from tocsin.accounting.table import CLOSED_DAY, MANY_HOLDERS, SLURM_NAMESPACE, Place, UsageTable
from tocsin.domain.errors import InputError


def row(used: float, memory: float | None = None) -> Row:
    made = Row([used, 0, 0, 0, 0, 0], joules=10 * used)
    if memory is not None:
        made.profile = Profile()
        made.profile.add(used, memory, 100.0, 0.5, None)
    return made


def place(key: RowKey) -> Place:
    return Place("pool", f"model of {key.gpu}", "own")


def add(table: UsageTable, day: int, gpu: str, holder: str, used: float, **more: float) -> Counter[str]:
    return table.add({RowKey(day, "h", gpu, holder): row(used, **more)}, {("h", holder): Holder(holder)}, {}, (), place)


def used(table: UsageTable, by: list[str] | None = None) -> dict[tuple[int, tuple[str, ...]], float]:
    return {(one.day, one.names): one.row.seconds[Use.USED] for one in table.groups(0, 10_000, by or ["job"])}


def test_sums_add_up_over_writes_and_outlive_the_process(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")
    add(table, 5, "a", "slurm/1", 60, memory=30)
    table.add({RowKey(5, "h", "a", "slurm/1"): row(30, 70)}, {}, {("h", "a"): 99}, (), place)
    table.close()
    again = UsageTable(tmp_path / "u.db")
    assert used(again) == {(5, ("",)): 90}
    assert again.cursors() == {("h", "a"): 99}
    (found,) = again.profiles(0, 9)
    assert (found.profile.seconds, found.profile.memory_max) == (90, 70)


def test_work_of_slurm_without_a_namespace_is_told_from_work_of_unknown_owners(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")
    for key in ("slurm/1", "slurm/2", UNKNOWN, NOBODY):
        add(table, 5, "a", key, 60)
    pod = Holder("slurm/3", namespace="research")
    table.add({RowKey(5, "h", "a", pod.key): row(60)}, {("h", pod.key): pod}, {}, (), place)
    found = {(one.held, one.names): one.row.seconds[Use.USED] for one in table.groups(0, 9, ["namespace", "pool"])}
    assert found == {
        (True, (SLURM_NAMESPACE, "pool")): 120,
        (True, ("", "pool")): 60,
        (False, ("", "pool")): 60,
        (True, ("research", "pool")): 60,
    }
    assert (5, ("",)) in used(table, ["team"]), "a team is unknown all the same"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")

    def broken(key: RowKey) -> Place:
        if key.gpu == "b":
            raise KeyError(key.gpu)
        return Place()

    rows = {RowKey(5, "h", gpu, "slurm/1"): row(60) for gpu in ("a", "b")}
    with pytest.raises(KeyError):
        table.add(rows, {}, {("h", "a"): 1}, {("h", 5)}, broken)
    assert used(table) == {}
    assert table.cursors() == {}
    assert table.late() == []
    add(table, 5, "a", "slurm/1", 60)
    assert used(table) == {(5, ("",)): 60}


def test_closed_days_keep_their_sums_and_take_no_more() -> None:
    table = UsageTable(None)
    for gpu in ("a", "b"):
        add(table, 5, gpu, "slurm/1", 60, memory=30)
    add(table, 6, "a", "slurm/1", 10)
    before = used(table, ["model"]), [one.profile.data for one in table.profiles(0, 9)]
    assert table.close_days(6, 0) == 1
    assert (used(table, ["model"]), [one.profile.data for one in table.profiles(0, 9)]) == before
    assert add(table, 5, "a", "slurm/1", 60)[CLOSED_DAY] == 1
    assert table.add({}, {}, {}, {("h", 5), ("h", 6)}, place)[CLOSED_DAY] == 1
    assert table.late() == [("h", 6)]
    assert table.first_day() == 5


def test_old_days_go_with_the_holders_that_nothing_names_any_more() -> None:
    table = UsageTable(None)
    add(table, 5, "a", "slurm/1", 60)
    add(table, 9, "a", "slurm/2", 60)
    table.close_days(10, 9)
    assert used(table, ["job"]).keys() == {(9, ("",))}
    assert (table.words_of("slurm/1"), table.words_of("slurm/2")) == (0, 1)


def test_profiles_of_long_ago_are_let_go() -> None:
    table = UsageTable(None)
    for day in (5, 6 + table_module.PROFILE_DAYS):
        add(table, day, "a", "slurm/1", 60, memory=30)
        table.close_days(day + 1, 0)
    assert [one.first_day for one in table.profiles(0, 100)] == [6 + table_module.PROFILE_DAYS]
    assert used(table, ["model"])[5, ("model of a",)] == 60


def test_a_holder_is_found_again_that_memory_has_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MOST_IDS", 2)
    table = UsageTable(None)
    for number in (1, 2, 3, 4, 1):
        add(table, 5, "a", f"slurm/{number}", 60)
    assert [table.words_of(f"slurm/{number}") for number in range(6)] == [0, 1, 1, 1, 1, 0]
    assert sum(used(table).values()) == 300


def test_a_day_of_a_host_keeps_a_bounded_number_of_holders_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MOST_HOLDERS", 3)
    table = UsageTable(None)
    lost = sum((add(table, 5, "a", f"slurm/{number}", 60) for number in range(6)), Counter[str]())
    assert lost == {MANY_HOLDERS: 3}
    add(table, 5, "a", NOBODY, 60)
    add(table, 5, "a", "slurm/0", 60)
    assert sum(one.row.seconds[Use.USED] for one in table.groups(0, 9, ["job"])) == 8 * 60
    assert (table.words_of(OTHER), table.words_of("slurm/5")) == (1, 0)


def test_what_managers_tell_later_is_filled_in() -> None:
    table = UsageTable(None)
    table.add({RowKey(5, "h", "a", "pod/1"): row(60)}, {("h", "pod/1"): Holder("pod/1", "x/web", "x")}, {}, (), place)
    table.learn([Holder("pod/1", "x/job/train", team="vision"), Holder("pod/2", team="none")])
    table.learn([Holder("pod/1", "", team="other", account="a")])
    (found,) = table.groups(0, 9, ["job", "namespace", "team", "account"])
    assert found.names == ("x/job/train", "x", "vision", "a")


def test_a_day_of_a_host_is_replaced_whole() -> None:
    table = UsageTable(None)
    add(table, 5, "a", "slurm/1", 60)
    add(table, 6, "a", "slurm/1", 60)
    table.add({}, {}, {}, {("h", 5)}, place)
    rows = {RowKey(5, "h", "a", "slurm/2"): row(7), RowKey(6, "h", "a", "slurm/2"): row(7)}
    table.replace("h", {5}, rows, {}, place)
    assert used(table, ["model"]) == {(5, ("model of a",)): 7, (6, ("model of a",)): 60}
    assert table.late() == []


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "u.db"
    path.write_bytes(b"no database at all" * 100)
    table = UsageTable(path)
    assert table.damaged
    assert (tmp_path / "u.db.damaged").exists()
    assert not +add(table, 5, "a", "slurm/1", 60)


def test_a_file_that_another_brain_keeps_is_left_to_it(tmp_path: Path) -> None:
    first, second = UsageTable(tmp_path / "u.db"), UsageTable(tmp_path / "u.db")
    assert (first.kept_elsewhere, second.kept_elsewhere) == (False, True)
    for table in (first, second):
        add(table, 5, "a", "slurm/1", 60)
    first.close()
    again = UsageTable(tmp_path / "u.db")
    assert not again.kept_elsewhere
    assert used(again) == {(5, ("",)): 60}


def test_a_file_of_version_1_keeps_its_rows_and_tells_hosts_apart_from_then_on(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")
    add(table, 5, "a", "slurm/1", 60, memory=30)
    table.close_days(6, 0)
    add(table, 6, "a", "slurm/1", 60)
    table._db.executescript(
        "ALTER TABLE holder RENAME TO new;"
        "CREATE TABLE holder (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, job TEXT NOT NULL,"
        " namespace TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, account TEXT NOT NULL) STRICT;"
        "INSERT INTO holder SELECT id, key, 'Slurm job 1', 'x', 'ann', 'vision', 'physics' FROM new;"
        "DROP TABLE new; PRAGMA user_version = 1"
    )
    table.close()
    again = UsageTable(tmp_path / "u.db")
    by = ["job", "namespace", "user", "team", "account"]
    first = ("Slurm job 1", "x", "ann", "vision", "physics")
    assert used(again, by) == {(5, first): 60, (6, first): 60}
    (found,) = again.profiles(0, 9)
    assert (found.holder, found.profile.seconds) == (Holder("slurm/1", *first), 60)
    said = {("h", "slurm/1"): Holder("slurm/1", "Slurm job 1", "", "bob")}
    again.add({RowKey(6, "h", "b", "slurm/1"): row(7)}, said, {}, (), place)
    again.learn([Holder("slurm/1", account="chemistry")])
    assert used(again, ["user", "account"]) == {
        (5, ("ann", "physics")): 60, (6, ("ann", "physics")): 60, (6, ("bob", "chemistry")): 7
    }  # fmt: skip


def test_a_file_of_version_2_keeps_what_managers_told(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")
    for job in ("slurm/1", "slurm/2"):
        add(table, 5, "a", job, 60)
    table._db.executescript(
        "ALTER TABLE holder RENAME TO new;"
        "CREATE TABLE holder (id INTEGER PRIMARY KEY, key TEXT NOT NULL, job TEXT NOT NULL, namespace TEXT NOT NULL,"
        " user TEXT NOT NULL, team TEXT NOT NULL, account TEXT NOT NULL, told_job TEXT NOT NULL DEFAULT '',"
        " told_user TEXT NOT NULL DEFAULT '', UNIQUE (key, job, namespace, user)) STRICT;"
        "INSERT INTO holder SELECT id, key, job, namespace, user, team,"
        " iif(key = 'slurm/1', 'physics', ''), told_job, told_user FROM new;"
        "DROP TABLE new; PRAGMA user_version = 2"
    )
    table.close()
    again = UsageTable(tmp_path / "u.db")
    again.learn([Holder("slurm/1", user="ann"), Holder("slurm/2", user="bob")], {"slurm/1": (), "slurm/2": ()})
    add(again, 5, "a", "slurm/1", 7)
    assert used(again, ["account", "user"]) == {(5, ("physics", "ann")): 67, (5, ("", "")): 60}


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    table = UsageTable(tmp_path / "u.db")
    table._db.execute("PRAGMA user_version = 9")
    table.close()
    for _ in range(2):
        with pytest.raises(InputError, match="has version 9"):
            UsageTable(tmp_path / "u.db")
