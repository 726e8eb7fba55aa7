"""Every set of bars of a benchmark of scores is missed by what is stuck, by what is random and by what is always on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Category
from tocsin.forecaster.evaluation.figures import standard, with_bars
from tocsin.forecaster.evaluation.ticket_clock import Instants, LoggedIncident
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.offline.live_score import Said, Statement, ticket_clock
from tocsin_benchmarks.backblaze.sections import BARS as BACKBLAZE
from tocsin_benchmarks.gwdg.live import ticket_bars
from tocsin_benchmarks.infinitehbd.protocol import BARS as INFINITEHBD
from tocsin_benchmarks.simulator.filling import figures_of, score_warnings
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
DAYS_SEEN = 40
OBSERVED = {node: np.arange(0, DAYS_SEEN * DAY, STEP, dtype=np.int64) for node in "abc"}
LOG = [LoggedIncident("a", 12 * DAY), LoggedIncident("b", 30 * DAY)]
FOUND = {"found_share", "found_24h_share", "found_48h_share"}
OWN = {*FOUND, "start_precision", "starts_per_node_day", "all_at_once"}
"""Bars of what was said; the others are of what stands beside it."""


def said(kind: str, observed: Mapping[str, Instants]) -> Said:
    """What a source of notifications that knows nothing would have said on each node, and when it held."""
    rng = np.random.default_rng(11)
    at: Mapping[str, Instants] = {
        "stuck": {node: times[times >= 2 * DAY][:1] for node, times in observed.items()},
        # Every other day on average: as many starts as the bar of starts a day does not allow.
        "random": {node: np.sort(rng.choice(times, times.size // 288 + 1)) for node, times in observed.items()},
        "always on": {node: times[::6] for node, times in observed.items()},
        "silent": {node: times[:0] for node, times in observed.items()},
    }[kind]
    held = {node: times[times >= 2 * DAY] if kind == "stuck" else at[node] for node, times in observed.items()}
    told = [
        Statement(when, (node,), "r", "page", Category.HARDWARE, "")
        for node, times in at.items()
        for when in times.tolist()
    ]
    return Said(tuple(told), held)


def missed(kind: str, log: Sequence[LoggedIncident], observed: Mapping[str, Instants]) -> set[str]:
    figures = ticket_bars(ticket_clock(said(kind, observed), log, observed, draws=50))
    assert {"all_at_once", *FOUND} < set(figures)
    return {name for name, one in figures.items() if one.holds is False}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        # One start a node is not too many, and silence makes none; neither finds what comes weeks later.
        ("stuck", OWN - {"starts_per_node_day"}),
        ("silent", OWN - {"starts_per_node_day"}),
        ("random", {"start_precision", "starts_per_node_day", "all_at_once"}),
        ("always on", OWN - {"starts_per_node_day"}),
    ],
)
def test_the_bars_of_what_was_said_are_missed(kind: str, names: set[str]) -> None:
    assert missed(kind, LOG, OBSERVED) == names


def test_each_bar_of_what_was_said_is_missed_by_something_that_knows_nothing() -> None:
    kinds = ("stuck", "random", "always on", "silent")
    assert set().union(*(missed(kind, LOG, OBSERVED) for kind in kinds)) == OWN


@pytest.mark.parametrize("kind", ["stuck", "always on"])
def test_a_recording_that_flatters_what_knows_nothing_misses_the_bars_beside(kind: str) -> None:
    """Five days a node with an incident at the end of each: whatever begins early is followed, and has lead."""
    observed = {node: times[: 5 * 144] for node, times in OBSERVED.items()}
    log = [LoggedIncident(node, 5 * DAY) for node in observed]
    assert missed(kind, log, observed) >= {"reached_by_always_on", "reached_by_shifted_starts"}


LEAKS = [(row, 600 + 40 * row) for row in range(0, 40, 2)]
"""Row and minute of each event: every other GPU of forty, within two days."""
MINUTES = 48 * 60


def warnings(kind: str) -> npt.NDArray[np.bool_]:
    """bool[GPU, minute] of warnings that know nothing, and of right ones."""
    made = np.zeros((40, MINUTES), np.bool_)
    if kind == "always on":
        made[:] = True
    elif kind == "stuck":
        made[:, 700:] = True
    elif kind == "random":
        made = np.random.default_rng(5).random(made.shape) < 1 / 120
    elif kind == "right":
        for row, minute in LEAKS:
            made[row, minute - 30 : minute] = True
    return made


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("right", set()),
        ("stuck", {"warned_10_min_before", "false_alarms_per_1000_gpu_hours"}),
        ("random", {"warned_10_min_before", "false_alarms_per_1000_gpu_hours"}),
        # It is there before whatever comes, and silence is never false.
        ("always on", {"false_alarms_per_1000_gpu_hours"}),
        ("silent", {"warned_10_min_before"}),
    ],
)
def test_the_bars_of_memory_and_fragmentation_are_missed(kind: str, names: set[str]) -> None:
    told = score_warnings(warnings(kind), LEAKS, 40 * MINUTES / 60)
    assert {name for name, one in figures_of(told, True).items() if one.holds is False} == names
