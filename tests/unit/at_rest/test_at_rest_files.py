"""Keys, databases and single files that are encrypted."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.at_rest import blob
from tocsin.at_rest.convert import convert_blob, convert_database
from tocsin.at_rest.database import connect, connect_copy, is_encrypted
from tocsin.at_rest.keys import CREDENTIALS, RING, StateKey, hold_configured, is_header, page_bytes_of, read_key
from tocsin.collector.spool import Buffer
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import Conflict, InputError
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.at_rest import KEY, OTHER, holding
from tocsin_testing.builders import T0

SECRET = "gpu-of-alice"


def _filled(path: Path, **options: object) -> None:
    with closing(connect(path, **options)) as db:  # type: ignore[arg-type]
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a TEXT) STRICT")
        db.executemany("INSERT INTO t VALUES (?)", [(f"{SECRET}-{n}",) for n in range(100)])
        db.execute("PRAGMA user_version = 7")


def _rows(path: Path) -> int:
    with closing(connect(path, read_only=True)) as db:
        return int(db.execute("SELECT count(*) FROM t").fetchone()[0])


def _bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


@given(st.sampled_from([0, 512, 4096, 16_384, 65_536]), st.binary(min_size=32, max_size=32))
def test_a_header_names_its_key_and_page_size_alone(page_bytes: int, secret: bytes) -> None:
    key = StateKey(secret)
    header = key.new_header(page_bytes)
    assert len(header) == 16
    assert is_header(header)
    assert key.made(header)
    assert page_bytes_of(header) == page_bytes
    assert not StateKey(bytes(32 - len(b"x")) + b"x").made(header)
    assert key.of_file(header) != key.of_file(key.new_header(page_bytes))


def test_a_key_shows_in_no_text() -> None:
    assert "k" * 4 not in repr(KEY)
    assert KEY.secret.hex() not in repr(KEY)


@pytest.mark.parametrize("text", [b"k" * 32, KEY.secret.hex().encode() + b"\n"])
def test_a_key_is_read_raw_or_in_hexadecimal(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    path.chmod(0o600)
    assert read_key(path) == KEY


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (b"k" * 31, 0o600, "is no key: it has 31 bytes"),
        (b"z" * 64, 0o600, "is no key"),
        (b"", 0o600, "is no key: it has 0 bytes"),
        (b"k" * 32, 0o640, "is open to others"),
        (b"k" * 32, 0o604, "is open to others"),
    ],
)
def test_a_file_that_is_no_key_is_one_error(tmp_path: Path, text: bytes, mode: int, said: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(text)
    path.chmod(mode)
    with pytest.raises(InputError, match=said):
        read_key(path)
    with pytest.raises(InputError, match="No such file"):
        read_key(tmp_path / "none")


def test_a_credential_of_systemd_is_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_bytes(KEY.secret)
    try:
        hold_configured(None, "state")
        with pytest.raises(InputError, match="LoadCredential=state:FILE"):
            RING.first()
        monkeypatch.setenv(CREDENTIALS, str(tmp_path))
        hold_configured(None, "state")
        assert RING.first() == KEY
    finally:
        hold_configured(None, "")
        RING.hold(tuple)


def test_an_encrypted_database_has_no_word_in_the_clear(tmp_path: Path) -> None:
    with holding(KEY):
        db = connect(tmp_path / "a.db")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a TEXT) STRICT")
        db.execute("INSERT INTO t VALUES (?)", (SECRET,))
        assert SECRET.encode() not in _bytes(tmp_path)
        assert b"SQLite" not in _bytes(tmp_path)
        db.close()
        assert is_encrypted(tmp_path / "a.db")
        assert _rows(tmp_path / "a.db") == 1


def test_an_encrypted_database_raises_the_errors_of_sqlite3(tmp_path: Path) -> None:
    with holding(KEY), closing(connect(tmp_path / "a.db")) as db:
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY) STRICT")
        db.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError) as caught:
            db.execute("INSERT INTO t VALUES (1)")
        assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CONSTRAINT
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            db.executemany("INSERT INTO none VALUES (?)", [(1,)])
        with pytest.raises(sqlite3.OperationalError):
            db.executescript("nonsense")
        with pytest.raises(sqlite3.IntegrityError), db:
            db.executescript("BEGIN; INSERT INTO t VALUES (2); INSERT INTO t VALUES (1);")
        assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
        assert next(db.execute("SELECT a FROM t")) == (1,)


def test_a_wrong_key_is_one_error_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holding(KEY):
        _filled(path)
    before = path.read_bytes()
    for keys, said in (((OTHER,), "is not the key of"), ((), "is not set, and .* is encrypted")):
        with holding(*keys), pytest.raises(InputError, match=said):
            connect(path)
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.db"]


def test_each_file_has_a_key_of_its_own_and_copies_into_another(tmp_path: Path) -> None:
    with holding(KEY):
        _filled(tmp_path / "a.db", page_bytes=16_384)
        one, other = tmp_path / "a.db", tmp_path / "b.db"
        with closing(connect(one, read_only=True)) as old, closing(connect_copy(other, one)) as new:
            old.backup(new)
        assert _rows(tmp_path / "b.db") == 100
    assert (tmp_path / "a.db").read_bytes()[:16] != (tmp_path / "b.db").read_bytes()[:16]


def test_a_database_is_encrypted_rekeyed_and_decrypted_with_all_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    _filled(path)
    with holding(OTHER, KEY):
        for key in (KEY, OTHER, None):
            convert_database(path, key, 16_384)
            assert _rows(path) == 100
            assert is_encrypted(path) == (key is not None)
            assert (SECRET.encode() in path.read_bytes()) == (key is None)
            with closing(connect(path, read_only=True)) as db:
                assert db.execute("PRAGMA user_version").fetchone()[0] == 7
                assert int(db.execute("PRAGMA page_size").fetchone()[0]) == 16_384
    assert [one.name for one in tmp_path.iterdir()] == ["a.db"]


def test_a_database_that_is_in_use_is_not_converted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holding(KEY, OTHER):
        _filled(path)
        with closing(connect(path)) as user:
            assert user.execute("SELECT count(*) FROM t").fetchone() == (100,)
            with pytest.raises((sqlite3.OperationalError, Conflict)):
                convert_database(path, OTHER)
            assert KEY.made(path.read_bytes()[:16])


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(1, 255))
def test_a_single_file_comes_back_and_a_changed_byte_is_found(data: bytes, place: int, flip: int) -> None:
    with holding(KEY):
        closed = bytearray(blob.closed(data))
        assert blob.opened(bytes(closed), Path("x")) == data
        place = 16 + place % (len(closed) - 16)
        closed[place] ^= flip
        with pytest.raises(blob.Unreadable):
            blob.opened(bytes(closed), Path("x"))


def test_without_a_key_single_files_are_plain(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert blob.closed(b"text") == b"text"
    path.write_bytes(b"text")
    with holding(KEY):
        assert blob.opened(b"text", path) == b"text"
        convert_blob(path, KEY)
        assert b"text" not in path.read_bytes()
        convert_blob(path, None)
    assert path.read_bytes() == b"text"


def test_a_process_that_is_started_holds_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY.secret)
    path.chmod(0o600)
    database = tmp_path / "a.db"
    try:
        hold_configured(path, "")
        _filled(database)
        code = (
            "import sys; from pathlib import Path; from tocsin.at_rest.database import connect\n"
            "print(connect(Path(sys.argv[1]), read_only=True).execute('SELECT count(*) FROM t').fetchone()[0])"
        )
        command = [sys.executable, "-c", code, str(database)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        hold_configured(None, "")
        RING.hold(tuple)
    assert is_encrypted(database)
    assert done.stdout.strip() == "100"


def test_an_agents_spool_is_encrypted_and_a_wrong_key_costs_none_of_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "spool.db", ManualClock(T0)
    with holding(KEY), closing(Buffer(path, 10**6, clock, OwnMetrics())) as spool:
        assert spool.put(SECRET, 1, 0)
    assert SECRET.encode() not in _bytes(tmp_path)
    for keys in ((OTHER,), ()):
        with holding(*keys), pytest.raises(InputError, match=r"at_rest\.key_file"):
            Buffer(path, 10**6, clock, OwnMetrics())
    assert [one.name for one in tmp_path.iterdir()] == ["spool.db"]
    with holding(KEY), closing(Buffer(path, 10**6, clock, OwnMetrics())) as spool:
        assert spool.batches == 1
