"""Any scorer with its probabilities calibrated on a later slice, and a conformal threshold from the same slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from tocsin.domain.clock import to_iso
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import Examples, Floats, Mask
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.calibration import Map, Method, fit_map
from tocsin.forecaster.hazard.registry import build_inner, inner_of, with_inner
from tocsin.forecaster.hazard.rows import settled
from tocsin.forecaster.hazard.scorer import Common, NotEnoughData, Scorer, State, header, make
from tocsin.forecaster.hazard.tabular import check_state

INNER = "scorer"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedSettings(Common):
    """`scorer` is the family inside, `of` its own settings. `share` of the onsets make the later slice; with `disjoint`
    it also has devices of its own. With `refit` the inner scorer learns from everything once the maps are fitted."""

    scorer: str = registry.DEFAULT
    of: Mapping[str, object] = field(default_factory=dict)
    method: Method = "auto"
    share: float = 0.25
    disjoint: bool = False
    refit: bool = False

    def __post_init__(self) -> None:
        Common.__post_init__(self)
        if self.method not in ("auto", "isotonic", "platt"):
            raise InputError("calibrated.method", self.method, "no such method", "use auto, isotonic or platt")
        if not 0 < self.share < 1:
            raise InputError("calibrated.share", self.share, "not between 0 and 1", "give for example 0.25")


class Calibrated:
    """`inner` with a rising map over each of its horizons."""

    name = "calibrated"
    version = "1"

    def __init__(self, inner: Scorer, settings: CalibratedSettings) -> None:
        if tuple(inner.horizons_ms) != settings.horizons_ms:
            raise InputError("horizons_ms", settings.horizons_ms, f"{inner.name} has others", "give both the same")
        self.inner = inner
        self.settings = settings
        self.horizons_ms = settings.horizons_ms
        self.min_history_ms = max(settings.min_history_ms, inner.min_history_ms)
        self._maps: list[Map] = []
        self._quiet: list[Quiet] = []

    def fit(self, examples: Examples) -> None:
        s = self.settings
        early, later = later_slice(examples, self.horizons_ms[-1], s.share, disjoint=s.disjoint, seed=s.seed)
        self.inner.fit(examples.take(early))
        self.calibrate(examples.take(later))
        if s.refit:
            self.inner.fit(examples)

    def calibrate(self, examples: Examples) -> None:
        """Fit the maps alone; `inner` is fitted already, on other rows."""
        raw = self.inner.score(examples)
        maps, kept = [], []
        for k, horizon_ms in enumerate(self.horizons_ms):
            onset, known = settled(examples, horizon_ms)
            rows = known & np.isfinite(raw[:, k])
            maps.append(fit_map(raw[rows, k], onset[rows], examples.weight[rows], self.settings.method))
            kept.append(rows & ~onset)
        self._maps = maps
        score = self.score(examples)
        self._quiet = [quiet(score[rows, k], examples.weight[rows]) for k, rows in enumerate(kept)]

    def score(self, examples: Examples) -> Floats:
        if not self._maps:
            raise Conflict(f"{self.name} {self.inner.name}: not fitted yet")
        raw = self.inner.score(examples)
        made = np.stack([one.apply(raw[:, k]) for k, one in enumerate(self._maps)], axis=1)
        rising: Floats = np.maximum.accumulate(made, axis=1)
        rising[examples.history_ms < self.min_history_ms] = np.nan
        return rising

    def quiet_scores(self, horizon_ms: int) -> Quiet:
        """What quiet rows of the later slice scored: gives thresholds and p-values. Raises InputError for a horizon
        that the scorer does not have."""
        if horizon_ms not in self.horizons_ms:
            raise InputError("horizon_ms", horizon_ms, "not a horizon of this scorer", f"use one of {self.horizons_ms}")
        if not self._quiet:
            raise Conflict(f"{self.name} {self.inner.name}: not fitted yet")
        return self._quiet[self.horizons_ms.index(horizon_ms)]

    def state(self) -> State:
        arrays: dict[str, Floats] = {}
        for k, (one, kept) in enumerate(zip(self._maps, self._quiet, strict=True)):
            arrays |= {f"map{k}.x": one.x, f"map{k}.y": one.y, f"map{k}.platt": one.platt}
            total = np.array([kept.total])
            arrays |= {f"quiet{k}.scores": kept.scores, f"quiet{k}.weights": kept.weights, f"quiet{k}.total": total}
        return with_inner(State(header(self, self.settings), arrays), {INNER: self.inner.state()})

    def restore(self, state: State) -> None:
        check_state(self.name, self.version, state)
        self.inner.restore(inner_of(state, INNER))
        a = {name: np.asarray(value, np.float64) for name, value in state.arrays.items() if "/" not in name}
        places = range(len(self.horizons_ms))
        self._maps = [Map(a[f"map{k}.x"], a[f"map{k}.y"], a[f"map{k}.platt"]) for k in places]
        self._quiet = [
            Quiet(a[f"quiet{k}.scores"], a[f"quiet{k}.weights"], float(a[f"quiet{k}.total"][0])) for k in places
        ]


def fit_with_calibration(
    scorer: Scorer,
    examples: Examples,
    *,
    method: Method = "auto",
    share: float = 0.25,
    disjoint: bool = False,
    refit: bool = False,
    seed: int = 0,
) -> Calibrated:
    """`scorer`, not fitted yet, fitted on the early part of `examples` and calibrated on the later one.

    Between the parts lies a gap of the longest horizon. Raises NotEnoughData where one of them is too small.
    """
    own = getattr(scorer, "settings", None)
    settings = CalibratedSettings(
        horizons_ms=tuple(scorer.horizons_ms), min_history_ms=scorer.min_history_ms, seed=seed, scorer=scorer.name,
        of=asdict(own) if isinstance(own, Common) else {}, method=method, share=share, disjoint=disjoint, refit=refit,
    )  # fmt: skip
    made = Calibrated(scorer, settings)
    made.fit(examples)
    return made


def build(**settings: object) -> Calibrated:
    """The scorer with `CalibratedSettings`, around one of the family that they name."""
    made = make(CalibratedSettings, Calibrated.name, settings)
    return Calibrated(build_inner(made.scorer, made, made.of), made)


# A threshold whose share of false alarms is promised by the quiet rows of a later slice, whatever the scorer.
# Inductive conformal anomaly detection: with n quiet scores and a new one from the same source, the new one is among
# the k highest of n + 1 with a probability of k / (n + 1) (Vovk, Gammerman and Shafer 2005; Bates et al. 2023).

KEPT = 20_000
"""The highest scores that are kept: thresholds of a rarer alarm are exact, others are refused."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Scores of rows without an onset: `scores` float64[m] from the highest down with their weights; `total` is the
    weight of all, also of those that are not kept."""

    scores: Floats
    weights: Floats
    total: float

    def threshold(self, share: float) -> float:
        """The lowest threshold such that at most `share` of quiet rows score above it; infinite where the slice is
        too small to promise that. Raises InputError for a share outside of (0, 1), or beyond the kept scores."""
        if not 0 < share < 1:
            raise InputError("share", share, "not between 0 and 1", "give for example 0.01")
        allowed = share * (self.total + 1) - 1
        if allowed < 0:
            return float("inf")
        above = np.cumsum(self.weights)
        first = int(np.searchsorted(above, allowed, side="right"))
        if first >= self.scores.size:
            kept = self.weights.sum() / (self.total + 1)
            raise InputError("share", share, f"only the highest {kept:.2%} of scores are kept", "ask for less")
        return float(self.scores[first])


def quiet(scores: Floats, weights: Floats, keep: int = KEPT) -> Quiet:
    """From the scores of rows without an onset, NaN left out."""
    there = np.isfinite(scores)
    order = np.argsort(-scores[there], kind="stable")
    return Quiet(scores[there][order][:keep], weights[there][order][:keep], float(weights[there].sum()))


# Two parts of the past: one to learn from, and a later one that shows how right that was.


def later_slice(
    examples: Examples, horizon_ms: int, share: float, *, disjoint: bool = False, seed: int = 0
) -> tuple[Mask, Mask]:
    """Rows of the early and of the later part: bool[n] each.

    The cut is where `share` of the different onsets is still to come. An early row's horizon ends before the cut, so
    that its label was known there; rows between are in neither. With `disjoint` the later part has a `share` of the
    devices, spread by chance, and the early part the others. Raises NotEnoughData without any onset.
    """
    onset, known = settled(examples, horizon_ms)
    rows = np.flatnonzero(onset)
    if rows.size == 0:
        raise NotEnoughData(f"no onset in {len(examples)} rows, so no later slice can be cut")
    pairs = np.stack([examples.event_ms[rows], examples.device[rows].astype(np.int64)], axis=1)
    events = np.unique(pairs, axis=0)[:, 0]
    cut_ms = int(events[min(int(events.size * (1 - share)), events.size - 1)])
    early = known & (examples.at_ms + horizon_ms <= cut_ms)
    later = known & (examples.at_ms >= cut_ms)
    if disjoint:
        chosen = np.random.default_rng(seed).random(len(examples.devices)) < share
        early, later = early & ~chosen[examples.device], later & chosen[examples.device]
    if not early.any() or not later.any():
        sizes = f"{int(early.sum())} rows before and {int(later.sum())} after"
        raise NotEnoughData(f"a cut at {to_iso(cut_ms)} leaves {sizes}, some of each are needed")
    return early, later
