"""Laws of every store: readings as columns of numbers, for one GPU (`Series`) and for many (`Columns`)."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, Reading
from tocsin.store.port import Columns
from tocsin_testing.builders import gpu, reading
from tocsin_testing.law_words import CRC, MIG, POWER, TEMPERATURE, T, everything, put
from tocsin_testing.stores import Harness

ZERO = "GPU-00000000"
LINK = variant(CRC, "link", "2")
NAN = float("nan")


def fleet(h: Harness) -> None:
    """Readings of four GPUs, in no order: values, variants, reasons alone, nothing of what will be asked."""
    put(h, reading(gpu(2), T + 1000, power_watts=21), reading(gpu(0), T, {TEMPERATURE: Missing.BLANK}, power_watts=0))
    put(h, Reading(gpu(0), T + 1000, {LINK: 5.0, variant(CRC, "link", "3"): 6.0, CRC: 7.0}))
    put(h, Reading(gpu(1), T + 500, {}, {POWER: Missing.TIMED_OUT, LINK: Missing.LOST}))
    put(h, reading(MIG, T, temperature_celsius=33), reading(gpu(0), T - MINUTE, temperature_celsius=40))
    put(h, reading(gpu(1), T + 1000, sm_clock_hertz=1e9))


def rows_of(found: Columns) -> list[tuple[int, str]]:
    return [(int(at) - T, found.gpus[place]) for place, at in zip(found.gpu, found.at_ms, strict=True)]


def expected(readings: list[Reading], metrics: list[str]) -> list[list[float]]:
    return [[r.values.get(name, NAN) for name in metrics] for r in readings]


# ---------------------------------------------------------------------- one GPU


def test_a_series_has_every_instant_of_the_gpu_whatever_was_read_then(h: Harness) -> None:
    put(
        h,
        reading(at_ms=T, power_watts=1),
        reading(at_ms=T + 1, temperature_celsius=40),
        reading(at_ms=T + 2, missing={POWER: Missing.TIMED_OUT}),
        reading(at_ms=T + 3, missing={TEMPERATURE: Missing.LOST}),
        reading(gpu(1), T + 4, power_watts=2),
    )
    found = h.store.series(ZERO, [POWER], T, T + 5)
    assert found.at_ms.tolist() == [T, T + 1, T + 2, T + 3]
    np.testing.assert_array_equal(found.values, [[1.0], [NAN], [NAN], [NAN]])
    assert h.store.series(ZERO, [POWER], T + 1, T + 3).at_ms.tolist() == [T + 1, T + 2]


def test_absent_is_nan_in_a_series_and_never_zero(h: Harness) -> None:
    put(
        h,
        reading(gpu(0), T, temperature_celsius=40),
        reading(gpu(0), T + 1, {TEMPERATURE: Missing.BLANK}, power_watts=0),
        reading(gpu(0), T + 2, temperature_celsius=42, power_watts=10),
    )
    found = h.store.series(ZERO, [POWER, TEMPERATURE, "gpu_energy_joules_total"], T, T + 3)
    assert found.metrics == (POWER, TEMPERATURE, "gpu_energy_joules_total")
    assert (found.at_ms.dtype, found.values.dtype, found.values.shape) == (np.int64, np.float64, (3, 3))
    np.testing.assert_array_equal(found.values, [[NAN, 40, NAN], [0, NAN, NAN], [10, 42, NAN]])


def test_a_series_of_variants(h: Harness) -> None:
    fleet(h)
    found = h.store.series(ZERO, [LINK, CRC, variant(CRC, "link", "9"), TEMPERATURE], T, T + 2000)
    np.testing.assert_array_equal(found.values, [[NAN, NAN, NAN, NAN], [5, 7, NAN, NAN]])
    assert h.store.series("MIG-1", [TEMPERATURE], T, T + 1).values.tolist() == [[33.0]]


def test_a_series_of_nothing(h: Harness) -> None:
    fleet(h)
    assert h.store.series("GPU-unknown", [POWER], T, T + 2).values.shape == (0, 1)
    assert h.store.series(ZERO, [], T, T + 2000).values.shape == (2, 0)
    assert h.store.series(ZERO, [POWER], T, T).values.shape == (0, 1)


# ---------------------------------------------------------------------- many GPUs


def test_columns_are_the_readings(h: Harness) -> None:
    fleet(h)
    metrics = [POWER, TEMPERATURE, LINK, CRC, "gpu_sm_clock_hertz"]
    readings = everything(h)
    found = h.store.columns(metrics, T - HOUR, T + HOUR)
    assert found.metrics == tuple(metrics)
    assert rows_of(found) == [(r.at_ms - T, r.gpu.uuid) for r in readings]
    np.testing.assert_array_equal(found.values, expected(readings, metrics))


def test_columns_have_their_types_and_only_gpus_with_a_row(h: Harness) -> None:
    fleet(h)
    found = h.store.columns([POWER], T, T + 1000)
    assert (found.gpu.dtype, found.at_ms.dtype, found.values.dtype) == (np.int32, np.int64, np.float64)
    assert found.values.shape == (len(found.gpu), 1)
    assert found.gpus == (ZERO, "GPU-00000001", "MIG-1")
    assert rows_of(found) == [(0, ZERO), (0, "MIG-1"), (500, "GPU-00000001")]


def test_columns_of_chosen_gpus(h: Harness) -> None:
    fleet(h)
    found = h.store.columns([POWER], T, T + HOUR, [ZERO, "GPU-00000002", "GPU-none"])
    assert found.gpus == (ZERO, "GPU-00000002")
    assert rows_of(found) == [(0, ZERO), (1000, ZERO), (1000, "GPU-00000002")]
    np.testing.assert_array_equal(found.values, [[0], [NAN], [21]])
    none = h.store.columns([POWER, LINK], T, T + HOUR, [])
    assert (none.gpus, none.values.shape, none.gpu.shape, none.at_ms.shape) == ((), (0, 2), (0,), (0,))


def test_a_name_that_nobody_knows_is_a_column_of_nan(h: Harness) -> None:
    fleet(h)
    names = ["gpu_of_tomorrow", POWER, variant(CRC, "pid", "2"), POWER]
    found = h.store.columns(names, T, T + 1)
    assert found.metrics == tuple(names)
    np.testing.assert_array_equal(found.values, [[NAN, 0, NAN, 0], [NAN, NAN, NAN, NAN]])


def test_columns_of_no_metric_are_the_instants(h: Harness) -> None:
    fleet(h)
    found = h.store.columns([], T - HOUR, T + HOUR)
    assert found.values.shape == (6 + 1, 0)
    assert rows_of(found) == [(r.at_ms - T, r.gpu.uuid) for r in everything(h)]


def test_columns_of_nothing(h: Harness) -> None:
    for found in (h.store.columns([POWER], T, T + HOUR), h.store.latest_columns([POWER], 0)):
        assert (found.gpus, found.metrics, found.values.shape) == ((), (POWER,), (0, 1))
    fleet(h)
    assert h.store.columns([POWER], T, T).values.shape == (0, 1)
    assert h.store.columns([POWER], T + 2000, T + HOUR).gpus == ()


def test_latest_columns_are_the_latest_readings(h: Harness) -> None:
    fleet(h)
    metrics = [POWER, LINK, TEMPERATURE, "gpu_sm_clock_hertz"]
    for since in (0, T - HOUR, T + 1, T + 1000):
        readings = list(h.store.latest(since))
        found = h.store.latest_columns(metrics, since)
        assert [uuid for _, uuid in rows_of(found)] == list(found.gpus)
        assert rows_of(found) == [(r.at_ms - T, r.gpu.uuid) for r in readings]
        np.testing.assert_array_equal(found.values, np.array(expected(readings, metrics)).reshape(-1, len(metrics)))
    assert len(h.store.latest_columns(metrics, 0).gpus) == 4
    assert h.store.latest_columns(metrics, T + 1001).gpus == ()


@pytest.mark.parametrize("steps", [1, 40])
def test_columns_of_a_steady_fleet(h: Harness, steps: int) -> None:
    put(h, *(reading(gpu(n), T + step * 10_000, power_watts=step + n / 8) for step in range(steps) for n in range(8)))
    found = h.store.columns([POWER], T, T + HOUR)
    grid = np.arange(steps)[:, None] + np.arange(8) / 8
    np.testing.assert_array_equal(found.values[:, 0].reshape(steps, 8), grid)
    assert found.gpu.reshape(steps, 8).tolist() == [list(range(8))] * steps
    assert found.at_ms.reshape(steps, 8).tolist() == [[T + step * 10_000] * 8 for step in range(steps)]
