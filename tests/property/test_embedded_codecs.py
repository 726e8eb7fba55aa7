"""What chunks and segments give back is what went in, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import HOUR
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.store.embedded import segments
from tocsin.store.embedded.blocks import Block, matrix, merge
from tocsin.store.embedded.chunks import BODY, COLUMNS, chunks_of, pack, unpack
from tocsin.store.embedded.segments import decode, encode
from tocsin.store.embedded.store import Gatherer, readings_of
from tocsin_testing.builders import T0, gpu

names = st.one_of(
    st.sampled_from(list(METRICS)),
    st.text(max_size=8).map(lambda text: variant("gpu_nvlink_up", "link", text)),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**53), 2**53).map(float),
    st.integers(0, 10**6).map(lambda n: n / 1000),
    st.just(-0.0),
)
owners = st.lists(st.builds(Owner, st.integers(0, 2**22), st.text(max_size=5)), max_size=2).map(tuple)
readings = st.lists(
    st.builds(
        Reading,
        st.integers(0, 5).map(gpu),
        st.integers(0, 3 * HOUR).map(lambda ms: T0 + ms),
        st.dictionaries(names, numbers, max_size=6),
        st.dictionaries(names, st.sampled_from(list(Missing)), max_size=4),
        owners,
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda r: (r.gpu.uuid, r.at_ms),
)


def block_of(some: list[Reading]) -> Block:
    return Gatherer().gather(some, np.array([r.gpu.index for r in some], dtype=np.int32))


def told(some: list[Reading]) -> dict[tuple[str, int], object]:
    """All of some readings in a form that tells 0.0 from -0.0."""
    found = {}
    for one in some:
        values = {name: np.float64(value).tobytes() for name, value in one.values.items()}
        missing = {name: reason for name, reason in one.missing.items() if name not in values}
        found[one.gpu.uuid, one.at_ms] = (values, missing, one.owners)
    return found


def back(block: Block) -> list[Reading]:
    return list(readings_of(block, {n: gpu(n) for n in range(6)}))


@given(readings)
@settings(max_examples=50)
def test_readings_become_columns_and_readings_again(some: list[Reading]) -> None:
    assert told(back(block_of(some))) == told(some)


@given(readings)
@settings(max_examples=50)
def test_chunks_give_back_what_was_packed(some: list[Reading]) -> None:
    wanted = BODY.replace(" ", "").split(",")
    columns = COLUMNS.replace(" ", "").split(",")
    found: list[Reading] = []
    for part in chunks_of(block_of(some)):
        packed = pack(part)
        row = dict(zip(columns, packed.row(1), strict=True))
        assert {r.at_ms // HOUR * HOUR for r in back(part)} == {row["bucket_ms"]}
        found += back(unpack([[row[name] for name in wanted]], packed.names, None, whole=True, variants=True))
    assert told(found) == told(some)


@given(readings)
@settings(max_examples=50)
def test_chunks_that_are_alike_give_the_same_together(some: list[Reading]) -> None:
    block = block_of(some)
    wanted = BODY.replace(" ", "").split(",")
    columns = COLUMNS.replace(" ", "").split(",")
    alike: dict[tuple[str, ...], list[list[object]]] = {}
    for number in range(len(block)):
        packed = pack(block.take(np.array([number])))
        row = dict(zip(columns, packed.row(1), strict=True))
        alike.setdefault(packed.names, []).append([row[name] for name in wanted])
    found = [back(unpack(rows, names, None, whole=True, variants=True)) for names, rows in alike.items()]
    assert told([one for each in found for one in each]) == told(some)


@given(readings)
@settings(max_examples=50)
def test_a_matrix_has_what_each_reading_says(some: list[Reading]) -> None:
    block = merge([block_of(some)])
    metrics = [*dict.fromkeys(name for one in some for name in one.values), "gpu_fan_speed_ratio"]
    metrics += metrics[:2]
    order = np.arange(len(block))[::-1]
    one_by_one = [reading.values for reading in back(block.take(order))]
    wanted = [[values.get(name, np.nan) for name in metrics] for values in one_by_one]
    np.testing.assert_array_equal(matrix(block, metrics, order), np.array(wanted).reshape(len(block), len(metrics)))


@given(readings, st.integers(0, 3 * HOUR), st.sets(st.integers(0, 5)))
@settings(max_examples=50)
def test_segments_give_back_what_was_written(some: list[Reading], after: int, which: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        segments.write(path, merge([block_of(some)]))
        whole = segments.read(path, 0, 2**62, None, None, whole=True, variants=_more(path))
        flags = np.array([number in which for number in range(6)])
        part = segments.read(path, T0 + after, 2**62, flags, None, whole=True, variants=_more(path))
    assert told(back(whole)) == told(some)
    assert told(back(part)) == told([r for r in some if r.at_ms >= T0 + after and r.gpu.index in which])


def _more(path: Path) -> bool:
    return segments.variants_of(path).exists()


columns = st.one_of(
    st.lists(numbers, min_size=1, max_size=400),
    st.lists(st.integers(0, 10**9).map(lambda n: n / 100), min_size=300, max_size=400),
    st.lists(st.one_of(st.integers(0, 2**53).map(float), st.just(float("nan"))), min_size=300, max_size=400),
)


@given(columns)
@settings(max_examples=50)
def test_a_column_is_decoded_to_the_same_bits(values: list[float]) -> None:
    column = np.array(values)
    made = encode(column)
    found = decode(pa.chunked_array([made.array]), made.scale)
    assert np.isnan(found).tolist() == np.isnan(column).tolist()
    there = ~np.isnan(column)
    assert found[there].tobytes() == column[there].tobytes()
