"""DCGM's fields by name and id: both generations, variants, blanks, and what must not be taken for a row."""

from __future__ import annotations

import pytest

from tocsin.collector.dcgm.fields import (
    NOT_OURS,
    blank_number,
    blank_text,
    field_named,
    field_numbered,
    names_numbered,
    readable_ids,
)
from tocsin.domain.metrics import METRICS, spec_of
from tocsin.domain.reading import Missing


def test_every_name_of_every_readable_id_is_the_same_field() -> None:
    for number in readable_ids():
        names = names_numbered(number)
        assert names
        fields = {field_named(name) for name in names}
        assert fields == {field_numbered(number)}, names


def test_no_two_ids_feed_one_variant_but_the_two_of_the_power_cap() -> None:
    keys: dict[str, list[int]] = {}
    for number in readable_ids():
        field = field_numbered(number)
        assert field is not None
        keys.setdefault(field.key(), []).append(number)
    doubled = {key: ids for key, ids in keys.items() if len(ids) > 1}
    assert doubled == {
        "gpu_power_cap_seconds_total": [240, 1420],
        "gpu_sync_boost_seconds_total": [242, 1421],
    }


def test_keys_are_names_of_the_metric_table() -> None:
    for number in readable_ids():
        field = field_numbered(number)
        assert field is not None
        assert spec_of(field.key()) is not None
        assert spec_of(field.key("3")) is not None


@pytest.mark.parametrize("number", sorted(NOT_OURS))
def test_fields_that_only_look_like_a_row_are_left_out(number: int) -> None:
    assert field_numbered(number) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", 'gpu_row_remap_banks{availability="partial"}'),
        ("DCGM_FI_DEV_BANK_REMAP_AVAIL_PARTIAL", 'gpu_row_remap_banks{availability="partial"}'),
        ("DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", 'gpu_pcie_errors_total{kind="correctable"}'),
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L11", 'gpu_nvlink_crc_flit_errors_total{link="11"}'),
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_L11_TOTAL", 'gpu_nvlink_crc_flit_errors_total{link="11"}'),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gpu_clocks_event_reasons_bitmask"),
    ],
)
def test_variants_and_old_names(name: str, key: str) -> None:
    field = field_named(name)
    assert field is not None
    assert field.key() == key


@pytest.mark.parametrize(
    "name", ["DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", "DCGM_FI_DEV_FABRIC_MANAGER_ERROR", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"]
)
def test_what_feeds_no_row(name: str) -> None:
    assert field_named(name) is None


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 97, 0.97),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 97, 0.97),
        ("DCGM_FI_DEV_FB_USED_PERCENT", 0.25, 0.25),
        ("DCGM_FI_DEV_FB_USED", 3, 3 * 2**20),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1500, 1.5),
        ("DCGM_FI_DEV_POWER_VIOLATION", 2_000_000_000, 2.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1410, 1.41e9),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 5, 5e6),
        ("DCGM_FI_DEV_NVLINK_GET_STATE", 1, 1.0),
        ("DCGM_FI_DEV_NVLINK_GET_STATE", 2, 1.0),
        ("DCGM_FI_DEV_NVLINK_GET_STATE", 3, 0.0),
    ],
)
def test_units(name: str, raw: float, value: float) -> None:
    field = field_named(name)
    assert field is not None
    assert field.scaled(raw) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", ["DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"])
def test_rates_are_gauges_whatever_they_are_called(name: str) -> None:
    field = field_named(name)
    assert field is not None
    assert field.spec.kind == "gauge"
    assert field.spec.unit == "bytes/s"


def test_bandwidth_449_is_a_gauge_whatever_the_exporter_declares() -> None:
    assert METRICS["gpu_nvlink_bandwidth_bytes_per_second"].dcgm_ids == (449,)
    assert METRICS["gpu_nvlink_bandwidth_bytes_per_second"].kind == "gauge"


BASES = {"int64": 9223372036854775792, "fp64": 140737488355328, "int32": 2147483632}


@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize(
    ("offset", "reason"), [(0, Missing.BLANK), (1, Missing.BLANK), (2, Missing.UNSUPPORTED), (3, Missing.DENIED)]
)
def test_sentinels(base: str, offset: int, reason: Missing) -> None:
    text = str(BASES[base] + offset)
    assert blank_number(float(text), text) is reason


def test_a_sentinel_that_went_through_a_double_is_blank_at_least() -> None:
    assert blank_number(9.223372036854775808e18, "9223372036854775808") is Missing.BLANK
    assert blank_number(9.223372036854775808e18) is Missing.BLANK


@pytest.mark.parametrize("value", [0.0, -3.0, 2147483631.0, 2147483636.0, 140737488355327.0, 1.4e14 + 0.5, 9.2e18])
def test_what_only_looks_like_a_sentinel_is_a_value(value: float) -> None:
    assert blank_number(value) is None


def test_texts() -> None:
    assert blank_text("<<<NOT_SUPPORTED>>>") is Missing.UNSUPPORTED
    assert blank_text("<<<SOMETHING_NEW>>>") is Missing.BLANK
    assert blank_text("N/A") is Missing.BLANK
    assert blank_text("535.104") is None
