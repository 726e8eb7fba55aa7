"""What the features of a table say of known histories."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.peers import residual
from tocsin.forecaster.features.plan import FAMILIES, SEQUENCE, FeaturePlan
from tocsin.forecaster.features.table import FeatureTable
from tocsin.store.port import Columns
from tocsin_testing.builders import gpu
from tocsin_testing.feature_data import METRICS, START, STEP, columns, event, fleet, part

PLAN = FeaturePlan()
FLEET = fleet()


def at(step: int) -> int:
    return START + step * STEP


def built(last: int = 72, **changed: object) -> FeatureBuilder:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(columns(FLEET, 0, last))
    return builder


def value(table: FeatureTable, name: str, row: int = 0) -> float:
    return float(table.column(name)[row])


def set_to(whole: Columns, metric: str, values: object, gpu_number: int = 0) -> Columns:
    held = whole.values.copy()
    held[whole.gpu == gpu_number, METRICS.index(metric)] = values
    return dataclasses.replace(whole, values=held)


def test_a_table_has_a_row_per_gpu_and_says_how_far_it_saw() -> None:
    table = built(72).table(at(72))
    assert table.gpus == tuple(one.uuid for one in FLEET)
    assert table.values.shape == (8, len(table.names))
    assert table.values.dtype == np.float32
    assert (table.history_ms == 71 * STEP).all()
    assert (table.seen_ms == at(72)).all()


def test_growth_of_a_counter_over_each_window() -> None:
    table = built(432).table(at(432))
    minutes = {"1h": 60, "6h": 360, "24h": 1440, "3d": 4320}
    for label, span in minutes.items():
        # Of GPU 0 a replay comes every 40 minutes.
        growth = np.expm1(value(table, f"pcie_replay.{label}"))
        assert growth == pytest.approx(span / 40, abs=1.0)
    assert value(table, "pcie_replay.level") == pytest.approx(np.log1p(4320 // 40))
    assert np.expm1(value(table, "pcie_replay.rate")) == pytest.approx(1.5, abs=0.05)


def test_the_share_of_the_step_in_which_a_window_begins_counts() -> None:
    plan = FeaturePlan(windows_ms=(HOUR, 2 * DAY))
    builder = FeatureBuilder(plan, FLEET)
    replays = np.zeros(len(columns(FLEET, 0, 400).at_ms))
    whole = columns(FLEET, 0, 400)
    steps = (whole.at_ms[whole.gpu == 0] - START) // STEP
    replays = 10.0 * steps
    builder.update(set_to(whole, "gpu_pcie_replay_total", replays))
    for step in (400, 403, 411):
        # Ten a step: whatever part of the coarse step the window takes, it is ten for each step in it.
        silent = step - 400
        growth = np.expm1(value(builder.table(at(step)), "pcie_replay.2d"))
        assert growth == pytest.approx(10.0 * (288 - silent), rel=0.001)


def test_means_and_their_changes() -> None:
    whole = columns(FLEET, 0, 288)
    warm = np.where(np.arange(288) < 282, 40.0, 70.0)
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(set_to(whole, "gpu_temperature_celsius", warm))
    table = builder.table(at(288))
    assert value(table, "temperature.level") == pytest.approx(70.0)
    assert value(table, "temperature.6h") == pytest.approx(70.0 - (30 * 40 + 6 * 70) / 36)
    assert value(table, "temperature.24h") == pytest.approx(70.0 - (138 * 40 + 6 * 70) / 144)
    assert value(table, "temperature.1h") == pytest.approx(0.0)


def test_a_counter_that_starts_again_keeps_what_it_had_grown() -> None:
    whole = columns(FLEET, 0, 36)
    replays = np.concatenate([np.arange(18) * 10.0, np.arange(18) * 10.0])
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(set_to(whole, "gpu_pcie_replay_total", replays))
    table = builder.table(at(36))
    assert np.expm1(value(table, "pcie_replay.24h")) == pytest.approx(340.0)
    assert value(table, "pcie_replay.level") == pytest.approx(np.log1p(170.0))
    assert np.expm1(value(table, "resets")) == pytest.approx(1.0)
    assert np.expm1(value(table, "reset_hours")) == pytest.approx(17 / 6, abs=0.01)


def test_frozen_readings_never_reach_a_level() -> None:
    whole = columns(FLEET, 0, 72)
    frozen = whole.values.copy()
    mine = np.flatnonzero(whole.gpu == 0)
    frozen[mine[36:]] = frozen[mine[36]]
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(dataclasses.replace(whole, values=frozen))
    table = builder.table(at(72))
    assert value(table, "frozen_now") == 1.0
    assert np.isnan(value(table, "temperature.level"))
    assert np.isnan(value(table, "power.level"))
    assert np.expm1(value(table, "flat_hours")) == pytest.approx(35 / 6, abs=0.01)
    assert value(table, "frozen.1h") == pytest.approx(1.0)
    assert value(table, "reported.1h") == pytest.approx(1.0)
    past = builder.sequences(at(72))[0]
    heat = SEQUENCE.index("temperature")
    assert np.isnan(past[-35:, heat]).all()
    assert np.isfinite(past[-60:-36, heat]).all()


def test_readings_that_an_agent_marked_as_frozen_count_as_flat() -> None:
    # `Missing.FROZEN` takes the values out of a reading; the reading stays.
    assert Missing.FROZEN.label == "frozen"
    whole = columns(FLEET, 0, 72)
    held = whole.values.copy()
    held[np.flatnonzero(whole.gpu == 0)[36:]] = np.nan
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(dataclasses.replace(whole, values=held))
    table = builder.table(at(72))
    assert np.isnan(value(table, "temperature.level"))
    assert np.expm1(value(table, "flat_hours")) == pytest.approx(6.0, abs=0.01)
    assert np.expm1(value(table, "silent_hours")) == pytest.approx(0.0)


def test_an_idle_gpu_whose_energy_moves_is_not_frozen() -> None:
    whole = columns(FLEET, 0, 72)
    still = whole.values.copy()
    for metric in METRICS:
        if metric != "gpu_energy_joules_total":
            place = METRICS.index(metric)
            mine = np.flatnonzero(whole.gpu == 0)
            still[mine, place] = still[mine[0], place]
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(dataclasses.replace(whole, values=still))
    assert np.isfinite(value(builder.table(at(72)), "temperature.level"))


def test_a_family_that_has_gone() -> None:
    whole = columns(FLEET, 0, 36)
    held = whole.values.copy()
    mine = np.flatnonzero(whole.gpu == 0)
    held[np.ix_(mine[12:], [METRICS.index(name) for name in METRICS if "pcie" in name])] = np.nan
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(dataclasses.replace(whole, values=held))
    table = builder.table(at(36))
    assert np.expm1(value(table, "family.pcie.gone")) == pytest.approx(4.0)
    assert np.expm1(value(table, "family.pcie.gone", 1)) == pytest.approx(0.0)
    assert np.isnan(value(table, "family.nvlink.gone"))
    assert "pcie" in FAMILIES


def test_events_by_class_with_decay_and_repairs() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    happened = [
        event(EventKind.XID, FLEET[0], 10, 79),
        event(EventKind.XID, FLEET[0], 10.2, 79),  # the same onset again
        event(EventKind.XID, FLEET[0], 11, 31),
        event(EventKind.GPU_FOUND, FLEET[0], 40),
        event(EventKind.XID, FLEET[1], 30, 92),
    ]
    builder.update(columns(FLEET, 0, 72), happened)
    table = builder.table(at(154))
    assert value(table, "event.bus.recent") == pytest.approx(np.exp(-1.0), rel=1e-5)
    assert np.expm1(value(table, "event.bus.hours")) == pytest.approx(24.0 - 0.2 / 6)
    assert np.expm1(value(table, "event.bus.count")) == pytest.approx(1.0)
    assert np.expm1(value(table, "event.application.count")) == pytest.approx(1.0)
    assert np.expm1(value(table, "event.warning.count", 1)) == pytest.approx(1.0)
    assert np.expm1(value(table, "back_hours")) == pytest.approx(19.0)
    assert value(table, "lost") == 0.0
    assert value(table, "others.host.recent", 1) == pytest.approx(np.exp(-1.0) / 3, rel=1e-5)
    assert value(table, "others.host.recent", 0) == 0.0


def test_an_event_that_comes_twice_counts_once() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    one = event(EventKind.XID, FLEET[0], 10, 79)
    builder.update(columns(FLEET, 0, 12), [one])
    builder.update(None, [one])
    assert np.expm1(value(builder.table(at(12)), "event.bus.count")) == pytest.approx(1.0)


def test_burst_membership_over_gpus_and_hosts() -> None:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(columns(FLEET, 0, 12), [event(EventKind.XID, one, 12, 79) for one in FLEET[:6]])
    table = builder.table(at(12))
    assert np.expm1(value(table, "burst.gpus")) == pytest.approx(5.0)
    assert np.expm1(value(table, "burst.hosts")) == pytest.approx(1.0)
    assert value(table, "burst.gpus", 7) == 0.0


def test_thermal_resistance_is_found_again_and_its_drift_shows() -> None:
    builder = built(288)
    healthy = builder.table(at(288))
    assert value(healthy, "thermal.usual") == pytest.approx(0.12, abs=0.01)
    assert abs(value(healthy, "thermal.excess")) < 1.5
    more = columns(FLEET, 288, 324)
    hot = 25.0 + 0.15 * more.values[more.gpu == 0, 0]
    builder.update(set_to(more, "gpu_temperature_celsius", hot))
    table = builder.table(at(324))
    assert value(table, "thermal.drift") > 0.05
    assert abs(value(table, "thermal.drift", 1)) < 0.03
    assert value(table, "thermal.excess") > 4.0
    assert value(table, "thermal.vs_model") > 3.0


def test_peers_at_equal_load() -> None:
    whole = columns(FLEET, 0, 36)
    held = whole.values.copy()
    held[:, METRICS.index("gpu_power_watts")] = 300.0 + held[:, METRICS.index("gpu_pcie_replay_total")] * 1e-3
    held[:, METRICS.index("gpu_temperature_celsius")] = 60.0
    held[whole.gpu == 2, METRICS.index("gpu_temperature_celsius")] = 72.0
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(dataclasses.replace(whole, values=held))
    table = builder.table(at(36))
    assert value(table, "temperature.vs_model", 2) == pytest.approx(12.0)
    assert value(table, "temperature.score", 2) == pytest.approx(12.0)
    assert value(table, "temperature.vs_model", 1) == pytest.approx(0.0)
    assert value(table, "temperature.vs_host", 2) == pytest.approx(12.0), "a node of 4 has three peers"

    assert value(table, "temperature.vs_rack", 2) == pytest.approx(12.0)
    assert np.isnan(value(table, "temperature.vs_job", 2))
    builder.assign({one.uuid: "job 7" for one in FLEET})
    assert value(builder.table(at(36)), "temperature.vs_job", 2) == pytest.approx(12.0)


def test_links_below_what_they_could_be() -> None:
    whole = columns(FLEET, 0, 12)
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(set_to(whole, "gpu_pcie_link_width", 8.0))
    table = builder.table(at(12))
    assert value(table, "pcie_lanes_lost.1h") == pytest.approx(0.5)
    assert value(table, "pcie_lanes_lost.1h", 1) == 0.0


def test_asking_for_the_past_of_what_is_known_is_refused() -> None:
    builder = built(72)
    with pytest.raises(InputError, match="ask before feeding"):
        builder.table(at(71))


def test_old_rows_are_counted_and_skipped() -> None:
    builder = built(72)
    before = builder.table(at(72)).values.copy()
    again = columns(FLEET, 60, 72)
    builder.update(again)
    assert builder.late == len(again.at_ms)
    np.testing.assert_array_equal(builder.table(at(72)).values, before)


def test_gpus_may_appear_at_any_time() -> None:
    builder = FeatureBuilder(PLAN, FLEET[:4])
    builder.update(columns(FLEET[:4], 0, 36))
    builder.update(columns(FLEET, 36, 72))
    builder.know(FLEET)
    table = builder.table(at(72))
    assert set(table.gpus) == {one.uuid for one in FLEET}
    assert value(table, "slot", table.gpus.index(FLEET[6].uuid)) == 2.0
    assert np.isfinite(table.column("temperature.level")).all()


def test_age_is_that_of_the_first_reading_or_of_the_installation() -> None:
    builder = FeatureBuilder(PLAN, FLEET, installed_ms={FLEET[0].uuid: at(0) - 100 * DAY})
    builder.update(columns(FLEET, 0, 144))
    table = builder.table(at(144))
    assert np.expm1(value(table, "age_days")) == pytest.approx(101.0)
    assert np.expm1(value(table, "age_days", 1)) == pytest.approx(143 / 144, rel=1e-4)


def test_what_a_fleet_lacks_is_missing_and_not_zero() -> None:
    table = built(12).table(at(12))
    assert np.isnan(table.column("nvlink_crc.level")).all()
    assert np.isnan(table.column("nvlink_crc.24h")).all()
    assert np.isnan(table.column("fan_speed.level")).all()


def test_a_gap_of_the_whole_fleet() -> None:
    builder = built(72)
    builder.update(columns(FLEET, 300, 310))
    table = builder.table(at(310))
    assert value(table, "reported.3d") == pytest.approx(82 / 310, abs=0.001)
    # What grew during the gap is seen at its end.
    assert np.expm1(value(table, "pcie_replay.3d")) == pytest.approx(3100 // 40, abs=1.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"step_ms": 7 * HOUR},
        {"windows_ms": (DAY, HOUR)},
        {"windows_ms": ()},
        {"windows_ms": (HOUR + 1,)},
        {"steps": 1000},
        {"sequence": ("nothing",)},
    ],
)
def test_a_plan_that_does_not_fit_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InputError):
        FeaturePlan(**changed)  # type: ignore[arg-type]


def test_sequences_have_the_planned_shape_and_only_closed_steps() -> None:
    builder = built(120)
    past = builder.sequences(at(120))
    assert past.shape == (8, 96, 40)
    assert len(PLAN.sequence) == 40
    reported = SEQUENCE.index("reported")
    assert past[:, :, reported].all()
    later = builder.sequences(at(120) + STEP - 1)
    np.testing.assert_array_equal(past, later)
    assert not builder.sequences(at(121))[:, -1, reported].any()


def test_a_reading_at_the_edge_belongs_to_the_step_that_ends_there() -> None:
    builder = FeatureBuilder(PLAN, [gpu(0)])
    rows = columns([gpu(0)], 0, 1)
    builder.update(part(rows, np.array([0])))
    assert rows.at_ms[0] == at(1)
    heat = SEQUENCE.index("temperature")
    assert np.isfinite(builder.sequences(at(1))[0, -1, heat])


@pytest.mark.parametrize(("mates", "known"), [(1, False), (2, True), (3, True)])
def test_two_peers_tell_and_one_does_not(mates: int, known: bool) -> None:
    found = residual(np.array([72.0, *[60.0] * mates]), np.zeros(mates + 1, np.int64))
    assert np.isfinite(found).all() == known
    assert not known or found.tolist() == [12.0, *[0.0] * mates]
