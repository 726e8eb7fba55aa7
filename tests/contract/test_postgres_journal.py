"""What only the journal in a real PostgreSQL has: its fence, its lease, its months, and a network that fails."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.domain.clock import DAY, ManualClock, SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.port import NotLeading
from tocsin.journal.postgres import schema
from tocsin.journal.postgres.connections import CellDatabase, DatabaseAway, DatabaseRefused
from tocsin.journal.postgres.journal import FollowedJournal, JournalReplaced, PostgresJournal
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.past import PostgresPast
from tocsin_testing import servers
from tocsin_testing.builders import T0
from tocsin_testing.journals import leased
from tocsin_testing.tcp_proxy import TcpProxy

pytestmark = pytest.mark.server
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Postgres]:
    with servers.postgres() as made:
        yield made


@pytest.fixture
def database(server: servers.Postgres) -> Iterator[CellDatabase]:
    made = CellDatabase(server.url, f"tocsin_c{next(NUMBERS)}")
    schema.prepare(made)
    yield made
    made.close()


@pytest.fixture
def journal(database: CellDatabase) -> Iterator[PostgresJournal]:
    made = PostgresJournal.open(database, ManualClock(T0), leased(database))
    yield made
    made.lease.release()
    made.close()


def run_out(database: CellDatabase) -> None:
    """The lease is over by the database's clock, as after a sleep."""
    with closing(database.line()) as line:
        line.ask("UPDATE lease SET until = clock_timestamp() - interval '1 second'")


def test_who_slept_past_the_lease_adds_nothing_and_goes_on_once_it_is_renewed(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {"n": 1})
    run_out(journal.database)
    with pytest.raises(NotLeading, match="has run out"):
        journal.append(EntryKind.EXECUTION_STARTED, {"n": 2})
    assert not journal.lease.lost
    journal.lease._next = 0.0
    journal.lease.tick()
    journal.append(EntryKind.RESUME, {"n": 3})
    assert [one.payload["n"] for one in journal.entries()] == [1, 3]


def test_who_was_replaced_adds_nothing_ever_again(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {"n": 1})
    run_out(journal.database)
    other = leased(journal.database)
    assert (other.held(), other.epoch) == (True, journal.epoch + 1)
    with pytest.raises(NotLeading, match="begins anew"):
        journal.append(EntryKind.EXECUTION_STARTED, {"n": 2})
    assert journal.lease.lost
    other.release()
    with pytest.raises(NotLeading, match="begins anew"):
        journal.append(EntryKind.EXECUTION_STARTED, {"n": 2})
    assert journal.head == 1
    assert journal.verify().events == 1


def test_an_epoch_that_a_restored_database_gave_out_again_is_not_the_old_holders(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {})
    with closing(journal.database.line()) as line:
        line.ask("UPDATE lease SET holder = 'somebody else'")
    with pytest.raises(NotLeading, match="begins anew"):
        journal.append(EntryKind.RESUME, {})


def test_one_of_many_that_try_at_once_has_the_lease(database: CellDatabase) -> None:
    leases = [DatabaseLease(database, f"brain-{number}", 6.0, SystemClock()) for number in range(8)]
    threads = [threading.Thread(target=lease.tick) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [lease for lease in leases if lease.held()]
    assert len(held) == 1
    assert {lease.holder() for lease in leases if not lease.held()} <= {"", held[0].identity}
    for lease in leases:
        lease.release()


def test_a_holder_that_cannot_renew_stops_before_another_can_begin(
    server: servers.Postgres, database: CellDatabase
) -> None:
    clock, proxy = ManualClock(T0), TcpProxy(server.port)
    far = CellDatabase(server.url.replace(f":{server.port}/", f":{proxy.url_port}/"), database.schema)
    lease = DatabaseLease(far, "far", 3.0, clock)
    lease.tick()
    assert lease.held()
    proxy.cut()
    clock.advance(500)
    lease.tick()
    assert lease.trouble
    assert lease.held()
    clock.advance(1_499)
    assert lease.held()
    clock.advance(1)
    assert not lease.held()
    assert not lease.lost
    proxy.close()
    lease.release()


def test_an_answer_that_is_lost_leaves_one_entry(server: servers.Postgres, database: CellDatabase) -> None:
    proxy = TcpProxy(server.port)
    far = CellDatabase(server.url.replace(f":{server.port}/", f":{proxy.url_port}/"), database.schema)
    journal = PostgresJournal.open(far, SystemClock(), leased(database))
    journal.append(EntryKind.PAUSE, {"n": 1})
    # The statement waits for a lock, the line is cut meanwhile, and then it is carried out: nobody hears of it.
    with psycopg.connect(server.url) as blocker:
        blocker.execute(f"LOCK TABLE {database.schema}.head IN ACCESS EXCLUSIVE MODE".encode())
        done = threading.Thread(target=journal.append, args=(EntryKind.RESUME, {"n": 2}))
        done.start()
        with closing(database.line()) as line:
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT append%%'"
            while not line.ask(waiting, ()):
                threading.Event().wait(0.01)
        proxy.cut()
        blocker.rollback()
    threading.Event().wait(0.2)
    proxy.mend()
    done.join(20)
    journal.append(EntryKind.PAUSE, {"n": 3})
    assert [one.payload["n"] for one in journal.entries()] == [1, 2, 3]
    assert journal.verify().ok
    journal.lease.release()
    journal.close()
    proxy.close()


def test_a_reader_that_comes_late_to_the_end_of_its_transaction_has_read(database: CellDatabase) -> None:
    with closing(database.line()) as other:
        with database.steady() as ask:
            ((process, answer),) = ask("SELECT pg_backend_pid(), 7")
            assert other.ask("SELECT pg_terminate_backend(%s, 5000)", (process,)) == [(True,)]
        assert answer == 7
        with database.steady() as ask:
            assert ask("SELECT pg_backend_pid()") != [(process,)]
            ((process,),) = ask("SELECT pg_backend_pid()")
            other.ask("SELECT pg_terminate_backend(%s, 5000)", (process,))
            with pytest.raises(DatabaseAway):
                ask("SELECT 1")


def test_entries_stand_in_the_month_of_their_instant_and_packed_months_go(database: CellDatabase) -> None:
    clock = ManualClock(T0)
    journal = PostgresJournal.open(database, clock, leased(database))
    for _ in range(4):
        journal.append_many([(EntryKind.PAUSE, {"n": n}, False) for n in range(700)])
        clock.advance(31 * DAY)
    with database.steady() as ask:
        months = ask("SELECT count(*) FROM pg_inherits WHERE inhparent = 'entry'::regclass")[0][0]
    assert months == 4
    assert journal.archive(100).startswith("entries 1 to 2000 are packed")
    with database.steady() as ask:
        left = ask("SELECT count(*) FROM pg_inherits WHERE inhparent = 'entry'::regclass")[0][0]
        assert ask("SELECT count(*), sum(length(content)) < 200000 FROM packed")[0] == (2, True)
    assert left < months
    assert len(list(journal.entries())) == 2_801
    assert journal.verify().ok
    journal.lease.release()
    journal.close()


def test_a_follower_reads_to_where_it_came_and_goes_on_from_there(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {"n": 1})
    followed = FollowedJournal(journal.database, journal.lease.holder)
    journal.append(EntryKind.RESUME, {"n": 2})
    assert [one.seq for one in followed.entries()] == [1]
    assert [one.seq for one in followed.follow()] == [2]
    assert [one.seq for one in followed.entries()] == [1, 2]
    assert followed.follow() == []
    with pytest.raises(NotLeading, match=f"{journal.lease.identity} is the active one"):
        followed.append(EntryKind.PAUSE, {})


def test_a_follower_notices_that_another_journal_is_in_its_place(journal: PostgresJournal) -> None:
    for n in range(3):
        journal.append(EntryKind.PAUSE, {"n": n})
    followed, far = (FollowedJournal(journal.database, journal.lease.holder) for _ in range(2))
    assert followed.follow() == []
    with closing(journal.database.line()) as line:
        line.ask("ALTER TABLE entry DISABLE TRIGGER USER")
        line.ask("UPDATE entry SET hash = repeat('0', 64) WHERE seq = 3")
        with pytest.raises(JournalReplaced, match="entry 3 is not in the journal as it was followed"):
            followed.follow()
        line.ask("DELETE FROM entry WHERE seq = 3")
        line.ask("UPDATE head SET seq = 2")
    with pytest.raises(JournalReplaced):
        far.follow()


def test_a_follower_is_told(journal: PostgresJournal) -> None:
    with closing(journal.database.line()) as line:
        assert not line.notified(f"{journal.database.schema}_appended", 0.01)
        journal.append(EntryKind.PAUSE, {})
        assert line.notified(f"{journal.database.schema}_appended", 5.0)


def test_what_is_appended_past_the_fence_is_refused_by_the_table(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {})
    with closing(journal.database.line()) as line:
        for statement in ("UPDATE entry SET actor = 'eve'", "DELETE FROM entry"):
            with pytest.raises(DatabaseRefused, match="append-only"):
                line.ask(statement)


def test_entries_behind_the_acknowledged_end_are_found(journal: PostgresJournal) -> None:
    journal.append(EntryKind.PAUSE, {})
    with closing(journal.database.line()) as line:
        line.ask(
            "INSERT INTO entry SELECT 2, epoch, at_ms, kind, actor, simulated, payload, hash, hash, about FROM entry"
        )
    assert "added past Tocsin" in journal.verify().problem


def test_a_database_that_is_away_says_nothing_of_the_journal(server: servers.Postgres, database: CellDatabase) -> None:
    proxy = TcpProxy(server.port)
    far = CellDatabase(server.url.replace(f":{server.port}/", f":{proxy.url_port}/"), database.schema)
    assert PostgresPast(far).verify().ok
    proxy.close()
    with pytest.raises(DatabaseAway):
        PostgresPast(far).verify()
    far.close()


def test_a_schema_of_a_newer_version_is_refused_and_left_as_it_is(database: CellDatabase) -> None:
    with closing(database.line()) as line:
        line.ask("UPDATE version SET version = 99")
    with pytest.raises(InputError, match="schema version 99; use the version of Tocsin that wrote it"):
        schema.prepare(database)
    with pytest.raises(InputError, match="schema version 99"):
        PostgresPast(database).see()


def test_a_schema_grows_by_steps_and_several_may_do_it_at_once(server: servers.Postgres) -> None:
    made = CellDatabase(server.url, f"tocsin_c{next(NUMBERS)}")
    schema.prepare(made)
    scripts = (*schema.MIGRATIONS, "CREATE TABLE extra (one integer);")
    threads = [threading.Thread(target=schema.prepare, args=(made, scripts)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with made.steady() as ask:
        assert ask("SELECT version FROM version, (SELECT count(*) FROM extra) AS it")[0] == (2,)
    made.close()


def test_a_database_in_another_encoding_is_refused(server: servers.Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(InputError, match="ENCODING 'UTF8'"):
        schema.prepare(CellDatabase(server.url.replace("/postgres", "/latin"), "tocsin_fleet"))


def test_the_commands_know_the_database_as_they_know_a_file(
    server: servers.Postgres, journal: PostgresJournal, tmp_path: Path
) -> None:
    config, cell = tmp_path / "tocsin.toml", journal.database.schema.removeprefix("tocsin_")
    key = tmp_path / "secrets" / "key"
    key.parent.mkdir()
    key.write_text("k" * 64)
    config.write_text(f'[journal]\nurl = "{server.url}"\ncell = "{cell}"\nkey_file = "{key}"\n')

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(config), "journal", *words], standalone_mode=False)

    journal.append_many([(EntryKind.PAUSE, {"n": n}, False) for n in range(5)])
    assert "not sealed" in run("verify").output
    in_use = run("seal").exception
    assert isinstance(in_use, Conflict)
    assert journal.lease.identity in str(in_use)
    journal.lease.release()
    assert journal.database.name in run("seal").output
    assert run("verify").output == "ok: 5 events\n"
    assert len(run("show", "--after", "3").output.splitlines()) == 2
    assert len(run("export", "--format", "cef").output.splitlines()) == 5
    copy = tmp_path / "copy.db"
    assert str(copy) in run("backup", str(copy)).output
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"DROP SCHEMA {journal.database.schema} CASCADE".encode())
    assert isinstance(run("verify").exception, InputError)
    assert journal.database.name in run("restore", str(copy)).output
    assert run("verify").output == "ok: 5 events\n"
    assert isinstance(run("archive").exception, InputError)


def test_an_address_that_is_none_and_one_where_nobody_answers(server: servers.Postgres) -> None:
    with pytest.raises(InputError, match="is no address of a database"):
        CellDatabase("host=db port", "tocsin_fleet")
    secret = "hunter2hunter2"
    nobody = CellDatabase(f"postgresql://tocsin:{secret}@127.0.0.1:{servers.free_port()}/x", "tocsin_fleet")
    with pytest.raises(DatabaseAway) as caught:
        schema.prepare(nobody)
    assert secret not in str(caught.value)
    assert secret not in nobody.name
