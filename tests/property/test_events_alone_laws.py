"""Events judged alone, between two steps of the rules, come to what steps alone come to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Finding
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin_testing.builders import T0, gpu, reading

RULES = load_rules(None)
GPUS = [gpu(number) for number in range(4)]

events = st.builds(
    lambda number, kind, code, whole: (number, kind, code, whole),
    st.integers(0, 3),
    st.sampled_from([EventKind.XID, EventKind.XID, EventKind.XID, EventKind.DRIVER_RELOAD, EventKind.GPU_LOST]),
    st.sampled_from([13, 31, 48, 63, 74, 79, 94, 95]),
    st.booleans(),
)
rounds = st.lists(st.tuples(st.integers(40, 95), st.lists(events, max_size=3)), min_size=1, max_size=6)


def _told(findings: list[Finding]) -> list[tuple[object, ...]]:
    return sorted((one.id, one.sentence, str(one.action), one.value, str(one.severity)) for one in findings)


@settings(max_examples=60, deadline=None)
@given(rounds)
def test_events_judged_alone_open_and_end_what_a_step_would(
    course: list[tuple[int, list[tuple[int, EventKind, int, bool]]]],
) -> None:
    alone, whole = RuleEngine(RULES), RuleEngine(RULES)
    for step, (celsius, coming) in enumerate(course):
        at_ms = T0 + step * MINUTE
        newest = [reading(one, at_ms, temperature_celsius=celsius, power_watts=300) for one in GPUS]
        alone.step(Inputs(at_ms, newest))
        whole.step(Inputs(at_ms, newest))
        now_ms = at_ms + 20 * SECOND
        found = [
            Event(kind, "" if everything else GPUS[n].uuid, GPUS[n].host, now_ms - k, code=code)
            for k, (n, kind, code, everything) in enumerate(coming)
        ]
        judged = alone.judge_events(Inputs(now_ms, newest, found))
        stepped = whole.step(Inputs(now_ms, newest, found))
        assert _told(judged.opened) == _told(stepped.opened)
        assert {one.id for one in judged.cleared} == {one.id for one in stepped.cleared}
        assert _told(judged.active) == _told(stepped.active)
    end_ms = T0 + len(course) * MINUTE
    newest = [reading(one, end_ms, temperature_celsius=60, power_watts=300) for one in GPUS]
    assert _told(alone.step(Inputs(end_ms, newest)).active) == _told(whole.step(Inputs(end_ms, newest)).active)


def test_a_gpu_that_no_step_has_seen_is_told_by_its_place_and_pool() -> None:
    engine = RuleEngine(RULES)
    engine.step(Inputs(T0, [reading(GPUS[0], T0)]))
    new = gpu(9, pool="training")
    event = Event(EventKind.XID, new.uuid, new.host, T0 + SECOND, code=79)
    judged = engine.judge_events(Inputs(T0 + SECOND, [reading(new, T0 + SECOND)], [event]))
    assert {one.subject.pool for one in judged.opened} == {"training"}
    assert all(f"GPU {new.index}" in one.sentence for one in judged.opened)
    assert judged.opened


def test_an_event_that_came_before_is_not_judged_twice() -> None:
    engine = RuleEngine(RULES)
    engine.step(Inputs(T0, [reading(GPUS[0], T0)]))
    event = Event(EventKind.XID, GPUS[0].uuid, GPUS[0].host, T0, code=79)
    first = engine.judge_events(Inputs(T0 + SECOND, (), [event]))
    again = engine.judge_events(Inputs(T0 + 2 * SECOND, (), [event]))
    assert first.opened
    assert (again.opened, [one.id for one in again.active]) == ([], [one.id for one in first.active])
