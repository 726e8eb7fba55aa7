"""A journal with an archive, checked by its own brain, slice by slice, over HTTP and by the command."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.progress import heard_by
from tocsin.journal.archive import archive_next
from tocsin.journal.archive_files import archive_of
from tocsin.queries import service as service_module
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0

ENTRIES, FILE, SLICE = 300, 60, 50
ADMIN, VIEWER = "an-admin-of-the-site-0123456789", "a-viewer-of-the-site-0123456789"


class Bars:
    """Collects how far each bar came."""

    def __init__(self) -> None:
        self.totals: list[float | None] = []
        self.steps = 0.0

    def begin(self, what: str, total: float | None) -> Bars:
        self.totals.append(total)
        return self

    def advance(self, steps: float = 1.0) -> None:
        self.steps += steps

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, BrainService, Path]]:
    """A brain's URL, its service and the file of its journal, most of which is archived."""
    folder = tmp_path_factory.mktemp("slices")
    tokens = [{"name": role, "role": role, "secret": secret} for role, secret in (("admin", ADMIN), ("viewer", VIEWER))]
    settings = Settings.model_validate(
        {
            "store": {"kind": "memory"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False, "models": folder / "models"},
            "api": {"tokens": tokens},
        }
    )
    running = open_brain(settings, ManualClock(T0))
    journal = running.brain.journal
    journal.append_many([(EntryKind.RESUME, {"number": number}, False) for number in range(ENTRIES)])
    for _ in range(3):
        assert archive_next(journal, FILE, FILE) is not None
    service = BrainService(running.brain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "verify_slice", partial(journal.verify_slice, entries=SLICE))
        server = ApiServer(create_app(service, settings.api, running.brain.clock), settings=settings.api)
        server.start()
        yield server.url, service, journal.path
        server.stop()
    running.stop()


def test_slices_make_the_whole_and_a_bar_shows_how_far_it_is(served: tuple[str, BrainService, Path]) -> None:
    bars = Bars()
    with Client(served[0], ADMIN) as client, heard_by(bars):
        found = client.verify_journal()
    assert (found.ok, found.done, found.problem) == (True, True, "")
    assert found.events == found.head == bars.steps > ENTRIES
    assert bars.totals == [found.head]


def test_it_is_for_admins(served: tuple[str, BrainService, Path]) -> None:
    with Client(served[0], VIEWER) as client, pytest.raises(Denied, match="this needs admin"):
        client.verify_journal()


def test_who_does_not_ask_for_slices_is_told_that_there_are_more(served: tuple[str, BrainService, Path]) -> None:
    with Client(served[0], ADMIN) as client, pytest.raises(Conflict, match="check it in slices, with after=0"):
        client._ask("GET", "/v1/journal/verify")


def test_one_slice_is_checked_at_a_time(
    served: tuple[str, BrainService, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "VERIFY_WAIT_SECONDS", 0.0)
    with served[1]._verifying, Client(served[0], ADMIN) as client:
        with pytest.raises(Unavailable, match="another check of the journal is under way"):
            client.verify_journal()
        assert client.summary().gpus == 0, "nothing else waits for it"
    with Client(served[0], ADMIN) as client:
        assert client.verify_journal().ok


def test_the_command_asks_the_brain_and_finds_what_was_edited(served: tuple[str, BrainService, Path]) -> None:
    url, _, path = served
    command = ["journal", "verify", "--brain", "--api-url", url, "--token", ADMIN, "--json"]
    answered = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert answered.exit_code == 0, answered.output
    document = json.loads(answered.stdout)
    assert document == {"brain": url, "verified": True, "events": document["events"], "problem": ""}
    with closing(sqlite3.connect(archive_of(path)[1].path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_no_update")
        db.execute("UPDATE entry SET actor = 'eve' WHERE seq = 100")
        answered = CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False)
        assert (answered.return_value, json.loads(answered.stdout)["problem"]) == (1, "entry 100 was edited")
        db.execute("UPDATE entry SET actor = 'tocsin' WHERE seq = 100")
    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0
    wrong = CliRunner().invoke(cli, ["journal", "verify", str(path), "--brain", "--api-url", url])
    assert isinstance(wrong.exception, InputError)
