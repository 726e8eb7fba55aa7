"""Every guard is pure and total: any decision over any state gets one verdict, the same again, and nothing changes."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.guards.stages import GUARDS, evaluate
from tocsin.actions.model.controls import Breaker, Controls, HoldOff, Note
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import DAY
from tocsin.domain.decision import Decision, Mode, Ruling
from tocsin.domain.finding import ActionKind, Category, Finding, Severity
from tocsin.domain.identity import Gpu
from tocsin.domain.subject import Subject, SubjectKind
from tocsin_testing.builders import T0

NAMES = ["GPU-1", "GPU-2", "MIG-1", "node-1", "node-2", "train", "fleet", "gone", ""]
instants = st.one_of(st.integers(T0 - 2 * DAY, T0 + 2 * DAY), st.sampled_from([0, T0, 10**13]))
names = st.sampled_from(NAMES)
subjects = st.builds(Subject, st.sampled_from(SubjectKind), names, names, names, st.sampled_from(["", "pid 1"]))
labels = st.dictionaries(
    st.sampled_from(["tocsin.io/managed", "tocsin.io/opt-out"]), st.sampled_from(["true", "false", ""])
)
decisions = st.builds(
    Decision,
    rule=st.sampled_from(["a", "b"]),
    subject=subjects,
    action=st.sampled_from(ActionKind),
    mode=st.sampled_from(Mode),
    severity=st.sampled_from(Severity),
    category=st.sampled_from(Category),
    at_ms=instants,
    expires_ms=instants,
    key=st.sampled_from(["k1", "k2", "k3"]),
    sentence=st.just("s"),
    findings=st.lists(st.sampled_from(["f1", "f2"]), max_size=2).map(tuple),
)
findings = st.builds(
    Finding,
    st.just("a"),
    subjects,
    st.just(Severity.WARNING),
    st.just(Category.THERMAL),
    st.just(ActionKind.CORDON),
    instants,
    instants,
    st.just("s"),
)
gpus = st.builds(
    Gpu, names, names, parent=st.sampled_from(["", "GPU-1", "gone"]), pool=names, rack=names, labels=labels
)
notes = st.builds(Note, st.just("ann"), instants, st.sampled_from(["", "why"]))
controls = st.builds(
    Controls,
    paused=st.none() | notes,
    breaker=st.none() | st.builds(Breaker, instants, st.just(("a", "b"))),
    hold_offs=st.dictionaries(names.map(lambda n: f"gpu:{n}"), st.builds(HoldOff, instants, st.just("ann"))),
    started=st.dictionaries(st.sampled_from(["k1", "k2"]), instants),
    attempts=st.dictionaries(
        st.tuples(names.map(lambda n: f"gpu:{n}"), st.sampled_from(ActionKind)), st.lists(instants).map(tuple)
    ),
    effects=st.dictionaries(st.sampled_from(["e1", "e2"]), decisions),
    busy=st.dictionaries(names.map(lambda n: f"gpu:{n}"), st.just("cordon")),
    cancelled=st.sets(st.sampled_from(["f1", "f2"])).map(frozenset),
)
policies = st.builds(
    Policy,
    st.builds(
        ActionSettings,
        mode=st.sampled_from(Mode),
        managed_pools=st.lists(names),
        confirmations=st.integers(1, 5),
        maintenance=st.sampled_from([[], [{"start": "22:00", "end": "02:00"}]]),
    ),
    st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(Mode)),
)
views = st.builds(
    FleetView,
    instants,
    instants,
    st.lists(st.builds(GpuView, gpus, st.none() | instants, st.booleans(), st.booleans()), max_size=5).map(
        lambda members: {member.gpu.uuid: member for member in members}
    ),
    st.dictionaries(st.sampled_from(["f1", "f2"]), findings),
    confirmations=st.dictionaries(st.sampled_from(["f1", "f2"]), st.integers(0, 6)),
    controls=controls,
    policy=policies,
)


@settings(max_examples=300, deadline=None)
@given(decisions, views, instants)
def test_pure_and_total(decision: Decision, view: FleetView, now_ms: int) -> None:
    before = copy.deepcopy((decision, view))
    verdicts = evaluate(decision, view, now_ms)
    assert [verdict.guard for verdict in verdicts] == [guard.name for guard in GUARDS]
    assert evaluate(decision, view, now_ms) == verdicts
    assert (decision, view) == before
    for verdict in verdicts:
        assert verdict.ruling is Ruling.ALLOW or verdict.reason
        assert verdict.until_ms is None or (verdict.ruling is Ruling.HOLD and verdict.until_ms > now_ms)


@settings(max_examples=100, deadline=None)
@given(decisions, views, instants)
def test_a_notification_is_asked_only_whether_it_is_done(decision: Decision, view: FleetView, now_ms: int) -> None:
    notice = Decision(**{name: getattr(decision, name) for name in Decision.__slots__} | {"action": ActionKind.NOTIFY})
    held = {v.guard for v in evaluate(notice, view, now_ms) if v.ruling is not Ruling.ALLOW}
    assert held <= {"not_done"}
    assert bool(held) == (notice.key in view.controls.started)


@settings(max_examples=100, deadline=None)
@given(decisions, views, instants)
def test_observe_and_pause_hold_every_action(decision: Decision, view: FleetView, now_ms: int) -> None:
    rulings = {v.guard: v.ruling for v in evaluate(decision, view, now_ms)}
    if decision.action is ActionKind.NOTIFY:
        return
    watching = Mode.OBSERVE in (decision.mode, view.policy.settings.mode, view.policy.mode_of(decision.rule))
    assert (rulings["mode"] is Ruling.HOLD) == watching
    assert (rulings["pause"] is Ruling.HOLD) == (view.controls.paused is not None)
