"""Every set of bars of a benchmark of scores is missed by what is stuck, by what is random and by what is always on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Category
from tocsin.forecaster.evaluation.figures import standard, with_bars
from tocsin.forecaster.evaluation.ticket_clock import LoggedIncident
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.offline.live_score import Said, Statement, ticket_clock
from tocsin_benchmarks.backblaze.sections import BARS as BACKBLAZE
from tocsin_benchmarks.gwdg.live import ticket_bars
from tocsin_benchmarks.infinitehbd.protocol import BARS as INFINITEHBD
from tocsin_benchmarks.titan.protocol import DEVICE_BARS, TIME_BARS

HORIZON = 48 * HOUR
DEVICES, DAYS = 300, 60


def fleet() -> Examples:
    """A row a day; one device in five fails."""
    device = np.repeat(np.arange(DEVICES, dtype=np.int32), DAYS)
    at = np.tile(np.arange(DAYS) * DAY, DEVICES)
    # As many fail on each day: a score that only tells the time tells nothing.
    fails = np.where(np.arange(DEVICES) % 5 == 0, (np.arange(DEVICES) // 5 % DAYS) * DAY + HOUR, NEVER)
    alive = at < fails[device]
    device, at = device[alive], at[alive]
    return Examples(
        devices=tuple(f"D{n}" for n in range(DEVICES)), device=device, groups=("all",),
        group=np.zeros(device.size, np.int32), at_ms=at, names=("x",),
        features=np.zeros((device.size, 1), np.float32), seen_ms=at, history_ms=np.full(device.size, 30 * DAY),
        event_ms=fails[device], until_ms=np.where(fails[device] < NEVER, fails[device], DAYS * DAY),
        event_class=np.where(fails[device] < NEVER, "bus", ""), weight=np.ones(device.size),
    )  # fmt: skip


def scores(kind: str, rows: Examples) -> Floats:
    """Of a score that sticks from a day on, that is drawn by chance, and that is always at its highest."""
    if kind == "stuck":
        return np.where(rows.at_ms >= 20 * DAY, 0.9, 0.1)
    return np.random.default_rng(7).random(len(rows)) if kind == "random" else np.ones(len(rows))


@pytest.mark.parametrize("kind", ["stuck", "random", "always on"])
@pytest.mark.parametrize("bars", [BACKBLAZE, TIME_BARS, DEVICE_BARS, *INFINITEHBD.values()])
def test_each_bar_of_a_score_is_missed(kind: str, bars: Mapping[str, float]) -> None:
    rows = fleet()
    found = with_bars(standard({"null": scores(kind, rows)}, rows, HORIZON, draws=0)["null"], bars)
    assert {name for name, one in found.items() if one.holds is False} == set(bars)


STEP = 10 * MINUTE
OBSERVED = {node: np.arange(0, 40 * DAY, STEP, dtype=np.int64) for node in "abc"}
LOG = [LoggedIncident("a", 12 * DAY), LoggedIncident("b", 30 * DAY)]


@pytest.mark.parametrize("kind", ["stuck", "random", "always on"])
def test_the_bars_of_what_was_said_are_missed(kind: str) -> None:
    rng = np.random.default_rng(11)
    at = {
        "stuck": [(node, 2 * DAY) for node in "abc"],
        "random": [(str(rng.choice(list("abc"))), int(rng.integers(40 * 144)) * STEP) for _ in range(2)],
        "always on": [(node, hour * HOUR) for node in "abc" for hour in range(40 * 24)],
    }[kind]
    held = {
        node: OBSERVED[node][OBSERVED[node] >= 2 * DAY] if kind == "stuck" else OBSERVED[node][:1] for node in "abc"
    }
    told = tuple(Statement(when, (node,), "r", "page", Category.HARDWARE, "") for node, when in at)
    figures = ticket_bars(ticket_clock(Said(told, held), LOG, OBSERVED, draws=50))
    assert figures["all_at_once"].holds is False
    assert sum(one.holds is False for one in figures.values()) >= 2
