"""Cells of one fleet on a real PostgreSQL: their limits are one budget, whoever dies, and nothing of it is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.actions.model.budget import taking_of
from tocsin.cli.main import cli
from tocsin.domain.clock import MINUTE
from tocsin.domain.decision import Ruling
from tocsin.domain.errors import BudgetSpent, Conflict
from tocsin.domain.finding import ActionKind, Category, Subject, SubjectKind
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin.journal.port import NotLeading
from tocsin.journal.postgres import schema
from tocsin.journal.postgres.fleet import FleetDatabase
from tocsin.journal.postgres.fleet_schema import scripts_of
from tocsin.journal.postgres.past import PostgresPast
from tocsin_testing import servers
from tocsin_testing.action_world import settings
from tocsin_testing.cells_world import Account, CellWorld, Killed, cell_gpus

pytestmark = pytest.mark.server
NUMBERS = itertools.count()
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Postgres]:
    with servers.postgres() as made:
        yield made


@pytest.fixture
def fleet() -> str:
    return f"f{next(NUMBERS)}"


def two(server: servers.Postgres, fleet: str, **limits: float) -> tuple[CellWorld, CellWorld]:
    made = [
        CellWorld(server.url, fleet, f"{fleet}_{name}", cell_gpus(f"{fleet}-{name}"), actions=settings(limits=limits))
        for name in ("a", "b")
    ]
    for one in made:
        # Each has told of itself before anything is asked.
        one.step()
    return made[0], made[1]


def first_of(world: CellWorld) -> str:
    return min(world.gpus)


def test_what_one_cell_has_taken_the_other_has_not(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_concurrent=1)
    one.break_gpu(first_of(one))
    one.step()
    other.break_gpu(first_of(other))
    other.step()
    assert len(one.executor.done) == 1
    assert other.executor.done == []
    verdict = other.verdict("max_concurrent")
    assert verdict.ruling is Ruling.HOLD
    assert verdict.reason == "1 under action already, 1 of them in other cells, at most 1 at once in the fleet"
    one.faults.clear()
    for _ in range(4):
        one.step()
    other.step()
    assert len(other.executor.done) == 1, "what was given back is the other's to take"
    one.end()
    other.end()


_OLD_ROWS = {
    "cell": """
        INSERT INTO cell (name, epoch, url, managed, gpus, limits, counted_at)
        VALUES ('old', 3, 'http://old.test', 8, 9, '{"max_concurrent": 1}', clock_timestamp())
    """,
    "taking": """
        INSERT INTO taking (cell, key, epoch, subject, hosts, racks, gpus, gpu_hosts, lost)
        VALUES ('old', 'k1', 3, 'gpu:GPU-old', '{old-1}', '{rack-9}', '{GPU-old}', '{old-1}', '{"default": 1}')
    """,
    "attempt": """
        INSERT INTO attempt (cell, key, slot, action, hosts, disruptive)
        VALUES ('old', 'k1', 'gpu:GPU-old', 'reset_gpu', '{old-1}', true)
    """,
    "cause": "INSERT INTO cause (cell, name, at) VALUES ('old', 'psu', clock_timestamp())",
}
_OLD_COLUMNS = {
    "cell": "name, epoch, url, managed, gpus, limits, counted_at",
    "taking": "cell, key, epoch, subject, hosts, racks, gpus, gpu_hosts, lost, at",
    "attempt": "cell, key, slot, action, hosts, disruptive, at",
    "cause": "cell, name, at",
}


def test_what_a_fleet_had_at_its_first_version_it_has_at_the_newest(server: servers.Postgres, fleet: str) -> None:
    made = FleetDatabase(server.url, fleet)
    scripts = scripts_of(made.database.schema)
    schema.prepare(made.database, scripts[:1])
    with closing(made.database.line()) as line:
        for statement in _OLD_ROWS.values():
            line.ask(statement)

        def rows() -> dict[str, list[tuple[object, ...]]]:
            return {table: list(line.ask(f"SELECT {names} FROM {table}")) for table, names in _OLD_COLUMNS.items()}

        before = rows()
        assert [len(one) for one in before.values()] == [1, 1, 1, 1]
        assert schema.version_of(line) == 1
        made.prepare()
        assert schema.version_of(line) == len(scripts)
        assert rows() == before
    (old,) = made.cells()
    assert (old.name, old.url, old.gpus, old.hosts) == ("old", "http://old.test", 9, ())
    made.close()
    new = CellWorld(server.url, fleet, f"{fleet}_new", cell_gpus(f"{fleet}-new"))
    new.step()
    new.break_gpu(first_of(new))
    new.step()
    said = new.verdict("max_concurrent").reason
    assert said == "1 under action already, 1 of them in other cells, at most 1 at once in the fleet"
    new.end()


def test_a_fleet_is_whole_after_pg_dump_and_pg_restore(server: servers.Postgres, fleet: str, tmp_path: Path) -> None:
    """As docs/postgres.md has it: the schemas of the cells and of the fleet, in one dump."""
    one, other = two(server, fleet, max_concurrent=1)
    one.break_gpu(first_of(one))
    one.step()
    told = [len(list(world.journal.entries())) for world in (one, other)]
    dumped, schemas = tmp_path / "fleet.dump", (f"tocsin_{fleet}_*", f"fleet_{fleet}")
    chosen = [word for name in schemas for word in ("-n", name)]
    run_program(server, "pg_dump", "-Fc", *chosen, "-f", str(dumped), server.url)
    one.end()
    other.end()
    with closing(one.database.line()) as line:
        for name in (one.database.schema, other.database.schema, one.fleet.database.schema):
            line.ask(f"DROP SCHEMA {name} CASCADE")
    run_program(server, "pg_restore", "-1", "-d", server.url, str(dumped))
    for world, entries in zip((one, other), told, strict=True):
        verified = PostgresPast(world.database).verify()
        assert (verified.ok, verified.events) == (True, entries)
        world.database.close()
    again = CellWorld(server.url, fleet, other.cell, other.gpus, actions=settings(limits={"max_concurrent": 1}))
    again.step()
    again.break_gpu(first_of(again))
    again.step()
    assert again.verdict("max_concurrent").ruling is Ruling.HOLD, "what the other cell has taken is taken"
    again.end()


def run_program(server: servers.Postgres, program: str, *words: str) -> None:
    done = subprocess.run([server.programs / program, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_share_is_one_of_all_managed_gpus(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_concurrent_ratio=0.125)
    one.break_gpu(first_of(one))
    other.break_gpu(first_of(other))
    one.step()
    assert len(one.executor.done) == 1, "a host of two is an eighth of the sixteen that both have"
    other.step()
    said = other.verdict("max_share").reason
    assert (
        said == "4 of 16 managed GPUs of the fleet would be out of service, 2 of them in other cells, at most 2 (12%)"
    )
    one.end()
    other.end()


def test_a_cell_that_tells_nothing_widens_nothing_and_frees_nothing(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_concurrent_ratio=0.25)
    one.break_gpu(first_of(one))
    one.step()
    one.age(3_600)
    other.break_gpu(first_of(other))
    other.step()
    verdict = other.verdict("max_share")
    assert "4 of 8 managed GPUs of the fleet" in verdict.reason, "what it has out is counted, what it has is not"
    assert other.executor.done == []
    one.end()
    other.end()


def test_the_strictest_limits_of_all_cells_count(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    strict = settings(limits={"max_concurrent": 0})
    late = CellWorld(server.url, fleet, f"{fleet}_late", cell_gpus(f"{fleet}-late"), actions=strict)
    late.step()
    one.break_gpu(first_of(one))
    one.step()
    assert one.verdict("max_concurrent").reason == "0 under action already, at most 0 at once"
    for world in (one, other, late):
        world.end()


def test_a_rack_and_a_pool_that_span_cells_are_one(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_per_rack=1)
    one.break_gpu(first_of(one))
    one.step()
    other.break_gpu(first_of(other))
    other.step()
    assert other.verdict("max_per_rack").reason == "rack rack-0 has 1 under action already, at most 1"
    one.end()
    other.end()


def test_a_pool_that_spans_cells_keeps_its_share(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, min_available_ratio=0.8)
    one.break_gpu(first_of(one))
    one.step()
    assert len(one.executor.done) == 1, "14 of 16 are left"
    other.break_gpu(first_of(other))
    other.step()
    said = other.verdict("capacity").reason
    assert said == "pool default would keep 12 of 16 GPUs of all cells in service, at least 13 (80%)"
    one.end()
    other.end()


def test_the_last_room_goes_to_one_of_two_that_both_saw_it(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_concurrent=1)
    # What the other was told is from before: only the statement that appends the start knows better.
    stale = other.budget.publish
    seen = other.loop._budget.publish
    assert seen == stale
    before = other.budget._rest
    other.budget.publish = lambda share: before  # type: ignore[method-assign]
    one.break_gpu(first_of(one))
    one.step()
    other.break_gpu(first_of(other))
    report = other.step()
    assert other.executor.done == []
    assert report.counts["budget_spent"] == 1
    assert not [entry for entry in other.journal.entries() if entry.kind == "execution_started"]
    del other.budget.publish  # type: ignore[method-assign]
    other.step()
    assert other.verdict("max_concurrent").ruling is Ruling.HOLD
    one.end()
    other.end()


def test_tries_in_another_cell_count_for_who_has_the_gpu_now(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, attempts_per_day=1)
    moved = dict(list(one.gpus.items())[:2])
    one.break_gpu(first_of(one), action=ActionKind.RESET_GPU)
    one.step()
    one.faults.clear()
    for _ in range(4):
        one.step()
    other.gpus = {**other.gpus, **moved}
    other.break_gpu(first_of(one), action=ActionKind.RESET_GPU)
    other.step()
    assert other.executor.done == []
    held = other.verdict("attempts", ActionKind.RESET_GPU)
    assert "tried 1 times in 24 h, at most 1" in held.reason
    one.end()
    other.end()


def _moved(one: CellWorld, other: CellWorld) -> str:
    """The first host of `one` is of `other` from now on; the UUID of its first GPU."""
    first = one.gpus[first_of(one)]
    gone = {uuid: gpu for uuid, gpu in one.gpus.items() if gpu.host == first.host}
    one.gpus = {uuid: gpu for uuid, gpu in one.gpus.items() if uuid not in gone}
    other.gpus = {**other.gpus, **gone}
    return first.uuid


def test_a_gpu_that_moves_is_left_alone_as_long_as_where_it_was(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    first = one.gpus[first_of(one)]
    subject = Subject(SubjectKind.GPU, first.uuid, first.host, first.pool)
    one.loop.operator.release(subject, "ann", "it was reseated")
    one.step()
    moved = _moved(one, other)
    one.step()
    other.break_gpu(moved)
    other.step()
    assert other.executor.done == []
    held = other.verdict("hold_off")
    assert held.ruling is Ruling.HOLD
    assert f"is left alone after ann (cell {one.cell}) stepped in" in held.reason
    assert held.until_ms is not None
    # Each world has a clock of its own: what counts is how long it still lasts.
    theirs = one.loop.controls().hold_offs[f"gpu:{moved}"].until_ms - one.clock.now_ms()
    assert abs(held.until_ms - other.clock.now_ms() - theirs) < 2 * MINUTE
    # What it is told it tells to nobody as its own.
    other.step()
    one.step()
    assert "(cell" not in one.loop.controls().hold_offs[f"gpu:{moved}"].actor
    other.clock.advance(held.until_ms - other.clock.now_ms() + MINUTE)
    with closing(one.fleet.database.line()) as line:
        line.ask("UPDATE past SET until = clock_timestamp()")
    # The time box of what waited has ended as well: it is decided anew.
    for _ in range(3):
        other.step()
    assert len(other.executor.done) == 1
    one.end()
    other.end()


def test_what_is_judged_between_two_looks_tells_nothing_of_others_as_its_own(
    server: servers.Postgres, fleet: str
) -> None:
    one, other = two(server, fleet)
    first = one.gpus[first_of(one)]
    subject = Subject(SubjectKind.GPU, first.uuid, first.host, first.pool)
    one.loop.operator.release(subject, "ann", "it was reseated")
    one.loop.silences.plan(Matcher(MatcherKind.HOST, first.host), "ann", one.clock.now_ms(), 30 * MINUTE, "new fans")
    one.step()
    other.step()
    for world in (other, one, other):
        view = world.view()
        world.loop.step_alone(view, view.incidents, ())
    with closing(one.fleet.database.line()) as line:
        told = sorted((cell, kind) for cell, kind in line.ask("SELECT cell, kind FROM past"))
    assert told == [(one.cell, "hold_off"), (one.cell, "maintenance")]
    one.end()
    other.end()


def test_a_key_of_before_an_older_journal_came_back_is_tried_again_and_both_tries_count(
    server: servers.Postgres, fleet: str
) -> None:
    one, other = two(server, fleet)
    one.loop.operator.pause("ann", "looking")
    one.break_gpu(first_of(one), action=ActionKind.RESET_GPU)
    one.step()
    tried = taking_of(one.only(ActionKind.RESET_GPU).decision, one.view())
    with closing(one.fleet.database.line()) as line:
        line.ask(
            "INSERT INTO attempt SELECT %s, %s, %s, %s, %s, true, clock_timestamp() - interval '1 hour'",
            (one.cell, tried["key"], tried["slot"], tried["action"], tried["hosts"]),
        )
    one.loop.operator.resume("ann")
    one.step()
    assert len(one.executor.done) == 1
    with closing(one.fleet.database.line()) as line:
        assert line.ask("SELECT count(*) FROM attempt")[0][0] == 2
    one.end()
    other.end()


def test_what_is_planned_for_a_host_and_who_has_taken_a_card_go_along(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    first = one.gpus[first_of(one)]
    one.break_gpu(first.uuid)
    one.loop.silences.plan(Matcher(MatcherKind.HOST, first.host), "ann", one.clock.now_ms(), 30 * MINUTE, "new fans")
    one.step()
    (cause,) = one.view().findings.values()
    one.loop.silences.acknowledge("card-1", [cause.id], "bob", 60 * MINUTE)
    one.step()
    moved = _moved(one, other)
    one.faults.clear()
    one.step()
    other.break_gpu(moved)
    other.step()
    assert other.executor.done == []
    assert other.verdict("planned_maintenance").reason.startswith(f"maintenance planned for host {first.host} by ann")
    (taken,) = (one for one in other.loop.controls().silences if one.kind is SilenceKind.ACKNOWLEDGEMENT)
    assert taken.actor == f"bob (cell {one.cell})"
    assert taken.causes == set(other.view().findings)
    one.end()
    other.end()


def test_pools_and_labels_of_one_name_are_each_cells_own(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    one.loop.silences.plan(Matcher(MatcherKind.POOL, "default"), "ann", one.clock.now_ms(), 30 * MINUTE)
    one.step()
    other.break_gpu(first_of(other))
    other.step()
    assert len(other.executor.done) == 1
    one.end()
    other.end()


def test_causes_of_all_cells_trip_the_breaker_of_each_and_a_reset_is_for_all(
    server: servers.Postgres, fleet: str
) -> None:
    names, made = ("a", "b", "c"), []
    for name in names:
        gpus = cell_gpus(f"{fleet}-{name}")
        made.append(CellWorld(server.url, fleet, f"{fleet}_{name}", gpus, actions=settings(breaker_root_causes=3)))
        made[-1].step()
    for one in made:
        one.break_gpu(first_of(one), category=Category.HARDWARE)
        one.step()
    done = [len(one.executor.done) for one in made]
    assert done == [1, 1, 0], "the third root cause trips it before it runs"
    for one in made:
        one.step(advance=MINUTE)
        assert one.loop.controls().breaker is not None
    made[0].loop.operator.reset_breaker("ann")
    made[0].step()
    assert made[0].loop.controls().breaker is None, "causes from before the reset count nowhere"
    made[1].loop.operator.reset_breaker("ann")
    made[2].loop.operator.reset_breaker("ann")
    made[2].step()
    assert len(made[2].executor.done) == 1
    for one in made:
        one.end()


def test_who_has_lost_its_lease_takes_back_no_cause(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    one.break_gpu(first_of(one), category=Category.HARDWARE)
    one.step()
    gone = one.budget
    one.restart()
    one.step()
    told = other.budget.tell_causes({})
    assert len(told) == 1
    gone.tell_causes({})
    assert set(other.budget.tell_causes({})) == set(told), "what its successor has told stands"
    assert one.budget.tell_causes({}) == {}
    assert other.budget.tell_causes({}) == {}, "who has the lease takes its own back"
    one.end()
    other.end()


def test_who_died_keeps_what_it_took_until_its_successor_settles_it(server: servers.Postgres, fleet: str) -> None:
    chance = random.Random(1)
    actions = settings(limits={"max_concurrent": 1})
    dying = CellWorld(server.url, fleet, f"{fleet}_a", cell_gpus(f"{fleet}-a"), actions=actions, deadly=(chance, 1.0))
    other = CellWorld(server.url, fleet, f"{fleet}_b", cell_gpus(f"{fleet}-b"), actions=actions)
    dying.step()
    other.step()
    dying.break_gpu(first_of(dying), action=ActionKind.RESET_GPU)
    with pytest.raises(Killed):
        dying.step()
    other.break_gpu(first_of(other), action=ActionKind.RESET_GPU)
    other.step()
    assert other.executor.done == []
    dying.faults.clear()
    gone = dying.journal
    dying.restart()
    with pytest.raises(NotLeading):
        gone.append("pause", {})
    other.step()
    assert other.executor.done == [], "the successor has not told of itself"
    dying.step()
    other.step()
    assert len(other.executor.done) == 1
    dying.end()
    other.end()


def test_who_has_not_told_of_itself_in_its_epoch_takes_nothing(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    one.restart()
    one.break_gpu(first_of(one))
    one.budget.publish = lambda share: one.budget._rest  # type: ignore[method-assign]
    one.step()
    assert one.executor.done == []
    one.end()
    other.end()


def test_a_cell_that_is_gone_for_good_is_forgotten_by_hand(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet, max_concurrent=1)
    one.break_gpu(first_of(one))
    one.step()
    with pytest.raises(Conflict, match="stop it first"):
        other.fleet.forget(one.cell)
    assert [cell.name for cell in other.fleet.cells() if cell.held] == [one.cell, other.cell]
    one.end()
    assert other.fleet.forget(one.cell)
    assert not other.fleet.forget(one.cell)
    other.break_gpu(first_of(other))
    other.step()
    assert len(other.executor.done) == 1
    other.end()


def test_the_command_lists_cells_and_forgets_one(server: servers.Postgres, fleet: str, tmp_path: Path) -> None:
    one, other = two(server, fleet)
    other.age(3_600)
    other.end()
    file = tmp_path / "tocsin.toml"
    file.write_text(f'[journal]\nurl = "{server.url}"\n[cell]\nfleet = "{fleet}"\nurl = "http://one.test"\n')
    file.chmod(0o600)

    def asked(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(file), "cells", *words])

    lines = asked().output.splitlines()
    assert lines[0].startswith(f"{one.cell}  8 GPUs  http://{one.cell}.test: has an active brain, told of itself")
    assert "has no active brain" in lines[1]
    assert lines[1].endswith("(stale, widens no limit)")
    assert [cell["stale"] for cell in json.loads(asked("--json").output)["cells"]] == [False, True]
    assert "stop it first" in str(asked("forget", one.cell).exception)
    assert f"{other.cell} is no cell of fleet {fleet} any more" in asked("forget", other.cell).output
    assert "tocsin cells lists them" in str(asked("forget", other.cell).exception)
    one.end()


def test_what_a_start_takes_is_on_record(server: servers.Postgres, fleet: str) -> None:
    one, other = two(server, fleet)
    one.break_gpu(first_of(one))
    one.step()
    (start,) = [entry for entry in one.journal.entries() if entry.kind == "execution_started"]
    decision = one.only().decision
    assert start.payload["takes"]["gpus"] == sorted(one.gpus)[:2]
    assert taking_of(decision, one.view()).keys() == start.payload["takes"].keys()
    with pytest.raises(BudgetSpent):
        one.journal.append(start.kind, dict(start.payload) | {"takes": dict(start.payload["takes"]) | {
            "key": "again", "subject": "host:elsewhere", "pools": {"default": {"lost": 99, "alone": False}}}
        })  # fmt: skip
    one.end()
    other.end()


@pytest.mark.parametrize("seed", range(2))
def test_no_limit_of_the_fleet_is_ever_passed_and_none_of_it_is_lost(
    server: servers.Postgres, fleet: str, seed: int
) -> None:
    racks = {f"{fleet}-{name}-{h}": f"rack-{h % 2}" for name in NAMES for h in range(4)}
    account = Account(most=4, per_rack=3, racks=racks)
    limits = {"max_concurrent": 4, "max_per_rack": 3, "max_concurrent_ratio": 0.25, "min_available_ratio": 0.75}
    failures: list[BaseException] = []

    def live(name: str) -> None:
        chance = random.Random(f"{seed} {name}")
        actions = settings(settle_seconds=0.0, limits=limits)
        gpus = cell_gpus(f"{fleet}-{name}")
        world = CellWorld(server.url, fleet, f"{fleet}_{name}", gpus, account, actions, deadly=(chance, 0.08))
        try:
            for _ in range(40):
                if chance.random() < 0.5:
                    kind = chance.choice((ActionKind.CORDON, ActionKind.RESET_GPU))
                    world.break_gpu(chance.choice(sorted(gpus)), action=kind)
                if chance.random() < 0.3:
                    world.faults.clear()
                one_step(world, chance)
            world.faults.clear()
            world.executor.share = 0.0  # type: ignore[attr-defined]
            for _ in range(6):
                one_step(world, chance)
            assert not world.loop.controls().effects
            world.end()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=live, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert account.problems == []
    assert account.peak == 4, "it came to its limit"
    assert account.starts > 20
    world = CellWorld(server.url, fleet, f"{fleet}_a", cell_gpus(f"{fleet}-a"))
    with closing(world.fleet.database.line()) as line:
        assert line.ask("SELECT cell, key FROM taking") == [], "nothing is taken that is in effect nowhere"
    world.end()


def one_step(world: CellWorld, chance: random.Random) -> None:
    """One turn; a brain that dies in it has a successor, and may go on for a while without knowing of it."""
    try:
        world.step()
    except Killed:
        old = world.loop
        world.restart()
        view = world.view()
        for _ in range(3 if chance.random() < 0.5 else 0):
            with contextlib.suppress(NotLeading, Killed):
                old.step(view, view.incidents, [])
