"""The same values by line protocol, remote write 1.0 and 2.0, and OTLP are the same readings."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.dcgm.fields import field_named
from tocsin.collector.exporter import gpu_labels
from tocsin.collector.push import otlp, remote_write
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
from tocsin_testing.pushes import Series, otlp_of, request_1, request_2

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
}
OWN = sorted(
    name
    for name, spec in METRICS.items()
    # Used over used plus free is worked out for exporters that have no ratio; an agent always sends its own.
    if spec.entity == "gpu" and not spec.label and spec.minimum <= 0 and spec.maximum >= 1 and "free_bytes" not in name
)
FLEET = PushedFleet(PromqlSettings(), OwnMetrics(), lambda _: (None, False), 120_000)
"""One for all examples: values of one body hang on no other's."""
values = st.fixed_dictionaries(
    {}, optional={name: st.integers(low, high).map(float) for name, (low, high) in DCGM.items()}
).filter(bool)


def pushed(form: str, series: list[Series]) -> dict[tuple[str, int], Reading]:
    """The readings that come out of `series` in a form, once they have been line protocol."""
    make, read = FORMS[form]
    tally = Tally()
    found = list(read(make(series), tally))  # type: ignore[operator]
    taken = FLEET.take(found, lambda _host, _gpus: "", T0)
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
