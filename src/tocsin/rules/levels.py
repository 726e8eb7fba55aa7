"""Levels that conditions compare with: fixed numbers, or what another metric of the same subject says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tocsin.domain.errors import InputError
from tocsin.domain.model_limits import LIMITS, model_limit
from tocsin.rules.conditions.base import Condition, MetricRef, World, metric_ref
from tocsin.rules.frame import FrameRows
from tocsin.rules.table import Bools, Floats
from tocsin.rules.units import show_value

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Comparison = Literal["above", "at_least", "below", "at_most"]
COMPARISONS: tuple[Comparison, ...] = ("above", "at_least", "below", "at_most")

_OPERATIONS: dict[Comparison, Callable[[Any, Any], Any]] = {
    "above": np.greater,
    "at_least": np.greater_equal,
    "below": np.less,
    "at_most": np.less_equal,
}
_WORDS: dict[Comparison, str] = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}


class Reference(BaseModel):
    """A level that another metric of the same subject gives: its value times `factor` plus `offset`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    metric: str
    """The metric that gives the level."""
    factor: Number = 1.0
    """Multiplier on its value."""
    offset: Number = 0.0
    """Added to it, in the metric's unit."""
    or_model: bool = False
    """Where the GPU does not report the limit, that of its model counts."""

    def check(self, field: str) -> None:
        """Raise InputError for a metric that no model has a limit for."""
        if self.or_model and self.metric not in LIMITS:
            remedy = f"leave or_model out, or name one of {', '.join(LIMITS)}"
            raise InputError(f"{field}.or_model", self.metric, "is no limit that models are known for", remedy)

    def meaning(self) -> str:
        times = "" if self.factor == 1.0 else f" x {self.factor:g}"
        plus = "" if self.offset == 0.0 else f" {'+' if self.offset > 0 else '-'} {abs(self.offset):g}"
        model = " (of the model where not reported)" if self.or_model else ""
        return f"{self.metric}{times}{plus}{model}"


Level = Number | Reference


class LevelCondition(Condition):
    """A condition with exactly one comparison and, for a finding that is open, a level at which it clears."""

    above: Level | None = None
    """Holds where the value is greater."""
    at_least: Level | None = None
    """Holds where the value is greater or equal."""
    below: Level | None = None
    """Holds where the value is less."""
    at_most: Level | None = None
    """Holds where the value is less or equal."""
    clear: Level | None = None
    """An open finding goes on while the comparison with this level holds; unset is the level itself."""

    def comparison(self) -> tuple[Comparison, Level]:
        for name in COMPARISONS:
            level = getattr(self, name)
            if level is not None:
                return name, level
        raise InputError("above", None, "no comparison", f"give one of {', '.join(COMPARISONS)}")

    def references(self) -> tuple[MetricRef, ...]:
        levels = [(name, getattr(self, name)) for name in (*COMPARISONS, "clear")]
        return tuple(
            metric_ref(level.metric, f"{name}.metric") for name, level in levels if isinstance(level, Reference)
        )

    def check_levels(self, unit: str, minimum: float, maximum: float) -> None:
        """Raise InputError unless there is one comparison that can hold for values of `minimum` to `maximum` `unit`."""
        given = [name for name in COMPARISONS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(given[1], getattr(self, given[1]), f"stands beside {given[0]}", "give one comparison")
        name, level = self.comparison()
        for field, number in ((name, level), ("clear", self.clear)):
            if isinstance(number, Reference):
                number.check(field)
            if isinstance(number, float) and not minimum <= number <= maximum:
                raise InputError(
                    field, number, f"is outside the metric's {minimum:g} to {maximum:g} {unit}", _remedy(unit, number)
                )
        if (
            isinstance(level, float)
            and level == (maximum if name == "above" else minimum)
            and name in ("above", "below")
        ):
            raise InputError(
                name, level, "can never hold: the metric ends there", f"use at_{'least' if name == 'above' else 'most'}"
            )
        self._check_clear(name, level)

    def _check_clear(self, name: Comparison, level: Level) -> None:
        if not isinstance(level, float) or not isinstance(self.clear, float):
            return
        rising = name in ("above", "at_least")
        if self.clear > level if rising else self.clear < level:
            side = "higher" if rising else "lower"
            raise InputError("clear", self.clear, f"is {side} than {name} = {level:g}", "clear on the safe side of it")

    def level_meaning(self, unit: str) -> str:
        name, level = self.comparison()
        text = level.meaning() if isinstance(level, Reference) else show_value(level, unit)
        return f"{_WORDS[name]} {text}"


def _remedy(unit: str, number: float) -> str:
    if unit == "ratio" and 1 < number <= 100:
        return f"write {number / 100:g} for {number:g} %"
    return f"give it in {unit}"


class ModelLimits:
    """The limit `metric` of each GPU's model; `v` has one value a row, NaN where unknown."""

    def __init__(self, roster: FrameRows, metric: str) -> None:
        self._roster = roster
        self._metric = metric
        self._version = -1
        self._known: Floats = np.empty(0)

    @property
    def v(self) -> Floats:
        if self._version != self._roster.version:
            self._version = self._roster.version
            found = (model_limit(gpu.model, self._metric) for gpu in self._roster.gpus)
            self._known = np.array([np.nan if limit is None else limit for limit in found], dtype=np.float64)
        return self._known


class BoundLevel:
    """One level ready to compare with; `v` is a number or has one value a row, NaN where unknown."""

    def __init__(self, level: Level, world: World) -> None:
        self._level = level
        self._column = world.column(metric_ref(level.metric, "metric")) if isinstance(level, Reference) else None
        self._models: ModelLimits | None = None
        if isinstance(level, Reference) and level.or_model:
            self._models = ModelLimits(world.frame.roster, level.metric)

    @property
    def v(self) -> Floats | float:
        if isinstance(self._level, Reference) and self._column is not None:
            given = self._column.v
            if self._models is not None:
                given = np.where(np.isnan(given), self._models.v, given)
            return given * self._level.factor + self._level.offset
        return self._level if isinstance(self._level, float) else float("nan")


class Comparer:
    """The comparison of a condition, with its clear level for rows that have an open finding."""

    def __init__(self, condition: LevelCondition, world: World) -> None:
        name, level = condition.comparison()
        self._operation = _OPERATIONS[name]
        self._level = BoundLevel(level, world)
        self._clear = BoundLevel(condition.clear, world) if condition.clear is not None else None

    def true(self, values: Floats, open_: Bools | None) -> Bools:
        """Which of `values` (rows,) are beyond the level; NaN is not."""
        holds: Bools = self._operation(values, self._level.v)
        if self._clear is not None and open_ is not None:
            holds = np.where(open_, self._operation(values, self._clear.v), holds)
        return holds

    def known(self, values: Floats) -> Bools:
        known: Bools = ~(np.isnan(values) | np.isnan(self._level.v))
        return known

    def level(self, row: int) -> float:
        return _at(self._level, row)

    def eased(self, value: float, row: int) -> float | None:
        """The level at which an open finding clears, where `value` is no longer beyond the level itself; else None."""
        if self._clear is None or np.isnan(value) or self._operation(value, self.level(row)):
            return None
        return _at(self._clear, row)


def _at(level: BoundLevel, row: int) -> float:
    values = level.v
    return float(values[row]) if isinstance(values, np.ndarray) else values
