"""The whole state of a brain: encrypted, with another key, in the clear again, and what a start refuses."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tocsin.accounting.table import UsageTable
from tocsin.at_rest.keys import RING, StateKey, hold_configured
from tocsin.at_rest.mounts import Disks
from tocsin.cli.main import cli
from tocsin.config.settings import Settings
from tocsin.domain.clock import SECOND, ManualClock, SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.archive import archive_next
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin.runtime import state_files
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import run_brain
from tocsin.runtime.state_files import agent_files, brain_files, exposed, require_encryption
from tocsin.store.embedded.segments import is_sealed
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.builders import T0
from tocsin_testing.damaged import facts, fill

SECRET = b"pod-of-alice"


@pytest.fixture(autouse=True)
def no_key_stays() -> object:
    yield
    hold_configured(None, "")
    RING.hold(tuple)


def _key(path: Path, letter: bytes) -> Path:
    path.write_bytes(letter * 32)
    path.chmod(0o600)
    return path


class Site:
    """A folder with the state of a brain, and the commands over it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.one, self.two = _key(folder / "one.key", b"1"), _key(folder / "two.key", b"2")
        self.config = folder / "brain.toml"

    def settings(self, key: Path | None = None, **more: object) -> Settings:
        return Settings.model_validate(
            {
                "store": {"path": self.state / "store.db"},
                "journal": {"path": self.state / "journal.db"},
                "at_rest": {"key_file": key, **more},
            }
        )

    def run(self, *args: str, key: Path | None = None) -> str:
        text = f'[store]\npath = "{self.state}/store.db"\n[journal]\npath = "{self.state}/journal.db"\n'
        if key is not None:
            text += f'[at_rest]\nkey_file = "{key}"\n'
        self.config.write_text(text, encoding="utf-8")
        done = CliRunner().invoke(cli, ["--config", str(self.config), *args], catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    def fill(self) -> None:
        settings, clock = self.settings(), ManualClock(T0)
        fill(settings.store.path, killed=False)
        with closing(Journal.open(settings.journal.path, clock)) as journal:
            for n in range(30):
                journal.append(EntryKind.PAUSE, {"reason": f"{SECRET.decode()} {n}"})
                clock.advance(SECOND)
            journal.save(journal.head, {"ledger": {"who": SECRET.decode()}})
            journal.keep_note("annotations", json.dumps([SECRET.decode()]))
            assert archive_next(journal, 5, 10) is not None
        UsageTable(self.state / "store.db.usage.db").close()
        with (self.state / "store.db.features.npz").open("wb") as file:
            np.savez(file, who=np.frombuffer(SECRET, np.uint8))

    def facts(self) -> object:
        with closing(SqliteStore(self.state / "store.db")) as store:
            return facts(store)

    def text(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.state.rglob("*") if path.is_file())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.fill()
    return made


def test_the_state_is_encrypted_rekeyed_and_decrypted_by_commands(site: Site) -> None:
    before = site.facts()
    assert SECRET in site.text()
    said = json.loads(site.run("at-rest", "show", "--json"))
    assert {row["encrypted"] for row in said["files"]} == {False}
    assert "files are encrypted now" in site.run("at-rest", "encrypt", key=site.one)
    for word in (SECRET, b"GPU-0", b"node-1", b"SQLite format", b"PAR1"):
        assert word not in site.text(), word
    assert all(is_sealed(path) for path in (site.state / "store.db.segments").glob("*.parquet"))
    assert site.facts() == before
    assert "ok: 32 events" in site.run("journal", "verify", key=site.one)
    assert f'"{SECRET.decode()} 3"' in site.run("journal", "show", key=site.one)
    assert "ok: 0 files" in site.run("at-rest", "encrypt", key=site.one)
    assert "files are encrypted now" in site.run("at-rest", "rekey", "--new-key-file", str(site.two), key=site.one)
    with pytest.raises(InputError, match="is not the key of"):
        site.run("journal", "verify", key=site.one)
    assert "ok: 32 events" in site.run("journal", "verify", key=site.two)
    assert site.facts() == before
    assert "files are plain now" in site.run("at-rest", "decrypt", key=site.two)
    assert SECRET in site.text()
    assert "ok: 32 events" in site.run("journal", "verify")
    hold_configured(None, "")
    assert site.facts() == before


def test_backups_stay_encrypted_and_come_back(site: Site, tmp_path: Path) -> None:
    site.run("at-rest", "encrypt", key=site.one)
    before = site.facts()
    target = tmp_path / "backup"
    target.mkdir()
    site.run("journal", "backup", str(target / "journal.db"), key=site.one)
    site.run("store", "backup", str(target / "store.db"), key=site.one)
    copied = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    assert SECRET not in copied
    assert b"SQLite format" not in copied
    assert "ok: 32 events" in site.run("journal", "verify", str(target / "journal.db"), key=site.one)
    site.run("store", "restore", str(target / "store.db"), key=site.one)
    site.run("journal", "restore", str(target / "journal.db"), key=site.one)
    assert "ok: 32 events" in site.run("journal", "verify", key=site.one)
    assert site.facts() == before


def test_a_rekeying_that_was_cut_off_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.run("at-rest", "encrypt", key=site.one)
    before = site.facts()

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("tocsin.runtime.reseal.convert_database", full)
        with pytest.raises(Conflict, match="disk is full"):
            site.run("at-rest", "rekey", "--new-key-file", str(site.two), key=site.one)
    assert any(site.one.read_bytes() == key.secret for key in RING.held())
    site.run("at-rest", "rekey", "--new-key-file", str(site.two), key=site.one)
    hold_configured(site.two, "")
    assert site.facts() == before
    assert verify(site.state / "journal.db").ok


def test_a_wrong_or_missing_key_touches_nothing(site: Site) -> None:
    site.run("at-rest", "encrypt", key=site.one)
    before, names = site.text(), sorted(path.name for path in site.state.rglob("*"))
    for key, said in ((site.two, "is not the key of"), (None, "is not set, and .* is encrypted")):
        hold_configured(key, "")
        for open_it in (
            lambda: Journal.open(site.state / "journal.db", ManualClock(T0)),
            lambda: SqliteStore(site.state / "store.db").init(),
            lambda: UsageTable(site.state / "store.db.usage.db"),
        ):
            with pytest.raises(InputError, match=said):
                open_it()
    assert site.text() == before
    assert sorted(path.name for path in site.state.rglob("*")) == names


def test_the_journal_of_a_running_brain_is_not_converted(site: Site) -> None:
    with (
        closing(Journal.open(site.state / "journal.db", ManualClock(T0))),
        pytest.raises(Conflict, match="in use"),
    ):
        site.run("at-rest", "encrypt", key=site.one)


def test_a_start_that_requires_encryption_names_each_plain_file(site: Site, tmp_path: Path) -> None:
    none = Disks(tmp_path / "none", tmp_path / "none")
    settings = site.settings(require_encryption=True)
    with pytest.raises(InputError) as caught:
        require_encryption(settings, brain_files(settings), none)
    for name in ("journal.db", "journal.db.fold", "store.db", "store.db.usage.db", "store.db.features.npz"):
        assert f"{site.state}/{name}" in str(caught.value)
    assert "tocsin at-rest encrypt" in str(caught.value)
    require_encryption(site.settings(), brain_files(site.settings()), none)
    vouched = site.settings(require_encryption=True, vouched=[site.state.parent])
    require_encryption(vouched, brain_files(vouched), none)
    site.run("at-rest", "encrypt", key=site.one)
    sealed = site.settings(site.one, require_encryption=True)
    require_encryption(sealed, brain_files(sealed), none)
    (site.state / "store.db.damaged").write_bytes(b"SQLite format 3\0")
    with pytest.raises(InputError, match=r"store\.db\.damaged"):
        require_encryption(sealed, brain_files(sealed), none)


def starts(site: Site, key: Path | None = None, **more: object) -> list[str]:
    """What a brain over that state announces until it is told to stop, with the first line."""
    wanted = {"api": {"listen": "127.0.0.1:0"}, "forecast": {"worker": False, "models": site.state / "models"}}
    settings = Settings.model_validate(site.settings(key, require_encryption=True, **more).model_dump() | wanted)
    hold_configured(key, "")
    said: list[str] = []
    stop = threading.Event()
    run_brain(settings, SystemClock(), stop, lambda line: (said.append(line), stop.set())[0])
    return said


def test_a_brain_does_not_start_over_plain_files_where_encryption_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "Disks", lambda: Disks(tmp_path / "none", tmp_path / "none"))
    servers: list[object] = []
    real = assembly.ApiServer.start
    monkeypatch.setattr(assembly.ApiServer, "start", lambda server: (servers.append(server), real(server))[1])
    site = Site(tmp_path)
    assert starts(site, vouched=[site.state])[0].startswith("api: ")
    with pytest.raises(InputError, match=r"at_rest\.require_encryption.*state/journal\.db.*tocsin at-rest encrypt"):
        starts(site)
    assert len(servers) == 1, "it is refused before the port is open"
    site.run("at-rest", "encrypt", key=site.one)
    assert starts(site, site.one)[0].startswith("api: ")


def test_without_a_key_a_file_that_is_still_to_come_counts(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"agent": {"push_url": "http://brain", "spool": tmp_path / "spool.db"}, "at_rest": {"require_encryption": True}}
    )
    none = Disks(tmp_path / "none", tmp_path / "none")
    with pytest.raises(InputError, match=r"spool\.db"):
        require_encryption(settings, agent_files(settings), none)
    RING.hold(lambda: (StateKey(b"k" * 32),))
    assert exposed(settings, agent_files(settings), none) == []
