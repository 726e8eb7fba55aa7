"""Two whole brains on one real PostgreSQL: one acts, the other answers what is read, and takes over with the past."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tocsin.client.client import Client
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.postgres.connections import open_database
from tocsin.journal.postgres.lease import DatabaseLease
from tocsin.journal.postgres.schema import prepare
from tocsin.runtime.brain import succession
from tocsin.runtime.brain.rule_keeper import RuleKeeper
from tocsin.runtime.brain.succession import SharedJournal, Succession
from tocsin.store.line_protocol.encode import encode
from tocsin_testing import servers
from tocsin_testing.builders import gpu, reading, xid
from tocsin_testing.cell_brains import ThreadedBrain, until

pytestmark = pytest.mark.server


class Running(ThreadedBrain):
    """A brain over an address of its own."""

    def __init__(self, folder: Path, database: str, store: dict[str, object] | None = None) -> None:
        # The store is looked into as often as is evaluated, and seldom once nothing new came thirty times.
        shared: dict[str, object] = {
            "store": store,
            "rules": {"evaluate_seconds": 2.0},
            "actions": {"boot_grace_seconds": 0.0},
            "journal": {"url": database, "lease_seconds": 6.0, "path": folder / "none.db"},
        }
        super().__init__(folder, database, servers.free_port(), shared if store else {})

    def ready(self) -> bool:
        return httpx2.get(f"{self.url}/readyz").status_code == 200


@pytest.fixture
def database() -> Iterator[servers.Postgres]:
    with servers.postgres() as server:
        yield server


def test_one_acts_and_the_other_reads_and_takes_over(tmp_path: Path, database: servers.Postgres) -> None:
    first = Running(tmp_path / "one", database.url)
    until(first.ready)
    second = Running(tmp_path / "two", database.url)
    with Client(first.url) as one, Client(second.url) as two:
        one.pause("somebody works on the power")
        until(lambda: two.summary().paused)
        assert two.journal_page(limit=5).entries[0].kind == EntryKind.PAUSE
        assert two.verify_journal().problem == ""
        refused = httpx2.post(f"{second.url}/v1/resume", json={})
        assert refused.status_code == 503
        assert "this brain is on standby" in refused.json()["error"]["message"]
        assert "is the active one" in refused.json()["error"]["message"]
        line = "gpu,gpu_uuid=GPU-1,host=node-1 gpu_temperature_celsius=40"
        assert httpx2.post(f"{first.url}/api/v2/write", content=line).status_code == 204
        assert httpx2.post(f"{second.url}/api/v2/write", content=line).status_code == 503
        assert httpx2.get(f"{first.url}/v1/orders", params={"host": "node-1"}).status_code == 200
        assert httpx2.get(f"{second.url}/v1/orders", params={"host": "node-1"}).status_code == 503
        reason = httpx2.get(f"{second.url}/readyz").json()["reasons"][0]
        assert "standby" in reason
        first.stop()
        until(second.ready)
        assert two.summary().paused, "what a person forbade is still forbidden"
        two.resume()
        kinds = [entry.kind for entry in two.journal_page(limit=5).entries]
        assert kinds[0] == EntryKind.RESUME
        assert EntryKind.SERVICE_STARTED in kinds
    second.stop()
    assert not list(tmp_path.rglob("none.db*")), "nothing of the journal is on this host"


class BareTurn:
    """A turn that sees no fleet."""

    def __init__(self, place: SharedJournal) -> None:
        self.place = place

    def evaluations(self) -> int:
        return 0

    def follow(self) -> None:
        self.place.journal.follow()

    def stop(self) -> None:
        self.place.journal.close()

    def handover(self) -> None:
        """It has seen nothing."""


def test_who_takes_over_does_not_wait_for_entries_of_the_one_before(
    database: servers.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "NOTIFIED_SECONDS", 3600.0)
    settings, clock = Settings.model_validate({"journal": {"url": database.url}}), SystemClock()
    cell = open_database(settings.journal)
    prepare(cell)
    before = DatabaseLease(cell, "the one before", 60.0, clock)
    before.tick()
    turns, stop = list[BareTurn](), threading.Event()

    def begin(place: SharedJournal) -> BareTurn:
        turns.append(BareTurn(place))
        return turns[-1]

    brain = threading.Thread(target=Succession(settings, clock, stop, begin).run, daemon=True)
    brain.start()
    with closing(cell.line()) as line:
        listening = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'LISTEN%'"
        until(lambda: line.ask(listening)[0][0] == 1)
    before.release()
    until(lambda: turns[-1].place.journal.leads)
    stop.set()
    brain.join()
    cell.close()


def push(url: str, number: int, code: int = 0, ago_ms: int = SECOND, **values: float) -> None:
    """What an agent tells of GPU `number` a second ago, with an XID of `ago_ms` ago where `code` is one."""
    now_ms, which = SystemClock().now_ms(), gpu(number, host=f"node-{number}")
    at_ms, events = now_ms - SECOND, [xid(code, which, now_ms - ago_ms)] if code else []
    text = encode(Batch([reading(which, at_ms, temperature_celsius=40.0, **values)], events))
    httpx2.post(f"{url}/api/v2/write", params={"precision": "ms"}, content=text).raise_for_status()


def opened(client: Client) -> list[str]:
    """The rules and GPUs whose findings are on record as opened, oldest first."""
    entries = client.journal_page(limit=200).entries
    found = [entry.payload["finding"] for entry in reversed(entries) if entry.kind == EntryKind.FINDING_OPENED]
    return [f"{one['rule']} {one['subject']['name']}" for one in found if isinstance(one, dict)]


def test_who_takes_over_goes_on_from_what_it_has_seen(
    tmp_path: Path, database: servers.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.victoria_metrics(tmp_path) as stored:
        store: dict[str, object] = {"kind": "victoriametrics", "url": stored, "path": tmp_path / "beside.db"}
        first = Running(tmp_path / "one", database.url, store)
        until(first.ready)
        second = Running(tmp_path / "two", database.url, store)
        faulty = ("GPU-00000002", "GPU-00000003")
        with Client(first.url) as one, Client(second.url) as two:
            push(first.url, 1)
            push(first.url, 2, code=79)
            push(first.url, 3, code=79, ago_ms=15 * MINUTE)
            until(lambda: {f"xid_bus {name}" for name in faulty} <= {*opened(one)})
            until(lambda: two.summary().gpus == 3)
            read: list[str] = []
            monkeypatch.setattr(RuleKeeper, "warm", lambda *_: read.append("the store's past"))
            first.stop()
            until(second.ready)
            assert read == [], "it has the past already"
            assert two.summary().gpus == 3

            def told() -> bool:
                push(stored, 1, row_remap_failure=1.0)
                return "row_remap_failed GPU-00000001" in opened(two)

            until(told, pause=1.0)
            assert [opened(two).count(f"xid_bus {name}") for name in faulty] == [1, 1], "what is on record goes on"
            assert {f"{one.rule} {one.subject.name}" for one in two.findings()} >= {
                f"xid_bus {name}" for name in faulty
            }
        second.stop()
