"""The record of each kind of statement: what was said, what came, and what follows for what is said next.

A kind is a target of one model. One window of a subject is one case, which counts once the window is over, whatever
came before. Stated probabilities are moved to what was observed where as much was stated; a kind whose claims come true
too seldom is muted: it is still made and judged, and told to nobody until its claims hold again.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import Any

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.finding import SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.features.examples import Floats
from tocsin.forecaster.hazard.calibration import log_odds
from tocsin.forecaster.hazard.curves import sigmoid
from tocsin.forecaster.live.host_weight import weighed
from tocsin.forecaster.live.unforeseen import HALF_LIFE_MS, ModelKey, Unforeseen, chances_of
from tocsin.forecaster.trend.statements import without_end

EDGES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Ranges of stated probability that are calibrated apart (own choice): the usual tenths, the lowest cut once more."""
SHIFT_MS = 8 * HOUR
"""What is said of a shift, and of longer, is calibrated apart (own choice): within a day another job comes, of which
the past shows nothing."""
WEEK_MS = 7 * DAY
"""A kind is muted by what it claimed within this."""
CLAIMED = 0.5
"""Where what models claim begins, but for those that claim less; one of `EDGES`."""
OWN_WEIGHT = 3.0
"""Cases that the model's own word weighs where nothing is known (own choice)."""
TRUSTED = 10.0
"""Cases that are taken to have come as the model said, before any is known (own choice)."""
WORD_BESIDE = 0.1
"""Cases that it weighs against ranges beside it."""
PRIOR_WEIGHT = 10.0
"""Cases that what was seen in simulated fleets weighs at most in each range of `EDGES` (own choice)."""
SPREAD = 0.75
"""How far the log odds of what a model claims lie apart from fleet to fleet, all ranges alike, as a standard deviation
(own choice): where growth that stops is common all claims of growth come less often, and a few cases show it."""
PRIOR_CLAIMS = 4.0
"""Claims that simulated fleets weigh at most where it is judged whether to mute a kind (own choice): where the real
fleet is unlike them, a few wrong claims show it, and who hears those should not wait for more."""
COMES_BACK = 0.05
"""How far above the floor the precision of a muted kind must come before it is heard again."""
MOST_DUE = 100_000
"""Cases that wait to be judged, beyond which the oldest are dropped and counted: what is said of 10,000 GPUs in their
first turn ends at one instant."""
SEEN_SHARE = 0.5
"""How much of its window must have readings before a crossing counts as one that did not come (own choice)."""
LEAST_CLAIMS = 5
"""A kind without a prior is not muted by fewer claims of its own."""
LEAST_SHARE = 0.001
"""Shares nearer to none or all have the odds of this."""
HALVINGS = 50
CLAIMS = frozenset({PredictionStatus.CROSSING, PredictionStatus.LIKELY})
_CROSSINGS = frozenset({PredictionStatus.CROSSING, PredictionStatus.NO_CROSSING})
_EVENTS = frozenset({PredictionStatus.LIKELY, PredictionStatus.UNLIKELY})


_Kind = tuple[str, str, bool]
"""Target, model, and whether of simulated GPUs."""
_CaseKey = tuple[str, str, str, bool]
"""Subject, target, model, and whether it claims that something comes."""


@dataclass(frozen=True, slots=True)
class KindPrior:
    """What a kind did in simulated fleets: cases and those that came, by range of `EDGES`, and the same of claims."""

    cases: tuple[float, ...] = (0.0,) * (len(EDGES) - 1)
    came: tuple[float, ...] = (0.0,) * (len(EDGES) - 1)
    claims: float = 0.0
    right: float = 0.0


@cache
def shipped_priors() -> Mapping[str, KindPrior]:
    """By kind; made by `tocsin rehearse prior`."""
    text = files("tocsin.forecaster").joinpath("prior/statements.json").read_text(encoding="utf-8")
    return {kind: prior_of(raw) for kind, raw in json.loads(text)["kinds"].items()}


def prior_of(raw: Mapping[str, Any]) -> KindPrior:
    """As `KindRecord.counted` has it."""
    return KindPrior(tuple(raw["cases"]), tuple(raw["came"]), raw["claims"], raw["right"])


_UNIT = re.compile("(_used)?_(ratio|celsius|watts|bytes)$")
"""What people leave out of the name of a metric."""


@dataclass(frozen=True, slots=True)
class KindFigures:
    """How a kind did: of `settled` claims `right` ones came true, `week` and `week_right` within seven days; mean
    stated probability and share observed of all its cases, None without any. `precision` is what it is judged by, with
    the prior in it, `prior` claims and right ones in simulated fleets, None without any;
    `simulated_gpus` says that the record is one of simulated GPUs."""

    kind: str
    target: str
    model: str
    settled: int
    right: int
    week: int
    week_right: int
    open: int
    precision: float
    stated: float | None
    observed: float | None
    muted: bool
    prior: tuple[int, int] | None
    simulated_gpus: bool = False

    @property
    def line(self) -> str:
        """One line for people."""
        name = self.target.replace("time_to_threshold:", "").removeprefix("gpu_")
        what = f"{_UNIT.sub('', name).replace('_', ' ')} forecast ({self.model})"
        state = ", muted" if self.muted else ""
        if self.week:
            return f"{what}: {self.week_right} of {self.week} right this week{state}"
        if self.prior is not None:
            claims, right = self.prior
            return f"{what}: no record here yet, {right} of {claims} right in simulated fleets{state}"
        return f"{what}: no record yet{state}"


@dataclass
class KindRecord:
    """The cases of one kind: those that `settle` took in by horizon, up to `SHIFT_MS` and beyond, and by range of
    `EDGES`."""

    prior: KindPrior | None
    cases: Floats = field(default_factory=lambda: np.zeros((2, len(EDGES) - 1)))
    came: Floats = field(default_factory=lambda: np.zeros((2, len(EDGES) - 1)))
    claims: deque[tuple[int, bool, str]] = field(default_factory=deque)
    settled: int = 0
    right: int = 0
    stated: float = 0.0
    observed: int = 0
    with_chance: int = 0
    muted: bool = False
    announced: bool = False
    """Whether it was muted when that was last told."""
    begun_ms: int = 0
    first: int = EDGES.index(CLAIMED)
    """The first range of claims: all are, where one below `CLAIMED` was seen."""
    _weighed_ms: int | None = None
    _shares: list[list[float]] | None = None
    """Of `calibrated`, until the next case: every forecast of every GPU asks for them."""

    def __post_init__(self) -> None:
        if self.prior is None or sum(self.prior.cases) > self.prior.claims:
            return
        if any(self.prior.cases[: self.first]):
            # In simulated fleets it said nothing but claims, and some below.
            self.first = 0

    def settle(self, case: Prediction, came: bool, now_ms: int) -> None:
        """Take in a case whose window is over."""
        self._shares = None
        if self._weighed_ms is not None:
            keep = 0.5 ** (max(0, now_ms - self._weighed_ms) / HALF_LIFE_MS)
            self.cases, self.came = self.cases * keep, self.came * keep
        self._weighed_ms = now_ms
        said = case.raw if case.raw is not None else case.probability
        if said is not None:
            at = _beyond(case.horizon_ms), _place(said)
            self.cases[at] += 1.0
            self.came[at] += came
        if case.probability is not None:
            self.stated, self.with_chance = self.stated + case.probability, self.with_chance + 1
            self.observed += came
        if case.status in CLAIMS:
            self.settled, self.right = self.settled + 1, self.right + came
            self.claims.append((now_ms, came, case.subject.host))

    def week(self, now_ms: int) -> tuple[int, int]:
        """Claims of the last seven days, and the right ones."""
        while self.claims and self.claims[0][0] <= now_ms - WEEK_MS:
            self.claims.popleft()
        return len(self.claims), sum(right for _, right, _ in self.claims)

    def weighed(self, now_ms: int) -> tuple[float, float]:
        """The week's claims and the right ones, each host weighing its share."""
        self.week(now_ms)
        return weighed(((host, came) for _, came, host in self.claims), LEAST_CLAIMS)

    def precision(self, now_ms: int) -> float:
        """Share of claims that come true, by the week's and the prior's; 0.5 where nothing is known."""
        claims, right = self.weighed(now_ms)
        known, good = 2.0, 1.0
        if self.prior is not None and self.prior.claims:
            weight = min(self.prior.claims, PRIOR_CLAIMS)
            known, good = known + weight, good + weight * self.prior.right / self.prior.claims
        return (right + good) / (claims + known)

    def judge(self, floor: float, now_ms: int) -> bool:
        """Mute or hear it; whether that is news."""
        precision = self.precision(now_ms)
        grounds = self.prior is not None and self.prior.claims >= LEAST_CLAIMS
        if self.muted:
            # Of which nothing is known any more is as new: what claims seldom would else be muted for good.
            known = grounds or bool(self.claims) or now_ms < self.begun_ms + WEEK_MS
            self.muted = known and precision < floor + COMES_BACK
        else:
            self.muted = precision < floor and (grounds or self.weighed(now_ms)[0] >= LEAST_CLAIMS)
        return self.muted is not self.announced

    def look(self, said: Prediction) -> None:
        """Learn from what the model says, whatever comes of it, where its claims begin."""
        raw = said.raw if said.raw is not None else said.probability
        if self.first and raw is not None and raw < CLAIMED and said.status in CLAIMS:
            self.first, self._shares = 0, None

    def calibrated(self, said: float, horizon_ms: int) -> float:
        """What is stated in place of `said`: never less for more, among claims and among the others."""
        if self._shares is None:
            self._shares = [self._worked_out(cases, came) for cases, came in zip(self.cases, self.came, strict=True)]
        shares = self._shares[_beyond(horizon_ms)]
        return shares[_place(said)] if shares else said

    def _worked_out(self, cases: Floats, came: Floats) -> list[float]:
        """What is stated by range of `EDGES` after these `cases`; nothing where there are none."""
        prior = self.prior or KindPrior()
        known, middles = np.asarray(prior.cases), np.array([(low + high) / 2 for low, high in pairwise(EDGES)])
        # The mean of a beta distribution: the model's own word as pseudo-cases, then simulated fleets, both bounded
        # together, then what came here. The word moves no range beside it that something is known of.
        word = middles * _trust(middles, known + cases, np.asarray(prior.came) + came)
        believed = (np.asarray(prior.came) + OWN_WEIGHT * word) / (known + OWN_WEIGHT)
        believed = _as_here(_rising_apart(believed, known + WORD_BESIDE, self.first), cases, came, self.first)
        weight = np.minimum(known + OWN_WEIGHT, PRIOR_WEIGHT)
        seen = cases + np.minimum(known, PRIOR_WEIGHT) + WORD_BESIDE
        shares = _rising_apart((came + weight * believed) / (cases + weight), seen, self.first)
        return [float(share) for share in shares] if cases.sum() + known.sum() else []

    def counted(self) -> dict[str, Any]:
        """As JSON, for a prior: all horizons together."""
        both = self.cases.sum(axis=0), self.came.sum(axis=0)
        rounded = [[round(float(one), 3) for one in column] for column in both]
        return {"cases": rounded[0], "came": rounded[1], "claims": self.settled, "right": self.right}


def _beyond(horizon_ms: int) -> int:
    """Which half of a record a horizon belongs to."""
    return int(horizon_ms > SHIFT_MS)


def _place(said: float) -> int:
    return min(bisect_right(EDGES, said) - 1, len(EDGES) - 2)


def _trust(middles: Floats, cases: Floats, came: Floats) -> float:
    """How much of the model's word holds (0 to 1): the cases that came, as a share of those that it said would, by the
    `middles` of its ranges. One that says too much where much is known does so where little is; that it says too little
    is no reason to add to its word."""
    return min(1.0, float((came.sum() + TRUSTED) / (cases @ middles + TRUSTED)))


def _as_here(believed: Floats, cases: Floats, came: Floats, first: int) -> Floats:
    """The shares `believed` of other fleets, as these `cases` let expect them here: the odds of all claims, from the
    range `first` on, changed by one factor, the likeliest one under the `SPREAD` of fleets, and nearer to even as long
    as it is not well known."""
    sure = believed[first:].clip(LEAST_SHARE, 1.0 - LEAST_SHARE)
    odds, mine, right = log_odds(sure), cases[first:], float(came[first:].sum())
    low = high = 0.0
    if mine.any():
        low, high = -(SPREAD**2) * float(mine.sum()), SPREAD**2 * float(mine.sum())
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            more = right - float(mine @ sigmoid(odds + middle)) > middle / SPREAD**2
            low, high = (middle, high) if more else (low, middle)
    here = odds + low
    width = 1.0 / (SPREAD**-2 + float(mine @ (sigmoid(here) * (1.0 - sigmoid(here)))))
    # A logistic curve over a normal distribution of `width` (MacKay 1992).
    return np.concatenate([believed[:first], sigmoid(here / np.sqrt(1.0 + np.pi * width / 8.0))])


def _rising_apart(shares: Floats, weights: Floats, first: int) -> Floats:
    """Never falling among claims, from the range `first` on, and among what claims nothing: models work out the two in
    different ways, and what stands just below a limit crosses it more often than much that is said to be on its way
    there."""
    return np.concatenate([_rising(shares[part], weights[part]) for part in (slice(first), slice(first, None))])


def _rising(shares: Floats, weights: Floats) -> Floats:
    """The nearest shares that never fall (pool adjacent violators, Ayer et al. 1955)."""
    blocks: list[list[float]] = []
    for share, weight in zip(shares.tolist(), weights.tolist(), strict=True):
        blocks.append([share, weight, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            weight = before[1] + last[1]
            blocks.append([(before[0] * before[1] + last[0] * last[1]) / weight, weight, before[2] + last[2]])
    return np.repeat([one[0] for one in blocks], [int(one[2]) for one in blocks])


class Recalibration:
    """Every kind of statement with its record. Not safe to use from several threads."""

    def __init__(self, floor: float, priors: Mapping[str, KindPrior] | None = None) -> None:
        self._floor = floor
        self._priors = shipped_priors() if priors is None else priors
        self._kinds: dict[_Kind, KindRecord] = {}
        self._unforeseen: dict[tuple[str, ModelKey], Unforeseen] = {}
        self._restored: frozenset[tuple[str, bool]] = frozenset()
        self._open: dict[_CaseKey, Prediction] = {}
        self._ends: list[tuple[int, int, _CaseKey, Prediction]] = []
        self._count = 0
        self._due: deque[Prediction] = deque()
        self.unjudged = 0

    def restore(self, muted: Iterable[tuple[str, bool]]) -> None:
        """Take up which kinds were muted before a restart, as (kind, of simulated GPUs)."""
        self._restored = frozenset(muted)

    def _record(self, said: Prediction) -> KindRecord:
        key = said.target, said.model, said.simulated
        if key not in self._kinds:
            muted = (said.kind, said.simulated) in self._restored
            prior = self._priors.get(said.kind)
            self._kinds[key] = KindRecord(prior, muted=muted, announced=muted, begun_ms=said.at_ms)
            if not muted:
                self._kinds[key].judge(self._floor, said.at_ms)
        return self._kinds[key]

    def restated(self, made: Iterable[Prediction]) -> list[Prediction]:
        """What is said in place of `made`: probabilities as the record has them, and muted where it is too poor."""
        made = [*made]
        # First what all say: two that say the same are stated alike.
        for one in filter(_judged, made):
            self._record(one).look(one)
        return [self._restated(one) for one in made]

    def _restated(self, said: Prediction) -> Prediction:
        if not _judged(said):
            return said
        record = self._record(said)
        muted = record.muted and said.status in CLAIMS
        if said.metric and said.probability is None and said.status in CLAIMS:
            # A model that gives no probability of its own: its claims are as likely as its record says.
            return replace(said, muted=muted, probability=record.precision(said.at_ms))
        if said.metric and said.probability is not None:
            chance = record.calibrated(said.probability, said.horizon_ms)
            # An interval that holds so often cannot end where less than that comes at all.
            told = without_end(said) if said.coverage is not None and chance < said.coverage else said
            return replace(told, muted=muted, probability=chance, raw=said.probability)
        return replace(said, muted=muted) if muted else said

    def follow(self, said: Iterable[Prediction]) -> None:
        """Open a case for each statement whose subject and target have no window open; what is said again repeats it.
        The oldest first."""
        for one in filter(_judged, said):
            self._record(one).look(one)
            key = one.subject.key, one.target, one.model, one.status in CLAIMS
            before = self._open.get(key)
            if before is None or before.at_ms + before.horizon_ms <= one.at_ms:
                self._open[key] = one
                self._count += 1
                heapq.heappush(self._ends, (one.at_ms + one.horizon_ms, self._count, key, one))

    def take_due(self, now_ms: int, most: int, *, drops: bool = True) -> list[Prediction]:
        """Cases whose window is over, `most` at most, the first that ended first: for `settle` or `put_back`. Unless it
        `drops` none, of those that wait beyond `MOST_DUE` the oldest are lost."""
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, key, one = heapq.heappop(self._ends)
            if self._open.get(key) is one:
                del self._open[key]
            self._due.append(one)
        for _ in range(max(0, len(self._due) - MOST_DUE) if drops else 0):
            self._due.popleft()
            self.unjudged += 1
        return [self._due.popleft() for _ in range(min(most, len(self._due)))]

    def put_back(self, cases: Sequence[Prediction]) -> None:
        """Let cases that could not be judged wait for the next time."""
        self._due.extendleft(reversed(cases))

    def settle(self, found: Iterable[tuple[Prediction, bool]]) -> None:
        """Count cases by what came."""
        for case, came in found:
            end_ms = case.at_ms + case.horizon_ms
            self._record(case).settle(case, came, end_ms)
            said = case.own_probability
            if not case.metric and case.status is PredictionStatus.UNLIKELY and said is not None:
                key = case.target, (case.model, case.model_version, case.simulated)
                self._unforeseen.setdefault(key, Unforeseen()).settle(case.subject.host, said, came, end_ms)

    def unforeseen(self, target: str) -> dict[ModelKey, float]:
        """By model, version and world: the chance (0 to 1) within a window that `target` comes without a sign, beside
        what the model says."""
        return chances_of(self._unforeseen, target)

    def judge(self, now_ms: int) -> list[KindFigures]:
        """Mute and hear; the kinds for which that changed."""
        changed = [key for key, record in sorted(self._kinds.items()) if record.judge(self._floor, now_ms)]
        for key in changed:
            self._kinds[key].announced = self._kinds[key].muted
        return [self._figures(key, now_ms) for key in changed]

    def figures(self, now_ms: int) -> list[KindFigures]:
        """How every kind did, by target and model."""
        return [self._figures(key, now_ms) for key in sorted(self._kinds)]

    def counted(self) -> dict[str, dict[str, Any]]:
        """Every record as JSON, by kind, for a prior."""
        return {f"{target} by {model}": one.counted() for (target, model, _), one in sorted(self._kinds.items())}

    def _figures(self, key: _Kind, now_ms: int) -> KindFigures:
        target, model, simulated = key
        waiting = chain(self._open.values(), self._due)
        one = self._kinds[key]
        week, week_right = one.week(now_ms)
        return KindFigures(
            kind=f"{target} by {model}",
            target=target,
            model=model,
            settled=one.settled,
            right=one.right,
            week=week,
            week_right=week_right,
            open=sum(key == (each.target, each.model, each.simulated) for each in waiting),
            precision=one.precision(now_ms),
            stated=one.stated / one.with_chance if one.with_chance else None,
            observed=one.observed / one.with_chance if one.with_chance else None,
            muted=one.muted,
            prior=None
            if one.prior is None or not one.prior.claims
            else (round(one.prior.claims), round(one.prior.right)),
            simulated_gpus=simulated,
        )


def _judged(said: Prediction) -> bool:
    """Whether it claims something of a GPU that the service can look up later."""
    if said.subject.kind is not SubjectKind.GPU:
        return False
    if said.metric:
        ahead = said.status is not PredictionStatus.CROSSING or said.lead_ms is None or said.lead_ms > 0
        chance = said.probability is not None or said.status in CLAIMS
        return said.status in _CROSSINGS and said.threshold is not None and ahead and chance
    return said.status in _EVENTS


def crossed(said: Prediction, at_ms: Sequence[int], values: Floats) -> int | None:
    """The first of the instants `at_ms` (ms) at which `values` lie at or beyond the threshold within the window."""
    window = np.asarray(at_ms)
    inside = (window > said.at_ms) & (window <= said.at_ms + said.horizon_ms)
    falls = said.value is not None and said.threshold is not None and said.value > said.threshold
    limit = said.threshold if said.threshold is not None else np.inf
    beyond = np.flatnonzero(inside & (values <= limit if falls else values >= limit))
    return int(window[beyond[0]]) if beyond.size else None


def came_of(said: Prediction, at_ms: Sequence[int], values: Floats) -> bool | None:
    """Whether the metric crossed its threshold within the window; None where nothing shows that it did not, as the
    readings, NaN where one is missing, end in its first half."""
    if crossed(said, at_ms, values) is not None:
        return True
    known = np.asarray(at_ms)[np.isfinite(values)]
    seen = known[known <= said.at_ms + said.horizon_ms]
    return False if seen.size and seen[-1] >= said.at_ms + said.horizon_ms * SEEN_SHARE else None
