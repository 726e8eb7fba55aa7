"""Spontaneous faults come at the rates and in the shares that the documentation states."""

from __future__ import annotations

from collections import Counter

import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.sim.faultline import YEAR_MS, Draw, FaultScheduler, shares
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultClass
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.inventory import Stream, build, generator
from tocsin.sim.scenario import default_scenario
from tocsin.sim.spec import Fault, FaultScales, FleetSpec
from tocsin_testing.builders import T0
from tocsin_testing.simulated import fleet

INVENTORY = build(FleetSpec(1024, 3, T0))
KINDS = fault_kinds()
GPU_YEARS = default_scenario().study.gpu_years


def drawn(scales: FaultScales, years: float, seed: int = 3) -> list[Draw]:
    return FaultScheduler(INVENTORY, KINDS, seed, scales).draw(1, int(years * YEAR_MS))


def draws(years: float, scale: float = 1.0, seed: int = 3) -> list[Draw]:
    return drawn(FaultScales(scale, scale, scale), years, seed)


def hardware(found: list[Draw]) -> list[Draw]:
    return [draw for draw in found if KINDS[draw.kind].fault_class is FaultClass.HARDWARE]


def test_at_least_sixty_percent_of_hardware_faults_are_abrupt() -> None:
    struck = [draw for draw in hardware(draws(100)) if not draw.benign]
    assert len(struck) > 5_000
    assert sum(draw.abrupt for draw in struck) / len(struck) >= 0.60


def test_some_precursors_lead_to_nothing() -> None:
    warned = [draw for draw in hardware(draws(100)) if not draw.abrupt]
    share = sum(draw.benign for draw in warned) / len(warned)
    assert 0.2 < share < 0.6
    assert not any(draw.abrupt and draw.benign for draw in draws(100))


def test_rates_are_the_published_ones() -> None:
    hopper = [number for number, gpu in enumerate(INVENTORY.gpus) if "H100" in gpu.model]
    ampere = [number for number, gpu in enumerate(INVENTORY.gpus) if "A100" in gpu.model]
    memory = KINDS["row_remap"].rates(INVENTORY) + KINDS["row_remap_failure"].rates(INVENTORY)
    assert pytest.approx(2422.3, abs=0.1) == GPU_YEARS
    assert memory[hopper[0]] == pytest.approx(72 / GPU_YEARS)
    assert memory[hopper[0]] / memory[ampere[0]] == pytest.approx(3.2)
    struck = Counter(draw.kind for draw in draws(100) if not draw.benign)
    assert struck["sram_error"] == pytest.approx(100 * 1024 * 19 / GPU_YEARS, rel=0.15)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_shares_add_up_to_one_fault_that_strikes(kind: str) -> None:
    abrupt, warned, benign = shares(KINDS[kind])
    assert abrupt + warned == pytest.approx(1)
    assert (benign > 0) == (KINDS[kind].precursor and KINDS[kind].benign_share > 0)


def test_scale_multiplies_and_zero_silences() -> None:
    assert not draws(100, scale=0.0)
    assert len(draws(1, scale=50.0)) == pytest.approx(len(draws(50)), rel=0.1)


def test_groups_of_faults_have_rates_of_their_own() -> None:
    life = drawn(FaultScales(hard=0.0, software=1.0, benign=30.0), 10)
    struck = [draw for draw in life if not draw.benign]
    assert {draw.kind for draw in struck} == {kind for kind, one in KINDS.items() if not one.hard}
    assert {"row_remap", "fallen_off_bus", "nvlink_recovery"} <= {draw.kind for draw in life if draw.benign}
    benign = [draw.kind for draw in life if draw.benign].count("memory_leak")
    # Of 0.5 leaks a GPU and year three in seven more are benign.
    assert benign == pytest.approx(30 * 10 * 1024 * 0.5 * 3 / 7, rel=0.1)
    assert not [draw for draw in drawn(FaultScales(hard=1.0, software=0.0, benign=0.0), 10) if draw.benign]


def test_faults_befall_only_what_they_can() -> None:
    for draw in draws(5):
        assert not KINDS[draw.kind].objection(INVENTORY, draw.gpu)


def test_equal_seeds_draw_equal_faults() -> None:
    assert draws(2) == draws(2) != draws(2, seed=4)


def test_what_is_under_way_is_as_much_as_at_any_other_time() -> None:
    scales = FaultScales(hard=300.0, software=10.0, benign=600.0)
    found = [one for seed in range(40) for one in FaultScheduler(INVENTORY, KINDS, seed, scales).under_way()]
    assert {one.draw.kind for one in found} == {kind for kind, one in KINDS.items() if one.precursor}
    assert not any(one.draw.abrupt for one in found)
    assert all(0.0 <= one.age <= one.lead <= KINDS[one.draw.kind].lead[1] for one in found)
    links = [one for one in found if one.draw.kind == "nvlink_recovery"]
    least, most = KINDS["nvlink_recovery"].lead
    rate = KINDS["nvlink_recovery"].rates(INVENTORY).sum() * 0.3
    assert sum(not one.draw.benign for one in links) == pytest.approx(
        40 * 300 * rate * (least + most) / 2 / YEAR_MS, rel=0.1
    )
    assert sum(one.draw.benign for one in links) == pytest.approx(
        40 * 600 * rate * 0.4 / 0.6 * (least + most) / 2 / YEAR_MS, rel=0.1
    )
    # Of those in progress, long ones are as many times as frequent as they are longer: two thirds of the longest.
    assert sum(one.lead for one in links) / len(links) == pytest.approx(most * 2 / 3, rel=0.05)
    assert sum(one.age for one in links) / len(links) == pytest.approx(most / 3, rel=0.1)


def test_a_fleet_that_begins_in_the_midst_of_its_life_has_faults_after_precursors_from_the_first_day_on() -> None:
    """Over five days, half as long as the longest precursor, of which a fleet that begins anew has few."""
    struck = {
        under_way: [
            fault
            for seed in range(6)
            for fault in aged(seed, under_way)
            if not fault.abrupt and fault.onset_ms is not None and KINDS[fault.kind].hard
        ]
        for under_way in (False, True)
    }
    assert len(struck[True]) > 1.5 * len(struck[False])
    assert any(fault.started_ms < T0 for fault in struck[True])
    assert all(fault.onset_ms > T0 for fault in struck[True] if fault.onset_ms is not None)
    assert not any(fault.started_ms < T0 for fault in struck[False])


def aged(seed: int, under_way: bool) -> list[Fault]:
    """What a fleet that begins at `T0` went through in five days."""
    spec = FleetSpec(512, seed, T0, 6 * HOUR, fault_rate_scale=30.0, software_rate_scale=0.0, under_way=under_way)
    simulated = SimulatedFleet(spec)
    for _ in range(20):
        simulated.step_columns(("gpu_temperature_celsius",))
    return simulated.faults


def test_a_long_run_has_all_fates() -> None:
    simulated = fleet(gpus=64, interval_ms=DAY // 8, scale=60.0)
    for _ in range(240):
        simulated.step()
    faults = simulated.faults
    assert any(fault.benign and fault.onset_ms is None and fault.ended_ms is not None for fault in faults)
    assert any(fault.abrupt and fault.onset_ms is not None for fault in faults)
    assert any(not fault.abrupt and fault.onset_ms is not None for fault in faults)
    for fault in faults:
        assert not fault.injected
        assert fault.ended_ms is None or fault.ended_ms >= (fault.onset_ms or fault.started_ms)


def test_streams_are_apart() -> None:
    assert generator(1, Stream.LOAD, 2).uniform() != generator(1, Stream.NOISE, 2).uniform()
    assert generator(-1, Stream.LOAD, 2).uniform() == generator(-1, Stream.LOAD, 2).uniform()
