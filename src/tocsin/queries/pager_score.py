"""Whether what was said was right: alerts against causes, the same for the service, for nulls and for a real fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from tocsin.client.models_pager import FaultKindScore, PagerScore, UnjudgedAlerts, WrongStatement
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import MINUTE
from tocsin.domain.grouping import grouped
from tocsin.domain.words import counted

PAGE, WARNING, NOTE = AlertLevel.PAGE, AlertLevel.WARNING, AlertLevel.NOTE
LATE_MS = 10 * MINUTE
"""A page is in time up to this long after the onset."""
PROMPT_MS = 2 * MINUTE
"""A person hears of a fault this soon after the first line or reading that shows it."""
BREAKER = "breaker"
"""Rule of the warning that the breaker has tripped."""


@dataclass(frozen=True, slots=True)
class PagerAlert:
    """One message as a receiver got it, or a note on record. `places` are the names of what it is about: UUIDs, hosts,
    pools; a summary has those of all that it stands for. `wide` where none of them is a GPU or host, but pools or the
    fleet alone."""

    at_ms: int
    level: AlertLevel
    rule: str
    places: frozenset[str]
    summary: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault, or a sign that led to nothing (`benign`), as the truth has it.

    A `hard` one is worth a page. `onset_ms` may lie after the end of the span. `shown_ms` is the first event line or
    reading that shows it, None while there is none; `ended_ms` is None while it lasts. `own` are the UUIDs of the
    GPUs that have it, all of `places` where None: others share a link, host or rack with them.
    """

    kind: str
    places: frozenset[str]
    first_ms: int
    onset_ms: int
    shown_ms: int | None
    ended_ms: int | None
    hard: bool
    benign: bool = False
    precursor: bool = False
    own: frozenset[str] | None = None

    def explains_page(self, alert: PagerAlert) -> bool:
        """Whether a page about it at this time is right."""
        names = self.hard and not self.benign and not self.places.isdisjoint(alert.places)
        return names and self.first_ms <= alert.at_ms <= self.onset_ms + LATE_MS

    def explains(self, alert: PagerAlert) -> bool:
        """Whether a warning or note about it is right: as long as it lasts, of hardware or software."""
        if self.benign or self.places.isdisjoint(alert.places):
            return False
        until_ms = max(self.onset_ms, self.ended_ms or self.onset_ms) + LATE_MS
        return alert.at_ms >= self.first_ms and (self.ended_ms is None or alert.at_ms <= until_ms)


@dataclass(frozen=True, slots=True)
class BreakerTrip:
    """One trip: by root causes that were counted from `since_ms` on, of which it takes `asked`. `named` has of each the
    GPUs and hosts of the decisions that were counted under it."""

    at_ms: int
    since_ms: int
    asked: int
    named: tuple[frozenset[str], ...]


class Truth:
    """Causes by the places that they touch, and the trips of the breaker in the order of time. `end_ms` is the last
    instant that is known, `start_ms` the first at which anybody looked: a cause may have begun before it."""

    def __init__(
        self, causes: Iterable[Cause], end_ms: int, trips: Sequence[BreakerTrip] = (), start_ms: int = 0
    ) -> None:
        self.causes = tuple(causes)
        self.start_ms, self.end_ms = start_ms, end_ms
        self._trips = trips
        self._at = grouped((place, cause) for cause in self.causes for place in sorted(cause.places))

    def at(self, places: Iterable[str]) -> list[Cause]:
        """The causes that touch any of `places`, each once."""
        return list(dict.fromkeys(cause for place in sorted(places) for cause in self._at.get(place, ())))

    def page_of(self, alert: PagerAlert) -> list[Cause]:
        """The hard faults that make a page right."""
        return [cause for cause in self.at(alert.places) if cause.explains_page(alert)]

    def judge(self, alert: PagerAlert) -> bool | None:
        """Whether an alert is right by the measure of its level; a summary, where any place that it names is.

        Of the breaker it is right where as many of the root causes that tripped it as it takes were each a real hard
        fault of its own, which was there in its window. Of another warning about a pool or the fleet alone the causes
        say nothing: None. A page has to be about a hard fault, whatever it names.
        """
        if alert.level == PAGE:
            return bool(self.page_of(alert))
        if (trip := self._trip_of(alert)) is not None:
            return self._real(trip) >= trip.asked
        return None if alert.wide else any(cause.explains(alert) for cause in self.at(alert.places))

    def _trip_of(self, alert: PagerAlert) -> BreakerTrip | None:
        if alert.rule != BREAKER:
            return None
        return max((trip for trip in self._trips if trip.at_ms <= alert.at_ms), key=_at_ms, default=None)

    def _real(self, trip: BreakerTrip) -> int:
        """How many of the root causes that `trip` names were a hard fault, no two of them the same one."""
        there = [
            [
                cause
                for cause in self.at(places)
                if cause.hard
                and not cause.benign
                and cause.first_ms <= trip.at_ms
                and (cause.ended_ms is None or cause.ended_ms >= trip.since_ms)
            ]
            for places in trip.named
        ]
        return _paired(there)

    def due(self) -> list[Cause]:
        """The hard faults that had to be paged: shown, with the time for it over."""
        return [
            cause
            for cause in self.causes
            if cause.hard
            and not cause.benign
            and cause.shown_ms is not None
            and cause.shown_ms + LATE_MS <= self.end_ms
        ]

    def why_wrong(self, alert: PagerAlert) -> str:
        """What the places of a wrong alert had: the nearest of what was there, or nothing."""
        if (trip := self._trip_of(alert)) is not None:
            return f"{counted(self._real(trip), 'hard fault')} among the root causes, {trip.asked} are asked for"
        around = [cause for cause in self.at(alert.places) if cause.first_ms <= alert.at_ms]
        if not around:
            return "nothing was wrong there"
        last = max(around, key=lambda cause: (cause.ended_ms is None or cause.ended_ms >= alert.at_ms, cause.first_ms))
        over = last.ended_ms is not None and last.ended_ms < alert.at_ms
        if over and alert.at_ms - (last.ended_ms or 0) > 6 * LATE_MS:
            return "nothing was wrong there"
        if last.benign:
            return f"{last.kind}: a sign that led to nothing"
        if alert.level == PAGE and not last.hard:
            return f"{last.kind}: not worth a page"
        return f"{last.kind}: {'it was over' if over else 'too late, more than 10 min after its onset'}"


def _at_ms(trip: BreakerTrip) -> int:
    return trip.at_ms


def _paired(choices: Sequence[Sequence[Cause]]) -> int:
    """To how many of `choices` one cause each can be given, none twice."""
    columns = {cause: place for place, cause in enumerate(dict.fromkeys(chain.from_iterable(choices)))}
    if not columns:
        return 0
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    may = np.zeros((len(choices), len(columns)), np.bool_)
    for row, causes in enumerate(choices):
        may[row, [columns[cause] for cause in causes]] = True
    return int((maximum_bipartite_matching(csr_array(may), perm_type="column") >= 0).sum())


def score_alerts(alerts: Sequence[PagerAlert], truth: Truth) -> PagerScore:
    """The figures of one set of alerts."""
    pages = [alert for alert in alerts if alert.level == PAGE]
    found = [truth.page_of(page) for page in pages]
    right = sum(map(bool, found))
    due = truth.due()
    paged, prompt = paged_causes(pages, truth)
    named = {cause for causes in found for cause in causes}
    levels = Counter(alert.level for alert in alerts)
    return PagerScore(
        pages=len(pages),
        warnings=levels[WARNING],
        notes=levels[NOTE],
        pages_right=right,
        recall=_share(len(paged), len(due)),
        prompt_recall=_share(len(prompt), len(due)),
        precision=_share(right, len(pages)),
        pages_per_cause=right / len(named) if named else None,
    )


def paged_causes(pages: Sequence[PagerAlert], truth: Truth) -> tuple[set[Cause], set[Cause]]:
    """Of the hard faults that had to be paged those that were, and those that were at once."""
    due = set(truth.due())
    paged: set[Cause] = set()
    prompt: set[Cause] = set()
    for page in pages:
        for cause in truth.page_of(page):
            if cause in due:
                paged.add(cause)
                if page.at_ms <= (cause.shown_ms or 0) + PROMPT_MS:
                    prompt.add(cause)
    return paged, prompt


def by_fault_kind(alerts: Sequence[PagerAlert], truth: Truth) -> list[FaultKindScore]:
    """The same by kind of hard fault."""
    paged, prompt = paged_causes([alert for alert in alerts if alert.level == PAGE], truth)
    groups = grouped((cause.kind, cause) for cause in truth.due())
    return [
        FaultKindScore(
            kind=kind,
            faults=len(groups[kind]),
            paged=sum(cause in paged for cause in groups[kind]),
            prompt=sum(cause in prompt for cause in groups[kind]),
        )
        for kind in sorted(groups)
    ]


def wrong_alerts(alerts: Sequence[PagerAlert], truth: Truth) -> list[WrongStatement]:
    """Wrong pages and warnings by rule and reason, pages first, then the most frequent."""
    told = [alert for alert in alerts if alert.level != NOTE and truth.judge(alert) is False]
    counts = Counter((alert.level, alert.rule, truth.why_wrong(alert)) for alert in told)
    ordered = sorted(counts.items(), key=lambda one: (one[0][0] != PAGE, -one[1], one[0]))
    return [
        WrongStatement(level=level, rule=rule, reason=reason, count=count) for (level, rule, reason), count in ordered
    ]


def unjudged_alerts(alerts: Sequence[PagerAlert], truth: Truth) -> list[UnjudgedAlerts]:
    """Warnings that the truth says nothing of by rule, the most frequent first."""
    counts = Counter(alert.rule for alert in alerts if alert.level != NOTE and truth.judge(alert) is None)
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [UnjudgedAlerts(rule=rule, count=count) for rule, count in ordered]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# Ways of paging that know nothing, through the same scorer.


def page_every_finding(findings: Sequence[PagerAlert]) -> list[PagerAlert]:
    """A page for each finding that opened."""
    return [replace(finding, level=PAGE) for finding in findings]


def page_nothing(_findings: Sequence[PagerAlert]) -> list[PagerAlert]:
    """Silence."""
    return []


def page_at_random(pages: int, places: Sequence[str], start_ms: int, end_ms: int, seed: int) -> list[PagerAlert]:
    """As many pages as the service sent, each at any time about any GPU."""
    rng = np.random.default_rng([seed % 2**64, pages])
    instants = np.sort(rng.integers(start_ms, max(end_ms, start_ms + 1), pages)).tolist()
    chosen = rng.integers(0, max(1, len(places)), pages).tolist()
    return [
        PagerAlert(at_ms, PAGE, "at random", frozenset({places[place]}))
        for at_ms, place in zip(instants, chosen, strict=True)
    ]


# The bars that a rehearsal is held to, by what the fleet lives through.

QUIET, SOFTWARE, FAULTS = "quiet", "software", "faults"
LIVES = (QUIET, SOFTWARE, FAULTS)
MOST_WARNINGS, MOST_NOTES = 3.0, 10.0
"""A day, where no hard fault comes."""
LEAST_PRECISION, MOST_PAGES_PER_CAUSE = 0.9, 1.2


@dataclass(frozen=True, slots=True)
class PagerBar:
    """One bar: what it asks for, the figure (None: not known) and whether it is reached."""

    name: str
    wanted: str
    figure: float | None
    reached: bool


def bars(score: PagerScore, life: str, days: float, trips_by_forecast: int = 0) -> list[PagerBar]:
    """The bars of `life` for one set of alerts over `days`. A figure that is not known reaches none."""
    if life != FAULTS:
        by_day = {"warnings": (score.warnings / days, MOST_WARNINGS), "notes": (score.notes / days, MOST_NOTES)}
        limits = [
            PagerBar(f"{name} a day", f"at most {most:g}", rate, rate <= most) for name, (rate, most) in by_day.items()
        ]
        return [PagerBar("pages", "0", float(score.pages), score.pages == 0), *limits]
    prompt, precision, each = score.prompt_recall, score.precision, score.pages_per_cause
    return [
        PagerBar("hard faults paged within 2 min", "all", prompt, prompt == 1.0),
        PagerBar(
            "precision of pages", "at least 0.9", precision, precision is not None and precision >= LEAST_PRECISION
        ),
        PagerBar("pages per cause", "at most 1.2", each, each is not None and each <= MOST_PAGES_PER_CAUSE),
        PagerBar("breaker trips by a forecast", "0", float(trips_by_forecast), trips_by_forecast == 0),
    ]


def passes(score: PagerScore, life: str, days: float, trips_by_forecast: int = 0) -> bool:
    """Whether all bars of `life` are reached."""
    return all(bar.reached for bar in bars(score, life, days, trips_by_forecast))
