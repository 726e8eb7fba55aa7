"""GPUs that move to another cell of the fleet, and odd names, on a real PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tocsin.domain.reading import Gpu
from tocsin_testing import servers
from tocsin_testing.cells_world import CellWorld, cell_gpus

pytestmark = pytest.mark.server
NUMBERS = itertools.count()
GPU, HOST = "GPU-moved", "node-1"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Postgres]:
    with servers.postgres() as made:
        yield made


def moved(cell: CellWorld) -> dict[str, str]:
    """What a cell is told of the GPUs that it does not read."""
    return dict(cell.loop.moved({uuid: cell.gpus[uuid].host for uuid in cell.stale}))


@pytest.fixture
def cells(server: servers.Postgres) -> Iterator[tuple[CellWorld, CellWorld]]:
    """Two cells that both know a GPU; neither reads it yet."""
    fleet = f"m{next(NUMBERS)}"
    made = tuple(CellWorld(server.url, fleet, f"{fleet}_{name}", cell_gpus(f"{fleet}-{name}")) for name in ("a", "b"))
    for one in made:
        one.gpus[GPU] = Gpu(GPU, HOST)
        one.stale.add(GPU)
        one.step()
    yield made[0], made[1]
    for one in made:
        one.end()


def test_a_gpu_that_is_silent_here_and_read_there_has_moved(cells: tuple[CellWorld, CellWorld]) -> None:
    old, new = cells
    old.step()
    assert moved(old) == {}, "nobody reads it"
    new.stale.clear()
    new.step()
    old.step()
    assert moved(old) == {GPU: new.cell}
    assert moved(new) == {}
    new.stale.add(GPU)
    new.step()
    old.step()
    assert moved(old) == {}, "nobody reads it any more"


def test_another_machine_of_its_name_takes_no_gpu(cells: tuple[CellWorld, CellWorld]) -> None:
    old, new = cells
    new.stale.clear()
    new.gpus[GPU] = Gpu(GPU, "node-2")
    new.gpus["GPU-other"] = Gpu("GPU-other", HOST)
    new.step()
    old.step()
    assert moved(old) == {}
    new.gpus[GPU] = Gpu(GPU, HOST)
    new.step()
    old.step()
    assert moved(old) == {GPU: new.cell}


def test_a_cell_that_is_silent_itself_takes_no_gpu(cells: tuple[CellWorld, CellWorld]) -> None:
    old, new = cells
    new.stale.clear()
    new.step()
    new.age(121)
    old.step()
    assert moved(old) == {}
    new.restart()
    new.stale.add(GPU)
    new.step()
    old.step()
    assert moved(old) == {}, "a new brain tells all anew"
    new.stale.clear()
    new.step()
    old.step()
    assert moved(old) == {GPU: new.cell}
    new.lease.release()
    assert old.fleet.forget(new.cell)
    old.step()
    assert moved(old) == {}


@pytest.mark.parametrize("odd", ["a\0b", "a\\u0000b", "a\\\0b", "\U0001f525"])
@pytest.mark.parametrize("what", ["pool", "host", "uuid", "rack"])
def test_no_name_keeps_a_cell_from_telling_of_itself(
    cells: tuple[CellWorld, CellWorld], what: str, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = cells
    gpu = replace(Gpu("GPU-odd", HOST), **{what: odd})
    new.gpus[gpu.uuid] = gpu
    new.break_gpu(gpu.uuid)
    new.stale.clear()
    for _ in range(3):
        new.step()
    assert "cannot be asked" not in capsys.readouterr().out
    old.step()
    assert moved(old) == {GPU: new.cell}


def test_the_gpus_of_a_large_cell_are_told_some_at_a_time(
    cells: tuple[CellWorld, CellWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they take longer than a question may: the cell would never be told what the others have."""
    old, new = cells
    monkeypatch.setattr("tocsin.journal.postgres.fleet.MOST_PLACES", 3)
    new.stale.clear()
    new.restart()
    for count in (3, 6, 9, 9):
        new.step()
        with closing(new.fleet.database.line()) as line:
            rows = line.ask("SELECT gpu FROM place WHERE cell = %s", (new.cell,))
        assert len(rows) == count
    old.step()
    assert moved(old) == {GPU: new.cell}
    new.stale.update(new.gpus)
    for count in (6, 3, 0, 0):
        new.step()
        with closing(new.fleet.database.line()) as line:
            assert line.ask("SELECT count(*) FROM place WHERE cell = %s", (new.cell,)) == [(count,)]


def test_very_many_silent_gpus_are_looked_up_in_turn(
    cells: tuple[CellWorld, CellWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = cells
    new.gpus |= {f"GPU-{n}": Gpu(f"GPU-{n}", HOST) for n in range(4)}
    new.stale.clear()
    new.step()
    silent = {f"GPU-{n}": HOST for n in range(5)}
    found = [sorted(old.loop.moved(silent))]
    monkeypatch.setattr("tocsin.journal.postgres.fleet.MOST_PLACES", 2)
    found += [sorted(old.loop.moved(silent)) for _ in range(4)]
    every = [f"GPU-{n}" for n in range(4)]
    assert found == [every, every[:2], every[2:], [], every[:2]]
