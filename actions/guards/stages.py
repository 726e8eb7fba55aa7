"""All guards in order, and what they say together."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

import tocsin.actions.guards as package
from tocsin.actions.guards.registry import REGISTER, Guard
from tocsin.actions.model.view import FleetView
from tocsin.domain.decision import Decision, Ruling, Verdict


def _discover() -> tuple[Guard, ...]:
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in {"registry", "stages"}:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted(REGISTER.values(), key=lambda each: each.stage))


GUARDS: tuple[Guard, ...] = _discover()
"""Every guard, in the order in which an operator reads them."""


def evaluate(decision: Decision, view: FleetView, now_ms: int) -> tuple[Verdict, ...]:
    """Every guard's verdict, also of those behind one that holds: the operator sees all that stands in the way."""
    return tuple(each(decision, view, now_ms) for each in GUARDS)


def worst(verdicts: Iterable[Verdict]) -> Ruling:
    """Deny before hold before allow."""
    rulings = {verdict.ruling for verdict in verdicts}
    for ruling in (Ruling.DENY, Ruling.HOLD):
        if ruling in rulings:
            return ruling
    return Ruling.ALLOW
