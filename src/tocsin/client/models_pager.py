"""Wire models of the pager's report: what was said, at which level, and what came of it."""

from __future__ import annotations

from pydantic import Field

from tocsin.client.wire import Count, Ratio, Wire


class StatedBin(Wire):
    """Cases whose stated probability lies in one range; one GPU and one cause is one case."""

    low: Ratio
    high: Ratio
    cases: Count
    stated: Ratio
    """Mean stated probability."""
    observed: Ratio
    """Share of the cases that came true."""


class StatedInterval(Wire):
    """The finite interval of one settled claim, beside what a line through its last hour would have said."""

    held: bool
    """Whether the crossing came within it."""
    minutes: float = Field(ge=0)
    """How wide it is."""
    last_slope_minutes: float | None = Field(default=None, ge=0)
    """How wide the interval of the last hour's straight line is by its slope's error alone; null where that line does
    not surely rise, so that its interval has no end."""
    last_slope_stretch: float | None = Field(default=None, ge=0)
    """How many times as wide that one would have to be to hold the crossing; null where none came or it has no end."""


class StatementScore(Wire):
    """One kind of statement: a rule's alerts, or a target of one model.

    Only cases whose window is over are settled. Figures that nothing settled can show are null.
    """

    kind: str
    settled: Count = 0
    pending: Count = 0
    right: Count = 0
    stated: Ratio | None = None
    """Mean stated probability of the settled cases that stated one."""
    observed: Ratio | None = None
    """Share of those that came true."""
    brier_skill: float | None = None
    """Brier score against always saying the observed share: 1 is perfect, 0 no better."""
    brier: Ratio | None = None
    """Mean squared error of the stated probability."""
    coverage: Ratio | None = None
    """Share of the crossings with a finite interval that came within it."""
    nominal_coverage: Ratio | None = None
    open_intervals: Ratio | None = None
    """Share of the forecast crossings whose interval has no finite end."""
    muted_share: Ratio | None = None
    """Share of the time for which the kind was muted."""
    bins: list[StatedBin] = Field(default_factory=list)
    intervals: list[StatedInterval] = Field(default_factory=list)
    """Those with a finite end."""


class FaultKindScore(Wire):
    """Hard faults of one kind: how many came, were paged, and were paged in time."""

    kind: str
    faults: Count
    paged: Count
    prompt: Count
    """Paged within two minutes of the event line or reading that first showed them."""


class WrongStatement(Wire):
    """Alerts of one rule and level that were wrong for one reason."""

    level: str
    rule: str
    reason: str
    """What the place that they name had, or had not."""
    count: Count


class UnjudgedAlerts(Wire):
    """Warnings of one rule that what is known of the faults says nothing of: they name a pool or the fleet alone."""

    rule: str
    count: Count


class DecidedCount(Wire):
    """Decisions on actions of one rule that came to the same end.

    `executed`: it was begun. `rejected`: a guard or a person said no. `proposed`: at some time a yes was all that was
    missing, and nobody gave it. Of the rest, which a guard held or a person approved in vain, `expired` ended by their
    cause or their time box; `held` waited still.
    """

    rule: str
    action: str
    end: str
    count: Count


class WarningPolicy(Wire):
    """How one way of warning of a family of faults did; shares are null where there was nothing to share."""

    name: str
    warnings: Count = 0
    right: Count = 0
    precision: Ratio | None = None
    faults: Count = 0
    """Faults with a precursor whose time to warn was over."""
    warned: Count = 0
    """Those that were warned of with half their possible lead at least."""
    recall: Ratio | None = None


class EarlyWarnings(Wire):
    """The service's warnings of one family of faults, and simple ways of warning beside them.

    `better_precision` and `better_recall` are the 95 % interval of the service's figure less that of each simple way,
    by a bootstrap over warnings and over faults.
    """

    family: str
    service: WarningPolicy
    policies: list[WarningPolicy] = Field(default_factory=list)
    better_precision: dict[str, tuple[float, float] | None] = Field(default_factory=dict)
    better_recall: dict[str, tuple[float, float] | None] = Field(default_factory=dict)


class PagerScore(Wire):
    """How one set of alerts did against the hard faults that came."""

    pages: Count = 0
    warnings: Count = 0
    notes: Count = 0
    pages_right: Count = 0
    recall: Ratio | None = None
    """Share of the hard faults that were paged."""
    prompt_recall: Ratio | None = None
    """Share paged within two minutes of what first showed them."""
    precision: Ratio | None = None
    """Share of the pages that name a place of a hard fault between its first symptom and 10 minutes after its onset."""
    pages_per_cause: float | None = None
    """Right pages for each hard fault that was paged."""


class PagerReport(PagerScore):
    """What the pager said over a span, against what came; `unknown` says why a figure is null."""

    simulated: bool
    under_way: bool = False
    """Of a simulated fleet: begun with as many signs in progress as at any other time."""
    days: float
    gpus: Count
    hard_faults: Count | None = None
    decisions: Count = 0
    decided: list[DecidedCount] = Field(default_factory=list)
    """The most frequent first, a hundred at most; empty in reports of before there was this count."""
    breaker_trips: Count = 0
    breaker_trips_by_forecast: Count = 0
    statements: list[StatementScore] = Field(default_factory=list)
    faults: list[FaultKindScore] = Field(default_factory=list)
    wrong: list[WrongStatement] = Field(default_factory=list)
    """The most frequent first."""
    not_judged: list[UnjudgedAlerts] | None = None
    """The most frequent first; null where none are told from wrong ones."""
    early: list[EarlyWarnings] = Field(default_factory=list)
    nulls: dict[str, PagerScore] = Field(default_factory=dict)
    """The same figures for ways of paging that know nothing."""
    unknown: dict[str, str] = Field(default_factory=dict)
