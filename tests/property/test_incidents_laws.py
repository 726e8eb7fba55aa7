"""Laws of collapsing bursts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.rules.incidents import QUIET_MS, OpenIncidents, collapse
from tocsin.rules.xid import xid
from tocsin.topology.topology import NO_TOPOLOGY, topology_of
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


@settings(max_examples=150)
@given(bursts, st.randoms(use_true_random=False))
def test_order_does_not_matter(burst: list[Finding], chance: random.Random) -> None:
    mixed = chance.sample(burst, len(burst))
    assert collapse(burst) == collapse(mixed) == collapse(burst + mixed)


@settings(max_examples=150)
@given(bursts)
def test_every_finding_is_in_exactly_one_incident(burst: list[Finding]) -> None:
    members = [member.id for incident in collapse(burst) for member in incident.members]
    assert sorted(members) == sorted(finding.id for finding in burst)


@settings(max_examples=150)
@given(bursts)
def test_roots_are_members_near_the_start(burst: list[Finding]) -> None:
    for incident in collapse(burst):
        assert incident.root in incident.members
        assert incident.opened_ms == min(member.started_ms for member in incident.members)
        assert incident.root.started_ms - incident.opened_ms < QUIET_MS


@settings(max_examples=100)
@given(bursts, findings())
def test_what_is_far_away_in_time_changes_nothing(burst: list[Finding], other: Finding) -> None:
    late = Finding(
        other.rule, other.subject, other.severity, Category.HARDWARE, other.action, T0 + 10**9, T0 + 10**9, "late"
    )
    alone = collapse(burst)
    assert [incident for incident in collapse([*burst, late]) if incident.root != late] == alone


@settings(max_examples=100)
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


def under(incidents: list[Incident]) -> dict[str, str]:
    """The root of each finding that still holds, by ids."""
    return {member.id: one.root.id for one in incidents for member in one.members if member.id not in one.cleared}


small_bursts = st.lists(findings(), max_size=12, unique_by=lambda finding: finding.id)
STEP_MS = 30_000
END_MS = T0 + 1_000_000
"""After the start of all that `findings` makes."""


@settings(max_examples=60)
@given(small_bursts, st.randoms(use_true_random=False), st.booleans())
def test_an_incident_lives_on_until_all_of_it_is_over_whatever_is_learnt_of_places(
    burst: list[Finding], chance: random.Random, domains: bool
) -> None:
    fleet = [Gpu(f"GPU-{n}", f"node-{n // 2}", labels={NVLINK_DOMAIN: "u.1"}) for n in range(8)]
    places = [NO_TOPOLOGY, topology_of(fleet)]
    book = OpenIncidents()
    first = book.step(burst, (), places[domains], END_MS)
    assert first == collapse(burst, (), places[domains])
    before, left = under(first), list(burst)
    chance.shuffle(left)
    now_ms = END_MS
    while left:
        left = left[chance.randint(1, 3) :]
        now_ms += STEP_MS
        now = book.step(left, (), places[domains] if chance.random() < 0.7 else places[not domains], now_ms)
        after = under(now)
        assert set(after) == {finding.id for finding in left}
        assert set(after.values()) <= {before[name] for name in after}, "no new name: no second page"
        groups = [{after[name] for name in after if before[name] == root} for root in set(before.values())]
        assert all(len(roots) <= 1 for roots in groups), "two may become one, and none falls apart"
        for one in now:
            assert one.root.id in {member.id for member in one.members}
            assert set(one.cleared) == {member.id for member in one.members} - set(after)
        before = after


@settings(max_examples=60)
@given(small_bursts, st.randoms(use_true_random=False))
def test_where_places_stay_the_same_clearing_changes_no_name(burst: list[Finding], chance: random.Random) -> None:
    book = OpenIncidents()
    before, left = under(book.step(burst, (), NO_TOPOLOGY, END_MS)), list(burst)
    chance.shuffle(left)
    for step in range(len(burst)):
        now = book.step(left[step + 1 :], (), NO_TOPOLOGY, END_MS + STEP_MS * (step + 1))
        assert under(now) == {finding.id: before[finding.id] for finding in left[step + 1 :]}


HARD_CODES = (48, 79, 95, 119, 149)


@settings(max_examples=60)
@given(
    small_bursts, st.randoms(use_true_random=False), st.sampled_from(HARD_CODES), st.integers(0, 7), st.integers(1, 240)
)
def test_a_fault_that_begins_after_the_root_was_over_is_an_incident_that_pages(
    burst: list[Finding], chance: random.Random, code: int, number: int, seconds: int
) -> None:
    book = OpenIncidents()
    first = book.step(burst, (), NO_TOPOLOGY, END_MS)
    roots = {one.root.id for one in first}
    left = [finding for finding in burst if finding.id not in roots]
    book.step(left, (), NO_TOPOLOGY, END_MS + STEP_MS)
    spec, at_ms = xid(code), END_MS + 1000 * seconds
    subject = Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number // 2}")
    fresh = Finding(
        f"xid_{spec.xid_class}",
        subject,
        Severity.CRITICAL,
        spec.category,
        spec.action,
        at_ms,
        at_ms,
        f"XID {code}",
        "gpu_xid_last_code",
        float(code),
    )
    for step in range(1, 4):
        now = book.step([*left, fresh], (), NO_TOPOLOGY, at_ms + STEP_MS * step)
        (mine,) = [one for one in now if fresh in one.members]
        assert (mine.root.id, mine.alert_level) == (fresh.id, AlertLevel.PAGE)
        left = chance.sample(left, len(left) // 2)


def test_what_comes_and_goes_under_a_cause_that_stays_does_not_pile_up() -> None:
    def made(rule: str, category: Category, at_ms: int) -> Finding:
        subject = Subject(SubjectKind.GPU, "GPU-0", "node-0")
        return Finding(rule, subject, Severity.CRITICAL, category, ActionKind.NOTIFY, at_ms, at_ms, "s")

    book, root = OpenIncidents(), made("fault", Category.HARDWARE, T0)
    for hour in range(200):
        now_ms = T0 + hour * 3_600_000
        frozen = [made("values_frozen", Category.TELEMETRY, now_ms)] if hour % 2 else []
        (one,) = book.step([root, *frozen], (), NO_TOPOLOGY, now_ms)
        assert one.root == root
        assert len(one.members) <= 3
