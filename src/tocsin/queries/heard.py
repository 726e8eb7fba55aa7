"""Which forecasts people are told of: those on which the rules about them would speak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_DRIFT, Prediction
from tocsin.rules.conditions.risk import Risk
from tocsin.rules.schema import RuleSet


def least_heard(ruleset: RuleSet) -> dict[str, float]:
    """By target, the probability from which on the first of the rules about it speaks.

    Rules may ask for more than the level from which on a model warns. Where no rule speaks of faults, no forecast of
    one is told.
    """
    least = {HARDWARE_FAULT: math.inf}
    for rule in ruleset:
        for one in rule.conditions:
            if isinstance(one, Risk):
                least[one.target] = min(least.get(one.target, math.inf), one.probability)
    return least


def heard(predictions: Iterable[Prediction], least: Mapping[str, float]) -> list[Prediction]:
    """Those of `predictions` that are as likely as `least` asks of their target; whether a model fits is no trouble to
    come."""
    told = (one for one in predictions if one.target != MODEL_DRIFT)
    return [one for one in told if (one.own_probability or 0.0) >= least.get(one.target, 0.0)]
