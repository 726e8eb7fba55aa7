"""Model families by name. A family is one module with a function `build(settings)`."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.config.settings import ForecastSettings
from tocsin.forecaster.trend.protocol import Forecaster
from tocsin.plugins import Kind, load, plugins


def names() -> tuple[str, ...]:
    """Names of all families, in order."""
    return tuple(plugins(Kind.FORECASTER))


def build(name: str, settings: ForecastSettings) -> Forecaster:
    """A new model of family `name`. Raises InputError where there is none."""
    model: Forecaster = load(Kind.FORECASTER, name, "model")(settings)
    return model


def build_all(settings: ForecastSettings, only: Sequence[str] | None = None) -> list[Forecaster]:
    """A new model of every family, or of those named in `only`."""
    return [build(name, settings) for name in (names() if only is None else only)]
