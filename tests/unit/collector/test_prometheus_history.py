"""The history import against a Prometheus in this process: windows, refusals, retries, onsets, files, memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import stamina

from tocsin.collector.prometheus_history.answers import Line, NotAnAnswer, parse_matrix
from tocsin.collector.prometheus_history.batches import Batches
from tocsin.collector.prometheus_history.history import MAX_POINTS, PrometheusHistory, inner_selector, sampled
from tocsin.collector.prometheus_history.http import ATTEMPTS, MAX_ANSWER_BYTES, HistoryClient, TooMuch
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, to_iso
from tocsin.domain.errors import InputError, Unavailable
from tocsin.offline.import_history import ImportReport, ImportRequest, import_to_file, import_to_store, instant, span_ms
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0
from tocsin_testing.dcgm_site import HOURS, INTERVAL, Point, labels_of, site
from tocsin_testing.fake_prometheus import FakePrometheus

END = T0 + HOURS * HOUR + MINUTE
WANTED = ImportRequest(T0, END)


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    with stamina.set_testing(True, attempts=ATTEMPTS):
        yield


def run(fake: FakePrometheus, wanted: ImportRequest = WANTED, store: MemoryStore | None = None) -> ImportReport:
    client = fake.client()
    try:
        return import_to_store(client, wanted, store or MemoryStore(), ManualClock(), lambda _line: None)
    finally:
        client.close()


def flat(points: int, *, series: int = 1, start_ms: int = T0, step_ms: int = INTERVAL) -> list[Point]:
    """Temperatures of `series` GPUs at `points` instants."""
    name = "DCGM_FI_DEV_GPU_TEMP"
    return [
        Point(name, labels_of(1, gpu), float(40 + k % 9), start_ms + k * step_ms + 123)
        for gpu in range(series)
        for k in range(points)
    ]


def xid_points(codes: list[int], start_ms: int = T0) -> list[Point]:
    """The latched gauge of one GPU, a scrape every half minute."""
    labels = labels_of(1, 0)
    return [
        Point("DCGM_FI_DEV_XID_ERRORS", labels, float(c), start_ms + k * INTERVAL + 77) for k, c in enumerate(codes)
    ]


# what comes out


def test_every_sample_comes_out_once_at_its_own_instant() -> None:
    points = flat(500)
    store = MemoryStore()
    report = run(FakePrometheus(points), ImportRequest(T0, T0 + 5 * HOUR), store)
    assert [r.at_ms for r in store.readings(0, 1 << 62)] == [p.at_ms for p in points]
    assert report.samples == report.readings == 500
    assert report.windows == 1


def test_a_gap_is_not_filled_with_what_was_before_it() -> None:
    points = [p for p in flat(100) if not 40 <= (p.at_ms - T0) // INTERVAL < 60]
    store = MemoryStore()
    report = run(FakePrometheus(points), ImportRequest(T0, T0 + HOUR), store)
    assert [r.at_ms for r in store.readings(0, 1 << 62)] == [p.at_ms for p in points]
    (gap,) = report.gaps
    assert gap.end_ms - gap.start_ms == 21 * INTERVAL


def test_many_windows_give_what_one_gives() -> None:
    points = site(T0)
    whole, parts = MemoryStore(), MemoryStore()
    one = run(FakePrometheus(points), WANTED, whole)
    many = run(FakePrometheus(points, max_samples=400), WANTED, parts)
    assert one.windows == 1
    assert many.windows > 10
    assert list(parts.readings(0, 1 << 62)) == list(whole.readings(0, 1 << 62))
    assert parts.events(0, 1 << 62) == whole.events(0, 1 << 62)
    assert (many.samples, many.blank, many.xids, len(many.gaps)) == (one.samples, one.blank, one.xids, len(one.gaps))


def test_no_query_has_more_points_than_a_server_takes() -> None:
    fake = FakePrometheus(flat(10))
    run(fake, ImportRequest(T0, T0 + 30 * DAY, step_ms=SECOND * 15))
    spans = [r.url.params for r in fake.requests if r.url.path.endswith("query_range")]
    longest = max((float(a["end"]) - float(a["start"])) / float(a["step"]) for a in spans)
    assert MAX_POINTS / 2 < longest <= MAX_POINTS


def test_two_instants_in_one_step_leave_the_newer() -> None:
    steps = np.array([10.0, 20.0, 30.0])
    values, instants = Line({}, steps, np.array([1.0, 2.0, 2.0])), Line({}, steps, np.array([9.5, 19.0, 19.0]))
    at_ms, raw = sampled(values, instants, 0, 30_000)
    assert at_ms.tolist() == [9500, 19000]
    assert raw.tolist() == [1.0, 2.0]


# events


def test_an_onset_between_two_windows_is_found_once() -> None:
    codes = [0] * 121 + [79] * 121
    for span_points in (40, 60, 121, 130):
        store = MemoryStore()
        report = run(FakePrometheus(xid_points(codes), max_samples=4 * span_points), WANTED, store)
        (event,) = store.events(0, 1 << 62)
        assert (event.code, event.at_ms) == (79, T0 + 121 * INTERVAL + 77)
        assert report.xids == {79: 1}


def test_the_first_sample_of_the_span_is_compared_with_what_was_before_it() -> None:
    points = xid_points([0] * 10 + [79] * 10)
    onset_ms = points[10].at_ms
    store = MemoryStore()
    run(FakePrometheus(points), ImportRequest(onset_ms - 1, END), store)
    assert [(e.code, e.at_ms) for e in store.events(0, 1 << 62)] == [(79, onset_ms)]
    store = MemoryStore()
    run(FakePrometheus(points), ImportRequest(onset_ms, END), store)
    assert store.events(0, 1 << 62) == []


def test_a_code_that_was_there_before_the_exporter_is_no_onset() -> None:
    assert run(FakePrometheus(xid_points([79] * 20))).xids == {}


def test_a_restart_is_no_onset() -> None:
    energy = [Point("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", p.labels, v, p.at_ms) for p, v in zip(
        xid_points([0] * 4), (5e9, 6e9, 1e3, 2e3), strict=True)]  # fmt: skip
    report = run(FakePrometheus(energy + xid_points([0, 0, 79, 79])))
    assert report.xids == {}
    assert report.unsettled == {79: 1}
    assert report.restarts == 1


def test_a_restart_between_two_windows_is_a_restart() -> None:
    count, edge = 240, 121
    codes = xid_points([0] * edge + [79] * (count - edge))
    energy = [
        Point("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", p.labels, 1e9 + k if k < edge else 5.0 + k, p.at_ms)
        for k, p in enumerate(codes)
    ]
    client = FakePrometheus(energy + codes).client()
    history, batches = PrometheusHistory(client), Batches()
    names, middle = ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS"], codes[edge].at_ms - 1
    events = [
        event
        for window in (history.window(names, T0, middle, 15_000), history.window(names, middle, END, 15_000))
        for batch in batches.batches(window)
        for event in batch.events
    ]
    assert batches.tally.restarts == 1
    assert events == []
    client.close()


def test_the_step_is_that_of_the_shortest_interval_within_the_span() -> None:
    early = flat(1000, step_ms=10 * SECOND)
    late = flat(1000, start_ms=T0 + 10 * HOUR)
    client = FakePrometheus(early + late).client()
    assert PrometheusHistory(client).step(["DCGM_FI_DEV_GPU_TEMP"], T0, late[-1].at_ms) == 5 * SECOND
    assert (
        PrometheusHistory(client).step(["DCGM_FI_DEV_GPU_TEMP"], late[0].at_ms, late[-1].at_ms + 5 * HOUR)
        == 15 * SECOND
    )
    client.close()


def test_switches_give_sxids() -> None:
    labels = {"nvswitch": "nvswitch1", "Hostname": "node-1", "instance": "x:9400"}
    codes = [
        Point("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", labels, float(code), T0 + k * INTERVAL + 5)
        for k, code in enumerate([0, 0, 20034, 20034])
    ]
    store = MemoryStore()
    report = run(FakePrometheus(flat(4) + codes), WANTED, store)
    assert report.sxids == {20034: 1}
    (event,) = store.events(0, 1 << 62)
    assert (event.host, event.gpu) == ("node-1", "")


# refusals and failures


@pytest.mark.parametrize(
    "problem",
    [
        "422 query processing would load too many samples into memory in query execution",
        "422 cannot select more than -search.maxSamplesPerQuery=1 samples; possible solutions: increase it",
        "422 the query exceeded the maximum number of chunks (err-mimir-max-chunks-per-query)",
        "400 exceeded maximum resolution of 11,000 points per timeseries",
        "413 request entity too large",
        "503 query timed out in query execution",
    ],
)
def test_too_much_halves_the_window(problem: str) -> None:
    fake = FakePrometheus(flat(400))
    run(fake)
    fake.requests.clear()
    fake.failures = []
    client = fake.client()
    history = PrometheusHistory(client)
    fake.failures = [problem]
    windows = list(history.windows(["DCGM_FI_DEV_GPU_TEMP"], T0, T0 + 3 * HOUR, 15_000))
    assert sum(w.samples for w in windows) == sum(1 for p in flat(400) if p.at_ms <= T0 + 3 * HOUR)
    assert windows[0].until_ms - windows[0].after_ms == 90 * MINUTE
    client.close()


def test_an_answer_longer_than_the_bound_is_asked_for_in_halves() -> None:
    fake = FakePrometheus(flat(400))
    first = [True]

    def serve(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("query_range") and first.pop() if first else False:
            return httpx2.Response(200, content=b" " * (MAX_ANSWER_BYTES + 1))
        return fake(request)

    client = HistoryClient("http://p:9090", transport=httpx2.MockTransport(serve))
    windows = list(PrometheusHistory(client).windows(["DCGM_FI_DEV_GPU_TEMP"], T0, T0 + 2 * HOUR, 15_000))
    assert len(windows) == 2
    client.close()


def test_what_is_too_much_even_for_a_minute_is_said() -> None:
    with pytest.raises(InputError, match="too much even for a minute"):
        run(FakePrometheus(flat(400, series=3), max_samples=1), ImportRequest(T0, T0 + HOUR, step_ms=15_000))


@pytest.mark.parametrize("failure", ["500 oops", "502 bad gateway", "429 slow down", httpx2.ConnectError("refused")])
def test_a_server_that_stumbles_is_asked_again(failure: str | Exception) -> None:
    fake = FakePrometheus(flat(100))
    client = fake.client()
    selector = '{__name__=~"DCGM_.*"}'
    names = client.names(selector, T0, T0 + HOUR)
    fake.failures = [failure] * (ATTEMPTS - 1)
    assert client.names(selector, T0, T0 + HOUR) == names == ["DCGM_FI_DEV_GPU_TEMP"]
    assert len(fake.requests) == ATTEMPTS + 1


def test_a_first_answer_that_is_an_error_is_asked_again() -> None:
    fake = FakePrometheus(flat(100))
    fake.failures = ["500 being restarted", httpx2.ConnectError("refused")]
    assert run(fake).samples == 100


def test_a_server_that_goes_away_is_unavailable() -> None:
    fake = FakePrometheus([])
    fake.failures = ["503 going down", *[httpx2.ConnectError("connection refused")] * 100]
    with pytest.raises(Unavailable, match=f"connection refused; {ATTEMPTS} attempts"):
        run(fake)
    assert len(fake.requests) == ATTEMPTS


def test_a_server_that_never_answered_is_given_up_at_once() -> None:
    fake = FakePrometheus([])
    fake.failures = [httpx2.ConnectError("connection refused")] * 100
    with pytest.raises(Unavailable, match="connection refused; check the URL"):
        run(fake)
    assert len(fake.requests) == 1


def test_a_start_behind_the_end_names_what_to_change(tmp_path: Path) -> None:
    wanted = ImportRequest(T0 + HOUR, T0)
    with pytest.raises(InputError, match=r"is not before --until, .*; name an earlier --since or a later --until"):
        import_to_file(FakePrometheus([]).client(), wanted, tmp_path / "x.prom", ManualClock(), lambda _line: None)
    assert list(tmp_path.iterdir()) == []


def test_an_import_that_wrote_nothing_leaves_no_file(tmp_path: Path) -> None:
    fake = FakePrometheus(flat(9))
    fake.failures = ["401 Unauthorized"]
    with pytest.raises(InputError, match="refuses access"):
        import_to_file(fake.client(), WANTED, tmp_path / "x.prom", ManualClock(), lambda _line: None)
    assert list(tmp_path.iterdir()) == []


def test_one_of_a_thing_is_not_many() -> None:
    text = run(FakePrometheus(flat(100))).as_text()
    assert "100 samples in " in text
    assert ", 1 window, " in text
    assert "1 GPU and 0 MIG instances on 1 host: 100 readings in the store" in text
    assert "metrics: 1 from 1 field; blank samples: 0" in text
    assert "counters started again 0 times; XIDs skipped because they changed with a restart: none" in text


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("401 Unauthorized", "--bearer-token-file"),
        ("403 no org id", "--header"),
        ("302 Found", "answers with a redirect"),
        ("404 404 page not found", "has no Prometheus API"),
        ("400 unsupported path requested: /x", "has no Prometheus API"),
        ('400 {"status":"error","error":"parse error: unexpected }"}', "check --match"),
        ("200 <html>Grafana</html>", "answers with a page"),
        ('200 {"status":', "does not answer as Prometheus does"),
    ],
)
def test_refusals_say_what_to_do(failure: str, said: str) -> None:
    fake = FakePrometheus(flat(10))
    fake.failures = [failure]
    with pytest.raises(InputError, match=said):
        run(fake)
    assert len(fake.requests) == 1


def test_an_interrupted_import_says_where_to_go_on() -> None:
    fake = FakePrometheus(flat(4000))
    lines: list[str] = []

    class Full(MemoryStore):
        def write(self, batch: object) -> None:
            if lines and lines[-1].startswith(" "):
                raise Unavailable("the store is down")
            super().write(batch)  # type: ignore[arg-type]

    with pytest.raises(Unavailable):
        import_to_store(fake.client(), ImportRequest(T0, T0 + 30 * HOUR), Full(), ManualClock(), lines.append)
    assert lines[-1].endswith(f"resume with --since {to_iso(T0 + 6 * HOUR)}")


def test_warnings_of_the_server_are_passed_on() -> None:
    fake = FakePrometheus(flat(10))
    fake.warnings = ["one store did not answer"]
    report = run(fake)
    assert report.warnings == ("one store did not answer",)
    assert "the server warns: one store did not answer" in report.as_text()


def test_headers_and_base_paths() -> None:
    fake = FakePrometheus(flat(10))
    client = fake.client("http://mimir/prometheus/api/v1/", **{"X-Scope-OrgID": "site"})
    import_to_store(client, WANTED, MemoryStore(), ManualClock(), lambda _line: None)
    assert {r.headers["X-Scope-OrgID"] for r in fake.requests} == {"site"}
    assert fake.requests[0].url.path == "/prometheus/api/v1/label/__name__/values"
    assert {r.url.params["partial_response"] for r in fake.requests} == {"false"}


# files


def test_a_file_replays_as_the_original(tmp_path: Path) -> None:
    points = site(T0)
    path = tmp_path / "past.prom"
    report = import_to_file(FakePrometheus(points).client(), WANTED, path, ManualClock(), lambda _line: None)
    original = tmp_path / "original.prom"
    original.write_text("".join(p.text() for p in points))
    ours, theirs = read_recording([path]), read_recording([original])
    assert list(ours.instants()) == list(theirs.instants())
    assert ours.events() == theirs.events()
    assert report.readings == sum(t.at_ms.size for t in theirs.tracks)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["original.prom", "past.prom"]


@pytest.mark.parametrize("name", ["past.prom", "past.prom.bz2", "past.prom.gz"])
def test_an_import_that_was_cut_off_is_taken_up(tmp_path: Path, name: str) -> None:
    points = site(T0)
    whole, path = tmp_path / f"whole-{name}", tmp_path / name
    import_to_file(FakePrometheus(points, 400).client(), WANTED, whole, ManualClock(), lambda _line: None)
    fake = FakePrometheus(points, 400)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 5:
            fake.failures = ["401 the token ran out"]

    with pytest.raises(InputError):
        import_to_file(fake.client(), WANTED, path, ManualClock(), say)
    part = tmp_path / f"{name}.part"
    with part.open("ab") as file:
        file.write(b"half a li")
    before = len(fake.requests)
    import_to_file(fake.client(), WANTED, path, ManualClock(), said.append)
    assert any(line.startswith("resuming an earlier run at") for line in said)
    starts = [float(r.url.params["start"]) for r in fake.requests[before:] if "step" in r.url.params]
    assert min(starts) > T0 / 1000
    ours, theirs = read_recording([path]), read_recording([whole])
    assert list(ours.instants()) == list(theirs.instants())
    assert [(p.value, p.problem) for p in ours.problems] == [(p.value, p.problem) for p in theirs.problems]


def test_a_rest_of_another_import_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "past.prom"
    (tmp_path / "past.prom.part").write_bytes(b"x" * 10)
    state = {"origin": {"url": "http://other", "match": ""}, "until_ms": T0, "bytes": 10}
    (tmp_path / "past.prom.part.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="rest of another import"):
        import_to_file(FakePrometheus(flat(9)).client(), WANTED, path, ManualClock(), lambda _line: None)


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "past.prom"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        import_to_file(FakePrometheus(flat(9)).client(), WANTED, path, ManualClock(), lambda _line: None)
    assert path.read_text() == "mine"


# memory


def test_memory_does_not_grow_with_the_span(tmp_path: Path) -> None:
    """Eight times the span: the same peak."""

    def peak(hours: int) -> int:
        fake = FakePrometheus(flat(hours * 120, series=2), max_samples=2_000)
        client = fake.client()
        tracemalloc.start()
        try:
            wanted = ImportRequest(T0, T0 + hours * HOUR)
            import_to_file(client, wanted, tmp_path / f"{hours}.prom", ManualClock(), lambda _line: None)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(5), peak(40)
    assert long < 1.5 * short, f"{short / 1e6:.1f} MB against {long / 1e6:.1f} MB"


# parts


def test_matrix_of_compact_and_of_spaced_json() -> None:
    compact = (
        '{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":['
        '{"metric":{"values":"x","a":"\\"values\\":[[1]]"},"values":[[1.5,"NaN"],[2,"+Inf"],[3,"-1e-7"]]},'
        '{"metric":{},"values":[]}]},"warnings":["w"]}'
    )
    for text in (compact, json.dumps(json.loads(compact), indent=2)):
        matrix = parse_matrix(text.encode())
        (line,) = matrix.lines
        assert line.labels == {"values": "x", "a": '"values":[[1]]'}
        assert line.at_s.tolist() == [1.5, 2.0, 3.0]
        assert str(line.values.tolist()) == "[nan, inf, -1e-07]"
        assert matrix.warnings == ["w", "the server says that the answer is partial"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"data":{}}',
        '{"status":"success","data":{"result":[{"values":[[1,"2"],[3',
        '{"status":"success","data":{"result":[{"values":[[1,"x"]]}]}}',
        '{"status":"success","data":{"result":[{"values":[[1,"2"],[3]]}]}}',
        '{"status":"success","data":{"resultType":"scalar","result":7}}',
    ],
)
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(NotAnAnswer):
        parse_matrix(text.encode())


def test_times() -> None:
    assert instant("30d", T0, "--since") == T0 - 30 * DAY
    assert instant("1.5h", T0, "--since") == T0 - 90 * MINUTE
    assert instant("0s", T0, "--until") == T0
    assert instant("2026-11-01T00:00:00Z", T0, "--since") == 1_793_491_200_000
    assert span_ms("30s", "--step") == 30_000
    for text in ("yesterday", "30", "-3d"):
        with pytest.raises(InputError, match="--since"):
            instant(text, T0, "--since")
    for text in ("0.5s", "x"):
        with pytest.raises(InputError, match="--step"):
            span_ms(text, "--step")


def test_selectors() -> None:
    assert inner_selector('{cluster="a", pool=~"b.*",}') == 'cluster="a", pool=~"b.*"'
    assert inner_selector("") == ""
    with pytest.raises(InputError, match="--match"):
        inner_selector('cluster="a"')


def test_a_span_that_ends_before_it_begins() -> None:
    with pytest.raises(InputError, match="is not before"):
        run(FakePrometheus([]), ImportRequest(T0, T0))


def test_a_url_that_is_none() -> None:
    with pytest.raises(InputError, match="http"):
        HistoryClient("prometheus:9090")


def test_too_much_is_no_error_of_the_operator() -> None:
    assert not issubclass(TooMuch, InputError)
