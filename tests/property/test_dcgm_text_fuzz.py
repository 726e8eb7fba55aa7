"""No text of dcgm-exporter, dcgmi or a Prometheus raises, and numbers come through exactly."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.collector.dcgm.dcgmi import discovered, dmon_row, instances, listed_fields
from tocsin.collector.dcgm.exporter import read_page
from tocsin.collector.dcgm.exposition import Heads, LineLabels, gpu_of, owner_of
from tocsin.collector.prometheus_history.answers import NotAnAnswer, parse_matrix, parse_newest
from tocsin.collector.source import NodeIdentity
from tocsin_testing.dcgm_pages import DATA, line, page_of

LINES = [
    text
    for path in sorted(DATA.glob("exporter_*.prom"))
    for text in path.read_text().splitlines()
    if not text.startswith("#")
]
SPLICES = st.sampled_from(['"', "{", "}", ",", "=", " ", "\\", "\n", "\r", "\t", "\x00", "NaN", "é", "\u2028", "1e999"])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A real line with something put in, or cut out, anywhere."""
    text = draw(st.sampled_from(LINES))
    for _ in range(draw(st.integers(0, 3))):
        at, to = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        text = text[:at] + draw(SPLICES) + text[to if draw(st.booleans()) else at :]
    return text


@given(st.lists(damaged() | st.text(max_size=80), max_size=6))
@example(["DCGM_FI_DEV_GPU_TEMP{", "DCGM_FI_} 1", "DCGM_FI_DEV_GPU_TEMP 1 2 3", 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 1 x'])
def test_no_page_raises_and_good_lines_beside_bad_ones_are_kept(lines: list[str]) -> None:
    good = page_of(1).replace("GPU-0", "GPU-good")
    page = read_page("\n".join([*lines, "", good]), Heads(NodeIdentity("h")))
    assert {"gpu_temperature_celsius", "gpu_energy_joules_total"} <= page.rows["GPU-good"].values.keys()
    for row in page.rows.values():
        reading = row.reading(0, {})
        assert all(math.isfinite(value) for value in reading.values.values())
        assert not set(reading.values) & set(reading.missing)


@given(st.floats(-99, 149))
def test_a_value_of_a_page_is_exact(value: float) -> None:
    page = read_page(line("DEV_GPU_TEMP", repr(value)), Heads(NodeIdentity()))
    assert page.rows["GPU-0"].values == {"gpu_temperature_celsius": value}


@given(st.text(max_size=200), st.integers(0, 4))
@example("GPU 0 LINK 5 1 2", 2)
def test_no_text_of_dcgmi_raises(text: str, columns: int) -> None:
    for one in text.splitlines():
        dmon_row(one, columns)
        dmon_row(f"GPU 0     {one}", columns)
    discovered(text)
    instances(text)
    listed_fields(text)


LABELS = st.dictionaries(
    st.sampled_from(
        ["gpu", "UUID", "uuid", "Hostname", "instance", "job", "pod", "exported_pod", "GPU_I_ID", "hpc_job"]
    ),
    st.text(max_size=8),
)


@given(LABELS)
def test_no_labels_raise(labels: dict[str, str]) -> None:
    found = LineLabels(labels)
    gpu = gpu_of(found)
    assert gpu is None or (gpu.uuid and gpu.is_mig == ("/gi" in gpu.uuid and bool(found.first("gpu_i_id"))))
    owner = owner_of(found)
    assert owner is None or owner.pod or owner.slurm_job


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example(b'{"status":"success","data":{"result":[{"metric":{},"values":[[1,"2"]]}]}')
@example(b'{"status":"success","data":{"result":[1]}}')
def test_no_answer_raises_but_for_being_none(body: bytes) -> None:
    for parse in (parse_matrix, parse_newest):
        with contextlib.suppress(NotAnAnswer):
            parse(body)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3),
            st.lists(st.tuples(st.integers(1, 4_000_000_000_000), st.floats()), min_size=1, max_size=5),
        ),
        max_size=4,
    )
)
def test_an_answer_s_numbers_are_exact(series: list[tuple[dict[str, str], list[tuple[int, float]]]]) -> None:
    result = [
        {"metric": labels, "values": [[at / 1000, go_float(value)] for at, value in pairs]} for labels, pairs in series
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    text = json.dumps(document, separators=(",", ":")).encode()
    lines = parse_matrix(text).lines
    assert [dict(one.labels) for one in lines] == [labels for labels, _ in series]
    newest, warnings = parse_newest(text)
    assert (len(newest), warnings) == (len(series), [])
    for last, (labels, pairs) in zip(newest, series, strict=True):
        assert (json.loads(last.labels), last.at_s) == (labels, pairs[-1][0] / 1000)
        assert repr(float(last.value)) == repr(pairs[-1][1])
    for found, (_, pairs) in zip(lines, series, strict=True):
        assert found.at_s.tolist() == [at / 1000 for at, _ in pairs]
        assert [repr(value) for value in found.values.tolist()] == [repr(value) for _, value in pairs]


@pytest.mark.parametrize(
    "body",
    [
        '{"data":{"result":[{"values":[[1,"2"],[3,"4"]],"metric":{"a":"b"}}]},"status":"success","warnings":["w"]}',
        '{"status":"success","data":{"result":[{"metric": {"a": "b"}, "values": [[3, "4"]]}]},"warnings":["w"]}',
        '{"status":"success","data":{"result":[{"metric":{"a":"b"},"values":[[3,"4"]]},{"metric":{"c":"d"},'
        '"histograms":[[3,{}]]}]},"warnings":["w"]}',
        '{"status":"success","data":{"result":[{"metric":{"a":"b"},"values":[[3,"4"]]},{"metric":{"c":"d"}}]},'
        '"warnings":["w"]}',
        '{"status":"success","data":{"result":[{"metric":{"a":"b"},"values":[[3,"4"]],"more":{}}]},"warnings":["w"]}',
    ],
    ids=["another order", "spaces", "histograms", "no values", "more keys"],
)
def test_answers_that_are_written_in_another_way_are_read(body: str) -> None:
    found, warnings = parse_newest(body.encode())
    assert [(json.loads(one.labels), one.at_s, one.value) for one in found] == [({"a": "b"}, 3.0, 4.0)]
    assert warnings == ["w"]


def go_float(value: float) -> str:
    """As Go prints it: infinities with a sign."""
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
