"""The scenario file: what ships is whole and has its sources, and what does not fit is named with its remedy."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenario import Scenario, default_scenario
from tocsin.sim.scenarios import load_scenario, parse_scenario
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0

TEXT = resources.files("tocsin.sim").joinpath("scenarios/default.toml").read_text(encoding="utf-8")


def edited(old: str, new: str) -> str:
    assert TEXT.count(old) >= 1
    return TEXT.replace(old, new, 1)


def tables(value: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every table that holds numbers of its own, by its path."""
    found = {}
    if any(isinstance(one, int | float | list) for one in value.values()) and path:
        found[path] = value
    for key, one in value.items():
        if isinstance(one, dict):
            found |= tables(one, f"{path}.{key}".strip("."))
    return found


@pytest.mark.smoke
def test_what_ships_is_whole() -> None:
    assert set(default_scenario().fault) == set(fault_kinds())


def test_every_table_says_where_its_numbers_are_from() -> None:
    parsed = tomllib.loads(TEXT)
    inner = ("rises", "marks", "numbers", "normal.counters.", "normal.plateaus.")
    for path, table in tables(parsed).items():
        if not any(part in path for part in inner):
            assert len(table["source"]) > 5, path


def test_rates_come_from_the_study() -> None:
    scenario = default_scenario()
    assert scenario.study.gpu_years == pytest.approx(16_384 * 54 / 365.25)
    assert scenario.per_gpu_year("fallen_off_bus") == pytest.approx(148 * 0.4 / scenario.study.gpu_years)
    assert scenario.per_gpu_year("row_remap") == pytest.approx(72 * 0.85 / scenario.study.gpu_years)
    assert scenario.per_gpu_year("thermal_drift") == pytest.approx(6 / scenario.study.gpu_years)
    assert scenario.per_gpu_year("app_crash") == 4.0


def test_rehearsals_stay_as_loud_and_short_as_they_were() -> None:
    kinds = fault_kinds()
    assert kinds["row_remap"].rehearsal_lead == 0.5 * HOUR
    assert kinds["thermal_drift"].rehearsal_lead == pytest.approx(40 / 60 * HOUR)
    rise = default_scenario().fault["row_remap"].rehearsal
    assert rise is not None
    assert (rise.rises["corrected"].per_hour, rise.rises["corrected"].shape) == (400.0, 2.0)


def test_slow_precursors_last_days() -> None:
    for kind in ("row_remap", "row_remap_failure", "nvlink_recovery", "fallen_off_bus", "thermal_drift"):
        assert fault_kinds()[kind].lead[1] == 10 * DAY


def test_throughput_falls_slower_than_power_at_the_top() -> None:
    curve = default_scenario().power.throughput
    assert curve.at("training", 1.0) == curve.at("batch", 1.2) == 1.0
    assert 0.85 <= curve.at("training", 600 / 700) <= 0.90
    assert 0.92 <= curve.at("inference", 600 / 700) <= 0.95
    for pool in ("training", "inference", "batch"):
        assert curve.at(pool, 0.7) > 0.7


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("die_c = 0.3", "dye_c = 0.3", "normal.sensors.dye_c", "nearest is die_c"),
        ("die_c = 0.3", "die_c = -0.3", "normal.sensors.die_c", "greater than or equal to 0"),
        ("die_c = 0.3", "die_c = nan", "normal.sensors.die_c", "finite"),
        ("die_c = 0.3\n", "", "normal.sensors.die_c", "required"),
        ("gpus = 16384", "gpus = 16384\nsize = 1", "study.size", "unknown key"),
        ("format = 1", "format = 2", "format", "less than or equal to 1"),
        ("[fault.app_crash]", "[fault.app_crush]", "fault.app_crush", "nearest is app_crash"),
        ("marks = { half_lanes = 0.97 }", "marks = { lanes = 0.97 }", "fallen_off_bus.precursor.marks", "half_lanes"),
        ("abrupt_share = 0.7\n", "abrupt_share = 1.0\n", "fault.fallen_off_bus", "abrupt_share"),
        ("lead_hours = [0.5, 240.0]", "lead_hours = [240.0, 0.5]", "fault.fallen_off_bus.precursor", "must rise"),
        ("limit_share = [0.3, 0.5", "limit_share = [0.5, 0.3", "power.throughput", "limit_share must rise"),
        ("per_gpu_year = 4.0", "per_gpu_year = 4.0\ninterruptions = 3", "fault.app_crash", "either"),
    ],
)
def test_what_does_not_fit_is_named(old: str, new: str, field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_scenario(edited(old, new), "mine.toml")
    assert field in caught.value.field
    assert words in str(caught.value)
    assert caught.value.remedy


def test_a_missing_source_is_refused() -> None:
    with pytest.raises(InputError, match=r"normal\.load\.source"):
        parse_scenario(TEXT.replace('[normal.load]\nsource = "own choice"', "[normal.load]"), "mine.toml")


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_scenario(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("format = ")
    with pytest.raises(InputError, match="is not TOML"):
        load_scenario(tmp_path / "bad.toml")


def test_another_scenario_makes_another_fleet(tmp_path: Path) -> None:
    path = tmp_path / "calm.toml"
    path.write_text(edited("corrected = { per_day = 3.0", "corrected = { per_day = 0.0"))
    errors = {}
    for name, scenario in (("calm", load_scenario(path)), ("shipped", default_scenario())):
        fleet = SimulatedFleet(FleetSpec(16, 7, T0, HOUR, 0.0, scenario))
        batch = [fleet.step() for _ in range(24)][-1]
        errors[name] = sum(one.values.get("gpu_ecc_corrected_volatile_total", 0.0) for one in batch.readings)
    assert errors["calm"] == 0 < errors["shipped"]


def test_the_same_text_is_the_same_scenario() -> None:
    assert isinstance(default_scenario(), Scenario)
    assert parse_scenario(TEXT, "again") == default_scenario()
