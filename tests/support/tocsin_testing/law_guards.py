"""Any decision over any state, for the laws of guards."""

from __future__ import annotations

import hashlib

from hypothesis import strategies as st

from tocsin.actions.model.alert_silences import AlertSilence, AlertSilences, matcher_of
from tocsin.actions.model.controls import Breaker, Controls, HoldOff, Note
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.silences import Silence
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.actions.notifications.alertmanager_silences import MOST_BY, MOST_COMMENT
from tocsin.actions.planning.facts import NodeState
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import DAY
from tocsin.domain.decision import Decision, Mode, parameters_of
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin_testing.builders import T0

NAMES = ["GPU-1", "GPU-2", "MIG-1", "node-1", "node-2", "train", "fleet", "gone", ""]
instants = st.one_of(st.integers(T0 - 2 * DAY, T0 + 2 * DAY), st.sampled_from([0, T0, 10**13]))
names = st.sampled_from(NAMES)
subjects = st.builds(Subject, st.sampled_from(SubjectKind), names, names, names, st.sampled_from(["", "pid 1"]))
labels = st.dictionaries(
    st.sampled_from(["tocsin.io/managed", "tocsin.io/opt-out"]), st.sampled_from(["true", "false", ""])
)
TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "metric": st.sampled_from(["gpu_temperature_celsius", "gpu_ecc_errors", "no_metric"]),
        "power_limit_watts": st.sampled_from(["450", "many"]),
        "ranks": st.sampled_from(['[["node-1","GPU-1"],["node-2","GPU-2"]]', "[]", "nonsense"]),
        "undoes": st.sampled_from(["e1", "e2"]),
        "asked_by": st.just("ann"),
        "node": names,
    },
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
    parameters=st.builds(parameters_of, st.sampled_from(ActionKind), TEXTS),
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
KEYS = ["k1", "k2", "k3"]
"""Idempotency keys of the decisions."""
IDS = [hashlib.sha256(key.encode()).hexdigest()[:16] for key in KEYS]
approvals = st.dictionaries(st.sampled_from(IDS), notes, max_size=1)
matchers = st.one_of(
    st.builds(Matcher, st.sampled_from([MatcherKind.HOST, MatcherKind.POOL, MatcherKind.RACK]), names),
    st.just(Matcher(MatcherKind.LABEL, "tocsin.io/managed=true")),
    st.just(Matcher(MatcherKind.CARD, "f1")),
)
silences = st.builds(
    Silence,
    st.sampled_from(["s1", "s2"]),
    st.sampled_from(SilenceKind),
    matchers,
    st.sampled_from([0, T0 - DAY, T0]),
    st.sampled_from([T0 + DAY, 10**14]),
    actor=st.just("ann"),
    reason=st.sampled_from(["", "new fans", "w" * 500]),
    causes=st.sampled_from([frozenset[str](), frozenset({"f1"})]),
)
alert_matchers = st.builds(
    matcher_of,
    st.sampled_from(["host", "Hostname", "instance", "UUID", "gpu", "severity", "cluster"]),
    st.sampled_from(["GPU-1", "node-1", "node-1:9400", "node-.*", ".+", "", "critical"]),
    is_regex=st.booleans(),
    is_equal=st.booleans(),
)
alert_silences = st.builds(
    AlertSilence,
    st.sampled_from(["a1", "a2"]),
    st.lists(alert_matchers, max_size=2).map(tuple),
    st.sampled_from([0, T0 - DAY, T0]),
    st.sampled_from([T0 + DAY, 10**14]),
    by=st.sampled_from(["", "ann", "b" * MOST_BY]),
    comment=st.sampled_from(["", "new fans", "w" * MOST_COMMENT]),
)
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
    doubtful=st.sets(st.sampled_from(["e1", "e2"])).map(frozenset),
    capping=st.sets(names.map(lambda n: f"gpu:{n}")).map(frozenset),
    approvals=approvals,
    rejections=approvals,
    silences=st.lists(silences, max_size=3).map(tuple),
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
    nodes=st.lists(st.builds(NodeState, names, st.booleans(), st.booleans(), st.booleans()), max_size=3).map(
        lambda members: {member.host: member for member in members}
    ),
    blind=st.booleans(),
    active=st.booleans(),
    alert_silences=st.lists(alert_silences, max_size=2).map(lambda found: AlertSilences(tuple(found))),
    controls=controls,
    policy=policies,
)
