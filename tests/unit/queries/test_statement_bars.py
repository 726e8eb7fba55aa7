"""The bars of forecasts are missed by what is stuck, silent, open or sure of all, and reached by what is true."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tocsin.client.models_pager import (
    EarlyWarnings,
    PagerReport,
    StatedBin,
    StatedInterval,
    StatementScore,
    WarningPolicy,
)
from tocsin.queries.statement_bars import (
    HEARD,
    LEAKS,
    LINKS,
    bins_of,
    last_slope_minutes,
    less,
    pooled_score,
    raw_slope,
    skill_of,
    statement_bars,
    ways_of,
)

KIND = HEARD[0]


def bins(*cells: tuple[float, float, int, float, float]) -> list[StatedBin]:
    return [
        StatedBin(low=low, high=high, cases=n, stated=stated, observed=came) for low, high, n, stated, came in cells
    ]


def score(kind: str = KIND, stated: tuple[float, ...] = (0.1, 0.5, 0.9), **more: object) -> StatementScore:
    """Forty cases in each of three ranges, of which a tenth, half and nine tenths came."""
    came = (0.1, 0.5, 0.9)
    edges = ((0.05, 0.2), (0.4, 0.6), (0.8, 0.95))
    brier = sum((s - c) ** 2 + c * (1 - c) for s, c in zip(stated, came, strict=True)) / 3
    return StatementScore(
        **{
            "kind": kind,
            "settled": 120,
            "right": 60,
            "stated": sum(stated) / 3,
            "observed": 0.5,
            "brier": brier,
            "muted_share": 0.0,
            "open_intervals": 0.2,
            "bins": bins(*((*edge, 40, s, c) for edge, s, c in zip(edges, stated, came, strict=True))),
            "intervals": [
                StatedInterval(held=number < 8, minutes=30.0, last_slope_minutes=None if number else 40.0)
                for number in range(10)
            ],
            **more,
        }  # type: ignore[arg-type]
    )


WIDE = StatedInterval(held=True, minutes=600.0, last_slope_minutes=40.0, last_slope_stretch=1.0)


def early(family: str, warnings: int, right: int, warned: int, faults: int = 30) -> EarlyWarnings:
    service = WarningPolicy(name="service", warnings=warnings, right=right, faults=faults, warned=warned)
    rest = [WarningPolicy(name="warn at every rise", warnings=600, right=20, faults=faults, warned=10)]
    return EarlyWarnings(family=family, service=service, policies=rest)


def report(*scores: StatementScore, leaks: tuple[int, int, int] = (30, 27, 20)) -> PagerReport:
    told = [early(LEAKS, *leaks), early(LINKS, 20, 16, 14)]
    return PagerReport(simulated=True, days=2.0, gpus=64, statements=list(scores), early=told)


def missed(*reports: PagerReport) -> set[str]:
    return {bar.name for bar in statement_bars(reports) if not bar.reached}


def test_what_is_true_reaches_every_bar() -> None:
    assert missed(report(score())) == set()


RAW = "their median width against the last slope's, minutes"
STRETCHED = "their median width against the last slope's, stretched until it holds 0.8, minutes"
STUCK = "stated against observed, ranges with 30 cases, the worst"


@pytest.mark.parametrize(
    ("made", "names"),
    [
        # Stuck at one figure: nothing is told apart.
        (
            lambda: report(score(stated=(0.5,) * 3, bins=bins((0.4, 0.6, 120, 0.5, 0.5)))),
            {"ranges with so many cases", "Brier skill of all statements", f"Brier skill of {KIND}"},
        ),
        (
            lambda: report(score(stated=(0.9, 0.5, 0.1))),
            {STUCK, "Brier skill of all statements", f"Brier skill of {KIND}"},
        ),
        (lambda: report(score(stated=(0.3, 0.5, 0.9))), {STUCK}),
        # A warning about everything, and none at all.
        (lambda: report(score(), leaks=(600, 27, 30)), {f"{LEAKS}: precision"}),
        (lambda: report(score(), leaks=(0, 0, 0)), {f"{LEAKS}: precision", f"{LEAKS}: warned with half the lead"}),
        (
            lambda: report(score(muted_share=0.6)),
            {"share of the time for which a kind that warns of them is muted"},
        ),
        (
            lambda: report(score(), StatementScore(kind="rule pcie_crc_errors", settled=0, muted_share=0.6)),
            {"share of the time for which a kind that warns of them is muted"},
        ),
        (lambda: report(score(), StatementScore(kind="rule gpu_silent", settled=9)), set()),
        # Intervals that hold everything, by their width or by having no end.
        (
            lambda: report(score(intervals=[WIDE] * 10)),
            {"80 % intervals with a finite end that hold", RAW, STRETCHED},
        ),
        (lambda: report(score(open_intervals=0.6)), {"intervals without a finite end"}),
    ],
)
def test_what_is_stuck_silent_or_open_misses_its_bar(made: Callable[[], PagerReport], names: set[str]) -> None:
    assert missed(made()) == names


def test_widths_are_compared_at_equal_coverage() -> None:
    """A line that is too sure of itself has to be stretched until it holds four in five of what came."""
    stretches = (0.5, 1.0, 2.0, 3.0, None)
    told = [StatedInterval(held=True, minutes=9.0, last_slope_minutes=4.0, last_slope_stretch=one) for one in stretches]
    assert last_slope_minutes(told) == 12.0
    assert last_slope_minutes([*told, *told[-1:]]) == math.inf, "of what never came it holds nothing"
    assert last_slope_minutes([]) is None


def test_the_width_is_shown_against_the_raw_last_slope_and_against_the_stretched_one() -> None:
    stretches = [0.5, 1.0, 2.0, 2.0, *[5.0] * 4, 50.0, None]
    told = [
        StatedInterval(held=n < 8, minutes=12.0, last_slope_minutes=4.0, last_slope_stretch=one)
        for n, one in enumerate(stretches)
    ]
    assert raw_slope(told) == (4.0, 0.2)
    bars = {bar.name: bar for bar in statement_bars([report(score(intervals=told))])}
    assert (bars[RAW].wanted, bars[RAW].figure, bars[RAW].reached) == (
        "at most 4, which holds 0.2 of them",
        12.0,
        False,
    )
    assert (bars[STRETCHED].wanted, bars[STRETCHED].figure, bars[STRETCHED].reached) == ("at most 20", 12.0, True)


def test_a_report_without_the_last_slope_s_width_shows_none() -> None:
    told = [StatedInterval(held=n < 8, minutes=12.0) for n in range(10)]
    assert raw_slope(told) is None
    (raw,) = (bar for bar in statement_bars([report(score(intervals=told))]) if bar.name == RAW)
    assert (raw.figure, raw.reached) == (None, False)


def test_nothing_said_reaches_nothing_but_silence() -> None:
    silent = missed(PagerReport(simulated=True, days=2.0, gpus=64))
    assert {bar.name for bar in statement_bars([PagerReport(simulated=True, days=2.0, gpus=64)])} == silent


def test_runs_are_pooled_by_their_cases() -> None:
    few = score(bins=bins((0.4, 0.6, 10, 0.5, 1.0)), observed=1.0, brier=0.25)
    many = score(bins=bins((0.4, 0.6, 30, 0.4, 0.2)), observed=0.2, brier=0.2)
    (pooled,) = bins_of([few, many])
    assert (pooled.cases, pooled.stated, pooled.observed) == pytest.approx((40, 0.425, 0.4))
    skill, cases = skill_of([few, many])
    assert cases == 40
    assert skill == pytest.approx(1 - 0.2125 / 0.24)
    assert skill_of([score(observed=1.0)])[0] is None, "where everything ended alike there is nothing to tell apart"
    together = pooled_score([(2.0, few), (6.0, many.model_copy(update={"muted_share": 0.4}))])
    assert (together.settled, together.right) == (240, 120)
    assert (together.stated, together.observed) == pytest.approx(((0.5 * 10 + 0.5 * 30) / 40, 0.4))
    assert together.brier_skill == skill, "the same figure as its bar"
    assert together.muted_share == pytest.approx(0.3), "of the time, not of the runs"
    rule = pooled_score([(1.0, StatementScore(kind="rule xid_bus", settled=3, right=2))])
    assert (rule.settled, rule.stated, rule.brier_skill, rule.muted_share) == (3, None, None, None)
    service, rises = ways_of([report(), report()], LINKS)
    assert (service.warnings, service.right, service.faults, service.warned) == (40, 32, 60, 28)
    assert rises.precision == pytest.approx(40 / 1200)


def test_a_difference_of_shares_has_newcombes_interval() -> None:
    # The first example of his paper, method 10: 56/70 less 48/80.
    assert less((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert less((1, 2), (0, 0)) is None
