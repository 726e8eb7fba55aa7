"""The NVLink domain that NVML names is a fact of the GPU, from the driver to the wire and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.collector.nvml import events as nvml_events
from tocsin.collector.nvml.answers import nvlink_domain
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.reading import NVLINK_DOMAIN
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.builders import T0
from tocsin_testing.nvml_replay import RecordedNvml, devices

CLUSTER = [0, 0x7D, *range(14)]
DOMAIN = "007d0001-0203-0405-0607-08090a0b0c0d.5"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a source waits for its event thread, which waits in the driver."""
    monkeypatch.setattr(nvml_events, "WAIT_MS", 10)


def registered(**changes: Any) -> dict[str, Any]:
    """The driver's answer of a GPU that is registered with a fabric of several hosts."""
    answer = {"clusterUuid": CLUSTER, "status": 0, "cliqueId": 5, "state": 3, "healthMask": 0, "healthSummary": 1}
    return {"value": answer | changes}


@pytest.fixture
def library() -> RecordedNvml:
    library = RecordedNvml(devices("h100-healthy"))
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = registered()
    return library


@pytest.fixture
def source(library: RecordedNvml) -> Iterator[NvmlSource]:
    source = NvmlSource(library, NodeIdentity("node-1", labels={"team": "a"}), 10.0)
    yield source
    source.close()


def labels(source: NvmlSource, at_ms: int) -> dict[str, str]:
    return dict(source.read(at_ms).readings[0].gpu.labels)


def test_domain_is_a_label_beside_those_of_the_node(source: NvmlSource) -> None:
    found = labels(source, T0)
    assert {"team": "a", NVLINK_DOMAIN: DOMAIN}.items() <= found.items()
    assert "driver_version" in found


def test_registration_that_ends_anew_may_name_another_domain(source: NvmlSource, library: RecordedNvml) -> None:
    labels(source, T0)
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = registered(state=2)
    assert labels(source, T0 + 2 * MINUTE)[NVLINK_DOMAIN] == DOMAIN, "kept while it is not known better"
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = registered(cliqueId=9)
    assert labels(source, T0 + 4 * MINUTE)[NVLINK_DOMAIN] == DOMAIN.removesuffix("5") + "9"
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = registered(state=2)
    labels(source, T0 + 6 * MINUTE)
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = registered(clusterUuid=[0] * 16)
    assert NVLINK_DOMAIN not in labels(source, T0 + 8 * MINUTE)


@pytest.mark.parametrize("answer", [registered(clusterUuid=[1, 2]), registered(clusterUuid=None), {"error": 3}])
def test_an_answer_in_another_shape_costs_no_reading(library: RecordedNvml, answer: dict[str, Any]) -> None:
    library.devices[0]["nvmlDeviceGetGpuFabricInfoV"] = answer
    source = NvmlSource(library, NodeIdentity("node-1"), 10.0)
    reading = source.read(T0).readings[0]
    source.close()
    assert NVLINK_DOMAIN not in reading.gpu.labels
    assert "gpu_temperature_celsius" in reading.values


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, DOMAIN),
        ({"state": 2}, ""),
        ({"status": 999}, ""),
        ({"clusterUuid": [0] * 16}, ""),
    ],
)
def test_only_a_registration_that_ended_well_names_a_domain(changes: dict[str, Any], named: str) -> None:
    assert nvlink_domain(SimpleNamespace(**registered(**changes)["value"])) == named


def test_domain_travels_over_the_wire_and_old_agents_send_none(source: NvmlSource) -> None:
    reading = source.read(T0).readings[0]
    old = replace(reading, gpu=replace(reading.gpu, labels={}))
    for sent, expected in ((reading, DOMAIN), (old, None)):
        (back,) = decode(encode(Batch(readings=[sent])), now_ms=T0).batch.readings
        assert back.gpu.labels.get(NVLINK_DOMAIN) == expected
