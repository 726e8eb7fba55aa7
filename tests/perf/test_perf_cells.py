"""What brains over cells of 10,000 GPUs cost, one alone and ten as one fleet, from its agents' pushes to one view.

Brains have their own stores and workers, at default settings, and share a real PostgreSQL, which holds their journals
and the one budget. CPU is of brains and workers together, over `MEASURED_SECONDS` after `SETTLED_SECONDS`: once all
GPUs were forecast for the first time, and over one more round of forecasts. The fleet that sends and the database are
processes of their own and counted apart. `make scale` runs it alone (45 minutes). Run without --benchmark-only two
cells are small, for correctness alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.client.models_cells import CellOut, WholeSummary
from tocsin.config.settings import Settings
from tocsin_testing import servers
from tocsin_testing.brain_child import start_brain
from tocsin_testing.cell_brains import until
from tocsin_testing.process_cost import Cost, cost
from tocsin_testing.recorded_fleet import Sending, Target, record, sending

pytestmark = pytest.mark.server

Say = Callable[[str], None]
KEY, PERSON = "a key for all nodes of the fleet", "a token of a person who looks"
GPUS, RECORDED = 10_000, 6
SETTLED_SECONDS, MEASURED_SECONDS = 330.0, 300.0
"""A first round of forecasts comes after `forecast.every_seconds`, 300."""
SMALL, SMALL_INTERVAL, SMALL_CELLS = 16, 0.5, 2
MOST_CORES, MOST_MB = 0.5, 1000.0
"""Of one brain over `GPUS` GPUs at `OFTEN` seconds."""
MOST_RATIO = 1.5
"""CPU for each GPU in several cells, by that in one at the same interval."""
OFTEN = 10.0
LATE = 4.0
"""Intervals that one may take where the machine has other work: a share of a core is not measured by how fast it is."""


def _settings(folder: Path, database: str, cell: str) -> Settings:
    port = servers.free_port()
    return Settings.model_validate(
        {
            "store": {"path": folder / f"{cell}.db"},
            "journal": {"url": database, "cell": cell, "path": folder / f"{cell}-none.db"},
            "cell": {"fleet": "gpus", "url": f"http://127.0.0.1:{port}"},
            "api": {
                "listen": f"127.0.0.1:{port}",
                "host_key": KEY,
                "tokens": [{"name": "person", "role": "viewer", "secret": PERSON}],
            },
            "forecast": {"models": folder / f"{cell}-models"},
        }
    )


@dataclass(frozen=True)
class Fleet:
    """Brains of several cells, with the addresses of their APIs."""

    brains: list[BaseProcess]
    targets: list[Target]

    def costs(self) -> list[Cost]:
        return [cost(one.pid) for one in self.brains if one.pid is not None]

    def ask(self, path: str) -> httpx2.Response:
        """What the first brain answers to a person."""
        url = f"http://{self.targets[0].address}{path}"
        answer = httpx2.get(url, headers={"Authorization": f"Bearer {PERSON}"}, timeout=60)
        return answer.raise_for_status()

    def budget(self) -> list[CellOut]:
        """What the cells of the one budget have told of themselves."""
        return [CellOut.model_validate(one) for one in self.ask("/v1/cells").json()]


@contextmanager
def fleet(folder: Path, database: str, cells: int) -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = Fleet([], [])
        for number in range(cells):
            name = f"c{number}"
            brain, url = start_brain(_settings(folder, database, name))
            stack.callback(brain.join, 60)
            stack.callback(brain.terminate)
            made.brains.append(brain)
            made.targets.append(Target(name, url.removeprefix("http://")))
        yield made


@dataclass(frozen=True)
class Measured:
    """Of all brains: cores, those of the sender, megabytes of the largest brain, seconds that an interval took, and how
    many pushes were put off."""

    cores: float
    sender_cores: float
    largest_mb: float
    interval: float
    put_off: int


def _measure(made: Fleet, sent: Sending, pushes: int, instants: tuple[int, int], interval: float) -> Measured:
    """Over so many intervals as the second of `instants`, after the first; of each there are `pushes`."""
    first, more = instants
    most_seconds = interval * LATE + 60
    sent.wait_for(pushes * first, most_seconds * first)
    before, sender, begun = made.costs(), sent.cpu_seconds.value, time.monotonic()
    sent.wait_for(pushes * (first + more), most_seconds * more)
    after, seconds = made.costs(), time.monotonic() - begun
    used = sum(one.cpu_seconds for one in after) - sum(one.cpu_seconds for one in before)
    largest = max(one.bytes for one in after) / 1e6
    sending_cores = (sent.cpu_seconds.value - sender) / seconds
    return Measured(used / seconds, sending_cores, largest, seconds / more, sent.put_off.value)


@pytest.fixture(scope="module")
def curve() -> dict[tuple[int, float], float]:
    """CPU milliseconds for each GPU and interval, of so many cells at that interval, as far as they were measured."""
    return {}


@pytest.mark.parametrize(("cells", "interval"), [(1, OFTEN), (1, 60.0), (4, 60.0), (10, 60.0)])
@pytest.mark.benchmark(group="cells of 10,000 GPUs")
def test_what_cells_cost(
    benchmark: BenchmarkFixture,
    say: Say,
    tmp_path: Path,
    curve: dict[tuple[int, float], float],
    cells: int,
    interval: float,
) -> None:
    if benchmark.disabled and cells < 10:
        pytest.skip("two small cells are enough where nothing is measured")
    gpus = SMALL if benchmark.disabled else GPUS
    cells, interval = (SMALL_CELLS, SMALL_INTERVAL) if benchmark.disabled else (cells, interval)
    instants = (1, 1) if benchmark.disabled else (ceil(SETTLED_SECONDS / interval), ceil(MEASURED_SECONDS / interval))
    recording = record(gpus, min(sum(instants), RECORDED), interval)
    with servers.postgres() as database, fleet(tmp_path, database.url, cells) as made:
        with sending(recording, made.targets, KEY, interval) as sent:
            found = _measure(made, sent, len(recording[0]) * cells, instants, interval)
            view = benchmark.pedantic(made.ask, args=("/v1/cells/fleet",), rounds=1)
            # The budget counts what each cell told of itself at its last evaluation.
            until(lambda: [one.gpus for one in made.budget()] == [gpus] * cells)
        whole = WholeSummary.model_validate_json(view.content)
    assert not whole.partial
    assert [one.gpus for one in whole.answers.values()] == [gpus] * cells
    if benchmark.disabled:
        return
    total = gpus * cells
    each = curve[cells, interval] = found.cores * found.interval / total * 1e3
    say(
        f"{total:,} GPUs in {cells} cells at {interval:g} s: {found.cores:.2f} cores,"
        f" {each:.2f} CPU ms for each GPU and interval,"
        f" {found.largest_mb:.0f} MB the largest brain with its worker; an interval took {found.interval:.0f} s,"
        f" {found.put_off} pushes were put off, and sending took {found.sender_cores:.2f} cores"
    )
    say(f"first view over {total:,} GPUs in {cells} cells: {benchmark.stats.stats.min:.2f} s")
    assert benchmark.stats.stats.min < 2
    if interval == OFTEN:
        assert found.cores < MOST_CORES
        assert found.largest_mb < MOST_MB
    assert each <= MOST_RATIO * curve.get((1, interval), each)
