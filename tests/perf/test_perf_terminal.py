"""Taking a look at 10,000 GPUs into the view's table, beside filling textual's own table with the same lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pytest_benchmark.fixture import BenchmarkFixture
from textual.app import App, ComposeResult
from textual.widgets import DataTable

from tocsin.domain.clock import ManualClock
from tocsin.terminal.look import Look
from tocsin.terminal.screen.app import TopApp
from tocsin_testing.screens import FakeFeed, settle

HOSTS = 1250
LEAST_RATIO = 10.0
"""At least so much cheaper than a table that makes every line; own choice, a tenth of what was seen."""


class Filled(App[None]):
    """The baseline."""

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row")

    def on_mount(self) -> None:
        for number in range(9):
            self.query_one(DataTable).add_column(str(number), width=8)


def filled_seconds(look: Look) -> float:
    async def run() -> float:
        app = Filled()
        async with app.run_test(size=(160, 50)):
            begun = time.perf_counter()
            app.query_one(DataTable).add_rows([[gpu.host, *["50 %"] * 8] for gpu in look.gpus])
            return time.perf_counter() - begun

    return asyncio.run(run())


def test_a_look_at_ten_thousand_gpus(benchmark: BenchmarkFixture, say: Callable[[str], None]) -> None:
    feed = FakeFeed(HOSTS)
    baseline = filled_seconds(feed.shown)
    keys: list[float] = []

    async def run() -> None:
        app = TopApp(feed, ManualClock(), 3600.0)
        async with app.run_test(size=(160, 50)) as pilot:
            await settle(app, pilot)
            lines = {name: grid.table.rows(feed.shown) for name, grid in app._grids.items()}
            benchmark.pedantic(app._took, (feed.shown, lines, 0.0), rounds=10)
            for key in ("action_move", "action_page"):
                begun = time.perf_counter()
                getattr(app.grid, key)(1)
                for y in range(app.grid.size.height):
                    app.grid.render_line(y)
                keys.append(time.perf_counter() - begun)

    asyncio.run(run())
    if benchmark.disabled:
        return
    ratio = baseline / benchmark.stats.stats.min
    say(
        f"tocsin top, 10,000 GPUs: a look taken in {benchmark.stats.stats.min * 1000:.1f} ms, a screen drawn in "
        f"{max(keys) * 1000:.1f} ms; filling textual's DataTable takes {ratio:.0f} times as long as a look"
    )
    assert ratio > LEAST_RATIO
