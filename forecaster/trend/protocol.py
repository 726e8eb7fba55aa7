"""What every model family offers, and the laws it keeps (``tests/laws/test_forecaster_laws.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tocsin.config.settings import ForecastSettings
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu
from tocsin.plugins import OWN_PACKAGE, Kind, load, plugins
from tocsin.store.port import Series

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """The past of one GPU: `series` may have any metrics; one that a model wants and does not find is missing data."""

    gpu: Gpu
    series: Series


class Forecaster(Protocol):
    """A model family.

    Same history and instant, same predictions; inputs are never changed; gaps and missing values are normal. Samples
    after `now_ms` are not looked at. Where the past does not suffice, status and reason of the prediction say so.
    """

    name: str
    version: str
    metrics: tuple[str, ...]
    """Metrics that `predict` looks at."""

    def learn(self, history: Sequence[GpuHistory]) -> None:
        """Fit what is shared between GPUs; a model without such a part does nothing."""

    def predict(self, history: Sequence[GpuHistory], now_ms: int) -> list[Prediction]:
        """Statements about each GPU, made at `now_ms`."""


# Families by name. A family is one module with a function `build(settings)`.


def names() -> tuple[str, ...]:
    """Names of all families, in order."""
    return tuple(plugins(Kind.FORECASTER))


def build(name: str, settings: ForecastSettings) -> Forecaster:
    """A new model of family `name`. Raises InputError where there is none."""
    model: Forecaster = load(Kind.FORECASTER, name, "model")(settings)
    return model


def build_all(settings: ForecastSettings, only: Sequence[str] | None = None) -> list[Forecaster]:
    """A new model of every family, or of those named in `only`.

    Nobody names the families that run: one of another package that cannot be built is left out, and one that fails says
    nothing, so that it costs nobody else's forecasts.
    """
    if only is not None:
        return [build(name, settings) for name in only]
    own = [build(name, settings) for name, one in plugins(Kind.FORECASTER).items() if one.package == OWN_PACKAGE]
    others = [name for name, one in plugins(Kind.FORECASTER).items() if one.package != OWN_PACKAGE]
    return [*own, *(model for name in others if (model := _guest(name, settings)) is not None)]


class _Guest:
    def __init__(self, model: Forecaster) -> None:
        self._model = model
        self.name, self.version, self.metrics = model.name, model.version, model.metrics

    def learn(self, history: Sequence[GpuHistory]) -> None:
        self._model.learn(history)

    def predict(self, history: Sequence[GpuHistory], now_ms: int) -> list[Prediction]:
        try:
            return self._model.predict(history, now_ms)
        except Exception:  # a stranger's code must not stop the forecasts of others
            log.exception("a forecaster of another package failed", forecaster=self.name)
            return []


def _guest(name: str, settings: ForecastSettings) -> Forecaster | None:
    try:
        return _Guest(build(name, settings))
    except Exception:  # as above
        log.exception("a forecaster of another package cannot be built", forecaster=name)
        return None
