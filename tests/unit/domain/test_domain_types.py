"""The kernel's types: metric table, readings, identity and time."""

from __future__ import annotations

import math
import re

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import ManualClock, from_iso, to_iso
from tocsin.domain.metrics import BY_DCGM_NAME, BY_FIELD, METRICS, MetricKind, nearest, spec_of, split_variant, variant
from tocsin.domain.reading import Missing, Reading, normalise_pci_bus_id, sanitise
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.scaled_clock import ScaledClock

pytestmark = pytest.mark.smoke


def test_the_table_has_at_least_sixty_metrics_with_an_nvml_call() -> None:
    assert sum(bool(spec.nvml) for spec in METRICS.values()) >= 60


def test_every_row_is_whole() -> None:
    for spec in METRICS.values():
        assert spec.help.endswith("."), spec.name
        assert all((spec.unit, spec.family)), spec.name
        assert spec.minimum < spec.maximum, spec.name
        assert (spec.kind is MetricKind.COUNTER) == spec.name.endswith("_total"), spec.name


def test_fields_and_dcgm_names_are_unique() -> None:
    assert len(BY_FIELD) == len(METRICS)
    assert sum(len(spec.dcgm_names) for spec in METRICS.values()) == len(BY_DCGM_NAME)


def test_every_nvml_function_and_constant_of_the_table_exists() -> None:
    words = {w for spec in METRICS.values() for w in re.findall(r"\b(?:nvml[A-Z]\w+|NVML_\w+)\b", spec.nvml)}
    assert [word for word in sorted(words) if not hasattr(pynvml, word)] == []


@given(st.text(min_size=1))
def test_variant_keys_round_trip(value: str) -> None:
    key = variant("gpu_nvlink_up", "link", value)
    if "\n" not in value:
        assert split_variant(key) == ("gpu_nvlink_up", "link", value)


def test_a_label_that_is_not_the_metrics_own_is_unknown() -> None:
    assert spec_of('gpu_nvlink_up{link="3"}') is METRICS["gpu_nvlink_up"]
    assert spec_of('gpu_nvlink_up{pid="3"}') is None
    assert spec_of("gpu_temprature_celsius") is None
    assert nearest("gpu_temprature_celsius") == "gpu_temperature_celsius"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 400.0])
def test_a_value_that_cannot_be_is_blank_and_the_rest_stays(bad: float) -> None:
    cleaned, problems = sanitise(reading(temperature_celsius=bad, power_watts=300.0))
    assert cleaned.values == {"gpu_power_watts": 300.0}
    assert cleaned.missing == {"gpu_temperature_celsius": Missing.BLANK}
    assert len(problems) == 1
    assert problems[0].startswith("gpu_temperature_celsius")


def test_an_unknown_metric_is_dropped_with_a_sentence() -> None:
    cleaned, problems = sanitise(Reading(gpu(), T0, {"gpu_warp_drive": 1.0}))
    assert (dict(cleaned.values), problems) == ({}, ["gpu_warp_drive: not in the metric table, dropped"])


def test_identity_is_the_uuid_alone() -> None:
    assert gpu(1, host="a") == gpu(1, host="b")
    assert gpu(1) != gpu(2)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:3B:00.0", "00000000:3b:00.0"),
        ("PCI:0000:05:00", "00000000:05:00.0"),
        ("18:00.0", "00000000:18:00.0"),
        ("nonsense", ""),
    ],
)
def test_pci_addresses_of_nvml_and_kernel_agree(text: str, normal: str) -> None:
    assert normalise_pci_bus_id(text) == normal


@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_iso_round_trips_to_the_millisecond(at_ms: int) -> None:
    assert from_iso(to_iso(at_ms)) == at_ms


def test_simulated_time_runs_at_its_speed() -> None:
    base = ManualClock(T0)
    clock = ScaledClock(base, 600.0, T0)
    base.advance(1_000)
    assert clock.now_ms() == T0 + 600_000
    assert clock.monotonic() == 600.0
