"""Parts that the stores are made of: grids of series, exports of VictoriaMetrics, Flux, ages and buckets."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.metrics import variant
from tocsin.store.factory import open_store
from tocsin.store.grid import Grid, by_gpu, columns_of
from tocsin.store.influx import flux
from tocsin.store.influx.store import Buckets
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin.store.victoriametrics import store as victoriametrics
from tocsin_testing.builders import T0, gpu, reading

POWER = "gpu_power_watts"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# ---------------------------------------------------------------------- grids


def test_a_grid_puts_series_of_different_instants_together() -> None:
    grid = Grid([POWER, "gpu_temperature_celsius"])
    grid.add("b", POWER, ints(3, 1), np.array([30.0, 10.0]))
    grid.add("b", "gpu_temperature_celsius", ints(1, 2), np.array([41.0, 42.0]))
    grid.add("b", "gpu_sm_clock_hertz", ints(9), np.array([1.0]))
    grid.seen("a", ints(2))
    found = grid.columns()
    assert (found.gpus, found.at_ms.tolist(), found.gpu.tolist()) == (("a", "b"), [1, 2, 2, 3, 9], [1, 0, 1, 1, 1])
    nan = float("nan")
    np.testing.assert_array_equal(found.values, [[10, 41], [nan, nan], [nan, 42], [30, nan], [nan, nan]])
    newest = grid.columns(newest=True)
    assert (newest.gpus, newest.at_ms.tolist(), newest.gpu.tolist()) == (("a", "b"), [2, 9], [0, 1])


cells = st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from(["x", "y"]), st.integers(-9, 9))


@given(st.lists(cells, max_size=30))
def test_a_grid_is_the_table_of_its_cells(some: list[tuple[str, int, str, int]]) -> None:
    table = {(at, uuid, name): float(value) for uuid, at, name, value in some}
    grid = Grid(["x", "y"])
    for uuid, at, name, value in some:
        grid.add(uuid, name, ints(at), np.array([float(value)]))
    found = grid.columns()
    rows = sorted({(at, uuid) for at, uuid, _ in table})
    assert [(int(at), found.gpus[n]) for at, n in zip(found.at_ms, found.gpu, strict=True)] == rows
    expected = [[table.get((*row, name), np.nan) for name in ("x", "y")] for row in rows]
    np.testing.assert_array_equal(found.values, np.array(expected).reshape(-1, 2))


def test_columns_are_taken_apart_by_gpu() -> None:
    readings = [reading(gpu(n), T0 + step, power_watts=10 * n + step) for step in range(3) for n in (0, 1)]
    found = by_gpu(columns_of([POWER], readings), ["GPU-00000001", "GPU-none"])
    assert list(found) == ["GPU-00000001", "GPU-none"]
    assert (found["GPU-00000001"].at_ms - T0).tolist() == [0, 1, 2]
    assert found["GPU-00000001"].values.tolist() == [[10.0], [11.0], [12.0]]
    assert found["GPU-none"].values.shape == (0, 1)


# ---------------------------------------------------------------------- exports of VictoriaMetrics


@given(st.binary(max_size=60).map(lambda body: body.replace(b"z", b"\n")), st.lists(st.integers(0, 60), max_size=6))
def test_lines_are_whole_however_the_body_is_cut(body: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(body)]
    chunks = [body[start:end] for start, end in itertools.pairwise(places)]
    assert list(victoriametrics.lines_of(chunks)) == [line for line in body.split(b"\n") if line]


def line(name: str, at_ms: list[int], values: list[float | None], **labels: str) -> bytes:
    metric = {"__name__": name, "gpu_uuid": "G", "host": "n", **labels}
    return json.dumps({"metric": metric, "values": values, "timestamps": at_ms}, separators=(",", ":")).encode()


def test_an_export_is_parsed_to_series() -> None:
    lines = [
        line("gpu_power_watts", [1, 2, 3], [5, None, 7.5]),
        line("gpu_missing_power_watts", [4], [3]),
        line("gpu_nvlink_up", [1], [1], link="0", mig_uuid="M"),
        line("gpu_info_index", [1, 4], [0, 0]),
        line("gpu_made_up", [1], [1]),
        line("gpu_power_watts", [1], [1], gpu_uuid=""),
    ]
    found = [
        (s.gpu.uuid, s.key, s.is_reason, s.at_ms.tolist(), s.values.tolist())
        for s in victoriametrics.parse(lines, None)
    ]
    assert found == [
        ("G", POWER, False, [1, 3], [5.0, 7.5]),
        ("G", POWER, True, [4], [3.0]),
        ("M", variant("gpu_nvlink_up", "link", "0"), False, [1], [1.0]),
        ("G", "", False, [1, 4], [0.0, 0.0]),
    ]
    assert [s.gpu.uuid for s in victoriametrics.parse(lines, ["M"])] == ["M"]


def test_selectors_name_what_is_wanted_and_no_more() -> None:
    crc = "gpu_nvlink_crc_flit_errors_total"
    wanted = [POWER, "gpu_of_tomorrow", crc, variant(crc, "link", "1.5")]
    assert victoriametrics.chosen_series(wanted, None) == [
        '{__name__=~"gpu_info_index|gpu_power_watts"}',
        f'{{__name__="{crc}",link=~"|1\\\\.5"}}',
    ]
    assert victoriametrics.chosen_series([], ["G", "H"]) == [
        '{__name__=~"gpu_info_index",gpu_uuid=~"G|H",mig_uuid=""}',
        '{__name__=~"gpu_info_index",mig_uuid=~"G|H"}',
    ]
    assert len(victoriametrics.every_series([f"G{n}" for n in range(101)])) == 1


def test_newest_instants_are_grouped_by_time() -> None:
    newest = {"a": 100, "b": 159, "c": 160, "d": 5, "e": 100}
    assert victoriametrics.clusters(newest, 60) == [(5, 5, ["d"]), (100, 159, ["a", "e", "b"]), (160, 160, ["c"])]
    assert victoriametrics.clusters({}, 60) == []


@pytest.mark.parametrize(
    ("write", "query", "error"),
    [
        (204, '{"status":"success","data":{"resultType":"vector","result":[]}}', None),
        (204, "<html>a proxy</html>", StoreUnavailable),
        (503, "", StoreUnavailable),
        (400, "", StoreRejected),
    ],
)
def test_readiness_is_a_write_and_a_query(
    httpserver: HTTPServer, tmp_path: object, write: int, query: str, error: type[Exception] | None
) -> None:
    httpserver.expect_request("/health").respond_with_data("OK")
    httpserver.expect_request("/api/v2/write", method="POST").respond_with_data("", status=write)
    httpserver.expect_request("/api/v1/query", method="POST").respond_with_data(query)
    settings = StoreSettings(
        kind=StoreKind.VICTORIAMETRICS,
        url=httpserver.url_for(""),
        path=f"{tmp_path}/words.db",  # type: ignore[arg-type]
    )
    store = open_store(settings)
    if error is None:
        store.init()
    else:
        with pytest.raises(error, match="VictoriaMetrics at http"):
            store.init()
    store.close()


# ---------------------------------------------------------------------- InfluxDB


def spans(start_ms: int, end_ms: int, now_ms: int) -> list[tuple[str, int, int]]:
    buckets = Buckets.of(StoreSettings(bucket="b", raw_days=1, minute_days=10, ten_minute_days=100))
    return [(bucket.name, start, end) for bucket, start, end in buckets.spans(start_ms, end_ms, now_ms)]


@given(st.integers(0, 20 * DAY), st.integers(0, 20 * DAY))
def test_each_instant_is_read_once_and_from_one_bucket(start: int, length: int) -> None:
    now = T0 + 3 * MINUTE
    begin = now - 15 * DAY + start
    found = spans(begin, begin + length, now)
    assert sum(end - first for _, first, end in found) == length
    for (_, _, end), (_, first, _) in itertools.pairwise(found):
        assert end == first
        assert end % (10 * MINUTE) == 0, "a coarse window is read whole or not at all"
    for name, first, end in found:
        assert name != "b" or now - first <= DAY
        assert name != "b_10m" or now - end > 10 * DAY - 10 * MINUTE


def test_young_readings_are_read_as_they_were_taken() -> None:
    assert spans(T0 - 23 * HOUR, T0, T0) == [("b", T0 - 23 * HOUR, T0)]
    assert [name for name, _, _ in spans(0, T0, T0)] == ["b_10m", "b_1m", "b"]
    assert spans(T0, T0, T0) == []


def test_a_query_of_one_bucket_has_no_union() -> None:
    assert "union" not in flux.query(["a"], 0, 5, ["gpu"])
    assert flux.query(["a", "b"], 0, 5, ["gpu"]).count("from(bucket:") == 2
