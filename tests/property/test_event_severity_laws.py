"""Events that say nothing of their own weight are judged by the catalogue alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import SECOND
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Finding, Severity
from tocsin.rules.conditions.xid_class import Xid
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.rules.xid_nvlink import DECODED_CODES
from tocsin_testing.builders import T0, gpu

RULES = load_rules()


def by_number_alone() -> RuleSet:
    """The shipped rules without the one that is about sub-codes and without the place that others leave it."""
    kept = []
    for rule in RULES:
        if rule.name == "xid_nvlink_nonfatal":
            continue
        every = tuple(
            one.model_copy(update={"except_codes": []}) if rule.name == "xid_other" and isinstance(one, Xid) else one
            for one in rule.all_
        )
        kept.append(replace(rule, all_=every))
    return replace(RULES, rules=tuple(kept))


BARE = by_number_alone()

codes = st.integers(1, 176) | st.sampled_from(sorted(DECODED_CODES)) | st.just(999)
bare = st.builds(
    lambda kind, n, code, seconds: Event(
        kind, "" if kind is EventKind.SXID else gpu(n).uuid, "node-1", T0 - seconds * SECOND, code
    ),
    st.sampled_from([EventKind.XID, EventKind.XID, EventKind.SXID, EventKind.RECOVERY_ACTION]),
    st.integers(0, 2),
    codes,
    st.integers(0, 3_000),
)


def judged(rules: RuleSet, events: list[Event]) -> list[Finding]:
    return sorted(RuleEngine(rules).step(Inputs(T0, (), events)).active, key=lambda finding: finding.id)


@settings(max_examples=60)
@given(st.lists(bare, max_size=12))
def test_an_event_without_a_weight_is_judged_by_its_number(events: list[Event]) -> None:
    assert judged(RULES, events) == judged(BARE, events)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DECODED_CODES)), st.sampled_from([Severity.INFO, Severity.WARNING])),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["", "ignore", "follow_others", "xid_154_eval"]),
)
def test_what_is_not_fatal_is_never_critical_and_drains_nothing(mild: list[tuple[int, Severity]], remedy: str) -> None:
    events = [
        Event(EventKind.XID, gpu().uuid, "node-1", T0 - n, code, severity=severity, remedy=remedy)
        for n, (code, severity) in enumerate(mild)
    ]
    found = judged(RULES, events)
    assert {(finding.severity, finding.action) for finding in found} <= {(Severity.WARNING, ActionKind.NOTIFY)}
    assert bool(found) is any(severity is Severity.WARNING for _, severity in mild)
