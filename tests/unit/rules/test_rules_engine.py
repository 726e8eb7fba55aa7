"""The engine: timers, hysteresis, what is unknown, time that steps back, restarts, scopes."""

from __future__ import annotations

import pytest

from tocsin.domain.clock import HOUR, MINUTE, to_minute
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import SubjectKind
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Missing, Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.units import parse_duration, show_duration, show_value
from tocsin_testing.builders import T0, gpu, xid
from tocsin_testing.rule_runs import Run, instant, reading_of, rule

HOT = 'all = [{ kind = "threshold", metric = "gpu_temperature_celsius", above = 85, clear = 80 }]'


def test_for_counts_from_the_first_reading_that_holds() -> None:
    run = Run(rule(HOT, extra='for = "5m"', alert="{where}: {value} for {duration}"))
    run.hold(0, 4, {"temperature_celsius": 86})
    assert run.active == []
    run.step(5, {"temperature_celsius": 87})
    (finding,) = run.opened
    assert (finding.started_ms, finding.last_ms) == (instant(0), instant(5))
    assert finding.sentence == "node-1 GPU 0: 87 °C for 5 min"
    assert (finding.value, finding.threshold, finding.metric) == (87, 85, "gpu_temperature_celsius")
    assert [item.name for item in finding.evidence] == ["gpu_temperature_celsius"]


def test_a_sentence_names_the_instant_of_the_start_which_stays_true() -> None:
    run = Run(rule(HOT, extra='for = "5m"', alert="{where}: {value} since {since}"))
    run.hold(0, 5, {"temperature_celsius": 86})
    (early,) = run.opened
    run.hold(6, 90, {"temperature_celsius": 86})
    (late,) = run.last.active
    assert early.sentence == late.sentence == f"node-1 GPU 0: 86 °C since {to_minute(instant(0))}"


@pytest.mark.parametrize(
    ("alert", "hot", "cooler"),
    [
        ("{value}, above {threshold}.", "86 °C, above 85 °C.", "82 °C, was above 85 °C, clears below 80 °C."),
        ("{value}, level {threshold}.", "86 °C, level 85 °C.", "82 °C, level 85 °C, clears below 80 °C."),
        ("{value}: hot.", "86 °C: hot.", "82 °C: hot. It clears below 80 °C."),
    ],
)
def test_a_value_that_is_back_below_the_level_and_has_not_cleared_is_told_as_such(
    alert: str, hot: str, cooler: str
) -> None:
    run = Run(rule(HOT, alert=alert))
    run.step(0, {"temperature_celsius": 86})
    assert run.opened[0].sentence == hot
    run.step(1, {"temperature_celsius": 82})
    (eased,) = run.last.active
    assert eased.sentence == cooler
    assert eased.evidence[0].text == "82 °C, level 85 °C, clears at 80 °C"
    run.step(2, {"temperature_celsius": 79})
    assert run.active == []


def test_a_shipped_sentence_is_told_in_chinese_and_says_where_it_clears() -> None:
    run = Run(rule(HOT, alert="{where}: core temperature {value} since {since}, above {threshold}."))
    run.step(0, {"temperature_celsius": 86})
    since = to_minute(instant(0))
    assert run.opened[0].sentence_zh == f"node-1 GPU 0：自 {since} 起核心温度 86 °C，高于 85 °C。"
    run.step(1, {"temperature_celsius": 82})
    eased = f"node-1 GPU 0：自 {since} 起核心温度 82 °C，曾高于 85 °C，低于 80 °C 时解除。"
    assert run.last.active[0].sentence_zh == eased
    other = Run(rule(HOT, alert="{where}: a sentence of the site."))
    other.step(0, {"temperature_celsius": 86})
    assert other.opened[0].sentence_zh == ""


def test_what_still_holds_goes_before_what_is_about_to_clear() -> None:
    power = '{ kind = "threshold", metric = "gpu_power_watts", below = 100, clear = 120 }'
    run = Run(rule(HOT.replace("all = [", f"any = [{power}, "), alert="{value}, {rule}"))
    run.step(0, {"temperature_celsius": 86, "power_watts": 90})
    assert run.opened[0].sentence == "90 W, r"
    run.step(1, {"temperature_celsius": 86, "power_watts": 110})
    assert run.last.active[0].sentence == "86 °C, r"
    run.step(2, {"temperature_celsius": 82, "power_watts": 110})
    assert run.last.active[0].sentence == "110 W, r It clears above 120 W."


def test_no_shipped_sentence_says_how_long_it_has_been() -> None:
    assert [one.name for one in load_rules(None) if "{duration}" in one.table.alert] == []


def test_a_break_starts_for_anew() -> None:
    run = Run(rule(HOT, extra='for = "5m"'))
    run.hold(0, 4, {"temperature_celsius": 86})
    run.step(5, {"temperature_celsius": 84})
    run.hold(6, 10, {"temperature_celsius": 86})
    assert run.active == []
    run.step(11, {"temperature_celsius": 86})
    assert run.opened[0].started_ms == instant(6)


def test_samples_counts_readings_not_steps() -> None:
    run = Run(rule(HOT, extra="samples = 3"))
    once = reading_of(gpu(), instant(0), {"temperature_celsius": 90})
    for minute in range(3):
        run.step(minute / 10, readings=[once])
    assert run.active == []
    run.step(1, {"temperature_celsius": 90})
    run.step(2, {"temperature_celsius": 90})
    assert run.active == ["r"]


def test_hysteresis_between_level_and_clear_changes_nothing() -> None:
    run = Run(rule(HOT))
    run.step(0, {"temperature_celsius": 83})
    assert run.active == []
    run.step(1, {"temperature_celsius": 86})
    run.hold(2, 30, {"temperature_celsius": 81})
    assert run.active == ["r"]
    run.step(31, {"temperature_celsius": 80})
    assert run.active == []
    assert len(run.opened) == len(run.cleared) == 1


def test_clear_for_needs_quiet_without_a_break() -> None:
    run = Run(rule(HOT, extra='clear_for = "3m"'))
    run.step(0, {"temperature_celsius": 86})
    run.hold(1, 3, {"temperature_celsius": 70})
    run.step(4, {"temperature_celsius": 86})
    run.hold(5, 7, {"temperature_celsius": 70})
    assert run.active == ["r"]
    run.step(8, {"temperature_celsius": 70})
    (cleared,) = run.cleared
    assert (cleared.id, cleared.last_ms) == (run.opened[0].id, instant(4))


def test_unknown_neither_opens_nor_clears() -> None:
    run = Run(rule(HOT, extra='for = "2m"'))
    run.step(0, {"temperature_celsius": 86})
    run.step(1, {"power_watts": 100})
    run.step(2, {"power_watts": 100})
    assert run.active == [], "nothing was seen when the time was up"
    run.step(3, {"temperature_celsius": 86})
    assert run.active == ["r"]
    run.hold(4, 60, {"power_watts": 100})
    assert run.active == ["r"]
    run.step(61, {"temperature_celsius": 60})
    assert run.active == []


def test_a_stale_reading_is_unknown() -> None:
    run = Run(rule(HOT))
    run.step(0, {"temperature_celsius": 86})
    run.step(1, {"temperature_celsius": 86})
    run.step(600)
    assert run.active == ["r"]
    assert run.last.active[0].last_ms == instant(1)


def test_a_pending_rule_starts_anew_after_a_gap() -> None:
    run = Run(rule(HOT, extra='for = "10m"'))
    run.hold(0, 5, {"temperature_celsius": 86})
    run.step(60, {"temperature_celsius": 86})
    assert run.active == [], "nobody saw what happened between"
    run.hold(61, 70, {"temperature_celsius": 86})
    assert run.opened[0].started_ms == instant(60)


def test_a_slow_cadence_is_not_a_gap() -> None:
    run = Run(rule(HOT, extra='for = "30m"'))
    run.hold(0, 30, {"temperature_celsius": 86}, every=10)
    assert run.active == ["r"]


def test_the_same_reading_again_proves_nothing() -> None:
    run = Run(rule(HOT, extra='for = "5m"'))
    once = reading_of(gpu(), instant(0), {"temperature_celsius": 86})
    for minute in range(15):
        run.step(minute, readings=[once])
    assert run.active == []


def test_of_two_readings_in_one_step_the_newer_counts() -> None:
    run = Run(rule(HOT))
    old = reading_of(gpu(), instant(0), {"temperature_celsius": 60})
    new = reading_of(gpu(), instant(1), {"temperature_celsius": 90})
    assert run.step(1, readings=[new, old]).active
    assert run.step(2, readings=[old]).active


def test_a_metric_that_is_not_due_keeps_its_value() -> None:
    run = Run(rule(HOT, extra='for = "2m"'))
    run.step(0, {"temperature_celsius": 86})
    for minute in (1, 2):
        missing = {"gpu_temperature_celsius": Missing.NOT_DUE}
        run.step(minute, readings=[Reading(gpu(), instant(minute), {"gpu_power_watts": 100.0}, missing)])
    assert run.active == ["r"]


def test_values_that_are_not_finite_are_unknown() -> None:
    run = Run(rule(HOT))
    run.step(0, {"temperature_celsius": float("inf")})
    run.step(1, {"temperature_celsius": float("nan")})
    assert run.active == []


def test_what_comes_from_the_future_is_dropped_and_counted() -> None:
    run = Run()
    ahead = instant(120)
    evaluation = run.step(0, events=[xid(79, at_ms=ahead)], readings=[reading_of(gpu(), ahead, {"power_watts": 1})])
    assert evaluation.dropped == {"reading_from_the_future": 1, "event_from_the_future": 1}
    assert evaluation.active == []
    assert run.step(1).dropped == {}


def test_events_from_before_every_window_are_dropped_and_counted() -> None:
    run = Run()
    evaluation = run.step(0, events=[xid(79, at_ms=T0 - 25 * HOUR)])
    assert evaluation.dropped == {"event_too_old": 1}
    assert evaluation.active == []


def test_a_clock_that_steps_back_opens_nothing_and_goes_on() -> None:
    run = Run(rule(HOT, extra='for = "5m"'))
    run.hold(0, 3, {"temperature_celsius": 86})
    run.hold(-300, -296, {"temperature_celsius": 86})
    assert run.active == []
    run.step(-295, {"temperature_celsius": 86})
    assert run.active == ["r"]
    assert run.opened[0].started_ms == instant(-300)


def test_a_small_step_back_is_waited_out() -> None:
    run = Run(rule(HOT))
    run.step(0, {"temperature_celsius": 60})
    run.step(-2, {"temperature_celsius": 90})
    assert run.active == []
    run.step(1, {"temperature_celsius": 90})
    assert run.active == ["r"]


def test_a_default_engine_survives_time_in_both_directions() -> None:
    run = Run()
    for minute in (0, 1, 2, -600, -599, 5000, 4000, 4001):
        run.step(
            minute,
            {"temperature_celsius": 50, "power_watts": 100 + minute % 7},
            events=[xid(31, at_ms=instant(minute))],
        )
    assert {finding.rule for finding in run.opened} == {"xid_application"}


def test_warm_restores_timers_and_open_findings() -> None:
    ruleset = rule(HOT, extra='for = "10m"')
    hot = [Inputs(instant(m), [reading_of(gpu(), instant(m), {"temperature_celsius": 90})]) for m in range(20)]
    straight = RuleEngine(ruleset)
    for inputs in hot:
        expected = straight.step(inputs)
    restarted = RuleEngine(ruleset)
    restarted.warm(hot[:19])
    last = restarted.step(hot[19])
    assert last.active == expected.active
    assert last.opened == []


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        ("{ models = ['*a100*'] }", {"GPU-00000000", "MIG-1"}),
        ("{ pools = ['train-*'] }", {"GPU-00000001"}),
        ("{ hosts = ['node-2'] }", {"GPU-00000001"}),
        ("{ labels = { tier = 'prod' } }", {"GPU-00000000"}),
        ("{ instances = 'exclude' }", {"GPU-00000000", "GPU-00000001"}),
        ("{ instances = 'only' }", {"MIG-1"}),
        ("{ models = ['H100'], pools = ['other'] }", set()),
    ],
)
def test_scope(scope: str, names: set[str]) -> None:
    plain = gpu(0, labels={"tier": "prod"})
    other = gpu(1, host="node-2", model="H100", pool="train-a")
    instance = gpu(2, uuid="MIG-1", parent=plain.uuid, mig_profile="1g.10gb")
    run = Run(rule(HOT, extra=f"scope = {scope}"))
    run.step(0, {which: {"temperature_celsius": 90} for which in (plain, other, instance)})
    assert {finding.subject.name for finding in run.last.active} == names


def test_a_gpu_that_leaves_the_scope_is_cleared_at_once() -> None:
    run = Run(rule(HOT, extra="scope = { pools = ['train'] }\nclear_for = '10m'"))
    run.step(0, {gpu(0, pool="train"): {"temperature_celsius": 90}})
    assert run.active == ["r"]
    run.step(1, {gpu(0, pool="spare"): {"temperature_celsius": 90}})
    assert run.active == []


def test_a_gpu_that_is_gone_for_long_is_forgotten_with_its_findings() -> None:
    run = Run(rule(HOT))
    run.step(0, {gpu(0): {"temperature_celsius": 90}, gpu(1): {"temperature_celsius": 90}})
    run.hold(60, 8 * 24 * 60, {gpu(1): {"temperature_celsius": 90}}, every=60)
    assert [finding.subject.name for finding in run.last.active] == [gpu(1).uuid]
    assert [finding.subject.name for finding in run.cleared] == [gpu(0).uuid]
    run.step(8 * 24 * 60 + 1, {gpu(7): {"temperature_celsius": 20}, gpu(0): {"temperature_celsius": 20}})
    assert [finding.subject.name for finding in run.last.active] == [gpu(1).uuid], "the freed row has no past"


def test_a_process_that_ended_is_cleared() -> None:
    name = "allocator_external_fragmentation_ratio"
    run = Run(rule(f'all = [{{ kind = "threshold", metric = "gpu_{name}{{pid}}", above = 0.3 }}]'))
    run.step(0, {f'{name}{{pid="7"}}': 0.9, "power_watts": 100})
    run.hold(1, 10, {"power_watts": 100})
    assert run.active == ["r"]
    run.hold(11, 12, {f'{name}{{pid="8"}}': 0.1})
    assert run.active == []


def test_pool_rules_and_their_subjects() -> None:
    condition = 'all = [{ kind = "threshold", metric = "pool_utilization_ratio", above = 0.5 }]'
    run = Run(rule(condition, alert="{where} {value}"))
    values = {gpu(n, pool="a"): {"utilization_ratio": 0.9} for n in range(3)}
    values |= {gpu(n, pool="b"): {"utilization_ratio": 0.1} for n in range(3, 6)}
    run.step(0, values)
    (finding,) = run.last.active
    assert (finding.subject.kind, finding.subject.name, finding.sentence) == (SubjectKind.POOL, "a", "pool a 90 %")
    run.step(20, {which: found for which, found in values.items() if which.pool == "b"})
    assert run.active == ["r"], "no fresh reading in pool a: unknown"


def test_pool_mean_is_unknown_with_less_than_half_of_it_reporting() -> None:
    run = Run(rule('all = [{ kind = "threshold", metric = "pool_utilization_ratio", above = 0.5 }]'))
    run.step(0, {gpu(n): {"utilization_ratio": 0.1} for n in range(5)})
    run.step(30, {gpu(n): {"utilization_ratio": 0.9} for n in range(2)})
    assert run.active == []
    run.step(31, {gpu(n): {"utilization_ratio": 0.9} for n in range(3)})
    assert run.active == ["r"]


def test_mig_gpus_count_by_their_engine_activity() -> None:
    run = Run(rule('all = [{ kind = "threshold", metric = "pool_utilization_ratio", above = 0.5 }]'))
    run.step(0, {gpu(0): {"graphics_engine_active_ratio": 0.8}})
    assert run.active == ["r"]


def test_a_pool_that_is_gone_is_cleared() -> None:
    run = Run(rule('all = [{ kind = "threshold", metric = "pool_pending_gpus", above = 0 }]'))
    run.step(0, {"power_watts": 1}, pools=[PoolState("default", 4), PoolState("ghost", 3)])
    assert len(run.last.active) == 2
    run.step(1, {"power_watts": 2}, pools=[PoolState("default", 4)])
    assert [finding.subject.name for finding in run.last.active] == ["default"]


def test_findings_are_marked_as_simulated() -> None:
    pool_rule = 'all = [{ kind = "threshold", metric = "pool_utilization_ratio", above = 0.5 }]'
    for text in (HOT, pool_rule):
        for simulated in (False, True):
            run = Run(rule(text))
            run.step(0, {gpu(simulated=simulated): {"temperature_celsius": 90, "utilization_ratio": 0.9}})
            assert [finding.simulated for finding in run.last.active] == [simulated]


def test_rack_is_among_the_evidence() -> None:
    run = Run(rule(HOT))
    run.step(0, {gpu(rack="r7"): {"temperature_celsius": 90}})
    assert [(item.name, item.text) for item in run.last.active[0].evidence][-1] == ("rack", "r7")


def test_an_event_of_an_unknown_gpu_makes_a_finding() -> None:
    run = Run(load_rules())
    run.step(0, events=[Event(EventKind.XID, "GPU-new", "node-3", instant(0), 79)])
    (finding,) = run.last.active
    assert (finding.rule, finding.subject.name, finding.subject.host) == ("xid_bus", "GPU-new", "node-3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90_000), ("15m", 15 * MINUTE), ("1h30m", 90 * MINUTE), ("1.5h", 90 * MINUTE), ("500ms", 500)],
)
def test_durations_are_read(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("bad", [15, 15.0, "15", "15 m", "m", "", "-5m", None, True])
def test_other_things_are_no_durations(bad: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "0 s"),
        (59_000, "59 s"),
        (15 * MINUTE, "15 min"),
        (26 * HOUR, "26 h"),
        (49 * HOUR, "2 d 1 h"),
        (90 * MINUTE, "1 h 30 min"),
    ],
)
def test_durations_are_shown(milliseconds: int, expected: str) -> None:
    assert show_duration(milliseconds) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.934, "ratio", "93.4 %"),
        (86.0, "celsius", "86 °C"),
        (1.41e9, "hertz", "1410 MHz"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (None, "watts", "unknown"),
        (2.0, "action", "2"),
        (8.0, "lanes", "8 lanes"),
    ],
)
def test_values_are_shown_with_their_unit(value: float | None, unit: str, expected: str) -> None:
    assert show_value(value, unit) == expected
