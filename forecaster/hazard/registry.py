"""Scorer families by name. A family is one module ``scorer_NAME.py`` with a function `build(**settings)`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import tocsin.forecaster.deep
import tocsin.forecaster.hazard
from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.hazard.scorer import Scorer

DEFAULT = "hazard"
_PREFIX = "scorer_"
_PACKAGES = (tocsin.forecaster.hazard, tocsin.forecaster.deep)
_EXTRAS = {"torch": "deep", "sklearn": "brain", "safetensors": "brain", "skops": "brain"}


@cache
def _modules() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.startswith(_PREFIX):
                found[module.name.removeprefix(_PREFIX)] = f"{package.__name__}.{module.name}"
    return dict(sorted(found.items()))


def names() -> tuple[str, ...]:
    """Names of all families, in order, also of those whose library is not installed here."""
    return tuple(_modules())


def build(name: str, **settings: object) -> Scorer:
    """A new scorer of family `name`; `settings` are plain data, those of the family's module.

    Raises InputError where there is no such family or setting, Unavailable where its library is not installed.
    """
    if name not in _modules():
        raise InputError("scorer", name, "no such family", f"use one of {', '.join(names())}")
    try:
        module = importlib.import_module(_modules()[name])
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library not in _EXTRAS:
            raise
        remedy = f"install tocsin[{_EXTRAS[library]}]"
        raise Unavailable(f"scorer {name} needs {library}, which is not installed: {remedy}") from error
    scorer: Scorer = module.build(**settings)
    return scorer
