"""Levels and times of the shipped rules, so that dashboards and alerts cannot drift away from them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

_COMPARISONS = ("above", "at_least", "below", "at_most")


@cache
def _rules() -> dict[str, dict[str, Any]]:
    text = resources.files("tocsin.rules").joinpath("defaults.toml").read_text(encoding="utf-8")
    return {rule["name"]: rule for rule in tomllib.loads(text)["rules"]}


def condition(rule: str, metric: str = "") -> dict[str, Any]:
    """The first condition of `rule` that compares with a number, of those about `metric` where one is named.

    Raises KeyError for a rule that is not shipped, LookupError where it has no such condition.
    """
    found = _rules()[rule]
    for each in [*found.get("all", []), *found.get("any", [])]:
        named = not metric or str(each.get("metric", "")).split("{")[0] == metric
        if named and any(isinstance(each.get(name), int | float) for name in _COMPARISONS):
            return dict(each)
    raise LookupError(f"rule {rule} compares {metric or 'nothing'} with no number")


def level(rule: str, metric: str = "") -> float:
    """The number that `rule` compares with."""
    found = condition(rule, metric)
    return next(float(found[name]) for name in _COMPARISONS if isinstance(found.get(name), int | float))


def offset(rule: str, metric: str) -> tuple[str, float]:
    """The metric that `rule` compares `metric` with, and what is added to it."""
    found = _rules()[rule]
    for each in [*found.get("all", []), *found.get("any", [])]:
        for name in _COMPARISONS:
            if each.get("metric") == metric and isinstance(each.get(name), dict):
                return str(each[name]["metric"]), float(each[name].get("offset", 0))
    raise LookupError(f"rule {rule} compares {metric} with no other metric")


def share_of(rule: str, metric: str) -> float:
    """The factor of the other metric that `rule` compares `metric` with."""
    found = condition_of(rule, "threshold", metric)
    return next(float(found[name]["factor"]) for name in _COMPARISONS if isinstance(found.get(name), dict))


def held(rule: str) -> str:
    """How long `rule` must hold before it speaks, as Prometheus writes it; 0s where at once."""
    return str(_rules()[rule].get("for", "0s"))


def summary(rule: str) -> str:
    """What the rule is about."""
    return str(_rules()[rule]["summary"])


def severity(rule: str) -> str:
    """How urgent the rule is."""
    return str(_rules()[rule]["severity"])


def condition_of(rule: str, kind: str, metric: str) -> dict[str, Any]:
    """The condition of `rule` that is of this kind and about `metric`; raises StopIteration where there is none."""
    found = _rules()[rule]
    every = [*found.get("all", []), *found.get("any", [])]
    return dict(next(each for each in every if each["kind"] == kind and each.get("metric") == metric))
