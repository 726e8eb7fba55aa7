"""Signs of before a repair are none: counts, flags, events and the steps of a sequence."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.forecaster.features.examples import NEVER, Examples, HeldSequences
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import names_of
from tocsin.forecaster.live.mended import mended
from tocsin.forecaster.live.risk_inputs import repairs_of
from tocsin_testing.builders import T0, gpu

PLAN = FeaturePlan()
NAMES = names_of(PLAN)
AT = T0 // DAY * DAY
CHANNELS = ("remap_uncorrectable", "temperature")


def rows(**values: float) -> Examples:
    """Two GPUs ``A`` and ``B``, alike; features not named are unknown."""
    features = np.full((2, len(NAMES)), np.nan, np.float32)
    for name, value in values.items():
        features[:, NAMES.index(name.replace("__", "."))] = value
    at_ms = np.full(2, AT)
    return Examples(
        ("A", "B"), np.arange(2, dtype=np.int32), ("all",), np.zeros(2, np.int32), at_ms, NAMES, features, at_ms,
        np.full(2, 30 * DAY), np.full(2, NEVER), at_ms, np.full(2, ""), np.ones(2),
        HeldSequences(CHANNELS, np.ones((2, PLAN.steps, 2), np.float32)),
    )  # fmt: skip


def test_windows_that_began_before_the_repair_show_what_came_since() -> None:
    grown = {
        "remap_uncorrectable__level": 3.0, "remap_uncorrectable__1h": 0.0, "remap_uncorrectable__6h": 1.0,
        "remap_uncorrectable__24h": 2.0, "remap_uncorrectable__30d": 3.0, "remap_uncorrectable__rate": 2.0,
        "row_remap_pending__6h": 0.0, "row_remap_pending__24h": 1.0, "temperature__level": 60.0,
    }  # fmt: skip
    before = rows(**grown)
    after, changed = mended(before, {"A": AT - 7 * HOUR}, PLAN)
    assert changed.tolist() == [0]

    def shown(name: str) -> list[float]:
        return after.column(name).tolist()

    assert shown("remap_uncorrectable.6h") == [1.0, 1.0], "it began after the repair"
    for name in ("level", "24h", "30d"):
        assert shown(f"remap_uncorrectable.{name}")[0] == 1.0
    assert np.isnan(shown("remap_uncorrectable.3d")).all(), "what is unknown stays so"
    assert np.isclose(shown("remap_uncorrectable.rate")[0], np.log1p(np.expm1(1.0) / 6))
    assert shown("row_remap_pending.24h") == [0.0, 1.0]
    assert shown("temperature.level") == [60.0, 60.0]
    np.testing.assert_array_equal(after.features[1], before.features[1])


def test_rates_of_windows_that_began_after_the_repair_stay() -> None:
    before = rows(
        pcie_replay__6h=4.0, pcie_replay__24h=5.0, pcie_replay__3d=5.0, pcie_replay__rate=2.0, pcie_replay__surge=1.5
    )
    of_days, _ = mended(before, {"A": AT - 4 * DAY}, PLAN)
    assert of_days.column("pcie_replay.rate")[0] == 2.0, "errors of the last day alone are not those of three"
    assert of_days.column("pcie_replay.surge")[0] == 0.0, "it is beside a week"
    of_weeks, _ = mended(before, {"A": AT - 8 * DAY}, PLAN)
    assert of_weeks.column("pcie_replay.surge")[0] == 1.5


def test_events_count_again_once_there_is_a_new_one_and_heat_always_does() -> None:
    long_ago, lately = float(np.log1p(10.0)), float(np.log1p(1.0))
    seen = {
        "event__memory__hours": long_ago, "event__memory__count": 2.0, "event__memory__recent": 1.0,
        "event__bus__hours": lately, "event__bus__count": 2.0,
        "event__thermal__hours": long_ago, "event__thermal__count": 2.0,
    }  # fmt: skip
    after, _ = mended(rows(**seen), {"A": AT - 2 * HOUR}, PLAN)
    assert [after.column(f"event.{name}.count")[0] for name in ("memory", "bus", "thermal")] == [0.0, 2.0, 2.0]
    assert np.isnan(after.column("event.memory.hours")[0])
    assert after.column("event.memory.recent").tolist() == [0.0, 1.0]


def test_steps_of_a_sequence_that_began_before_the_repair_show_no_errors() -> None:
    after, _ = mended(rows(), {"A": AT - 2 * HOUR}, PLAN)
    assert after.sequences is not None
    found = after.sequences.take(np.array([1, 0]))
    assert found[0].all(), "the other GPU's"
    assert found[1, :, 1].all(), "temperatures stay"
    assert found[1, :, 0].tolist() == [0.0] * (PLAN.steps - 12) + [1.0] * 12
    assert after.take(np.array([1, 0])).sequences.take(np.array([1]))[0, 0, 0] == 0.0  # type: ignore[union-attr]


def test_a_repair_of_a_month_ago_or_of_nobody_known_changes_nothing() -> None:
    fleet = rows(remap_uncorrectable__30d=3.0)
    assert mended(fleet, {"A": AT - 30 * DAY, "C": AT - HOUR}, PLAN)[0] is fleet


def test_a_reboot_repairs_each_gpu_of_its_host() -> None:
    one, other = gpu(0), gpu(1)
    repaired = {f"gpu:{one.uuid}": 5, f"host:{one.host}": 7, "gpu:GPU-gone": 9}
    found = repairs_of([one, other], repaired)
    assert found[one.uuid] == 7
    assert found.get(other.uuid, 0) == (7 if other.host == one.host else 0)
    assert repairs_of([one], {}) == {}
