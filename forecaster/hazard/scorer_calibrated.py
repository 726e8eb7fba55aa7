"""Any scorer with its probabilities calibrated on a later slice, and a conformal threshold from the same slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.calibration import Map, Method, fit_map
from tocsin.forecaster.hazard.conformal import Quiet, quiet
from tocsin.forecaster.hazard.later_slice import later_slice
from tocsin.forecaster.hazard.nesting import build_inner, inner_of, with_inner
from tocsin.forecaster.hazard.rows import settled
from tocsin.forecaster.hazard.scorer import Json, Scorer, State
from tocsin.forecaster.hazard.settings import Common, as_json, make
from tocsin.forecaster.hazard.tabular import check_state

INNER = "scorer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Common):
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

    def __init__(self, inner: Scorer, settings: Settings) -> None:
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
        settings: Json = {"family": self.name, "version": self.version, "build": as_json(self.settings)}
        return with_inner(State(settings, arrays), {INNER: self.inner.state()})

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
    state_of = getattr(scorer, "settings", None)
    of = as_json(state_of) if isinstance(state_of, Common) else {}
    settings = Settings(
        horizons_ms=tuple(scorer.horizons_ms), min_history_ms=scorer.min_history_ms, seed=seed, scorer=scorer.name,
        of=of, method=method, share=share, disjoint=disjoint, refit=refit,
    )  # fmt: skip
    made = Calibrated(scorer, settings)
    made.fit(examples)
    return made


def build(**settings: object) -> Calibrated:
    """The scorer with `Settings`, around one of the family that they name."""
    made = make(Settings, Calibrated.name, settings)
    return Calibrated(build_inner(made.scorer, made, made.of), made)
