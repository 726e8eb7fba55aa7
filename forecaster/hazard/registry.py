"""Scorer families by name. A family is one module with a function `build(**settings)`."""

from __future__ import annotations

from tocsin.forecaster.hazard.scorer import Scorer
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
