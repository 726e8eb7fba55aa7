"""Scorer families by name, and scorers inside of others. A family is one module with a function `build(**settings)`."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.domain.errors import InputError
from tocsin.forecaster.hazard.scorer import Common, Scorer, State
from tocsin.plugins import Kind, load, plugins

DEFAULT = "hazard"


def names() -> tuple[str, ...]:
    """Names of all families, in order, also of those whose library is not installed here."""
    return tuple(plugins(Kind.SCORER))


def build(name: str, **settings: object) -> Scorer:
    """A new scorer of family `name`; `settings` are plain data, those of the family's module.

    Raises InputError where there is no such family or setting, Unavailable where its library is not installed.
    """
    scorer: Scorer = load(Kind.SCORER, name, "scorer")(**settings)
    return scorer


# A scorer inside of another: its settings and its state.


def build_inner(name: str, common: Common, own: Mapping[str, object]) -> Scorer:
    """A scorer of family `name` with the horizons, history and seed of the outer one; its `own` settings go first."""
    shared = {
        "horizons_ms": common.horizons_ms,
        "min_history_ms": common.min_history_ms,
        "seed": common.seed,
    }
    return build(name, **{**shared, **own})


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
