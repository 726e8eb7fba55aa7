"""A running watch warns of a leak and of fragmentation in time, from batches alone, and is quiet otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.metrics import variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.capacity import filling
from tocsin.forecaster.capacity.filling import FRAGMENTATION, OUT_OF_MEMORY, PAST, RECALLED, FillingWatch
from tocsin.forecaster.capacity.leak import MEMORY_LEAK
from tocsin.forecaster.live.recalibration import Recalibration
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.store.grid import columns_of
from tocsin_testing.builders import T0, gpu
from tocsin_testing.simulated import first_suited, fleet


def rehearse(kind: str, minutes: int) -> tuple[list[tuple[int, Prediction]], int, str]:
    """Predictions with their minute, the minute of the onset, and the UUID."""
    simulated, watch = fleet(64), FillingWatch()
    gpu = first_suited(kind)
    for _ in range(5):
        watch.take(simulated.step().readings, simulated.now_ms)
    simulated.inject(kind, str(gpu))
    start = simulated.now_ms
    found = []
    for minute in range(1, minutes + 1):
        watch.take(simulated.step().readings, simulated.now_ms)
        found += [(minute, one) for one in watch.predictions(simulated.now_ms)]
    (fault,) = simulated.faults
    assert fault.onset_ms is not None
    return found, (fault.onset_ms - start) // MINUTE, fault.gpu


def test_a_leak_is_warned_of_ten_minutes_before_the_memory_is_full() -> None:
    found, onset, uuid = rehearse("memory_leak", 45)
    # A cache that fills looks the same until it stops: of 64 GPUs at most one other is warned of meanwhile.
    assert len({one.subject.name for _, one in found} - {uuid}) <= 1
    found = [(minute, one) for minute, one in found if one.subject.name == uuid]
    first, prediction = found[0]
    assert onset - first >= 10
    assert prediction.target == OUT_OF_MEMORY
    assert prediction.eta_ms is not None
    assert abs((prediction.eta_ms - prediction.at_ms) / MINUTE - (onset - first)) < 8
    assert "grows without a plateau" in prediction.sentence
    assert "显存" in prediction.sentence_zh
    assert prediction.simulated


def test_parts_of_a_fleet_say_what_the_whole_says(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, *_ = rehearse("memory_leak", 45)
    monkeypatch.setattr(filling, "AT_ONCE", 7)
    parts, *_ = rehearse("memory_leak", 45)
    assert [(minute, one.sentence, one.eta_ms) for minute, one in parts] == [
        (minute, one.sentence, one.eta_ms) for minute, one in whole
    ]
    assert [one.probability for _, one in parts] == pytest.approx([one.probability for _, one in whole])


def test_a_layout_is_warned_of_when_it_begins_to_decay() -> None:
    found, _, uuid = rehearse("mig_fragmentation", 17)
    assert {(one.subject.name, one.target, one.eta_ms) for _, one in found} == {(uuid, FRAGMENTATION, None)}
    assert all(one.value is not None and one.value < 0.3 for _, one in found)


def test_holes_of_the_worst_process_are_warned_of() -> None:
    watch, name = FillingWatch(), "gpu_allocator_external_fragmentation_ratio"
    found = []
    for minute in range(70):
        share = 0.1 + 0.004 * max(0, minute - 20) + 0.002 * (-1) ** minute
        values = {variant(name, "pid", "7"): share, variant(name, "pid", "8"): 0.05}
        watch.take([Reading(gpu(), T0 + minute * MINUTE, values, {})], T0 + minute * MINUTE)
        found += [(minute, one) for one in watch.predictions(T0 + minute * MINUTE)]
    first, prediction = found[0]
    assert 20 < first <= 70 - 10
    assert (prediction.target, prediction.metric) == (FRAGMENTATION, variant(name, "pid", "7"))
    assert prediction.eta_ms is not None
    assert abs((prediction.eta_ms - T0) / MINUTE - 70) < 6


def test_a_sound_fleet_is_quiet_but_for_caches_that_fill() -> None:
    simulated, watch = fleet(64), FillingWatch()
    ahead, name = fleet(64), "gpu_memory_used_ratio"
    shares = [{one.gpu.uuid: one.values.get(name, 0.0) for one in ahead.step().readings} for _ in range(20)]
    filling = {uuid for uuid, share in shares[-1].items() if share - shares[0][uuid] > 0.02}
    assert len(filling) < 8
    for _ in range(120):
        watch.take(simulated.step().readings, simulated.now_ms)
        told = {one.subject.name for one in watch.predictions(simulated.now_ms)}
        assert told <= filling, "but for caches that were filling up when the watch began"


def test_readings_of_another_time_are_left_out_and_gaps_survived() -> None:
    simulated, watch = fleet(8), FillingWatch()
    batches = [simulated.step() for _ in range(6)]
    end = simulated.now_ms
    watch.take(batches[0].readings, end - 5 * MINUTE)
    watch.take(batches[5].readings, end)
    watch.take(batches[2].readings, end)
    watch.take(batches[2].readings, end - 4 * MINUTE)
    assert watch.predictions(end) == []
    assert FillingWatch().predictions(0) == []


LEVEL = -6
"""The first minute of `leak`: before minute 0 the memory holds its level."""


def leak(minute: int) -> Reading:
    return Reading(gpu(), T0 + minute * MINUTE, {"gpu_memory_used_ratio": 0.85 + 0.004 * max(minute, 0)}, {})


def test_one_node_with_a_wrong_clock_moves_no_minute() -> None:
    watch, wrong = FillingWatch(), gpu(1)
    for minute in range(LEVEL, 25):
        at_ms = T0 + minute * MINUTE
        watch.take([leak(minute), Reading(wrong, at_ms + 30 * DAY, {"gpu_memory_used_ratio": 0.5}, {})], at_ms)
    assert [one.subject.name for one in watch.predictions(T0 + 25 * MINUTE)] == [gpu().uuid]


def test_a_reading_without_the_metric_and_a_late_clock_silence_nothing() -> None:
    watch = FillingWatch()
    for minute in range(LEVEL, 25):
        at_ms = T0 + minute * MINUTE
        watch.take([leak(minute)], at_ms)
        watch.take([Reading(gpu(), at_ms + 1, {"gpu_temperature_celsius": 60.0}, {})], at_ms + 1)
        watch.take([], at_ms - 1)
    (said,) = watch.predictions(T0 + 25 * MINUTE)
    assert said.value == pytest.approx(0.85 + 0.004 * 24)


def test_what_is_known_of_a_gpu_later_is_said() -> None:
    watch = FillingWatch()
    for minute in range(LEVEL, 25):
        which = Gpu(uuid=gpu().uuid, host="node-1") if minute == LEVEL else gpu()
        watch.take([replace(leak(minute), gpu=which)], T0 + minute * MINUTE)
    assert "node-1 GPU 0:" in watch.predictions(T0 + 25 * MINUTE)[0].sentence


def test_what_was_before_a_restart_is_taken_up() -> None:
    before = [leak(minute) for minute in range(LEVEL, 24)]
    watch, now = FillingWatch(), T0 + 24 * MINUTE
    watch.recall(columns_of(RECALLED, before), [gpu()], now)
    (said,) = watch.predictions(now)
    assert said.value == pytest.approx(0.85 + 0.004 * 23)
    watch.take([leak(24)], now)
    (said,) = watch.predictions(now + MINUTE)
    assert said.value == pytest.approx(0.85 + 0.004 * 24)
    assert said.metric == "gpu_memory_used_ratio"


def told(shares: list[float]) -> list[tuple[int, Prediction]]:
    """What is said, with its minute, of a GPU with these shares of memory in use."""
    watch, said = FillingWatch(), []
    for minute, share in enumerate(shares):
        now_ms = T0 + minute * MINUTE
        watch.take([Reading(gpu(1), now_ms, {"gpu_memory_used_ratio": share})], now_ms)
        said += [(minute, one) for one in watch.predictions(now_ms)]
    return said


def watched(shares: list[float]) -> list[int]:
    """The minutes in which such a GPU is warned of."""
    return [minute for minute, _ in told(shares)]


def test_a_cache_that_fills_from_its_start_and_holds_is_no_leak() -> None:
    filling = [min(0.58 + 0.0032 * minute, 0.965) for minute in range(240)]
    assert watched([0.004] * 30 + filling) == []
    assert watched([0.88] * 60 + filling) == [], "another job that took over within a minute"


def test_growth_since_the_first_reading_may_be_a_start_until_it_was_watched_for_long() -> None:
    """A brain that comes new to a fleet meets caches that fill; one that grows for hours is none of these."""
    assert watched([min(0.8 + 0.0024 * minute, 0.965) for minute in range(200)]) == []
    (first, *_) = watched([0.62 + 0.002 * minute for minute in range(180)])
    assert PAST <= first <= PAST + 10


def test_a_leak_of_hours_is_told_before_half_of_its_time_is_over() -> None:
    level, hours = 0.62, 7
    share = [level + 0.365 * minute / (hours * 60) + 0.004 * math.sin(minute / 6.5) for minute in range(hours * 60)]
    said = told([0.004] * 30 + [level + 0.004 * math.sin(minute / 6.5) for minute in range(240)] + share)
    first, prediction = said[0]
    began, full = 270, 270 + hours * 60
    assert began + 0.4 * (full - began) <= first <= began + 0.5 * (full - began)
    assert prediction.target == MEMORY_LEAK
    assert prediction.eta_ms is not None
    assert abs((prediction.eta_ms - T0) / MINUTE - full) < 30
    assert prediction.probability == pytest.approx(0.47, abs=0.03), "the share of its way that is gone"
    assert "was level and has grown evenly since" in prediction.sentence
    assert "匀速上升" in prediction.sentence_zh
    last = {minute for minute, one in said if one.target == MEMORY_LEAK}
    assert max(last) - first + 1 == len(last), "said without a break"
    late = [one for minute, one in said if minute >= full - 15]
    assert {one.target for one in late} == {MEMORY_LEAK, OUT_OF_MEMORY}
    assert all((one.probability or 0.0) > 0.9 for one in late), "most of the way is gone by then"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([0.7 + 0.285 * 0.4 * min(minute / 120, 1.0) for minute in range(400)], "it stopped before"),
        ([0.7 + 0.12 * (1 - math.exp(-minute / 25)) for minute in range(400)], "a job that warms up comes to a level"),
        ([0.7 + 0.0003 * minute for minute in range(600)], "too slow to be full within the day's work"),
        ([0.7 + 0.15 * (minute > 60) for minute in range(300)], "a step is another process"),
        ([0.7 + 0.1 * math.sin(minute / 20) for minute in range(400)], "waves come back"),
    ],
)
def test_what_is_no_leak_is_not_told_as_one(after: list[float], why: str) -> None:
    assert [minute for minute, one in told([0.7] * 60 + after) if one.target == MEMORY_LEAK] == [], why


def test_a_leak_that_stops_is_told_no_longer() -> None:
    stops = [0.7 + 0.285 * min(minute / 240, 0.7) for minute in range(400)]
    said = watched([0.7] * 60 + stops)
    assert said
    assert max(said) <= 60 + 0.7 * 240 + 20


def test_what_was_said_of_a_process_that_died_is_void_once() -> None:
    """It ran out of memory, and another job runs evenly where it ran: the rule's finding must not stand for hours."""
    grows = [0.7] * 60 + [min(0.7 + 0.285 * minute / 240, 1.0) for minute in range(200)]
    said = told([*grows, 0.0, 0.0, *[0.94] * 120])
    over = [(minute, one) for minute, one in said if one.status is not PredictionStatus.CROSSING]
    assert len(grows) <= over[0][0] <= len(grows) + 2
    assert [(one.target, one.status, one.value) for _, one in over] == [
        (MEMORY_LEAK, PredictionStatus.NO_CROSSING, 0.0)
    ]
    assert "node-1 GPU 1: memory was given back (0.0% at " in over[0][1].sentence
    assert max(minute for minute, one in said if one.status is PredictionStatus.CROSSING) < over[0][0]
    assert not Recalibration(0.2).restated([over[0][1]])[0].muted
    engine = RuleEngine(load_rules())
    found = [_leaks_of(engine, one.at_ms, one) for _, one in said if one.target == MEMORY_LEAK]
    assert (found[0], found[-1]) == (1, 0)


def _leaks_of(engine: RuleEngine, at_ms: int, said: Prediction) -> int:
    reading = Reading(gpu(1), at_ms, {"gpu_memory_used_ratio": said.value or 0.0}, {})
    found = engine.step(Inputs(at_ms, (reading,), predictions=[said])).active
    return sum(one.rule == "memory_leak_predicted" for one in found)


def test_a_leak_is_known_again_after_a_restart() -> None:
    shares = [0.7] * 60 + [0.7 + 0.285 * minute / 180 for minute in range(120)]
    readings = [Reading(gpu(1), T0 + n * MINUTE, {"gpu_memory_used_ratio": one}) for n, one in enumerate(shares)]
    watch, now_ms = FillingWatch(), T0 + len(shares) * MINUTE
    watch.recall(columns_of(RECALLED, readings), [gpu(1)], now_ms)
    assert [one.target for one in watch.predictions(now_ms)] == [MEMORY_LEAK]


def test_a_gpu_that_left_is_told_of_no_longer_and_its_row_is_another_ones() -> None:
    shares = [0.62] * 240 + [0.62 + 0.001 * minute for minute in range(300)]
    watch, alone = FillingWatch(), FillingWatch()
    first, second = gpu(1), gpu(2)
    for minute, share in enumerate(shares):
        now_ms = T0 + minute * MINUTE
        watch.take([Reading(first, now_ms, {"gpu_memory_used_ratio": share})], now_ms)
    assert {one.subject.name for one in watch.predictions(now_ms)} == {first.uuid}
    watch.forget([first, gpu(9)])
    assert watch.predictions(now_ms) == []
    for minute, share in enumerate(shares, len(shares)):
        now_ms = T0 + minute * MINUTE
        reading = Reading(second, now_ms, {"gpu_memory_used_ratio": share})
        for one in (watch, alone):
            one.take([reading], now_ms)
        assert watch.predictions(now_ms) == alone.predictions(now_ms)
    assert {one.subject.name for one in watch.predictions(now_ms)} == {second.uuid}


def test_a_fleet_that_comes_and_goes_needs_no_more_rows() -> None:
    watch = FillingWatch()
    for day in range(20):
        now_ms, come = T0 + day * DAY, [gpu(100 * day + number) for number in range(100)]
        watch.take([Reading(one, now_ms, {"gpu_memory_used_ratio": 0.5}) for one in come], now_ms)
        watch.forget(come)
    assert len(watch._gpus) == 100
