"""Memory in which one can be wrong: much of it is full and sound, or rises and stops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultRun, Stage
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.inventory import Floats
from tocsin.sim.scenario import default_scenario
from tocsin.sim.spec import FleetSpec
from tocsin.sim.world import StepWindow
from tocsin_testing.builders import T0

USED = "gpu_memory_used_ratio"
HELD_MS, STILL = 2 * HOUR, 0.005
STEP = 5 * MINUTE


def used(hours: int, seed: int, gpus: int = 128, **scales: float) -> Floats:
    """Used share of each GPU's memory, [steps, gpus]."""
    scale = scales.pop("fault_rate_scale", 0.0)
    simulated = SimulatedFleet(FleetSpec(gpus, seed, T0, STEP, scale, **scales))  # type: ignore[arg-type]
    return np.array([simulated.step_columns((USED,))[0].values[:, 0] for _ in range(hours * HOUR // STEP)])


def holds(column: Floats, low: float = 0.85, high: float = 0.97) -> bool:
    """Whether a GPU holds a plateau between `low` and `high` for two hours on end."""
    wide = HELD_MS // STEP
    windows = np.lib.stride_tricks.sliding_window_view(column, wide)
    still = np.ptp(windows, axis=1) < STILL
    return bool((still & (windows.min(axis=1) >= low) & (windows.max(axis=1) <= high)).any())


@pytest.mark.parametrize("seed", [3, 11])
def test_a_third_of_a_healthy_fleet_holds_full_memory(seed: int) -> None:
    table = used(8, seed)
    assert np.mean([holds(table[:, gpu]) for gpu in range(table.shape[1])]) >= 0.30
    assert table.max() < 0.975


def test_some_sound_jobs_fill_for_an_hour_and_hold() -> None:
    table = used(24, 5)
    filled = 0
    for column in table.T:
        rising = np.diff(column) > 1e-3
        runs = "".join("x" if one else "." for one in rising).split(".")
        filled += max(map(len, runs)) >= HOUR // STEP and holds(column)
    assert filled >= 0.05 * table.shape[1]


def test_a_scenario_without_plateaus_has_none() -> None:
    scenario = default_scenario()
    bare = scenario.model_copy(update={"normal": scenario.normal.model_copy(update={"plateaus": None})})
    simulated = SimulatedFleet(FleetSpec(64, 3, T0, STEP, 0.0, bare))
    levels = [simulated.step_columns((USED,))[0].values[:, 0].max() for _ in range(36)]
    assert max(levels) < 0.85


def leak(seed: int, *, benign: bool) -> tuple[FaultRun, SimulatedFleet, list[float]]:
    """A leak of 4 h on GPU 0 of a small fleet, and the effect on its memory by step."""
    simulated = SimulatedFleet(FleetSpec(8, 1, T0, STEP, 0.0))
    kind, rng = fault_kinds()["memory_leak"], np.random.default_rng(seed)
    run = FaultRun(kind.kind, 0, T0, T0 + 4 * HOUR, T0 + 5 * HOUR, False, benign, False, rng)
    run.peak = kind.peak(run)
    world, seen = simulated._world, []
    for end in range(T0 + STEP, T0 + 4 * HOUR + STEP, STEP):
        simulated.step()
        world.state.effects.leak[0] = 0.0
        kind.advance(run, world, StepWindow(end - STEP, end))
        seen.append(float(world.state.effects.leak[0]))
    return run, simulated, seen


def test_half_of_the_benign_leaks_stop_and_hold_until_their_process_ends() -> None:
    fates, peaks = {}, []
    for seed in range(10):
        run, simulated, seen = leak(seed, benign=True)
        assert run.onset_ms is None
        assert run.stage is Stage.OVER
        peaks.append(run.peak)
        during = seen[:-1]
        fates[seed] = all(after >= before for before, after in pairwise(during))
        assert max(seen) == pytest.approx(run.peak, abs=0.02)
        killed = simulated._state.work.until_ms[simulated._inventory.gang[0]] == run.onset_at_ms + 20 * MINUTE
        assert killed == fates[seed]
    assert 2 <= sum(fates.values()) <= 8
    assert np.ptp(peaks) > 0.3


def test_software_lives_where_no_hardware_fails() -> None:
    spec = FleetSpec(512, 4, T0, 6 * HOUR, 0.0, software_rate_scale=1.0, benign_rate_scale=30.0)
    simulated = SimulatedFleet(spec)
    for _ in range(14 * DAY // (6 * HOUR)):
        simulated.step_columns((USED,))
    kinds = fault_kinds()
    struck = [fault for fault in simulated.faults if fault.onset_ms is not None]
    assert struck
    assert not [fault for fault in struck if kinds[fault.kind].hard]
    benign = {fault.kind for fault in simulated.faults if fault.benign}
    assert "memory_leak" in benign
    assert {kind for kind in benign if kinds[kind].hard}


def test_a_quiet_fleet_has_no_fault_of_any_kind() -> None:
    simulated = SimulatedFleet(FleetSpec(256, 4, T0, 6 * HOUR, 0.0))
    for _ in range(12):
        simulated.step_columns((USED,))
    assert not simulated.faults
