"""`tocsin size`: figures follow from the constants, and the constants name a benchmark that there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.errors import InputError
from tocsin.offline.sizing import MONTH_S, SizingPlan, StoragePrices, constants, largest_brain, size

PERF = Path(__file__).parents[2] / "perf"
DAY_S = 86_400


def constant(name: str) -> float:
    return next(each.value for each in constants() if each.name == name)


def test_every_constant_names_a_benchmark_that_there_is() -> None:
    for each in constants():
        assert (PERF / each.benchmark).is_file(), each.name
        assert each.value > 0
        assert each.what


def test_rates_and_bytes_are_the_products_they_say() -> None:
    made = size(SizingPlan(10_000))
    assert made.readings_per_second == 1_000
    assert made.values_per_second == 1_000 * constant("values")
    assert made.network_bytes_per_second == 1_000 * constant("sent_bytes")
    kept = list(made.kept_bytes.values())
    assert kept[0] == pytest.approx(10_000 * 4_200 / 10 * constant("hot_row_bytes"))
    assert kept[1] == pytest.approx(10_000 * 7 * DAY_S / 10 * constant("raw_row_bytes"))
    assert kept[2] == pytest.approx(10_000 * 83 * DAY_S / 60 * constant("minute_row_bytes"))
    assert kept[3] == pytest.approx(10_000 * 640 * DAY_S / 600 * constant("ten_minute_row_bytes"))
    agent, brain = made.parts
    assert (agent.count, brain.count, brain.disk_bytes) == (1_250, 1, sum(kept))
    assert agent.disk_bytes == pytest.approx(8 * 8_640 * constant("spool_bytes"))


@pytest.mark.parametrize("gpus", [8, 64, 1_000, 10_000])
def test_a_brain_is_as_it_was_measured(gpus: int) -> None:
    found = {each.name: each.value for each in constants() if each.at == gpus}
    brain = size(SizingPlan(gpus)).parts[1]
    assert brain.cores == pytest.approx(found["brain_cores"])
    assert brain.memory_bytes == pytest.approx(found["brain_memory_bytes"])


def test_between_two_fleets_it_is_a_straight_line_and_a_small_one_costs_what_the_smallest_does() -> None:
    low, middle, high = (size(SizingPlan(gpus)).parts[1].memory_bytes for gpus in (1_000, 5_500, 10_000))
    assert middle == pytest.approx((low + high) / 2)
    assert size(SizingPlan(1)).parts[1].memory_bytes == size(SizingPlan(8)).parts[1].memory_bytes


def test_a_fleet_that_no_brain_was_measured_with_is_cut_into_cells() -> None:
    made = size(SizingPlan(100_000))
    assert (made.cells, made.gpus_per_cell) == (10, largest_brain())
    assert made.parts[1].count == 10
    assert made.parts[1].disk_bytes * 10 == pytest.approx(sum(made.kept_bytes.values()))
    smaller = size(SizingPlan(100_000, gpus_per_cell=4_000))
    assert (smaller.cells, smaller.gpus_per_cell) == (25, 4_000)
    assert size(SizingPlan(10_001)).cells == 2


def test_readings_more_often_cost_more_and_more_seldom_no_less_than_judging() -> None:
    often, usual = size(SizingPlan(64, interval_seconds=5)), size(SizingPlan(64))
    assert often.network_bytes_per_second == 2 * usual.network_bytes_per_second
    assert often.parts[1].cores == 2 * usual.parts[1].cores
    assert size(SizingPlan(64, interval_seconds=60)).parts[1].cores == usual.parts[1].cores


def test_a_store_of_its_own_takes_the_disk_off_the_brain() -> None:
    made = size(SizingPlan(1_000, store=StoreSettings(kind=StoreKind.VICTORIAMETRICS)))
    store = made.parts[2]
    assert (store.name, made.parts[1].disk_bytes) == ("victoriametrics", 0)
    assert made.network_bytes_per_second == pytest.approx(100 * (constant("sent_bytes") + constant("line_bytes")))
    rows = 1_000 * 90 * DAY_S / 10
    assert store.disk_bytes == pytest.approx(rows * constant("values") * constant("vm_value_bytes"))


def test_money_is_named_only_for_what_has_a_price() -> None:
    assert size(SizingPlan(64)).cost_per_month == {}
    made = size(SizingPlan(64, prices=StoragePrices(core_month=10, network_gb=0.5)))
    assert set(made.cost_per_month) == {"cores", "network"}
    assert made.cost_per_month["cores"] == pytest.approx(10 * made.total.cores)
    assert made.cost_per_month["network"] == pytest.approx(0.5 * made.network_bytes_per_second * MONTH_S / 1e9)


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 8, "gpus_per_node": 0}, "gpus_per_node"),
        ({"gpus": 8, "interval_seconds": 0.0}, "interval"),
        ({"gpus": 8, "interval_seconds": float("nan")}, "interval"),
        ({"gpus": 8, "gpus_per_cell": 10_001}, "gpus-per-cell"),
        ({"gpus": 8, "store": StoreSettings(kind=StoreKind.INFLUXDB)}, "store.kind"),
    ],
)
def test_what_was_not_measured_is_not_answered(plan: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        SizingPlan(**plan)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_the_command_prints_the_table_and_as_json_its_constants() -> None:
    shown = CliRunner().invoke(cli, ["size", "--gpus", "64", "--disk-price", "0.1"], catch_exceptions=False)
    assert shown.output.startswith("64 GPUs on 8 nodes, 1 brain\n")
    assert "together a month" in shown.output
    told = CliRunner().invoke(cli, ["size", "--gpus", "100000", "--json"], catch_exceptions=False)
    found = json.loads(told.output)
    assert found["cells"] == 10
    assert len(found["constants"]) == len(constants())
