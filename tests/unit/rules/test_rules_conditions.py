"""Each kind of condition by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.domain.clock import HOUR, to_minute
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.conditions.base import kinds
from tocsin_testing.builders import gpu, xid
from tocsin_testing.rule_runs import Run, instant, reading_of, rule


def test_every_kind_is_found_in_a_file_of_its_own() -> None:
    assert {"threshold", "rate", "stuck", "missing_family", "peer", "event_count", "xid", "forecast"} <= set(kinds())
    assert len({kind.__module__ for kind in kinds().values()}) == len(kinds())


@pytest.mark.parametrize(
    ("comparison", "holding", "not_holding"),
    [("above", 81, 80), ("at_least", 80, 79), ("below", 79, 80), ("at_most", 80, 81)],
)
def test_threshold_compares(comparison: str, holding: float, not_holding: float) -> None:
    ruleset = rule(f'all = [{{ kind = "threshold", metric = "gpu_temperature_celsius", {comparison} = 80 }}]')
    assert Run(ruleset).step(0, {"temperature_celsius": holding}).opened
    assert not Run(ruleset).step(0, {"temperature_celsius": not_holding}).active


def test_threshold_against_another_metric() -> None:
    level = '{ metric = "gpu_temperature_slowdown_celsius", factor = 0.5, offset = 10 }'
    run = Run(rule(f'all = [{{ kind = "threshold", metric = "gpu_temperature_celsius", above = {level} }}]'))
    assert not run.step(0, {"temperature_celsius": 55}).active, "unknown level: nothing is said"
    assert not run.step(1, {"temperature_celsius": 55, "temperature_slowdown_celsius": 90}).active
    (finding,) = run.step(2, {"temperature_celsius": 56}).opened
    assert finding.threshold == 55, "a static level is kept while it is not read"


def test_threshold_on_each_variant_names_the_part() -> None:
    name = "allocator_external_fragmentation_ratio"
    run = Run(rule(f'all = [{{ kind = "threshold", metric = "gpu_{name}{{pid}}", above = 0.3 }}]'))
    (finding,) = run.step(0, {f'{name}{{pid="7"}}': 0.5, f'{name}{{pid="8"}}': 0.1}).active
    assert finding.subject == Subject(SubjectKind.GPU, gpu().uuid, "node-1", "default", "7")
    assert finding.sentence == "node-1 GPU 0 process 7: 50 % of 30 %"


def test_a_rule_about_parts_may_look_at_the_gpu_as_well() -> None:
    name = "allocator_external_fragmentation_ratio"
    both = (
        f'all = [{{ kind = "threshold", metric = "gpu_{name}{{pid}}", above = 0.3 }},'
        ' { kind = "threshold", metric = "gpu_memory_used_ratio", above = 0.8 }]'
    )
    busy, calm = gpu(0), gpu(1)
    parts = {f'{name}{{pid="7"}}': 0.5}
    run = Run(rule(both))
    run.step(0, {busy: {**parts, "memory_used_ratio": 0.9}, calm: {**parts, "memory_used_ratio": 0.1}})
    assert [finding.subject.name for finding in run.last.active] == [busy.uuid]


def test_one_variant_by_name() -> None:
    ruleset = rule('all = [{ kind = "threshold", metric = "gpu_nvlink_up{link=\\"3\\"}", below = 1 }]')
    assert not Run(ruleset).step(0, {'nvlink_up{link="3"}': 1, 'nvlink_up{link="4"}': 0}).active
    (finding,) = Run(ruleset).step(0, {'nvlink_up{link="3"}': 0}).active
    assert finding.subject.detail == ""


def test_threshold_on_bits_tests_single_bits() -> None:
    run = Run(rule('all = [{ kind = "threshold", metric = "gpu_clocks_event_reasons_bitmask", has_bits = 128 }]'))
    assert not run.step(0, {"clocks_event_reasons_bitmask": 0x104}).active
    assert run.step(1, {"clocks_event_reasons_bitmask": 0x84}).active


def test_mean_over_a_window_needs_the_window() -> None:
    mean = '{ kind = "threshold", metric = "gpu_utilization_ratio", over = "15m", above = 0.9 }'
    run = Run(rule(f"all = [{mean}]"))
    run.hold(0, 11, {"utilization_ratio": 1.0})
    assert run.active == [], "eleven minutes are less than 80 % of the window"
    run.step(12, {"utilization_ratio": 1.0})
    assert run.active == ["r"]
    run.hold(13, 15, {"utilization_ratio": 0.2})
    assert run.active == []


def test_mean_over_a_window_works_at_a_slow_cadence() -> None:
    run = Run(rule('all = [{ kind = "threshold", metric = "gpu_utilization_ratio", over = "15m", above = 0.9 }]'))
    run.hold(0, 30, {"utilization_ratio": 0.95}, every=10)
    (finding,) = run.last.active
    assert finding.value == pytest.approx(0.95)


def test_rate_of_a_counter_sums_increases_and_survives_a_restart_of_it() -> None:
    run = Run(rule('all = [{ kind = "rate", metric = "gpu_pcie_replay_total", over = "10m", above = 5 }]'))
    run.step(0, {"pcie_replay_total": 1000})
    assert run.active == [], "the first value is no increase"
    run.step(1, {"pcie_replay_total": 1003})
    run.step(2, {"pcie_replay_total": 3})
    (finding,) = run.last.active
    assert finding.value == 6
    run.hold(3, 13, {"pcie_replay_total": 3})
    assert run.active == []


def test_rate_counts_an_increase_that_happened_while_nothing_was_read() -> None:
    run = Run(rule('all = [{ kind = "rate", metric = "gpu_pcie_replay_total", over = "10m", above = 5 }]'))
    run.step(0, {"pcie_replay_total": 0})
    run.step(60, {"pcie_replay_total": 9})
    assert run.active == ["r"]


def test_rate_per_time_waits_for_half_the_window() -> None:
    run = Run(rule('all = [{ kind = "rate", metric = "gpu_pcie_replay_total", over = "10m", per = "1m", above = 16 }]'))
    run.play(range(5), lambda minute: {"pcie_replay_total": 20 * minute})
    assert run.active == []
    run.step(5, {"pcie_replay_total": 100})
    (finding,) = run.last.active
    assert finding.value == pytest.approx(20)


def test_rate_of_a_gauge() -> None:
    run = Run(rule('all = [{ kind = "rate", metric = "gpu_temperature_celsius", over = "5m", above = 10 }]'))
    run.play(range(20), lambda minute: {"temperature_celsius": 40 + minute})
    assert run.active == []
    run.play(range(20, 26), lambda minute: {"temperature_celsius": 60 + 3 * (minute - 20)})
    assert run.active == ["r"]


@pytest.mark.parametrize(("links", "expected"), [({"0": 3}, ["0"]), ({"0": 3, "1": 3}, []), ({}, [])])
def test_rate_on_one_variant_alone(links: dict[str, int], expected: list[str]) -> None:
    name = "nvlink_recovery_errors_total"
    run = Run(
        rule(f'all = [{{ kind = "rate", metric = "gpu_{name}{{link}}", over = "1h", above = 0, only_one = true }}]')
    )
    run.step(0, {f'{name}{{link="{n}"}}': 0 for n in "012"})
    run.step(1, {f'{name}{{link="{n}"}}': links.get(n, 0) for n in "012"})
    assert [finding.subject.detail for finding in run.last.active] == expected


STUCK = (
    'all = [{ kind = "stuck", metrics = ["gpu_power_watts", "gpu_temperature_celsius"], over = "10m", samples = 4 }]'
)


def test_stuck_needs_all_metrics_still_for_the_time_and_the_samples() -> None:
    run = Run(rule(STUCK, alert="{where} {values}"))
    run.hold(0, 9, {"power_watts": 80.5, "temperature_celsius": 40})
    assert run.active == []
    run.step(10, {"power_watts": 80.5, "temperature_celsius": 40})
    (finding,) = run.last.active
    assert finding.started_ms == instant(0)
    assert finding.sentence == "node-1 GPU 0 80.5 W, 40 °C"
    run.step(11, {"power_watts": 80.6, "temperature_celsius": 40})
    assert run.active == []


def test_stuck_is_not_proven_by_the_same_reading_again() -> None:
    run = Run(rule(STUCK))
    run.hold(0, 4, {"power_watts": 80.5, "temperature_celsius": 40}, every=2)
    last = reading_of(gpu(), instant(11), {"power_watts": 80.5, "temperature_celsius": 40})
    for minute in (11, 12):
        run.step(minute, readings=[last])
    assert run.active == ["r"]
    again = Run(rule(STUCK))
    for minute in range(12):
        again.step(minute, readings=[last] if minute == 11 else [reading_of(gpu(), instant(0), {"power_watts": 80.5})])
    assert again.active == []


def test_missing_family() -> None:
    ruleset = rule('all = [{ kind = "missing_family", families = ["power", "thermal"] }]', alert="{where}: {families}")
    both, lost = {"power_watts": 80, "temperature_celsius": 40}, {"temperature_celsius": 40}
    one, two = gpu(0), gpu(1, host="node-2")
    run = Run(ruleset)
    run.step(0, {one: both, two: both})
    run.step(1, {one: lost, two: both})
    (finding,) = run.last.active
    assert (finding.sentence, finding.started_ms) == ("node-1 GPU 0: power", instant(1)), "the first reading without it"
    run.step(1.5, {one: lost, two: both})
    (finding,) = run.last.active
    assert finding.started_ms == instant(1)
    run.step(2, {one: lost, two: lost})
    assert run.active == [], "the whole fleet lost it at once: configuration"
    run.step(3, {one: both, two: both})
    assert run.active == []


def test_a_family_that_is_not_due_is_not_missing() -> None:
    from tocsin.domain.reading import Missing, Reading

    run = Run(rule('all = [{ kind = "missing_family", families = ["power"] }]'))
    run.step(0, {"power_watts": 80, "temperature_celsius": 40})
    values = {"gpu_temperature_celsius": 40.0}
    run.step(1, readings=[Reading(gpu(), instant(1), values, {"gpu_power_watts": Missing.NOT_DUE})])
    assert run.active == []
    run.step(2, readings=[Reading(gpu(), instant(2), values, {"gpu_power_watts": Missing.LOST})])
    assert run.active == ["r"]


def test_silent_gpu() -> None:
    run = Run(rule('all = [{ kind = "silent", after = "10m" }]', alert="{where} silent for {duration}"))
    run.hold(0, 5, {gpu(0): {"power_watts": 80}, gpu(1): {"power_watts": 80}})
    run.hold(6, 15, {gpu(1): {"power_watts": 80}})
    (finding,) = run.last.active
    assert (finding.subject.name, finding.started_ms) == (gpu(0).uuid, instant(5))
    run.step(16, {gpu(0): {"power_watts": 80}})
    assert run.active == []


def test_silence_of_a_removed_gpu_ends() -> None:
    run = Run(rule('all = [{ kind = "silent", after = "10m", memory = "3h" }]'))
    run.hold(0, 3, {"power_watts": 80})
    run.step(60)
    assert run.active == ["r"]
    run.step(300)
    assert run.active == []


PEER = 'all = [{ kind = "peer", metric = "gpu_temperature_celsius", above = 10, peers = 3 }]'


def test_peer_compares_at_equal_load_and_within_the_model() -> None:
    hot = gpu(0)
    values = {hot: {"temperature_celsius": 70, "power_watts": 300}}
    values |= {gpu(n): {"temperature_celsius": 55 + n, "power_watts": 301} for n in range(1, 5)}
    busy = {gpu(n): {"temperature_celsius": 80, "power_watts": 650} for n in range(5, 10)}
    other = {gpu(n, model="H100"): {"temperature_celsius": 20, "power_watts": 300} for n in range(10, 15)}
    run = Run(rule(PEER, alert="{where} {value}, {peers} peers have {median}"))
    run.step(0, values | busy | other)
    (finding,) = run.last.active
    assert finding.sentence == "node-1 GPU 0 70 °C, 4 peers have 58 °C"


def test_two_peers_are_enough_by_default() -> None:
    run = Run(rule(PEER.replace(", peers = 3", "")))
    run.step(0, {gpu(n): {"temperature_celsius": 70 if n == 0 else 50, "power_watts": 300} for n in range(3)})
    assert run.active == ["r"]


def test_peer_says_nothing_with_too_few_peers() -> None:
    run = Run(rule(PEER))
    run.step(0, {gpu(n): {"temperature_celsius": 90 - 40 * n, "power_watts": 300} for n in range(2)})
    assert run.active == []


def test_event_count_within_a_window() -> None:
    run = Run(rule('all = [{ kind = "event_count", event = "xid", codes = [31], count = 3, within = "1h" }]'))
    run.step(0, events=[xid(31, at_ms=instant(0)), xid(43, at_ms=instant(0))])
    run.step(50, events=[xid(31, at_ms=instant(50))])
    assert run.active == []
    run.step(70, events=[xid(31, at_ms=instant(70))])
    assert run.active == [], "the first is over an hour old"
    run.step(80, events=[xid(31, at_ms=instant(80))])
    (finding,) = run.last.active
    assert (finding.value, finding.started_ms) == (3, instant(80))
    run.step(111)
    assert run.active == []


def test_xid_classes_severity_and_numbers() -> None:
    ruleset = rule(
        'all = [{ kind = "xid", classes = ["memory"], least = "critical", codes = [92], except_codes = [95] }]',
        alert="{where} {code} {codes} {name} {remedy}",
    )
    fired = {}
    for code in (31, 48, 63, 79, 92, 95):
        fired[code] = bool(Run(ruleset).step(0, events=[xid(code, at_ms=instant(0))]).active)
    assert fired == {31: False, 48: True, 63: False, 79: False, 92: True, 95: False}


def test_xid_finding_is_one_spell_named_by_its_cause() -> None:
    run = Run(rule('all = [{ kind = "xid", classes = ["memory"], hold = "2h" }]', alert="{where} {code} of {codes}"))
    run.step(0, {"power_watts": 100}, events=[xid(94, at_ms=instant(0))])
    run.step(60, events=[xid(48, at_ms=instant(60))])
    (finding,) = run.last.active
    assert (finding.started_ms, finding.value, finding.sentence) == (instant(0), 48, "node-1 GPU 0 48 of 48, 94")
    assert len(run.opened) == 1
    run.step(179)
    assert run.active == ["r"]
    run.step(180)
    assert run.active == []


@pytest.mark.parametrize(
    ("event", "ends"),
    [
        (Event(EventKind.DRIVER_RELOAD, "", "node-1", instant(5)), True),
        (Event(EventKind.DRIVER_RELOAD, "", "node-2", instant(5)), False),
        (Event(EventKind.GPU_FOUND, gpu(0).uuid, "node-1", instant(5)), True),
        (Event(EventKind.GPU_FOUND, gpu(1).uuid, "node-1", instant(5)), False),
    ],
)
def test_xid_finding_ends_when_the_gpu_was_renewed(event: Event, ends: bool) -> None:
    run = Run(rule('all = [{ kind = "xid", codes = [79] }]'))
    run.step(0, {"power_watts": 100}, events=[xid(79, at_ms=instant(0))])
    run.step(6, events=[event])
    assert (run.active == []) is ends


def test_event_without_a_gpu_is_about_the_host() -> None:
    run = Run(rule('all = [{ kind = "event_count", event = "sxid", within = "1h" }]', alert="{where} {code}"))
    (finding,) = run.step(1, events=[Event(EventKind.SXID, "", "node-9", instant(0), 12020)]).active
    assert (finding.subject, finding.sentence) == (Subject(SubjectKind.HOST, "node-9", "node-9"), "node-9 12020")


def prediction(minute: float, status: PredictionStatus, eta: float | None = None, **more: object) -> Prediction:
    fields: dict[str, object] = {
        "subject": Subject(SubjectKind.GPU, gpu().uuid, "node-1"),
        "target": "time_to_threshold:gpu_memory_used_ratio",
        "at_ms": instant(minute),
        "horizon_ms": 4 * HOUR,
        "status": status,
        "model": "trend",
        "model_version": "1",
        "sentence": "said so",
        "threshold": 0.9,
        "value": 0.6,
        "eta_ms": None if eta is None else instant(eta),
        **more,
    }
    return Prediction(**fields)  # type: ignore[arg-type]


FORECAST = 'all = [{ kind = "forecast", metric = "gpu_memory_used_ratio", within = "2h" }]'


def test_forecast_crossing() -> None:
    run = Run(rule(FORECAST, alert="{where} crosses {threshold} {eta}"))
    run.step(0, predictions=[prediction(0, PredictionStatus.CROSSING, eta=180)])
    assert run.active == [], "in three hours"
    run.step(5, predictions=[prediction(5, PredictionStatus.CROSSING, eta=95)])
    (finding,) = run.last.active
    assert finding.sentence.endswith(f"crosses 90 % at {to_minute(instant(95))}"), "an instant: it may be read later"
    assert (finding.value, finding.threshold) == (0.6, 0.9)
    run.step(10, predictions=[prediction(10, PredictionStatus.NOT_ENOUGH_DATA)])
    assert run.active == ["r"], "not enough data neither opens nor clears"
    run.step(15, predictions=[prediction(15, PredictionStatus.NO_CROSSING)])
    assert run.active == []


def test_forecast_grows_old_and_ends_with_its_horizon() -> None:
    run = Run(rule(FORECAST))
    run.step(0, predictions=[prediction(0, PredictionStatus.CROSSING, eta=60)])
    run.step(31)
    assert run.active == ["r"], "unknown by now: an open finding stays"
    run.step(61)
    assert run.active == [], "the instant that it named is past"


@pytest.mark.parametrize(
    ("more", "last"),
    [
        ({"eta": 60, "eta_low_ms": instant(50), "eta_high_ms": instant(90)}, 90),
        ({"eta": 60, "eta_low_ms": instant(50)}, 240),
    ],
)
def test_a_forecast_with_an_interval_stands_to_its_late_end(more: dict[str, Any], last: int) -> None:
    run = Run(rule(FORECAST))
    run.step(0, predictions=[prediction(0, PredictionStatus.CROSSING, **more)])
    run.step(last)
    assert run.active == ["r"]
    run.step(last + 1)
    assert run.active == []


def test_a_crossing_that_is_past_is_no_forecast() -> None:
    run = Run(rule(FORECAST))
    run.step(0, {"memory_used_ratio": 0.85}, predictions=[prediction(0, PredictionStatus.CROSSING, eta=20)])
    assert run.active == ["r"]
    run.step(5, {"memory_used_ratio": 0.91})
    assert run.active == []
    run.step(10, {"memory_used_ratio": 0.95}, predictions=[prediction(10, PredictionStatus.CROSSING, eta=10)])
    assert run.active == []


def test_forecast_by_the_early_end_and_by_probability() -> None:
    early = FORECAST.replace('"2h"', '"1h", use = "eta_low", probability = 0.7')
    low = instant(30)
    run = Run(rule(early))
    run.step(0, predictions=[prediction(0, PredictionStatus.CROSSING, eta=120, eta_low_ms=low, probability=0.5)])
    assert run.active == []
    run.step(1, predictions=[prediction(1, PredictionStatus.CROSSING, eta=120, eta_low_ms=low, probability=0.8)])
    assert run.active == ["r"]


def test_any_and_all_follow_three_valued_logic() -> None:
    hot = '{ kind = "threshold", metric = "gpu_temperature_celsius", above = 80 }'
    full = '{ kind = "threshold", metric = "gpu_memory_used_ratio", above = 0.9 }'
    busy = '{ kind = "threshold", metric = "gpu_utilization_ratio", above = 0.5 }'
    run = Run(rule(f"all = [{busy}]\nany = [{hot}, {full}]"))
    run.step(0, {"utilization_ratio": 1, "temperature_celsius": 81})
    assert run.active == ["r"], "one of any suffices, the other is unknown"
    run.step(1, {"utilization_ratio": 1, "memory_used_ratio": 0.5})
    assert run.active == ["r"], "what it held on is unknown now"
    run.step(2, {"utilization_ratio": 1, "temperature_celsius": 79})
    assert run.active == [], "what it held on is false, and the other was never true"
    run.step(3, {"utilization_ratio": 1, "temperature_celsius": 81, "memory_used_ratio": 0.95})
    run.step(4, {"utilization_ratio": 1, "temperature_celsius": 79})
    assert run.active == ["r"], "it held on both, and one is unknown"
    run.step(5, {"utilization_ratio": 0.1})
    assert run.active == [], "one of all is false"


def test_frozen_values_are_told_from_other_reasons() -> None:
    run = Run(rule('all = [{ kind = "frozen" }]'))
    power = {"gpu_fan_speed_ratio": 0.5}
    for minute, reason, holds in [(0, Missing.BLANK, []), (1, Missing.FROZEN, ["r"]), (2, Missing.NOT_DUE, [])]:
        run.step(minute, readings=[Reading(gpu(), instant(minute), power, {"gpu_power_watts": reason})])
        assert run.active == holds


def test_bits_that_must_be_absent_and_states_that_are_named() -> None:
    bits = (
        'all = [{ kind = "threshold", metric = "gpu_clocks_event_reasons_bitmask", has_bits = 8, lacks_bits = 0xc0 }]'
    )
    assert [bool(Run(rule(bits)).step(0, {"clocks_event_reasons_bitmask": mask}).active) for mask in (8, 0x48, 1)] == [
        True,
        False,
        False,
    ]
    states = 'all = [{ kind = "threshold", metric = "gpu_fabric_state", one_of = [1, 4] }]'
    assert [n for n in range(6) if Run(rule(states)).step(0, {"fabric_state": n}).active] == [1, 4]


@pytest.mark.parametrize(
    ("keys", "field", "problem"),
    [
        ("lacks_bits = 8, above = 1", "lacks_bits", "stands without has_bits"),
        ("has_bits = 8, one_of = [1]", "one_of", "stands beside has_bits"),
        ("one_of = [1], above = 3", "above", "stands beside one_of"),
        ('above = { metric = "gpu_power_watts", or_model = true }', "above.or_model", "is no limit"),
    ],
)
def test_keys_of_a_threshold_that_do_not_go_together(keys: str, field: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        rule(f'all = [{{ kind = "threshold", metric = "gpu_clocks_event_reasons_bitmask", {keys} }}]')
    assert error.value.field.endswith(field)
    assert problem in error.value.problem
    assert error.value.remedy
