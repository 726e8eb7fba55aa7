"""Tidy CSV: names and units, what is kept of damaged files, and one clear problem for each kind of damage."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest

from tocsin.collector.replay import formats as replay_bytes
from tocsin.collector.replay.recording import ReplayRecording, Track
from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import HOUR, MINUTE, from_iso
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.reading import Missing

EXCERPT = Path(__file__).parents[2] / "data" / "gwdg" / "excerpt_tidy.csv.bz2"
HEADER = "timeUtc,node,metric,value,gpu,device,uuid,job,instance,modelName,driverVersion"
START = from_iso("2025-03-14")


def line(minute: int, metric: str, value: object, gpu: int = 0, node: str = "n1") -> str:
    when = f"2025-03-14 {minute // 60:02d}:{minute % 60:02d}:00"
    return f"{when},{node},{metric},{value},{gpu},nvidia{gpu},gpu_{gpu},job,inst,NVIDIA A100-SXM4-80GB,550.1"


def write(tmp_path: Path, *lines: str, name: str = "a.csv", header: str = HEADER) -> Path:
    path = tmp_path / name
    data = "\n".join((header, *lines, "")).encode()
    path.write_bytes(bz2.compress(data) if name.endswith(".bz2") else data)
    return path


def column(track: Track, metric: str) -> np.ndarray:
    return track.values[:, track.metrics.index(metric)]


def only(recording: ReplayRecording) -> Track:
    (track,) = recording.tracks
    return track


def test_names_units_and_identity(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line(0, "DCGM_FI_DEV_GPU_UTIL", 97.0),
        line(0, "DCGM_FI_DEV_FB_USED", 1024.0),
        line(0, "DCGM_FI_DEV_FB_FREE", 3072.0),
        line(0, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000.0),
        line(0, "node_load1", 3.0),
    )
    recording = read_recording([path])
    track = only(recording)
    assert (track.gpu.uuid, track.gpu.host, track.gpu.index, track.gpu.model) == (
        "gpu_0",
        "n1",
        0,
        "NVIDIA A100-SXM4-80GB",
    )
    assert track.at_ms.tolist() == [START]
    assert column(track, "gpu_utilization_ratio") == pytest.approx([0.97])
    assert column(track, "gpu_memory_used_bytes").tolist() == [1024 * 1048576]
    assert column(track, "gpu_memory_used_ratio").tolist() == [0.25]
    assert column(track, "gpu_energy_joules_total").tolist() == [5.0]
    assert recording.rows == 5
    assert recording.problems == ()


def test_overlapping_files_count_once_and_every_instant_of_a_node_is_observed(tmp_path: Path) -> None:
    first = write(tmp_path, *(line(m, "DCGM_FI_DEV_GPU_TEMP", m) for m in (0, 10, 20)), line(30, "node_load1", 1))
    second = write(tmp_path, *(line(m, "DCGM_FI_DEV_GPU_TEMP", m) for m in (40, 20, 10)), name="b.csv.bz2")
    recording = read_recording([second, first])
    assert ((only(recording).at_ms - START) // MINUTE).tolist() == [0, 10, 20, 40]
    assert column(only(recording), "gpu_temperature_celsius").tolist() == [0, 10, 20, 40]
    assert ((recording.observed["n1"] - START) // MINUTE).tolist() == [0, 10, 20, 30, 40]
    assert recording.rows == 7


@pytest.mark.parametrize("bad", ["NaN", "inf", "-Inf", "", "n/a", "9223372036854775794", "140737488355329"])
def test_what_is_no_finite_number_is_blank_and_costs_nothing_else(tmp_path: Path, bad: str) -> None:
    path = write(
        tmp_path,
        line(0, "DCGM_FI_DEV_GPU_TEMP", 50),
        line(10, "DCGM_FI_DEV_GPU_TEMP", bad),
        line(10, "DCGM_FI_DEV_POWER_USAGE", 300),
        line(20, "DCGM_FI_DEV_GPU_TEMP", 52),
    )
    recording = read_recording([path])
    readings = [r for _, group in recording.instants() for r in group]
    assert [r.values.get("gpu_temperature_celsius") for r in readings] == [50, None, 52]
    assert readings[1].missing == {"gpu_temperature_celsius": Missing.BLANK}
    assert readings[1].values == {"gpu_power_watts": 300}
    (problem,) = recording.problems
    assert problem.value == "1 lines"
    assert str(path) in str(problem)


def test_a_value_out_of_bounds_is_blank(tmp_path: Path) -> None:
    path = write(tmp_path, line(0, "DCGM_FI_DEV_GPU_TEMP", 900), line(0, "DCGM_FI_DEV_POWER_USAGE", 300))
    ((_, (reading,)),) = read_recording([path]).instants()
    assert reading.missing == {"gpu_temperature_celsius": Missing.BLANK}


def test_a_metric_that_the_exporter_left_out_is_blank_from_then_on(tmp_path: Path) -> None:
    lines = [line(m, "DCGM_FI_DEV_GPU_TEMP", 24) for m in (0, 10, 20)]
    path = write(tmp_path, *lines, line(10, "DCGM_FI_DEV_FB_USED", 5))
    missing = [dict(r.missing) for _, group in read_recording([path]).instants() for r in group]
    assert missing == [{}, {}, {"gpu_memory_used_bytes": Missing.BLANK}]


@pytest.mark.parametrize("gone", ["timeUtc", "node", "metric", "value", "gpu", "uuid"])
def test_a_missing_column_costs_its_file_alone(tmp_path: Path, gone: str) -> None:
    good = write(tmp_path, line(0, "DCGM_FI_DEV_GPU_TEMP", 50))
    place = HEADER.split(",").index(gone)
    cut = [",".join(x for i, x in enumerate(text.split(",")) if i != place) for text in (HEADER, line(0, "DCGM_X", 1))]
    bad = write(tmp_path, cut[1], name="bad.csv", header=cut[0])
    recording = read_recording([bad, good])
    assert column(only(recording), "gpu_temperature_celsius").tolist() == [50]
    (problem,) = recording.problems
    assert f"column {gone} is missing" in str(problem)
    assert str(bad) in str(problem)
    with pytest.raises(InputError, match=f"column {gone} is missing"):
        read_recording([bad])


def test_a_missing_optional_column_is_said_and_costs_nothing(tmp_path: Path) -> None:
    text = line(0, "DCGM_FI_DEV_GPU_TEMP", 50).replace("NVIDIA A100-SXM4-80GB,", "")
    path = write(tmp_path, text, header=HEADER.replace("modelName,", ""))
    recording = read_recording([path])
    assert only(recording).gpu.model == ""
    (problem,) = recording.problems
    assert "column modelName is missing" in str(problem)


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    path = write(
        tmp_path, "50,gpu_7,7,DCGM_FI_DEV_GPU_TEMP,n2,2025-03-14T00:10:00Z", header="value,uuid,gpu,metric,node,timeUtc"
    )
    track = only(read_recording([path]))
    assert (track.gpu.host, track.gpu.index, track.at_ms.tolist()) == ("n2", 7, [START + 10 * MINUTE])


def test_a_line_that_is_too_wide_costs_no_other_wherever_it_stands(tmp_path: Path) -> None:
    good = line(1, "DCGM_FI_DEV_GPU_TEMP", 50)
    for place in range(3):
        lines = [good, line(2, "DCGM_FI_DEV_GPU_TEMP", 51)]
        lines.insert(place, line(3, "DCGM_FI_DEV_GPU_TEMP", 52) + ",more,and,more")
        path = write(tmp_path, *lines, name=f"wide{place}.csv")
        assert set(only(read_recording([path])).at_ms.tolist()) >= {START + MINUTE, START + 2 * MINUTE}


PACKERS = {"bz2": bz2.compress, "gz": gzip.compress}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.99])
def test_a_cut_file_keeps_what_came_before(tmp_path: Path, share: float, kind: str) -> None:
    text = bz2.decompress(EXCERPT.read_bytes())
    whole = PACKERS[kind](text)
    cut = tmp_path / f"cut.csv.{kind}"
    first = text[: text.index(b"\n", 200_000) + 1]
    cut.write_bytes(PACKERS[kind](first) + whole[: int(len(whole) * share)])
    recording = read_recording([cut])
    assert recording.rows > 1000
    (problem,) = [p for p in recording.problems if kind in str(p)]
    assert f"the {kind} stream ends early" in str(problem)


@pytest.mark.parametrize(("kind", "magic"), [("bz2", b"BZh9"), ("gz", b"\x1f\x8b")])
def test_a_damaged_file_keeps_what_came_before(tmp_path: Path, kind: str, magic: bytes) -> None:
    text = "\n".join([HEADER, *(line(m, "DCGM_FI_DEV_GPU_TEMP", 50) for m in range(60)), ""])
    bad = tmp_path / f"bad.csv.{kind}"
    bad.write_bytes(PACKERS[kind](text.encode()) + magic + b" this is no stream")
    recording = read_recording([bad])
    assert only(recording).at_ms.size == 60
    (problem,) = recording.problems
    assert f"the {kind} stream is damaged" in str(problem)


@pytest.mark.parametrize("kind", PACKERS)
def test_streams_that_follow_each_other_are_one_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"two.csv.{kind}"
    parts = [HEADER + "\n" + line(0, "DCGM_FI_DEV_GPU_TEMP", 50)[:30], line(0, "DCGM_FI_DEV_GPU_TEMP", 50)[30:] + "\n"]
    path.write_bytes(b"".join(PACKERS[kind](part.encode()) for part in parts))
    assert read_recording([path]).rows == 1


def test_bad_lines_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line(0, "DCGM_FI_DEV_GPU_TEMP", 50),
        "2025-03-14 00:10:00,n1",
        line(20, "DCGM_FI_DEV_GPU_TEMP", 51).replace("2025-03-14", "yesterday"),
        line(30, "DCGM_FI_DEV_GPU_TEMP", 52).replace("gpu_0", ""),
        line(40, "DCGM_FI_DEV_GPU_TEMP", 53).replace("NVIDIA", 'NV"IDIA'),
        line(50, "DCGM_FI_DEV_GPU_TEMP", 54).replace("job", '"a, b"'),
        line(60, "DCGM_FI_DEV_GPU_TEMP", 55) + ",one,too,many",
    )
    recording = read_recording([path])
    assert column(only(recording), "gpu_temperature_celsius").tolist() == [50, 54, 55]
    assert sorted(p.problem for p in recording.problems) == [
        "no gpu or uuid",
        "not a complete line",
        "timeUtc is no instant",
    ]


def test_xid_events_are_transitions_into_a_code(tmp_path: Path) -> None:
    codes = {0: 31, 10: 31, 20: 79, 30: 79, 50: 0, 60: 79, 70: "NaN", 80: 79, 90: 94}
    path = write(tmp_path, *(line(m, "DCGM_FI_DEV_XID_ERRORS", code) for m, code in codes.items()))
    events = read_recording([path]).events()
    assert [((e.at_ms - START) // MINUTE, e.code) for e in events] == [(20, 79), (60, 79), (90, 94)]
    assert {(e.kind, e.gpu, e.host, e.source) for e in events} == {(EventKind.XID, "gpu_0", "n1", "replay")}


def test_nothing_to_read_is_one_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match="no GPU telemetry"):
        read_recording([empty])
    with pytest.raises(InputError, match="cannot be read"):
        read_recording([tmp_path / "absent.csv"])
    nodes = write(tmp_path, line(0, "node_load1", 1))
    with pytest.raises(InputError, match="no GPU telemetry"):
        read_recording([nodes])


def test_the_excerpt_is_what_its_readme_says() -> None:
    recording = read_recording([EXCERPT])
    assert recording.rows == 5346
    assert recording.problems == ()
    assert [track.gpu.index for track in recording.tracks] == [1, 0]
    assert {e.code for e in recording.events()} == {79}
    (times,) = recording.observed.values()
    assert times[-1] - times[0] == 60 * HOUR - 10 * MINUTE


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("more", [-1, 0, 1, 200])
def test_what_expands_by_far_more_than_it_was_read_in_is_whole(
    tmp_path: Path, kind: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_bytes, "PIECE_BYTES", 1 << 12)
    text = b"x" * (3 * (1 << 12) + more - 1) + b"\n"
    path = tmp_path / f"dense.csv.{kind}"
    path.write_bytes(PACKERS[kind](text))
    assert b"".join(replay_bytes.pieces(path)) == text


def test_a_code_that_is_new_after_a_pause_of_the_recording_is_no_transition(tmp_path: Path) -> None:
    apart = [line(0, "DCGM_FI_DEV_XID_ERRORS", 0), line(7 * 60, "DCGM_FI_DEV_XID_ERRORS", 79)]
    later = [line(7 * 60 + 10, "DCGM_FI_DEV_XID_ERRORS", 48)]
    events = read_recording([write(tmp_path, *apart, *later)]).events()
    assert [(event.code, (event.at_ms - START) // MINUTE) for event in events] == [(48, 7 * 60 + 10)]


def test_a_gpu_that_was_silent_on_a_host_that_was_seen_has_its_transition(tmp_path: Path) -> None:
    apart = [line(0, "DCGM_FI_DEV_XID_ERRORS", 0), line(7 * 60, "DCGM_FI_DEV_XID_ERRORS", 79)]
    host = [line(minute, "node_load1", 1.0) for minute in range(0, 7 * 60, 60)]
    events = read_recording([write(tmp_path, *apart, *host)]).events()
    assert [(event.code, (event.at_ms - START) // MINUTE) for event in events] == [(79, 7 * 60)]
