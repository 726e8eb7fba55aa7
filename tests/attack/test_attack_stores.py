"""What a store returns is a stranger's word: one bad point costs no good one, and nothing of it gives an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin.store import points
from tocsin.store.embedded.store import _PREDICTION, SqliteStore
from tocsin.store.embedded.sums import row_sum
from tocsin.store.influx import flux
from tocsin.store.line_protocol.encode import point_line
from tocsin.store.points import Point
from tocsin.store.port import StoreUnavailable
from tocsin.store.samples import Rows
from tocsin.store.victoriametrics import store as victoriametrics
from tocsin_testing.builders import T0, reading
from tocsin_testing.damaged import words
from tocsin_testing.stores import doubled

NINES = int("9" * 18)


def good() -> Prediction:
    (one,) = words(1).predictions
    return one


# ---------------------------------------------------------------------- the embedded store


def plant(path: Path, one: Prediction) -> None:
    """A row as an earlier version, or somebody else, may have written it."""
    with closing(SqliteStore(path)) as store, store._writing() as db:
        row = (one.id, one.at_ms, one.subject.name, _PREDICTION.dump_json(one).decode())
        db.execute("INSERT INTO prediction VALUES (?, ?, ?, ?, ?)", (*row, row_sum(row)))


@pytest.mark.parametrize("field", ["horizon_ms", "eta_ms", "eta_low_ms", "eta_high_ms"])
def test_a_stored_prediction_beyond_all_dates_is_set_aside_and_every_view_answers(tmp_path: Path, field: str) -> None:
    path, clock = tmp_path / "store.db", ManualClock(T0 + 60_000)
    bad = replace(good(), model="odd", **{field: NINES})  # type: ignore[arg-type]
    plant(path, bad)
    plant(path, good())
    with closing(SqliteStore(path)) as store:
        assert store.predictions(0, T0 + HOUR) == [good()]
        assert store.damaged_rows() == 1
    plant(path, bad)
    wanted = {"store": {"path": path}, "journal": {"path": tmp_path / "journal.db"}, "forecast": {"worker": False}}
    running = open_brain(Settings.model_validate(wanted), clock, propose=True)
    running.brain.accept(Batch([reading(Gpu("GPU-1", "node-0"), clock.now_ms(), power_watts=1.0)]))
    running.brain.tick()
    service = BrainService(running.brain)
    for view in (service.predictions, service.gpus, service.scoreboard, service.summary):
        assert view() is not None
    assert service.gpu("GPU-1").predictions is not None
    running.stop()


# ---------------------------------------------------------------------- InfluxDB

HEAD = [
    ["#datatype", "string", "long", "dateTime:RFC3339", "double", "string", "string", "string", "string"],
    ["", "result", "table", "_time", "_value", "_field", "_measurement", "gpu_uuid", "host"],
]
ROW = ["", "", "0", "2026-11-21T03:16:40Z", "300", "power_watts", "gpu", "GPU-1", "n1"]
BAD_ROWS = {
    "an instant of no date": {3: "yesterday"},
    "an instant before 1970": {3: "1932-01-01T00:00:00Z"},
    "an instant behind 2199": {3: "9999-01-01T00:00:00Z"},
    "a value beyond a float": {4: "1e400"},
    "a value that is no number": {4: "many"},
    "not a number": {4: "NaN"},
    "no GPU": {7: ""},
    "a name of 5 KB": {7: "G" * 5_000},
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_of_an_influxdb_costs_no_good_one(name: str) -> None:
    bad = [BAD_ROWS[name].get(place, cell) for place, cell in enumerate(ROW)]
    problems: list[str] = []
    rows = Rows()
    rows.take(flux.samples([*HEAD, bad, ROW], problems.append))
    (found,) = rows.readings({})
    assert found.values == {"gpu_power_watts": 300.0}
    assert len(problems) == 1


@given(st.lists(st.lists(st.text(max_size=12) | st.sampled_from([c for r in (*HEAD, ROW) for c in r]), max_size=10)))
def test_no_answer_of_an_influxdb_is_more_than_an_error_of_its_own(some: list[list[str]]) -> None:
    for parse in (flux.samples, flux.instants):
        read_all(parse([*HEAD, *some, ROW], lambda _problem: None))


def read_all(found: Iterator[object]) -> None:
    try:
        list(found)
    except (flux.FluxError, ValueError, LookupError):
        return  # which the store maps to StoreUnavailable


def test_points_of_others_in_a_bucket_are_left_out_and_counted() -> None:
    """Predictions of a date beyond all dates, findings without a rule and events of strange codes, beside good ones."""
    with doubled() as ready:
        store: Any = ready.store
        store.write(words(1))
        buckets = store._buckets
        strange = points.prediction_point(good())
        far = Point(points.PREDICTION, {**strange.tags, "model": "odd"}, {**strange.fields, "horizon_ms": NINES}, T0)
        store._send(buckets.minute.name, [point_line(far)])
        finding = points.finding_point(words(1).findings[0])
        late = Point(points.FINDING, {**finding.tags, "rule": "odd"}, {**finding.fields, "last_ms": NINES}, T0)
        store._send(buckets.ten_minute.name, [point_line(late)])
        store._send(buckets.raw.name, [f'gpu_event,kind=xid,gpu_uuid=GPU-1,code={"9" * 25} message="x" {T0}'])
        everything = (0, points.LAST_MS)
        assert [one.model for one in store.predictions(*everything)] == ["m"]
        assert [one.rule for one in store.findings(*everything)] == ["xid"]
        assert [one.code for one in store.events(*everything)] == [79]
        assert store.unusable == 3


def test_an_answer_that_is_none_is_no_answer() -> None:
    with doubled() as ready:
        store: Any = ready.store
        store._reader.query_csv = lambda _query: [["#datatype", "string"], ["", "a", "b"], ["", "1", "2"]]
        with pytest.raises(StoreUnavailable, match="CSV"):
            store.events(0, points.LAST_MS)


# ---------------------------------------------------------------------- VictoriaMetrics


def line(metric: dict[str, object] | None = None, values: object = (300.0,), stamps: object = (T0,)) -> bytes:
    labels = {"__name__": "gpu_power_watts", "gpu_uuid": "GPU-1", "host": "n1"} | (metric or {})
    return json.dumps({"metric": labels, "values": values, "timestamps": stamps}, separators=(",", ":")).encode()


BAD_LINES: dict[str, bytes] = {
    "cut short": line()[:-20],
    "an instant before 1970": line(stamps=[-1]),
    "an instant of thirty digits": line(stamps=[int("9" * 30)]),
    "an instant in year 30000": line(stamps=[NINES]),
    "more instants than values": line(stamps=[T0, T0 + 1]),
    "a value that is text": line(values=["many"]),
    "a value that is a list": line(values=[[1]]),
    "labels nested deep": b'{"metric":' + b"[" * 60_000 + b',"timestamps":[1]}',
    "a name that is a number": line({"gpu_uuid": 7}),
    "a name of 5 KB": line({"gpu_uuid": "G" * 5_000}),
    "no object": b'[1],"timestamps":[1]}',
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_of_a_victoriametrics_costs_no_good_one(name: str) -> None:
    problems: list[str] = []
    (found,) = victoriametrics.parse([BAD_LINES[name], line()], None, problems.append)
    assert found.values.tolist() == [300.0]
    assert len(problems) == 1


def test_values_that_are_no_numbers_are_left_out() -> None:
    text = b'{"metric":{"__name__":"gpu_power_watts","gpu_uuid":"GPU-1"},"values":[1,Infinity,NaN,2],"timestamps":[%s]}'
    (found,) = victoriametrics.parse([text % b",".join(b"%d" % (T0 + n) for n in range(4))], None)
    assert found.values.tolist() == [1.0, 2.0]


@given(st.lists(st.binary(max_size=40) | st.sampled_from([line(), line()[10:], *BAD_LINES.values()]), max_size=5))
def test_no_export_raises(some: Sequence[bytes]) -> None:
    found = list(victoriametrics.parse([*some, line()], None, lambda _problem: None))
    assert found[-1].values.tolist() == [300.0]
