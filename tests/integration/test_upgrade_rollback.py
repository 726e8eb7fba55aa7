"""docs/upgrade.md: what a version finds of another one, said in one line; and the way back to a copy."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.collector.spool import SCHEMA as SPOOL_SCHEMA
from tocsin.collector.spool import Spool
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import InputError
from tocsin.journal import files as journal_files
from tocsin.journal.journal import Journal
from tocsin.store.embedded.database import MIGRATIONS
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0, gpu, reading

PAGE = Path(__file__).parents[2] / "docs" / "upgrade.md"
NEWER = 99


class Site:
    """A brain's files, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.journal, self.spool = (folder / name for name in ("store.db", "journal.db", "spool.db"))
        self.config = folder / "brain.toml"
        self.config.write_text(
            f'[store]\npath = "{self.store}"\n[journal]\npath = "{self.journal}"\n'
            f'[agent]\nspool = "{self.spool}"\npush_url = "http://127.0.0.1:9"\nlisten = "127.0.0.1:0"\n'
        )
        self.clock = ManualClock(T0)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(self.config), *words])

    def write(self, step: int) -> None:
        """A reading and an entry of the journal."""
        with closing(SqliteStore(self.store)) as store:
            store.init()
            store.write(Batch([reading(gpu(1), T0 + step, temperature_celsius=40 + step)]))
        with closing(Journal.open(self.journal, self.clock)) as journal:
            journal.append(EntryKind.PAUSE, {"reason": f"step {step}"})

    def temperatures(self) -> list[float]:
        with closing(SqliteStore(self.store)) as store:
            store.init()
            return store.columns(["gpu_temperature_celsius"], T0, T0 + 100).values[:, 0].tolist()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def of_a_newer_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        # Each version changes a table: a number that does not fit them would be a damaged one.
        db.execute("CREATE TABLE of_the_future (id INTEGER)")
        db.execute(f"PRAGMA user_version = {NEWER}")
        db.commit()


def test_the_page_has_the_versions_of_the_files() -> None:
    rows = dict(re.findall(r"(?m)^\| (store|journal|spool) \| (\d+) \|", PAGE.read_text("utf-8")))
    assert rows == {
        "store": str(len(MIGRATIONS)),
        "journal": str(len(journal_files.MIGRATIONS)),
        "spool": str(SPOOL_SCHEMA),
    }


OPENED_BY = {"store": ("store", "init"), "journal": ("brain",), "spool": ("agent", "--source", "simulated")}


@pytest.mark.parametrize("file", OPENED_BY)
def test_files_of_a_newer_version_are_left_alone_with_one_line(site: Site, file: str) -> None:
    site.write(0)
    Spool(site.spool, 1 << 20, site.clock).close()
    path = getattr(site, file)
    of_a_newer_version(path)
    before = path.read_bytes()
    command = [sys.executable, "-m", "tocsin.cli", "--config", str(site.config), *OPENED_BY[file]]
    done = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == InputError.exit_code == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tocsin: ")]
    assert str(NEWER) in line
    assert "version of Tocsin" in line
    assert path.read_bytes() == before


def test_the_way_back_is_the_copy_that_was_made_before(site: Site) -> None:
    site.write(0)
    backups = site.folder / "before"
    backups.mkdir()
    assert site.run("store", "backup", str(backups / "store.db")).exit_code == 0
    assert site.run("journal", "backup", str(backups / "journal.db")).exit_code == 0
    # The new version writes, and brings its files to a shape that the old one does not know.
    site.write(1)
    of_a_newer_version(site.store)
    of_a_newer_version(site.journal)
    for suffix in ("", "-wal", "-shm", ".head"):
        for path in (site.store, site.journal):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert site.run("store", "restore", str(backups / "store.db")).exit_code == 0
    assert site.run("journal", "restore", str(backups / "journal.db")).exit_code == 0
    assert site.temperatures() == [40.0]
    assert site.run("journal", "verify", str(site.journal)).exit_code == 0
    site.write(2)
    assert site.temperatures() == [40.0, 42.0]


def test_agents_and_brains_of_two_versions_understand_each_other() -> None:
    """A brain that does not know a metric keeps the others and says so; what an old agent does not send is missing."""
    head = "gpu,gpu_uuid=GPU-1,host=n1"
    read = decode(f"{head} temperature_celsius=41,of_the_future=7 {T0}\n", now_ms=T0, precision="ms")
    (kept,) = read.batch.readings
    assert kept.values == {"gpu_temperature_celsius": 41.0}
    assert any("of_the_future" in str(warning) for warning in read.warnings)
    assert not read.rejected
