"""A scorer inside of another: its settings and its state."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.domain.errors import InputError
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import Scorer, State
from tocsin.forecaster.hazard.settings import Common


def build_inner(name: str, common: Common, own: Mapping[str, object]) -> Scorer:
    """A scorer of family `name` with the horizons, history and seed of the outer one; its `own` settings go first."""
    shared = {
        "horizons_ms": common.horizons_ms,
        "min_history_ms": common.min_history_ms,
        "seed": common.seed,
    }
    return registry.build(name, **{**shared, **own})


def with_inner(state: State, inner: Mapping[str, State]) -> State:
    """`state` with those of inner scorers under their names."""
    arrays, estimators = dict(state.arrays), dict(state.estimators)
    for name, one in inner.items():
        arrays |= {f"{name}/{key}": value for key, value in one.arrays.items()}
        estimators |= {f"{name}/{key}": value for key, value in one.estimators.items()}
    settings = {**state.settings, "inner": {name: dict(one.settings) for name, one in inner.items()}}
    return State(settings, arrays, estimators)


def inner_of(state: State, name: str) -> State:
    """The state of the inner scorer `name`. Raises InputError where there is none."""
    inner = state.settings.get("inner")
    settings = inner.get(name) if isinstance(inner, dict) else None
    if not isinstance(settings, dict):
        raise InputError("state", name, "no state of that inner scorer", "use the state of a fitted scorer")
    prefix = f"{name}/"
    arrays = {key.removeprefix(prefix): value for key, value in state.arrays.items() if key.startswith(prefix)}
    estimators = {key.removeprefix(prefix): one for key, one in state.estimators.items() if key.startswith(prefix)}
    return State(settings, arrays, estimators)
