"""The source that lives through a recording again, at any speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.replay.recording import ReplayRecording
from tocsin.collector.replay.source import ReplaySource, read_recording
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin_testing.builders import T0
from tocsin_testing.scaled_clock import ScaledClock

EXCERPT = Path(__file__).parents[2] / "data" / "gwdg" / "excerpt_tidy.csv.bz2"


@pytest.fixture(scope="module")
def recording() -> ReplayRecording:
    return read_recording([EXCERPT])


def test_it_gives_what_the_recording_had_up_to_now(recording: ReplayRecording) -> None:
    source = ReplaySource(recording)
    start = recording.start_ms
    first = source.read(start + 25 * MINUTE)
    assert sorted({(r.at_ms - start) // MINUTE for r in first.readings}) == [0, 10, 20]
    second = source.read(start + 40 * MINUTE)
    assert sorted({(r.at_ms - start) // MINUTE for r in second.readings}) == [30, 40]
    assert len(second.readings) == 4


def test_a_gpu_without_news_gives_its_newest_again(recording: ReplayRecording) -> None:
    source = ReplaySource(recording)
    first = source.read(recording.start_ms)
    assert source.read(recording.start_ms + MINUTE).readings == first.readings


def test_every_event_comes_once_and_at_its_time(recording: ReplayRecording) -> None:
    expected = recording.events()
    source = ReplaySource(recording)
    before = source.read(expected[0].at_ms - 1)
    assert before.events == []
    assert source.read(expected[0].at_ms).events == expected
    assert source.read(expected[0].at_ms + HOUR).events == []


def test_any_speed_gives_the_same_readings_on_the_reader_s_scale(recording: ReplayRecording) -> None:
    given = []
    for speed in (1.0, 600.0):
        base = ManualClock(0)
        clock = ScaledClock(base, 1.0, T0)
        source = ReplaySource(recording, origin_ms=T0, speed=speed)
        readings = {}
        while not source.finished:
            batch = source.read(clock.now_ms())
            assert all(r.at_ms <= clock.now_ms() for r in batch.readings)
            readings |= {(r.gpu, round((r.at_ms - T0) * speed)): r.values for r in batch.readings}
            base.advance(int(6 * HOUR / speed))
        given.append(readings)
    assert given[0] == given[1]
    assert min(at for _, at in given[0]) == 0


def test_it_ends(recording: ReplayRecording) -> None:
    source = ReplaySource(recording, origin_ms=T0, speed=3600.0)
    assert source.gpus()
    source.read(T0 + 60 * SECOND)
    assert source.finished
    assert source.gpus() == []
    assert source.read(T0 + 61 * SECOND).readings == []
    source.close()
    source.close()


def test_time_that_stands_still_or_runs_back_is_refused(recording: ReplayRecording) -> None:
    with pytest.raises(InputError, match="not above 0"):
        ReplaySource(recording, speed=0.0)
