"""Laws of collapsing bursts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.rules.incidents import QUIET_MS, collapse
from tocsin.rules.xid import xid
from tocsin_testing.builders import T0


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    number = draw(st.integers(0, 7))
    host = f"node-{number // 2}"
    subject = Subject(SubjectKind.GPU, f"GPU-{number}", host)
    started = T0 + 1000 * draw(st.integers(0, 900))
    code = draw(st.sampled_from([None, 31, 45, 48, 63, 79, 119, 145, 149]))
    rack = draw(st.sampled_from([(), (Evidence("rack", f"r{number // 4}", started),)]))
    if code is None:
        category = draw(st.sampled_from(list(Category)))
        severity = draw(st.sampled_from(list(Severity)))
        name = f"rule_{category}"
        return Finding(name, subject, severity, category, ActionKind.NOTIFY, started, started + 1, "s", evidence=rack)
    spec = xid(code)
    return Finding(
        f"xid_{spec.xid_class}",
        subject,
        spec.severity,
        spec.category,
        spec.action,
        started,
        started + 1,
        f"XID {code}",
        "gpu_xid_last_code",
        float(code),
        evidence=rack,
    )


bursts = st.lists(findings(), max_size=25, unique_by=lambda finding: finding.id)


@settings(max_examples=150, deadline=None)
@given(bursts, st.randoms(use_true_random=False))
def test_order_does_not_matter(burst: list[Finding], chance: random.Random) -> None:
    mixed = chance.sample(burst, len(burst))
    assert collapse(burst) == collapse(mixed) == collapse(burst + mixed)


@settings(max_examples=150, deadline=None)
@given(bursts)
def test_every_finding_is_in_exactly_one_incident(burst: list[Finding]) -> None:
    members = [member.id for incident in collapse(burst) for member in incident.members]
    assert sorted(members) == sorted(finding.id for finding in burst)


@settings(max_examples=150, deadline=None)
@given(bursts)
def test_roots_are_members_near_the_start(burst: list[Finding]) -> None:
    for incident in collapse(burst):
        assert incident.root in incident.members
        assert incident.opened_ms == min(member.started_ms for member in incident.members)
        assert incident.root.started_ms - incident.opened_ms < QUIET_MS


@settings(max_examples=100, deadline=None)
@given(bursts, findings())
def test_what_is_far_away_in_time_changes_nothing(burst: list[Finding], other: Finding) -> None:
    late = Finding(
        other.rule, other.subject, other.severity, Category.HARDWARE, other.action, T0 + 10**9, T0 + 10**9, "late"
    )
    alone = collapse(burst)
    assert [incident for incident in collapse([*burst, late]) if incident.root != late] == alone


@settings(max_examples=100, deadline=None)
@given(bursts, bursts)
def test_a_later_effect_never_renames_an_incident(burst: list[Finding], more: list[Finding]) -> None:
    """Members that arrive later and are no nearer to the cause leave the name as it is."""
    known = {finding.id for finding in burst}
    effects = [finding for finding in more if finding.id not in known and finding.value == 45.0]
    late = [f for f in effects if all(f.started_ms > one.started_ms for one in burst)]
    before = {incident.id for incident in collapse(burst)}
    after = {incident.id for incident in collapse([*burst, *late]) if incident.root.value != 45.0}
    assert after <= before


def test_events_of_other_gpus_do_not_bridge() -> None:
    from tocsin.domain.event import EventKind

    def finding(seconds: int) -> Finding:
        at = T0 + 1000 * seconds
        subject = Subject(SubjectKind.GPU, "GPU-0", "node-0")
        return Finding("r", subject, Severity.CRITICAL, Category.HARDWARE, ActionKind.DRAIN, at, at, "s")

    pair = [finding(0), finding(300)]
    middle = Event(EventKind.XID, "GPU-1", "node-0", T0 + 150_000, 154)
    assert len(collapse(pair, [middle])) == 2
