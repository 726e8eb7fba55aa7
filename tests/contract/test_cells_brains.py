"""Whole brains of two cells on one real PostgreSQL: one view, one pause, and each host where it belongs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tocsin.client.client import Client
from tocsin.client.models_cells import AnswerState
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError
from tocsin.journal.postgres.fleet import FleetDatabase
from tocsin.runtime.brain.assembly import run_brain
from tocsin_testing import servers
from tocsin_testing.cell_brains import Cell, until

pytestmark = pytest.mark.server


@pytest.fixture
def database() -> Iterator[servers.Postgres]:
    with servers.postgres() as server:
        yield server


def test_two_cells_are_one_fleet(tmp_path: Path, database: servers.Postgres) -> None:
    east = Cell(tmp_path / "east", database.url, "east", hosts=["east-*"])
    west = Cell(tmp_path / "west", database.url, "west", hosts=["west-*"])
    with Client(east.url) as one, Client(west.url) as two:
        until(lambda: one.ready().ready and two.ready().ready)
        # The list of cells is read every few seconds.
        until(lambda: len(one.cells()) == 2 and len(two.cells()) == 2)
        until(lambda: east.write("west-1") == 421)
        assert east.write("east-1") == 204
        assert west.write("west-1") == 204
        until(lambda: sum(len(gpus) for gpus in two.cells_gpus().answers.values()) == 2)
        found = one.cells_gpus()
        assert not found.partial
        assert {name: [gpu.host for gpu in gpus] for name, gpus in found.answers.items()} == {
            "east": ["east-1"],
            "west": ["west-1"],
        }
        assert sorted(two.pause_cells("somebody works on the power").answers) == ["east", "west"]
        assert one.summary().paused
        assert two.summary().paused
        west.stop()
        left = one.cells_summary()
        assert left.partial
        gone = next(answer for answer in left.cells if answer.cell == "west")
        assert gone.state is AnswerState.UNREACHABLE
        assert [known.active for known in one.cells() if known.name == "east"] == [True]
    east.stop()


def test_a_host_that_reports_to_another_cell_is_no_more_the_old_one_s(
    tmp_path: Path, database: servers.Postgres
) -> None:
    """It counts once, and what held of it in the old cell ends there."""
    quick: dict[str, object] = {"actions": {"fresh_seconds": 2.0, "boot_grace_seconds": 0}}
    east, west = (Cell(tmp_path / name, database.url, name, quick) for name in ("east", "west"))
    with Client(east.url) as one, Client(west.url) as two:
        until(lambda: one.ready().ready and two.ready().ready)
        assert west.write("node-1", "row_remap_failure=1") == 204
        assert west.write("node-2") == 204
        until(lambda: [found.subject.host for found in two.findings()] == ["node-1"])

        def is_one() -> bool:
            assert east.write("node-1") == 204
            assert west.write("node-2") == 204
            return [gpu.host for gpu in two.gpus()] == ["node-2"]

        until(is_one, pause=0.5)
        until(lambda: two.findings() == [])
        assert [gpu.host for gpu in one.gpus()] == ["node-1"]
        assert one.cells_summary().answers["west"].gpus == 1
    east.stop()
    west.stop()


def test_hosts_by_hashing_go_to_the_other_cell_once_theirs_is_gone(tmp_path: Path, database: servers.Postgres) -> None:
    east, west = (Cell(tmp_path / name, database.url, name, hash=True, gone_seconds=600) for name in ("east", "west"))
    hosts = [f"node-{n}" for n in range(20)]

    def taken(cell: Cell) -> set[str]:
        return {host for host in hosts if cell.write(host) == 204}

    with Client(east.url) as one, Client(west.url) as two:
        until(lambda: one.ready().ready and two.ready().ready)
        until(lambda: not taken(east) & taken(west), pause=2.0)
        before = taken(east), taken(west)
        assert all(before)
        assert before[0] | before[1] == set(hosts), "each is somewhere"
        west.stop()
        assert taken(east) == before[0], "an outage moves nothing"
        with closing(FleetDatabase(database.url, "gpus")) as fleet, closing(fleet.database.line()) as line:
            line.ask("UPDATE cell SET counted_at = clock_timestamp() - interval '601 seconds' WHERE name = 'west'")
        until(lambda: taken(east) == set(hosts), pause=2.0)
    east.stop()


def test_a_fleet_needs_one_database_and_an_address(tmp_path: Path) -> None:
    alone = Settings.model_validate(
        {"cell": {"fleet": "gpus", "url": "http://a.test"}, "api": {"listen": "127.0.0.1:0"}}
    )
    with pytest.raises(InputError, match="needs a journal in PostgreSQL"):
        run_brain(alone, SystemClock(), threading.Event(), lambda _line: None)
    nowhere = Settings.model_validate(
        {
            "cell": {"fleet": "gpus"},
            "journal": {"url": "postgresql://nobody@127.0.0.1:9/none", "path": tmp_path / "none.db"},
            "api": {"listen": "127.0.0.1:0"},
        }
    )
    with pytest.raises(InputError, match=r"cell\.url"):
        run_brain(nowhere, SystemClock(), threading.Event(), lambda _line: None)
