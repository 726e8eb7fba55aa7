"""Spontaneous faults come at the rates and in the shares that the documentation states."""

from __future__ import annotations

from collections import Counter

import pytest

from tocsin.domain.clock import DAY
from tocsin.sim.faultline import YEAR_MS, Draw, FaultScheduler, shares
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultClass
from tocsin.sim.inventory import Stream, build, generator
from tocsin.sim.scenario import default_scenario
from tocsin.sim.spec import FaultScales, FleetSpec
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
