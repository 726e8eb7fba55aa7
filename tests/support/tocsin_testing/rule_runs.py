"""Drives a rule engine through time, minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
from tocsin.rules.load import load_rules, parse_rules
from tocsin.rules.schema import RuleSet
from tocsin_testing.builders import T0, gpu

HEAD = 'severity = "warning"\ncategory = "hardware"\naction = "notify"\n'

ALERT = "{where}: {value} of {threshold}"

Values = dict[str, float]


def rules(text: str) -> RuleSet:
    """A rule set from TOML text."""
    return parse_rules(text, "test.toml")


def rule(
    conditions: str, *, name: str = "r", extra: str = "", alert: str = "{where}: {value} of {threshold}"
) -> RuleSet:
    """A rule set of one rule with `conditions` (``all = [...]``) and `extra` keys."""
    return rules(f'[[rules]]\nname = "{name}"\n{HEAD}alert = "{alert}"\n{extra}\n{conditions}\n')


class Run:
    """One engine and the time it is at. Readings name metrics without ``gpu_``."""

    def __init__(self, ruleset: RuleSet | None = None) -> None:
        self.engine = RuleEngine(ruleset or load_rules())
        self.opened: list[Finding] = []
        self.cleared: list[Finding] = []
        self.last = Evaluation()

    def step(
        self,
        minute: float,
        values: Values | dict[Gpu, Values] | None = None,
        *,
        events: Sequence[Event] = (),
        predictions: Sequence[Prediction] = (),
        pools: Sequence[PoolState] = (),
        readings: Sequence[Reading] = (),
    ) -> Evaluation:
        """Evaluate at `minute` after T0 with one reading for GPU 0, or for each GPU of `values`."""
        now = instant(minute)
        made = [reading_of(which, now, found) for which, found in by_gpu(values).items()]
        self.last = self.engine.step(Inputs(now, [*made, *readings], events, predictions, pools))
        self.opened += self.last.opened
        self.cleared += self.last.cleared
        return self.last

    def hold(self, start: float, end: float, values: Values | dict[Gpu, Values], *, every: float = 1) -> Evaluation:
        """Steps from `start` to `end`, both included, with the same values."""
        minute = start
        while minute <= end:
            self.step(minute, values)
            minute += every
        return self.last

    def play(self, minutes: Sequence[float], make: Callable[[float], Values | dict[Gpu, Values]]) -> Evaluation:
        """Steps at `minutes` with the values that `make` gives for each."""
        for minute in minutes:
            self.step(minute, make(minute))
        return self.last

    @property
    def active(self) -> list[str]:
        """Names of the rules that hold now."""
        return [finding.rule for finding in self.last.active]


def instant(minute: float) -> int:
    """`minute` after T0."""
    return T0 + round(minute * MINUTE)


def by_gpu(values: Values | dict[Gpu, Values] | None) -> dict[Gpu, Values]:
    """`values` by GPU; plain values are those of GPU 0."""
    if not values:
        return {}
    if isinstance(next(iter(values)), Gpu):
        return values  # type: ignore[return-value]
    return {gpu(): values}  # type: ignore[dict-item]


def reading_of(which: Gpu, at_ms: int, values: Values) -> Reading:
    """A reading whose names lack ``gpu_``; a name may have a variant in braces. Other metrics are named in full."""
    named = {name if name.startswith("network_") else f"gpu_{name}": float(value) for name, value in values.items()}
    return Reading(which, at_ms, named)
