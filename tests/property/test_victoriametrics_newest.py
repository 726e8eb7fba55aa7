"""What the newest readings of an export in CSV are: those that the export in JSON has."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.reading import Reading
from tocsin.store.samples import Rows
from tocsin.store.victoriametrics.newest import FORMAT, newest_readings
from tocsin.store.victoriametrics.store import parse
from tocsin_testing.builders import T0

COLUMNS = [column.partition(":")[0] for column in FORMAT.split(",")]
Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, int, float]

gpus = st.sampled_from(
    [
        {"gpu_uuid": "GPU-1", "host": "a"},
        {"gpu_uuid": "GPU-1", "host": "a", "mig_uuid": "MIG-1"},
        {"gpu_uuid": "GPU-2", "host": "b"},
        {"gpu_uuid": "GPU-3"},
        {"host": "of nobody"},
    ]
)
metrics = st.sampled_from(
    [
        {"__name__": "gpu_info_index"},
        {"__name__": "gpu_power_watts"},
        {"__name__": "gpu_missing_power_watts"},
        {"__name__": "gpu_temperature_celsius", "job": "scraped"},
        {"__name__": "gpu_nvlink_transmit_bytes_total", "link": "3"},
        {"__name__": "gpu_nvlink_transmit_bytes_total", "link": "4"},
        {"__name__": "gpu_missing_nvlink_transmit_bytes_total", "link": "4"},
        {"__name__": "gpu_prediction_probability", "target": "hot"},
        {"__name__": "node_load1"},
    ]
)
series = st.builds(lambda gpu, metric: tuple(sorted({**gpu, **metric}.items())), gpus, metrics)
values = st.sampled_from([0.0, 1.0, 3.0, 61.25, 1e300, math.nan, math.inf])
# Of two values of one series at one instant it is not defined which is read.
samples = st.lists(st.tuples(series, st.integers(T0, T0 + 3), values), unique_by=lambda one: one[:2], max_size=40)


def as_csv(some: Iterable[Sample]) -> bytes:
    rows = []
    for labels, at_ms, value in some:
        texts = {"__value__": f"{value:g}", "__timestamp__": str(at_ms), **dict(labels)}
        rows.append(",".join(texts.get(column, "") for column in COLUMNS))
    return "".join(f"{row}\n" for row in rows).encode()


def as_json(some: Iterable[Sample]) -> list[bytes]:
    found: dict[Labels, list[tuple[int, float]]] = defaultdict(list)
    for labels, at_ms, value in some:
        found[labels].append((at_ms, value))
    lines = []
    for labels, pairs in found.items():
        document = {"metric": dict(labels), "values": [v for _, v in pairs], "timestamps": [at for at, _ in pairs]}
        lines.append(json.dumps(document, separators=(",", ":")).encode())
    return lines


def newest_of_json(some: Iterable[Sample], wanted: set[str] | None) -> dict[str, Reading]:
    rows = Rows()
    for one in parse(as_json(some), wanted):
        rows.add_series(one.gpu, one.key, one.is_reason, one.at_ms.tolist(), one.values.tolist())
    return {reading.gpu.uuid: reading for reading in rows.readings({})}


@settings(max_examples=200)
@given(some=samples, wanted=st.none() | st.sets(st.sampled_from(["GPU-1", "MIG-1", "GPU-2"])))
def test_the_newest_readings_are_those_of_the_export_in_json(some: list[Sample], wanted: set[str] | None) -> None:
    found = newest_readings(as_csv(some), wanted)
    assert found is not None
    assert {one.gpu.uuid: one for one in found} == newest_of_json(some, wanted)
    assert len(found) == len({one.gpu.uuid for one in found})
    assert {one.gpu.parent for one in found} <= {"", "GPU-1"}


ROW = as_csv([((("__name__", "gpu_power_watts"), ("gpu_uuid", "GPU-1")), T0, 300.0)])


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([ROW, ROW[:-1], ROW[5:], b'"', b",", b"\n"]), max_size=5))
def test_no_text_raises(pieces: list[bytes]) -> None:
    found = newest_readings(b"".join(pieces), None)
    assert found is None or all(reading.at_ms >= 0 for reading in found)


def test_what_is_not_plain_is_not_read() -> None:
    for text in (
        ROW + ROW.replace(b"GPU-1", b'"GPU,1"'),
        ROW + ROW.replace(b"GPU-1", b"GPU,1"),
        ROW + ROW[: len(ROW) // 2],
        ROW + ROW.replace(str(T0).encode(), b"-1"),
        ROW + ROW.replace(str(T0).encode(), b"9" * 18),
        ROW + ROW.replace(str(T0).encode(), b""),
        ROW + ROW.replace(b"GPU-1", b"G" * 2_000),
        ROW + b"\xff" + ROW,
    ):
        assert newest_readings(text, None) is None, text
    assert newest_readings(b"", None) == []
