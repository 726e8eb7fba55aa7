"""Values that repeat while they cannot, and those that may."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tocsin.collector.frozen import ACTIVITY, ENERGY, LIVE, POWER, UTILISATION, FrozenValues
from tocsin.collector.replay.source import read_recording
from tocsin.collector.simulated import from_settings
from tocsin.config.settings import SimulationSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.metrics import METRICS
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing import needs
from tocsin_testing.builders import T0, gpu

Values = Mapping[str, float]
STATIC = "gpu_power_limit_max_watts"
STEP = 10 * SECOND


class Bench:
    """A companion with its metrics, fed with readings of one GPU ten seconds apart."""

    def __init__(self, step_ms: int = STEP) -> None:
        self.own = OwnMetrics()
        self.companion = FrozenValues(self.own)
        self.step_ms = step_ms
        self.now_ms = T0

    def read(self, values: Values, at_ms: int | None = None) -> Reading:
        self.now_ms += self.step_ms
        reading = Reading(gpu(0), self.now_ms if at_ms is None else at_ms, dict(values))
        return self.companion.enrich(Batch(readings=(reading,)), self.now_ms).readings[0]

    def after(self, count: int, values: Callable[[int], Values]) -> Reading:
        for n in range(count):
            last = self.read(values(n))
        return last


def working(n: int, watts: float = 600.0, step_ms: int = STEP) -> dict[str, float]:
    """A busy GPU whose values move, and whose energy counter agrees with its power."""
    return {
        POWER: watts + n % 7 + n / 1000,
        ENERGY: 1e6 + watts * n * step_ms / SECOND,
        "gpu_temperature_celsius": 60.0 + n % 3,
        "gpu_sm_clock_hertz": 1.98e9,
        UTILISATION: 1.0,
        "gpu_sm_active_ratio": 0.8 + n % 5 / 100,
        STATIC: 700.0,
        "gpu_power_limit_enforced_watts": 700.0,
    }


def frozen(reading: Reading) -> set[str]:
    """Names that are marked; checks that none has a value as well."""
    marked = {name for name, reason in reading.missing.items() if reason is Missing.FROZEN}
    assert not marked & set(reading.values)
    return marked


def test_what_moves_is_left_alone_and_is_the_same_object() -> None:
    bench = Bench()
    for n in range(50):
        batch = Batch(readings=(Reading(gpu(0), T0 + n * STEP, working(n)),))
        assert bench.companion.enrich(batch, T0 + n * STEP) is batch
    assert bench.own.value("tocsin_frozen_values_total") == 0


def test_an_energy_counter_that_stands_still_under_power_is_frozen() -> None:
    bench = Bench()
    last = bench.after(30, lambda n: {**working(n), ENERGY: 5e6})
    assert frozen(last) == {ENERGY}
    assert last.values[POWER] > 0
    assert bench.own.value("tocsin_frozen_values_total") == 30 - 12
    moved = bench.read({**working(31), ENERGY: 5.1e6})
    assert not frozen(moved), "a value that moves is trusted at once"


def test_everything_is_frozen_where_all_repeats_and_no_energy_flows() -> None:
    bench = Bench()
    last = bench.after(30, lambda _: working(0))
    assert frozen(last) == set(working(0)) - {STATIC}
    assert set(last.values) == {STATIC}, "what is fixed for a GPU may repeat"


@pytest.mark.parametrize("watts", [0.0, 4.0])
def test_without_power_the_energy_counter_may_rest(watts: float) -> None:
    last = Bench().after(60, lambda _: {POWER: watts, ENERGY: 5e6})
    assert not frozen(last)


def test_an_idle_gpu_may_stand_still_for_hours() -> None:
    """GWDG's idle A100s repeat one power for up to seven hours while the energy counter agrees with it."""

    def idle(n: int) -> Values:
        steady = {"gpu_temperature_celsius": 22.0, "gpu_sm_clock_hertz": 2.1e8, UTILISATION: 0.0}
        return {POWER: 58.0, ENERGY: 1e6 + 58.0 * n * STEP / SECOND, **steady}

    assert not frozen(Bench().after(3_000, idle))


def test_power_that_energy_contradicts_is_frozen() -> None:
    def half(n: int) -> Values:
        return {**working(n), POWER: 310.0, ENERGY: 1e6 + 120.0 * n * STEP / SECOND}

    bench = Bench()
    assert not frozen(bench.after(50, half)), "not before ten minutes have passed"
    assert frozen(bench.after(30, lambda n: half(50 + n))) == {POWER}


def test_what_repeats_with_contradicted_power_is_frozen_with_it() -> None:
    def half(n: int) -> Values:
        return {**working(0), POWER: 310.0, ENERGY: 1e6 + 120.0 * n * STEP / SECOND}

    last = Bench().after(80, half)
    assert frozen(last) == set(LIVE) & set(working(0))
    assert ENERGY in last.values


def test_a_busy_gpu_without_energy_counter_may_not_repeat_for_an_hour() -> None:
    def stuck(watts: float) -> Reading:
        values = {**working(0), POWER: watts}
        del values[ENERGY]
        bench = Bench()
        assert not frozen(bench.after(300, lambda _: values))
        return bench.after(100, lambda _: values)

    assert POWER in frozen(stuck(310.0))
    assert not frozen(stuck(62.4)), "an idle one may"


def test_no_activity_at_full_utilisation_is_not_believed() -> None:
    """Profiling can freeze at 0 after an XID 31 (DCGM issue 303) while the GPU works."""

    def dead(n: int) -> Values:
        return {**working(n), **dict.fromkeys(ACTIVITY, 0.0)}

    bench = Bench()
    assert not frozen(bench.after(2, dead))
    assert frozen(bench.read(dead(2))) == set(ACTIVITY)
    assert not frozen(bench.read(working(3)))


def test_no_activity_near_idle_power_is_a_hang_and_not_frozen() -> None:
    """A kernel that waits keeps utilisation at 1 with resting SMs: the rule gpu_hung has to see that."""
    last = Bench().after(30, lambda n: {**working(n, watts=130.0), **dict.fromkeys(ACTIVITY, 0.0)})
    assert not frozen(last)


def test_an_instant_that_does_not_move_on_is_dated_now_without_values() -> None:
    bench = Bench()
    for n in range(3):
        bench.read(working(n))
    at_ms, values = bench.now_ms, working(2)
    kept = [bench.read(values, at_ms) for _ in range(11)]
    assert all(reading.at_ms == at_ms and not frozen(reading) for reading in kept)
    last = bench.read(values, at_ms)
    assert (last.at_ms, set(last.values)) == (bench.now_ms, {STATIC})
    assert frozen(last) == set(values) - {STATIC}


def test_a_source_that_is_slower_than_its_reader_is_believed_for_three_of_its_steps() -> None:
    bench = Bench()
    at_ms = T0
    for n in range(600):
        if n % 60 == 0:
            at_ms = bench.now_ms
        assert not frozen(bench.read(working(n // 60, step_ms=10 * MINUTE), at_ms))


def test_a_source_that_renews_its_values_every_minute_is_believed() -> None:
    """dcgm-exporter collects every 30 s by default, whatever the interval of its scrapes."""
    bench = Bench(5 * SECOND)
    for n in range(720):
        assert not frozen(bench.read(working(n // 12, step_ms=MINUTE)))


@pytest.mark.parametrize("step_ms", [HOUR, -HOUR, 365 * 24 * HOUR])
def test_a_step_of_the_clock_freezes_nothing(step_ms: int) -> None:
    def idle(n: int) -> Values:
        return {POWER: 58.0, ENERGY: 1e6 + 58.0 * n * STEP / SECOND, UTILISATION: 0.0}

    bench = Bench()
    bench.after(100, idle)
    bench.now_ms += step_ms
    for n in range(100, 300):
        assert not frozen(bench.read(idle(n)))


def test_gpus_that_are_gone_are_forgotten() -> None:
    companion = FrozenValues(OwnMetrics())
    for n in range(1_000):
        now_ms = T0 + n * 10 * MINUTE
        companion.enrich(Batch(readings=(Reading(gpu(n), now_ms, working(n)),)), now_ms)
    assert len(companion._tracks) <= 13


def test_nan_and_missing_values_do_no_harm() -> None:
    last = Bench().after(30, lambda n: {**working(n), POWER: float("nan"), "nonsense": 1.0})
    assert not frozen(last)
    assert not frozen(Bench().after(30, lambda _: {}))


def test_the_simulated_fleet_is_never_marked_but_for_its_frozen_gpu() -> None:
    source = from_settings(SimulationSettings(gpus=32, interval_seconds=10, seed=3), T0)
    companion = FrozenValues(OwnMetrics())
    for n in range(90):
        if n == 30:
            source.fleet.inject("frozen_telemetry", "12")
        now_ms = T0 + n * STEP
        for index, reading in enumerate(companion.enrich(source.read(now_ms), now_ms).readings):
            marked = frozen(reading)
            assert not marked or (index == 12 and n > 40), (index, n, marked)
    assert POWER in marked | frozen(companion.enrich(source.read(T0 + 90 * STEP), T0 + 90 * STEP).readings[12])


@pytest.mark.data
def test_exporters_that_froze_are_marked_in_real_telemetry_and_nothing_else_is() -> None:
    """GWDG: A100s at 10-minute steps. In three windows the exporter repeats everything for days, without energy."""
    marked = healthy = 0
    for path in sorted(needs.data("gwdg", "telemetry").glob("*_tidy.csv.bz2")):
        companion = FrozenValues(OwnMetrics())
        for at_ms, readings in read_recording([path]).instants():
            for reading in companion.enrich(Batch(readings=tuple(readings)), at_ms).readings:
                found = frozen(reading)
                marked += bool(found)
                healthy += ENERGY in reading.values
                assert ENERGY not in reading.values or not found, (path.name, at_ms, found)
    assert marked > 1_000
    assert healthy > 30_000


def test_the_names_are_of_the_metric_table() -> None:
    assert {*LIVE, *ACTIVITY, ENERGY, POWER, UTILISATION} <= set(METRICS)


def test_the_gpus_of_a_batch_are_judged_apart() -> None:
    companion = FrozenValues(OwnMetrics())
    for n in range(30):
        now_ms = T0 + n * STEP
        pair = (Reading(gpu(0), now_ms, working(n)), Reading(gpu(1), now_ms, working(0)))
        sound, stuck = companion.enrich(Batch(readings=pair), now_ms).readings
    assert not frozen(sound)
    assert POWER in frozen(stuck)
