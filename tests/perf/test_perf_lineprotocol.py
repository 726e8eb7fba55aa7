"""Line protocol: our encoder against the client library's `Point`, our decoder against JSON, in CPU time of a core."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable

import pytest
from influxdb_client import Point
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.domain.metrics import METRICS, split_variant, variant
from tocsin.domain.reading import Missing, Reading
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin_testing import scale
from tocsin_testing.builders import T0

FLEET = scale.fleet(8_000)
NAMES = scale.PLAIN[:60]
VALUES = len(FLEET) * len(NAMES)
Say = Callable[[str], None]


def rate(benchmark: BenchmarkFixture, values: int) -> str:
    """Values a second by the best round."""
    return f"{values / benchmark.stats.stats.min / 1e6:.2f} million values/s of a core"


def tick(step: int) -> Batch:
    return Batch(scale.readings(FLEET, NAMES, T0 + step * 10 * SECOND, step))


def by_points(batch: Batch) -> str:
    """The same lines by the client library's own objects."""
    lines = []
    for reading in batch.readings:
        heads: dict[tuple[str, str], Point] = {}
        for measurement, fields in (("gpu", reading.values), ("gpu_missing", reading.missing)):
            for key, value in fields.items():
                name, label, which = split_variant(key)
                point = heads.get((measurement, label + which))
                if point is None:
                    point = Point(measurement).tag("gpu_uuid", reading.gpu.uuid).tag("host", reading.gpu.host)
                    point = heads[measurement, label + which] = point.time(reading.at_ms, "ms")
                    if label:
                        point.tag(label, which)
                point.field(METRICS[name].field, int(value) if measurement == "gpu_missing" else value)
        lines += [point.to_line_protocol() for point in heads.values()]
    return "\n".join(lines)


def by_encoder(batch: Batch) -> str:
    return encode(batch, info=False)


@pytest.mark.parametrize(
    ("make", "rounds"),
    [pytest.param(by_encoder, 5, id="tocsin"), pytest.param(by_points, 1, id="baseline_influxdb_client_points")],
)
@pytest.mark.benchmark(group="encode 60 metrics of 8,000 GPUs", timer=time.process_time)
def test_encode_a_fleet(
    benchmark: BenchmarkFixture, say: Say, make: Callable[[Batch], str], rounds: int, request: pytest.FixtureRequest
) -> None:
    batches = iter([tick(step) for step in range(rounds + 1)])  # new values and new objects in every round
    text = benchmark.pedantic(make, setup=lambda: ((next(batches),), {}), rounds=rounds, iterations=1)
    assert text.count("\n") >= len(FLEET) - 1
    if not benchmark.disabled:
        say(f"encode 60 metrics of 8,000 GPUs, {request.node.callspec.id}: {rate(benchmark, VALUES)}")


LINKS = [name for name, spec in METRICS.items() if spec.label == "link"]
LINK_KEYS = [variant(name, "link", str(link)) for link in range(18) for name in LINKS]
BUSY = scale.PLAIN[:75]
REASONS = dict.fromkeys(scale.PLAIN[75:90], Missing.UNSUPPORTED)


def node(step: int) -> Batch:
    """A node's 8 GPUs: 75 metrics and 15 reasons each, and 18 NVLinks of which only the byte counters move."""
    made = []
    for reading in scale.readings(FLEET[:8], BUSY, T0 + step * 5 * SECOND, step):
        links = {key: float(step << 30) if "_bytes_" in key else 0.0 for key in LINK_KEYS}
        made.append(Reading(reading.gpu, reading.at_ms, {**reading.values, **links}, REASONS))
    return Batch(made)


@pytest.mark.parametrize(
    "make", [pytest.param(encode, id="tocsin"), pytest.param(by_points, id="baseline_influxdb_client_points")]
)
@pytest.mark.benchmark(group="encode one reading of a node: 8 GPUs, 90 metrics, 18 links", timer=time.process_time)
def test_encode_a_node(
    benchmark: BenchmarkFixture, say: Say, make: Callable[[Batch], str], request: pytest.FixtureRequest
) -> None:
    rounds = 40
    batches = iter([node(step) for step in range(rounds + 2)])
    text = benchmark.pedantic(make, setup=lambda: ((next(batches),), {}), rounds=rounds, iterations=1, warmup_rounds=1)
    lines = text.rstrip("\n").count("\n") + 1
    if not benchmark.disabled:
        cost = benchmark.stats.stats.median * 1e3
        say(f"encode one reading of a node, {request.node.callspec.id}: {cost:.2f} ms of CPU, {lines} lines")
    assert lines >= 8 * (18 + 2)


@pytest.mark.benchmark(group="encode and compress a minute of a node", timer=time.process_time)
def test_unchanged_reasons_cost_little_on_the_way(benchmark: BenchmarkFixture, say: Say) -> None:
    """They go with every reading, so that a receiver needs no memory of the ones before."""
    ticks = [node(step) for step in range(12)]
    without = [Batch([Reading(r.gpu, r.at_ms, r.values) for r in batch.readings]) for batch in ticks]

    def compressed(batches: list[Batch]) -> int:
        return len(gzip.compress("".join(map(encode, batches)).encode(), 3))

    whole = benchmark.pedantic(compressed, args=(ticks,), rounds=3)
    share = 1 - compressed(without) / whole
    say(f"a minute of a node: {whole / 1024:.0f} KiB compressed, {share:.1%} of it for 15 reasons a reading")
    assert share < 0.1


def from_json(text: str) -> int:
    return len(json.loads(text))


def from_lines(text: str) -> int:
    return len(decode(text, now_ms=T0 + 60 * SECOND).batch.readings)


@pytest.mark.parametrize(
    ("read", "write"),
    [
        pytest.param(from_lines, by_encoder, id="tocsin"),
        pytest.param(
            from_json, lambda batch: json.dumps([[r.gpu.uuid, r.at_ms, r.values] for r in batch.readings]),
            id="baseline_json_without_checks",
        ),
    ],
)  # fmt: skip
@pytest.mark.benchmark(group="decode 60 metrics of 8,000 GPUs", timer=time.process_time)
def test_decode_a_fleet(
    benchmark: BenchmarkFixture,
    say: Say,
    read: Callable[[str], int],
    write: Callable[[Batch], str],
    request: pytest.FixtureRequest,
) -> None:
    text = write(tick(1))
    assert benchmark.pedantic(read, args=(text,), rounds=4, iterations=1) == len(FLEET)
    if not benchmark.disabled:
        say(f"decode 60 metrics of 8,000 GPUs, {request.node.callspec.id}: {rate(benchmark, VALUES)}")


def by_packing(batch: Batch) -> str:
    """What goes from an agent to a brain."""
    return encode(batch, packed=True)


FORMS = [pytest.param(by_packing, id="packed"), pytest.param(encode, id="baseline_text")]


@pytest.mark.parametrize("make", FORMS)
@pytest.mark.benchmark(group="write one reading of a node, packed or as text", timer=time.process_time)
def test_pack_a_node(benchmark: BenchmarkFixture, make: Callable[[Batch], str]) -> None:
    batches = iter([node(step) for step in range(42)])
    text = benchmark.pedantic(make, setup=lambda: ((next(batches),), {}), rounds=40, iterations=1, warmup_rounds=1)
    assert from_lines(text) == 8


@pytest.mark.parametrize("make", FORMS)
@pytest.mark.benchmark(group="decode one reading of a node: 8 GPUs, 90 metrics, 18 links", timer=time.process_time)
def test_decode_a_node(
    benchmark: BenchmarkFixture, say: Say, make: Callable[[Batch], str], request: pytest.FixtureRequest
) -> None:
    texts = iter([make(node(step)) for step in range(22)])
    found = benchmark.pedantic(from_lines, setup=lambda: ((next(texts),), {}), rounds=20, iterations=1, warmup_rounds=1)
    assert found == 8
    if not benchmark.disabled:
        form = request.node.callspec.id
        say(f"decode one reading of a node, {form}: {benchmark.stats.stats.median * 1e3:.2f} ms of CPU")
