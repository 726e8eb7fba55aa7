"""The ticket clock by hand-made alerts, and the null alerts beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import DAY, HOUR, MINUTE, from_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.ticket_clock import (
    MERGE_MS,
    Alert,
    LoggedIncident,
    TicketScore,
    by_node,
    episode_starts,
    figures,
    figures_above,
    node_days,
    nulls,
    parse_day,
    read_incidents,
    scorable,
    score,
    skilful,
)

DAY0 = from_iso("2025-03-01")
STEP = 10 * MINUTE


def observed(days: int = 30, node: str = "a") -> dict[str, np.ndarray]:
    return {node: np.arange(DAY0, DAY0 + days * DAY, STEP, dtype=np.int64)}


def at(*hours: float) -> np.ndarray:
    return np.array([DAY0 + round(h * HOUR) for h in hours], np.int64)


def incident(day: int, node: str = "a") -> LoggedIncident:
    return LoggedIncident(node, DAY0 + day * DAY)


def result(times: np.ndarray, *days: int) -> TicketScore:
    return score({"a": times}, [incident(day) for day in days], observed())


def test_times_closer_than_a_day_are_one_episode() -> None:
    assert episode_starts(at(30, 0, 23.9, 47.8, 71.8, 71.8)).tolist() == at(0, 71.8).tolist()
    assert episode_starts(at(0, 24)).tolist() == at(0, 24).tolist()
    assert episode_starts(at()).tolist() == []


@given(st.lists(st.integers(0, 40 * 144), max_size=60))
def test_starts_are_alert_times_at_least_a_day_apart_and_cover_all(places: list[int]) -> None:
    times = DAY0 + STEP * np.array(places, np.int64)
    starts = episode_starts(times)
    assert set(starts.tolist()) <= set(times.tolist())
    assert (np.diff(starts) >= MERGE_MS).all()
    assert starts.size == 0 if times.size == 0 else starts[0] == times.min()


@pytest.mark.parametrize(
    ("hours", "lead"),
    [(240 - 168, 168), (240 - 168 - 1, None), (240 + 23, -23), (240 + 24, None), (240 - 36.5, 36.5)],
)
def test_a_start_counts_from_seven_days_before_to_a_day_after(hours: float, lead: float | None) -> None:
    found = result(at(hours), 10)
    assert found.found[0].lead_ms == (None if lead is None else lead * HOUR)
    assert (found.starts, found.followed) == (1, int(lead is not None))
    assert found.precision == (1.0 if lead is not None else 0.0)


def test_the_lead_is_that_of_the_earliest_start_and_the_fresh_one_serves_one_incident() -> None:
    found = result(at(8 * 24 + 12, 10 * 24 + 6), 10, 12)
    first, second = found.found
    assert (first.lead_ms, second.lead_ms) == (36 * HOUR, 84 * HOUR)
    assert (first.fresh_lead_ms, second.fresh_lead_ms) == (36 * HOUR, 42 * HOUR)
    assert (found.count(), found.count(48 * HOUR), found.count_fresh(48 * HOUR)) == (2, 1, 0)


def test_a_long_alert_is_one_start_however_often_it_is_repeated() -> None:
    often = result(np.arange(DAY0, DAY0 + 30 * DAY, STEP, dtype=np.int64), 10, 20)
    assert (often.starts, often.followed, often.count()) == (1, 0, 0)


def test_an_incident_without_telemetry_before_it_is_not_scored() -> None:
    times = observed(5)
    assert [i.day_ms for i in scorable([incident(3), incident(20), incident(2, "b")], times)] == [DAY0 + 3 * DAY]
    thin = {"a": times["a"][::3]}
    assert scorable([incident(3)], thin) == []
    exact = {"a": np.concatenate((times["a"][:100], times["a"][3 * 144 :]))}
    assert scorable([incident(2)], exact) == [incident(2)]
    assert scorable([incident(2)], {"a": exact["a"][1:]}) == []


def test_node_days_leave_gaps_out() -> None:
    times = observed(30)["a"]
    gap = np.concatenate((times[: 144 * 5], times[144 * 25 :]))
    assert node_days({"a": gap, "b": gap[:144]}) == pytest.approx(11)
    assert result(at(0, 100), 10).per_node_day == pytest.approx(2 / 30)


def test_other_nodes_alerts_find_nothing() -> None:
    alerts = by_node([Alert(DAY0 + 9 * DAY, "b", "x"), Alert(DAY0 + 9 * DAY, "b", "y")])
    found = score(alerts, [incident(10)], observed())
    assert (found.count(), found.starts, found.followed) == (0, 1, 0)


def test_without_alerts_there_is_no_precision() -> None:
    empty = score({}, [incident(10)], observed())
    assert (empty.precision, empty.starts, empty.count()) == (None, 0, 0)
    assert figures(empty)["precision"] == 0.0


def fleet(nodes: int) -> tuple[dict[str, np.ndarray], list[LoggedIncident]]:
    seen: dict[str, np.ndarray] = {}
    log = []
    for i in range(nodes):
        seen |= observed(60, f"n{i}")
        log.append(incident(15 + 3 * i, f"n{i}"))
    return seen, log


def test_alerts_that_know_have_skill_and_a_coin_has_none() -> None:
    seen, log = fleet(12)
    good = {one.node: np.array([one.day_ms - 30 * HOUR], np.int64) for one in log}
    against = nulls(good, log, seen, draws=200)
    assert against.shifts.draws == 200
    assert against.shifts.spreads["found"].p95 < 12
    assert skilful(score(good, log, seen), against.shifts)
    rng = np.random.default_rng(3)
    blind = {node: np.sort(rng.choice(times, 1)) for node, times in seen.items()}
    assert not skilful(score(blind, log, seen), nulls(blind, log, seen, draws=200).shifts)


def test_shifts_keep_number_and_spacing() -> None:
    seen, log = fleet(1)
    times = {"n0": np.array([DAY0, DAY0 + 5 * DAY], np.int64)}
    against = nulls(times, log, seen, draws=50)
    real = score(times, log, seen)
    assert against.shifts.spreads["per_node_day"].mean == pytest.approx(real.per_node_day)
    assert against.coin.spreads["per_node_day"].mean <= real.per_node_day + 1e-9


def test_an_alert_that_is_always_on_is_one_start_in_each_window() -> None:
    seen, log = fleet(3)
    always = nulls({}, log, seen, draws=1).always_on.spreads
    assert always["per_node_day"].mean == pytest.approx(3 / 180)
    assert always["found"].mean == 0


def test_null_alerts_are_seeded() -> None:
    seen, log = fleet(4)
    times = {one.node: np.array([one.day_ms - HOUR], np.int64) for one in log}
    assert nulls(times, log, seen, seed=1, draws=50) == nulls(times, log, seen, seed=1, draws=50)
    assert nulls(times, log, seen, seed=1, draws=50) != nulls(times, log, seen, seed=2, draws=50)


def test_a_figure_that_the_shifts_reach_is_not_above_them() -> None:
    seen, log = fleet(1)
    times = {"n0": np.array([log[0].day_ms - HOUR], np.int64)}
    everywhere = {"n0": seen["n0"][(seen["n0"] >= DAY0 + 9 * DAY) & (seen["n0"] < DAY0 + 15 * DAY)]}
    against = nulls(times, log, everywhere, draws=50)
    assert "found" not in figures_above(score(times, log, everywhere), against.shifts)


@pytest.mark.parametrize("text", ["21 Mar 2025", "21 March 2025", "2025-03-21", " 2025-03-21T17:30:00Z "])
def test_days_as_operators_write_them(text: str) -> None:
    assert parse_day(text) == from_iso("2025-03-21")


@pytest.mark.parametrize("text", ["", "31 Feb 2025", "21 Mrz 2025", "soon"])
def test_what_is_no_day(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_day(text)


def test_a_log_keeps_each_incident_once_and_names_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("node,incidentDate,category\nb,21 Mar 2025,x\na,soon,y\nb,2025-03-21,z\na,01 Feb 2025,bus\n")
    log = read_incidents(path)
    assert [(i.node, i.day_ms) for i in log.incidents] == [
        ("a", from_iso("2025-02-01")),
        ("b", from_iso("2025-03-21")),
    ]
    (problem,) = log.problems
    assert (problem.field, problem.value) == (f"{path}:3 incidentDate", "soon")


def test_a_log_without_its_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("host,day\na,2025-03-21\n")
    with pytest.raises(InputError, match="column node, incidentDate is missing"):
        read_incidents(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_incidents(tmp_path / "absent.csv")
