"""Which series of a VictoriaMetrics are Tocsin's."""

from __future__ import annotations

import pytest

from tocsin.store.victoriametrics.labels import key_of


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gpu_power_watts", ("gpu_power_watts", False)),
        ("gpu_missing_power_watts", ("gpu_power_watts", True)),
        ("power_watts", None),
        ("missing_power_watts", None),
        ("gpu_nonsense", None),
    ],
)
def test_another_exporters_series_of_the_same_gpu_is_not_ours(name: str, wanted: tuple[str, bool] | None) -> None:
    assert key_of({"__name__": name, "gpu_uuid": "GPU-1"}) == wanted
    assert key_of({"__name__": name}) is None
