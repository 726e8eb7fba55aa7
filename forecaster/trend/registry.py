"""Model families by name. A family is one module ``model_NAME.py`` here with a function `build(settings)`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

import tocsin.forecaster.trend
from tocsin.config.settings import ForecastSettings
from tocsin.domain.errors import InputError
from tocsin.forecaster.trend.protocol import Forecaster

_PREFIX = "model_"


@cache
def names() -> tuple[str, ...]:
    """Names of all families, in order."""
    found = (module.name for module in pkgutil.iter_modules(tocsin.forecaster.trend.__path__))
    return tuple(sorted(name.removeprefix(_PREFIX) for name in found if name.startswith(_PREFIX)))


def build(name: str, settings: ForecastSettings) -> Forecaster:
    """A new model of family `name`. Raises InputError where there is none."""
    if name not in names():
        raise InputError("model", name, "no such model family", f"use one of {', '.join(names())}")
    module = importlib.import_module(f"{tocsin.forecaster.trend.__name__}.{_PREFIX}{name}")
    model: Forecaster = module.build(settings)
    return model


def build_all(settings: ForecastSettings, only: Sequence[str] | None = None) -> list[Forecaster]:
    """A new model of every family, or of those named in `only`."""
    return [build(name, settings) for name in (names() if only is None else only)]
