"""The bars of what forecasts say in a fleet with hard faults, over all rehearsals of it together.

One GPU and one cause is one case, so that single runs have too few of most kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from tocsin.client.models_pager import PagerReport, StatedBin, StatedInterval, StatementScore, WarningPolicy
from tocsin.domain.grouping import grouped
from tocsin.domain.interval import wilson
from tocsin.queries.pager_score import PagerBar
from tocsin.queries.statement_score import RULE

LEAKS, LINKS = "memory leaks", "links, bus and remaps"
"""Families of early warnings."""
ASKED = {LEAKS: (0.8, 0.6), LINKS: (0.7, 0.4)}
"""Least precision, and least share of the faults that are warned of with half their possible lead."""
LEAST_FAULTS = {LEAKS: 1, LINKS: 25}
LEAST_CASES = 30
"""A range of stated probability, or a kind, with fewer shows nothing."""
MOST_APART = 0.1
LEAST_BINS, LEAST_HELD = 3, 0.8
COVERED = (0.75, 0.85)
NOMINAL = 0.8
MOST_OPEN = 0.5
MOST_MUTED = 0.5
HEARD = ("memory_leak by filling", "out_of_memory by filling", "hardware_fault by hazard")
"""Kinds that warn of the faults of both families, and must be heard for at least half of each run, beside the rules
that foretell."""


def statement_bars(reports: Sequence[PagerReport]) -> list[PagerBar]:
    """Every bar of forecasts and early warnings; a figure that is not known reaches none."""
    scores = [score for report in reports for score in report.statements if score.brier is not None]
    return [*_early(reports), *_muted(reports), *_calibrated(scores), *_skilled(scores), *_intervals(scores)]


def bins_of(scores: Iterable[StatementScore]) -> list[StatedBin]:
    """The ranges of stated probability of all `scores` together."""
    groups = grouped(((one.low, one.high), one) for score in scores for one in score.bins)
    found = []
    for (low, high), mine in sorted(groups.items()):
        cases = sum(one.cases for one in mine)
        stated, came = (sum(getattr(one, name) * one.cases for one in mine) for name in ("stated", "observed"))
        found.append(StatedBin(low=low, high=high, cases=cases, stated=stated / cases, observed=came / cases))
    return found


def skill_of(scores: Sequence[StatementScore]) -> tuple[float | None, int]:
    """Brier skill of all `scores` together against always saying their observed share, and their cases; None where
    all ended alike."""
    weights = [_cases(score) for score in scores]
    cases = sum(weights)
    if not cases:
        return None, 0
    share = sum((score.observed or 0.0) * weight for score, weight in zip(scores, weights, strict=True)) / cases
    error = sum((score.brier or 0.0) * weight for score, weight in zip(scores, weights, strict=True)) / cases
    return (1.0 - error / (share * (1.0 - share)) if 0.0 < share < 1.0 else None), cases


def pooled_score(runs: Sequence[tuple[float, StatementScore]]) -> StatementScore:
    """One kind of statement over several runs, each with its days: shares by their cases, the muted one by the days."""
    scores = [score for _, score in runs]
    told = [score for score in scores if score.brier is not None]
    skill, cases = skill_of(told)
    stated, observed = (
        sum((getattr(one, name) or 0.0) * _cases(one) for one in told) / cases if cases else None
        for name in ("stated", "observed")
    )
    muted = [(days, score.muted_share) for days, score in runs if score.muted_share is not None]
    days = sum(length for length, _ in muted)
    return StatementScore(
        kind=scores[0].kind,
        settled=sum(score.settled for score in scores),
        pending=sum(score.pending for score in scores),
        right=sum(score.right for score in scores),
        stated=stated,
        observed=observed,
        brier_skill=skill,
        muted_share=sum(length * share for length, share in muted) / days if days else None,
    )


def _cases(score: StatementScore) -> int:
    return sum(one.cases for one in score.bins)


def pooled(ways: Sequence[WarningPolicy]) -> WarningPolicy:
    """One way of warning over several runs."""
    warnings, right, faults, warned = (
        sum(getattr(one, name) for one in ways) for name in ("warnings", "right", "faults", "warned")
    )
    return WarningPolicy(
        name=ways[0].name,
        warnings=warnings,
        right=right,
        precision=right / warnings if warnings else None,
        faults=faults,
        warned=warned,
        recall=warned / faults if faults else None,
    )


def ways_of(reports: Iterable[PagerReport], family: str) -> list[WarningPolicy]:
    """The service, and the ways of warning beside it, over all of `reports`."""
    mine = [early for report in reports for early in report.early if early.family == family]
    groups = grouped((way.name, way) for early in mine for way in (early.service, *early.policies))
    return [pooled(ways) for ways in groups.values()]


def less(mine: tuple[int, int], other: tuple[int, int]) -> tuple[float, float] | None:
    """95 % interval of the difference of two shares, each (part, whole): Newcombe's tenth (Statistics in Medicine 17,
    1998), for independent samples; that of paired ones is narrower. None where one has nothing to share."""
    if not mine[1] or not other[1]:
        return None
    own, their = mine[0] / mine[1], other[0] / other[1]
    (low, high), (low_other, high_other) = wilson(own, mine[1]), wilson(their, other[1])
    apart = own - their
    return (
        apart - math.hypot(own - low, high_other - their),
        apart + math.hypot(high - own, their - low_other),
    )


def _early(reports: Sequence[PagerReport]) -> list[PagerBar]:
    found = []
    for family, (precision, recall) in ASKED.items():
        ways = ways_of(reports, family)
        service = ways[0] if ways else WarningPolicy(name="service")
        least = LEAST_FAULTS[family]
        enough = service.faults >= least
        found += [
            PagerBar(f"{family}: faults with a precursor", f"at least {least}", float(service.faults), enough),
            _at_least(f"{family}: precision", service.precision, precision, enough),
            _at_least(f"{family}: warned with half the lead", service.recall, recall, enough),
        ]
    return found


def _muted(reports: Sequence[PagerReport]) -> list[PagerBar]:
    scores = (score for one in reports for score in one.statements)
    shares = [one.muted_share or 0.0 for one in scores if one.kind in HEARD or _foretells(one)]
    worst = max(shares, default=None)
    wanted = f"at most {MOST_MUTED:g} of any run"
    name = "share of the time for which a kind that warns of them is muted"
    return [PagerBar(name, wanted, worst, worst is not None and worst <= MOST_MUTED)]


def _foretells(score: StatementScore) -> bool:
    """Whether it is a rule that may become a note: of others the share is not known, nor in reports of before."""
    return score.kind.startswith(RULE) and score.muted_share is not None


def _calibrated(scores: Sequence[StatementScore]) -> list[PagerBar]:
    bins = bins_of(scores)
    full = [one for one in bins if one.cases >= LEAST_CASES]
    worst = max((abs(one.stated - one.observed) for one in full), default=None)
    cases = sum(one.cases for one in bins)
    held = sum(one.cases for one in full) / cases if cases else None
    return [
        PagerBar(
            f"stated against observed, ranges with {LEAST_CASES} cases, the worst",
            f"at most {MOST_APART:g} apart",
            worst,
            worst is not None and worst <= MOST_APART,
        ),
        PagerBar("ranges with so many cases", f"at least {LEAST_BINS}", float(len(full)), len(full) >= LEAST_BINS),
        _at_least("share of the statements in them", held, LEAST_HELD),
    ]


def _skilled(scores: Sequence[StatementScore]) -> list[PagerBar]:
    everything, _ = skill_of(scores)
    kinds = {kind: skill_of(mine) for kind, mine in grouped((score.kind, score) for score in scores).items()}
    known = {kind: skill for kind, (skill, cases) in kinds.items() if skill is not None and cases >= LEAST_CASES}
    bars = [PagerBar("Brier skill of all statements", "above 0", everything, everything is not None and everything > 0)]
    return [
        *bars,
        *(PagerBar(f"Brier skill of {kind}", "above 0", skill, skill > 0) for kind, skill in sorted(known.items())),
    ]


def _intervals(scores: Sequence[StatementScore]) -> list[PagerBar]:
    closed = [one for score in scores for one in score.intervals]
    open_ones = sum(_open(score) for score in scores)
    covered = float(np.mean([one.held for one in closed])) if closed else None
    wide = median(one.minutes for one in closed) if closed else None
    share = open_ones / (open_ones + len(closed)) if scores and open_ones + len(closed) else None
    return [
        PagerBar(
            "80 % intervals with a finite end that hold",
            f"{COVERED[0]:g} to {COVERED[1]:g}",
            covered,
            covered is not None and COVERED[0] <= covered <= COVERED[1],
        ),
        *_widths(wide, closed),
        PagerBar(
            "intervals without a finite end", f"at most {MOST_OPEN:g}", share, share is not None and share <= MOST_OPEN
        ),
    ]


def _widths(wide: float | None, closed: Sequence[StatedInterval]) -> list[PagerBar]:
    """The median width against that of the last slope: as wide as its own error makes it, and at equal coverage."""
    raw, stretched = raw_slope(closed), last_slope_minutes(closed)
    told = "not known" if raw is None else f"{_minutes(raw[0])}, which holds {raw[1]:.2g} of them"
    name = "their median width against {}, minutes"
    return [
        PagerBar(
            name.format("the last slope's"),
            f"at most {told}",
            None if raw is None else wide,
            raw is not None and wide is not None and wide <= raw[0],
        ),
        PagerBar(
            name.format(f"the last slope's, stretched until it holds {NOMINAL:g}"),
            f"at most {_minutes(stretched or 0.0)}",
            wide,
            wide is not None and stretched is not None and wide <= stretched,
        ),
    ]


def _minutes(width: float) -> str:
    return "one without end" if width == math.inf else f"{width:.3g}"


def raw_slope(intervals: Sequence[StatedInterval]) -> tuple[float, float] | None:
    """Median width of the last slope's intervals as they are, infinite where too few have an end, and the share of the
    crossings that they hold; None where none has a width, as in reports of before it was kept."""
    widths = [math.inf if one.last_slope_minutes is None else one.last_slope_minutes for one in intervals]
    if not any(map(math.isfinite, widths)):
        return None
    held = [one.last_slope_stretch is not None and one.last_slope_stretch <= 1.0 for one in intervals]
    return median(widths), float(np.mean(held))


def last_slope_minutes(intervals: Sequence[StatedInterval]) -> float | None:
    """Median width of the last slope's intervals, each made so many times as wide that they hold `NOMINAL` of the
    crossings: widths are compared at equal coverage. Infinite where too few have an end, None without any."""
    if not intervals:
        return None
    wide = median(math.inf if one.last_slope_minutes is None else one.last_slope_minutes for one in intervals)
    stretched = sorted(math.inf if one.last_slope_stretch is None else one.last_slope_stretch for one in intervals)
    needed = stretched[math.ceil(NOMINAL * len(stretched)) - 1]
    return math.inf if math.inf in (wide, needed) else wide * needed


def _open(score: StatementScore) -> int:
    """How many of its intervals have no finite end."""
    share = score.open_intervals or 0.0
    return round(len(score.intervals) * share / (1.0 - share)) if share < 1.0 else score.settled


def _at_least(name: str, figure: float | None, least: float, enough: bool = True) -> PagerBar:
    return PagerBar(name, f"at least {least:g}", figure, enough and figure is not None and figure >= least)
