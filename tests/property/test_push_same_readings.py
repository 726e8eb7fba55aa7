"""The same values by line protocol, remote write 1.0 and 2.0, and OTLP in both of its forms are the same readings."""

from __future__ import annotations

import json
from collections.abc import Mapping

from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tocsin.collector.dcgm.fields import field_named
from tocsin.collector.exporter import gpu_labels
from tocsin.collector.push import otlp, otlp_json, remote_write
from tocsin.collector.push.fleet import PushedFleet
from tocsin.collector.push.samples import Reader, Tally
from tocsin.config.promql import PromqlSettings
from tocsin.domain.batch import Batch
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.reading import Gpu, Reading
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.pushes import Series, otlp_json_of, otlp_of, request_1, request_2

DCGM = {
    "DCGM_FI_DEV_GPU_TEMP": (0, 120),
    "DCGM_FI_DEV_POWER_USAGE": (0, 900),
    "DCGM_FI_DEV_GPU_UTIL": (0, 100),
    "DCGM_FI_DEV_FB_USED": (0, 80_000),
    "DCGM_FI_DEV_SM_CLOCK": (0, 2_000),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (0, 10**12),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (0, 1_000),
}
FORMS: dict[str, tuple[object, Reader]] = {
    "1.0": (request_1, remote_write.read_1),
    "2.0": (request_2, remote_write.read_2),
    "otlp": (otlp_of, otlp.read),
    "otlp json": (otlp_json_of, lambda body, tally: otlp_json.read(otlp_json.parsed(body), tally)),
}
OWN = sorted(
    name
    for name, spec in METRICS.items()
    # Used over used plus free is worked out for exporters that have no ratio; an agent always sends its own.
    if spec.entity == "gpu" and not spec.label and spec.minimum <= 0 and spec.maximum >= 1 and "free_bytes" not in name
)
FLEET = PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000, 256)
"""One for all examples: values of one body hang on no other's."""
values = st.fixed_dictionaries(
    {}, optional={name: st.integers(low, high).map(float) for name, (low, high) in DCGM.items()}
).filter(bool)


def pushed(form: str, series: list[Series]) -> dict[tuple[str, int], Reading]:
    """The readings that come out of `series` in a form, once they have been line protocol."""
    make, read = FORMS[form]
    tally = Tally()
    found = list(read(make(series), tally))  # type: ignore[operator]
    taken = FLEET.take(found, "fleet", lambda _host, _gpus: "", T0)
    assert tally.rejected == 0, tally.problem
    assert taken.rejected == 0, taken.problem
    return by_key(encode(taken.batch))


def by_key(text: str) -> dict[tuple[str, int], Reading]:
    decoded = decode(text, precision="ms", now_ms=T0)
    assert decoded.refused == 0
    return {(one.gpu.uuid, one.at_ms): one for one in decoded.batch.readings}


def facts(one: Reading) -> tuple[object, ...]:
    gpu = one.gpu
    return gpu.uuid, gpu.host, gpu.index, gpu.model, gpu.parent, gpu.pool, one.at_ms, dict(one.values)


def same(line: Mapping[tuple[str, int], Reading], series: list[Series]) -> None:
    for form in FORMS:
        found = pushed(form, series)
        assert {key: facts(one) for key, one in found.items()} == {key: facts(one) for key, one in line.items()}, form


@given(values, st.integers(0, 3), st.integers(1, 10**6))
def test_series_of_dcgm_exporter(chosen: dict[str, float], index: int, ago: int) -> None:
    at_ms = T0 - ago
    labels = {"gpu": str(index), "UUID": f"GPU-{index}", "Hostname": "n1", "modelName": "NVIDIA H100"}
    series: list[Series] = [({"__name__": name, **labels}, [(at_ms, raw)]) for name, raw in chosen.items()]
    read = {name: field_named(name) for name in chosen}
    expected = {one.key(): one.scaled(chosen[name]) for name, one in read.items() if one is not None}
    gpu = Gpu(f"GPU-{index}", "n1", index=index, model="NVIDIA H100")
    same(by_key(encode(Batch([Reading(gpu, at_ms, expected)]))), series)


@given(st.dictionaries(st.sampled_from(OWN), st.floats(0, 1), min_size=1, max_size=8), st.booleans())
def test_series_of_the_agent(chosen: dict[str, float], mig: bool) -> None:
    gpu = Gpu("MIG-1" if mig else "GPU-1", "n1", index=2, model="NVIDIA H100", parent="GPU-1" if mig else "", pool="a")
    line = by_key(encode(Batch([Reading(gpu, T0 - 5, chosen)])))
    labels = {name: text for name, text in gpu_labels(gpu).items() if text}
    same(line, [({"__name__": split_variant(name)[0], **labels}, [(T0 - 5, raw)]) for name, raw in chosen.items()])


attribute_values = st.one_of(
    st.text(max_size=5).map(lambda text: {"stringValue": text}),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: {"intValue": str(number)}),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: {"doubleValue": number}),
    st.booleans().map(lambda yes: {"boolValue": yes}),
    st.just({"bytesValue": "3q2+7w=="}),
    st.just({"arrayValue": {"values": [{"stringValue": "x"}]}}),
)
attributes = st.lists(st.builds(lambda key, value: {"key": key, "value": value}, st.text(max_size=5), attribute_values))
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: {"asDouble": number}),
    st.integers(-(2**63), 2**63 - 1).flatmap(lambda n: st.sampled_from([{"asInt": str(n)}, {"asInt": n}])),
    st.just({}),
)
points = st.builds(
    lambda number, found, at, flags: {**number, "attributes": found, "timeUnixNano": str(at), "flags": flags},
    numbers, attributes, st.integers(0, 2**64 - 1), st.integers(0, 3),
)  # fmt: skip
metrics = st.builds(
    lambda name, kind, found, temporality: {
        "name": name,
        kind: {"dataPoints": found} | ({"aggregationTemporality": temporality} if kind == "sum" else {}),
    },
    st.text(max_size=8), st.sampled_from(["gauge", "sum"]), st.lists(points, max_size=3), st.integers(0, 2),
)  # fmt: skip


@given(st.lists(metrics, max_size=3), attributes)
def test_otlp_reads_alike_in_both_forms(found: list[dict[str, object]], resource: list[dict[str, object]]) -> None:
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": found}], "resource": {"attributes": resource}}]}
    message = ParseDict(document, ExportMetricsServiceRequest())
    one, other = Tally(), Tally()
    expected = list(otlp.read(message.SerializeToString(), one))
    assert list(otlp_json.read(otlp_json.parsed(json.dumps(document).encode()), other)) == expected
    assert (one.samples, one.rejected, one.problem) == (other.samples, other.rejected, other.problem)
