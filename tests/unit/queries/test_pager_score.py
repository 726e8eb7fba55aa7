"""Alerts against causes: what makes a page right, and ways of paging that know nothing and must not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.client.models_pager import PagerScore
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.queries.pager_score import (
    BREAKER,
    FAULTS,
    LIVES,
    QUIET,
    SOFTWARE,
    BreakerTrip,
    Cause,
    PagerAlert,
    Truth,
    bars,
    by_fault_kind,
    page_at_random,
    page_every_finding,
    page_nothing,
    passes,
    score_alerts,
    unjudged_alerts,
    wrong_alerts,
)
from tocsin.queries.statement_score import score_rules

T0 = 1_760_000_000_000
END = T0 + 14 * DAY
GPUS = tuple(f"GPU-{number}" for number in range(256))


def cause(number: int = 0, at_ms: int = T0 + DAY, **changes: object) -> Cause:
    made = Cause(
        kind="fallen_off_bus",
        places=frozenset({GPUS[number], f"host-{number // 8}"}),
        first_ms=at_ms - HOUR,
        onset_ms=at_ms,
        shown_ms=at_ms,
        ended_ms=at_ms + 6 * HOUR,
        hard=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def page(
    place: str = GPUS[0], at_ms: int = T0 + DAY, level: AlertLevel = AlertLevel.PAGE, rule: str = "r"
) -> PagerAlert:
    return PagerAlert(at_ms, level, rule, frozenset({place}))


def is_right(alert: PagerAlert, *causes: Cause) -> bool:
    return bool(Truth(causes, END).judge(alert))


@pytest.mark.parametrize(
    ("place", "late_ms", "right"),
    [
        (GPUS[0], 0, True),
        (GPUS[0], 10 * MINUTE, True),
        (GPUS[0], 10 * MINUTE + 1, False),
        (GPUS[0], -HOUR, True),
        (GPUS[0], -HOUR - 1, False),
        ("host-0", MINUTE, True),
        (GPUS[1], MINUTE, False),
        ("host-1", MINUTE, False),
    ],
)
def test_a_page_is_right_at_a_place_of_the_fault_from_its_first_symptom_to_ten_minutes_after(
    place: str, late_ms: int, right: bool
) -> None:
    assert is_right(page(place, T0 + DAY + late_ms), cause()) is right


@pytest.mark.parametrize("kind", ["app_crash", "memory_leak", "allocator_fragmentation"])
def test_a_page_on_software_or_a_sign_that_leads_to_nothing_is_wrong(kind: str) -> None:
    soft = cause(kind=kind, hard=False)
    assert not is_right(page(), soft)
    assert is_right(page(level=AlertLevel.WARNING), soft)
    benign = cause(kind="row_remap", benign=True)
    assert not is_right(page(), benign)
    assert not is_right(page(level=AlertLevel.WARNING), benign)


def test_a_warning_is_right_as_long_as_the_fault_lasts() -> None:
    lasting = cause()
    for after, right in ((5 * HOUR, True), (6 * HOUR + 10 * MINUTE, True), (7 * HOUR, False)):
        assert is_right(page(at_ms=T0 + DAY + after, level=AlertLevel.WARNING), lasting) is right


def test_recall_counts_what_had_to_be_paged() -> None:
    causes = [
        cause(0),
        cause(8),
        cause(16, at_ms=END - MINUTE),  # the time to page it is not over
        cause(24, shown_ms=None),  # nothing shows it yet
        cause(32, benign=True),
        cause(40, hard=False),
    ]
    truth = Truth(causes, END)
    score = score_alerts([page(GPUS[0], T0 + DAY + 3 * MINUTE), page(GPUS[8], T0 + DAY + MINUTE)], truth)
    assert (score.recall, score.prompt_recall) == (1.0, 0.5)
    assert [(one.kind, one.faults, one.paged, one.prompt) for one in by_fault_kind([page()], truth)] == [
        ("fallen_off_bus", 2, 1, 1)
    ]


def test_pages_per_cause_counts_repeats() -> None:
    truth = Truth([cause(0), cause(8)], END)
    pages = [page(GPUS[0]), page("host-0"), page(GPUS[0], T0 + DAY + MINUTE), page(GPUS[8]), page(GPUS[99])]
    score = score_alerts(pages, truth)
    assert (score.pages, score.pages_right, score.pages_per_cause) == (5, 4, 2.0)
    assert score.precision == pytest.approx(0.8)


def test_without_pages_or_faults_there_is_no_share() -> None:
    assert score_alerts([], Truth([], END)) == PagerScore()


def test_what_is_wrong_is_listed_with_its_reason_pages_first() -> None:
    truth = Truth([cause(0, benign=True, kind="row_remap"), cause(8, kind="app_crash", hard=False), cause(16)], END)
    alerts = [
        *(page(GPUS[99], T0 + n * HOUR, AlertLevel.WARNING, "full") for n in range(3)),
        page(GPUS[0], T0 + DAY, rule="risk"),
        page(GPUS[8], T0 + DAY, rule="xid"),
        page(GPUS[16], T0 + DAY + HOUR, rule="frozen"),
        page(GPUS[16], T0 + DAY, rule="good"),
        page(GPUS[99], T0 + DAY, AlertLevel.NOTE, "note"),
    ]
    told = [(one.level, one.rule, one.count, one.reason) for one in wrong_alerts(alerts, truth)]
    assert told == [
        ("page", "frozen", 1, "fallen_off_bus: too late, more than 10 min after its onset"),
        ("page", "risk", 1, "row_remap: a sign that led to nothing"),
        ("page", "xid", 1, "app_crash: not worth a page"),
        ("warning", "full", 3, "nothing was wrong there"),
    ]


TRIP_MS = T0 + 3 * DAY
HOSTS = tuple(frozenset({GPUS[8 * n], f"host-{n}"}) for n in range(6))


def tripped(rule: str = BREAKER, level: AlertLevel = AlertLevel.WARNING) -> PagerAlert:
    return PagerAlert(TRIP_MS + MINUTE, level, rule, frozenset({"fleet"}), wide=True)


def trip(*named: frozenset[str]) -> BreakerTrip:
    return BreakerTrip(TRIP_MS, TRIP_MS - HOUR, 3, named)


def real(number: int, **changes: object) -> Cause:
    """A hard fault of the first GPU of a host, half an hour before the trip."""
    return cause(8 * number, TRIP_MS - HOUR // 2, **({"places": HOSTS[number]} | changes))


@pytest.mark.parametrize(
    ("causes", "named", "right"),
    [
        ([real(0), real(1), real(2)], HOSTS[:3], True),
        ([real(0), real(1), real(2)], HOSTS[:4], True),  # the fourth is not needed
        ([real(0), real(1)], HOSTS[:3], False),
        ([], HOSTS[:3], False),
        ([real(0), real(1), real(2, benign=True)], HOSTS[:3], False),
        ([real(0), real(1), real(2, hard=False)], HOSTS[:3], False),
        # One that was over before the window, and one that showed first after the trip.
        ([real(0), real(1), real(2, ended_ms=TRIP_MS - 2 * HOUR)], HOSTS[:3], False),
        ([real(0), real(1), real(2, first_ms=TRIP_MS + 1)], HOSTS[:3], False),
        # Faults elsewhere than the breaker says.
        ([real(0), real(1), real(5)], HOSTS[:3], False),
        # One fault of three hosts is one, whatever the breaker counts; two of one host are one of its root causes.
        ([real(0, places=HOSTS[0] | HOSTS[1] | HOSTS[2])], HOSTS[:3], False),
        ([real(0), real(0, kind="row_remap"), real(1)], HOSTS[:2], False),
        # A shared one makes up for the host that has no other, wherever it is looked at first.
        ([real(0, places=HOSTS[0] | HOSTS[2]), real(0, kind="row_remap"), real(1)], HOSTS[:3], True),
    ],
)
def test_a_trip_is_right_where_enough_of_its_root_causes_were_faults_of_their_own(
    causes: list[Cause], named: tuple[frozenset[str], ...], right: bool
) -> None:
    truth = Truth(causes, END, [BreakerTrip(T0, T0 - HOUR, 3, HOSTS[3:]), trip(*named)])
    assert truth.judge(tripped()) is right
    assert [one.count for one in wrong_alerts([tripped()], truth)] == ([] if right else [1])
    (score,) = score_rules([tripped()], truth)
    assert (score.kind, score.settled, score.right) == ("rule breaker", 1, int(right))


def test_a_wrong_trip_says_how_many_faults_it_had() -> None:
    (wrong,) = wrong_alerts([tripped()], Truth([real(0)], END, [trip(*HOSTS[:3])]))
    assert wrong.reason == "1 hard fault among the root causes, 3 are asked for"


def test_what_the_account_says_nothing_of_is_listed_apart() -> None:
    alerts = [
        tripped("fleet_fragmented"),
        tripped("fleet_fragmented"),
        tripped("pool_full"),
        page(level=AlertLevel.WARNING),
    ]
    truth = Truth([], END)
    assert [(one.rule, one.count) for one in unjudged_alerts(alerts, truth)] == [
        ("fleet_fragmented", 2),
        ("pool_full", 1),
    ]
    assert [one.rule for one in wrong_alerts(alerts, truth)] == ["r"]
    assert [one.kind for one in score_rules(alerts, truth)] == ["rule r"]
    assert truth.judge(tripped()) is None, "no trip is on record"


def test_a_page_about_the_fleet_is_wrong_as_it_names_no_fault() -> None:
    truth = Truth([real(0)], END, [trip(*HOSTS[:3])])
    wide = tripped("fleet_fragmented", AlertLevel.PAGE)
    assert truth.judge(wide) is False
    assert score_alerts([wide], truth).precision == 0.0


def life(seed: int = 0) -> tuple[Truth, list[PagerAlert], list[PagerAlert]]:
    """Hard faults of a fortnight, one right and prompt page for each, and ten findings for each fault."""
    causes = [
        cause((seed + 37 * n) % 256, T0 + (n + 1) * 3 * HOUR, ended_ms=T0 + (n + 2) * 3 * HOUR) for n in range(60)
    ]
    pages = [page(min(one.places), one.onset_ms + MINUTE) for one in causes]
    findings = [
        page(GPUS[(seed + 7 * n) % 256], T0 + n * 13 * MINUTE, AlertLevel.NOTE, "memory_full") for n in range(600)
    ]
    return Truth(causes, END), pages, findings


def test_right_pages_pass_and_ways_that_know_nothing_fail_where_they_must() -> None:
    truth, pages, findings = life()
    every, nothing = page_every_finding(findings), page_nothing(findings)
    random = page_at_random(len(pages), GPUS, T0, END, seed=5)
    assert len(random) == len(pages)
    verdicts = {
        name: {one: passes(score_alerts(alerts, truth), one, 14.0) for one in LIVES}
        for name, alerts in (("right", pages), ("every", every), ("nothing", nothing), ("random", random))
    }
    assert verdicts["right"][FAULTS]
    assert not any(verdicts["every"].values())
    assert not verdicts["nothing"][FAULTS]
    assert not verdicts["random"][FAULTS]
    # Silence is right where nothing happens; that is why it must fail elsewhere.
    assert verdicts["nothing"][QUIET]
    assert verdicts["nothing"][SOFTWARE]


@pytest.mark.parametrize("fault", ["late", "missed", "thrice", "wrong"])
def test_each_bar_of_the_faults_can_be_missed(fault: str) -> None:
    truth, pages, _ = life()
    if fault == "late":
        pages = [replace(pages[0], at_ms=pages[0].at_ms + 2 * MINUTE), *pages[1:]]
    elif fault == "missed":
        pages = pages[1:]
    elif fault == "thrice":
        pages = [replace(one, at_ms=one.at_ms + n) for one in pages for n in range(3)]
    else:
        pages += [page(GPUS[1], T0 + n) for n in range(10)]
    assert not passes(score_alerts(pages, truth), FAULTS, 14.0)


def test_a_trip_by_a_forecast_misses_its_bar() -> None:
    truth, pages, _ = life()
    score = score_alerts(pages, truth)
    assert passes(score, FAULTS, 14.0)
    assert not passes(score, FAULTS, 14.0, trips_by_forecast=1)


@pytest.mark.parametrize(
    ("pages", "warnings", "notes", "reached"),
    [(0, 42, 140, True), (1, 0, 0, False), (0, 43, 0, False), (0, 0, 141, False)],
)
def test_the_quiet_bars(pages: int, warnings: int, notes: int, reached: bool) -> None:
    score = PagerScore(pages=pages, warnings=warnings, notes=notes)
    assert passes(score, QUIET, 14.0) is reached
    assert passes(score, SOFTWARE, 14.0) is reached
    assert len(bars(score, QUIET, 14.0)) == 3


def test_pages_at_random_are_the_same_for_a_seed() -> None:
    assert page_at_random(9, GPUS, T0, END, 1) == page_at_random(9, GPUS, T0, END, 1)
    assert page_at_random(9, GPUS, T0, END, 1) != page_at_random(9, GPUS, T0, END, 2)
