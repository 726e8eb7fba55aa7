"""Every set of bars of a benchmark of scores is missed by what is stuck, by what is random and by what is always on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.finding import Category
from tocsin.forecaster.anomaly.structural import SILENT, NodeRecord
from tocsin.forecaster.evaluation.figures import standard, with_bars
from tocsin.forecaster.evaluation.result import Request
from tocsin.forecaster.evaluation.ticket_clock import Instants, LoggedIncident
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.offline.live_score import Said, Statement, ticket_clock
from tocsin_benchmarks.backblaze.sections import BARS as BACKBLAZE
from tocsin_benchmarks.gwdg.live import ticket_bars
from tocsin_benchmarks.gwdg.tables import ticket_figures
from tocsin_benchmarks.gwdg.ticket import Node, judged
from tocsin_benchmarks.infinitehbd.protocol import BARS as INFINITEHBD
from tocsin_benchmarks.simulator.filling import figures_of, score_warnings
from tocsin_benchmarks.smd.data import ASD, SMD, STEP_MS, Machine
from tocsin_benchmarks.smd.detect import Judged
from tocsin_benchmarks.smd.events import average_precision, outcome
from tocsin_benchmarks.smd.protocol import BARS as SERVERS
from tocsin_benchmarks.smd.protocol import figures_of as server_figures
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
        "seldom": {node: rng.choice(times, 1) for node, times in observed.items()},
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


BESIDE = {"reached_by_always_on", "reached_by_coin_of_equal_budget", "reached_by_shifted_starts",
          "reached_by_shifted_time_in_alarm"}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("stuck", BESIDE),
        ("seldom", BESIDE),
        ("always on", BESIDE),
        # Shifted, so many starts are more than the budget allows; coins fall together now and then.
        ("random", {"reached_by_always_on", "reached_by_coin_of_equal_budget"}),
    ],
)
def test_a_recording_that_flatters_what_knows_nothing_misses_the_bars_beside(kind: str, names: set[str]) -> None:
    """Five days of one node with an incident at the end: whatever begins early is followed, and has lead."""
    observed = {"a": OBSERVED["a"][: 5 * 144]}
    assert missed(kind, [LoggedIncident("a", 5 * DAY)], observed) - OWN == names


SIGNS = {*FOUND, "start_precision", "starts_per_node_day"}
"""Bars of the structural signs by the ticket clock."""


def signs_missed(kind: str) -> set[str]:
    """Of a sign that holds when `kind` has it, on nodes of which nothing else was recorded."""
    held = said(kind, OBSERVED).alarm
    nodes = []
    for name, at_ms in OBSERVED.items():
        rows = at_ms.size
        record = NodeRecord(
            name, at_ms, ("G",), (), np.zeros((rows, 1, 0)), np.zeros((rows, 1)), np.ones(rows, np.bool_)
        )
        nodes.append(Node(record, {SILENT: np.isin(at_ms, held[name])}))
    scored = judged(nodes, {node.record.node: (SILENT,) for node in nodes}, LOG)
    return {name for name, one in ticket_figures(scored, 20, seed=1).items() if one.holds is False}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("stuck", SIGNS - {"starts_per_node_day"}),
        ("silent", SIGNS - {"starts_per_node_day"}),
        # So many starts find everything: their price is what gives them away.
        ("random", {"start_precision", "starts_per_node_day"}),
        ("always on", SIGNS - {"starts_per_node_day"}),
    ],
)
def test_the_bars_of_the_structural_signs_are_missed(kind: str, names: set[str]) -> None:
    assert signs_missed(kind) == names


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


ROWS = 4_000
STRETCHES = ((300, 330), (900, 912), (1_500, 1_700), (3_000, 3_020))
"""Rows of a server's faults."""


def servers_missed(kind: str, family: str) -> set[str]:
    label = np.zeros(ROWS, np.bool_)
    for first, end in STRETCHES:
        label[first:end] = True
    rows, score = np.arange(ROWS), np.random.default_rng(4).random(ROWS)
    alarm = {
        "right": label,
        "stuck": rows >= 2_000,
        "stuck from the first": rows >= 10,
        "random": score > 0.995,
        "always on": rows >= 0,
        "silent": rows < 0,
    }[kind]
    ranked = score if kind == "random" else alarm.astype(np.float64)
    machine = Machine("m", family, np.zeros((1, 1)), np.zeros((ROWS, 1)), label)
    precision = average_precision(ranked, label)
    one = Judged(machine, alarm, outcome(alarm, label, STEP_MS[family]), 0.0, precision, precision)
    figures = server_figures([one], SERVERS[family], Request(Path(), draws=3))
    return {name for name, figure in figures.items() if figure.holds is False}


RECALL, FALSE, RANKED, QUIET = (
    "event_recall", "false_alarms_per_day", "average_precision", "quiet_time_in_alarm"
)  # fmt: skip


@pytest.mark.parametrize("family", [SMD, ASD])
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("right", set()),
        # Most of the faults are over when it comes on.
        ("stuck", {RECALL, RANKED, QUIET}),
        ("silent", {RECALL, RANKED}),
        # Its time in alarm is allowed, its episodes are not.
        ("random", {RECALL, RANKED, FALSE}),
        # It is inside whatever comes: recall alone would pass.
        ("stuck from the first", {RANKED, QUIET}),
        ("always on", {RANKED, QUIET}),
    ],
)
def test_the_bars_of_servers_are_missed(kind: str, family: str, names: set[str]) -> None:
    assert servers_missed(kind, family) == names
