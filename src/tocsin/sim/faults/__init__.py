"""Fault kinds, one module per family, found by registry: a new module's kinds are there without further work."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Collection
from functools import cache

from tocsin.domain.errors import InputError
from tocsin.sim.faults.base import FaultKind
from tocsin.sim.scenario import PrecursorCourse, Scenario, default_scenario


@cache
def _classes() -> tuple[type[FaultKind], ...]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_concrete(FaultKind), key=lambda kind: kind.kind))


def fault_kinds(scenario: Scenario | None = None) -> dict[str, FaultKind]:
    """Name to kind with its numbers from `scenario` (without one: the one that ships), sorted by name."""
    return _shipped() if scenario is None else {kind.kind: kind(scenario) for kind in _classes()}


@cache
def _shipped() -> dict[str, FaultKind]:
    return fault_kinds(default_scenario())


def check(scenario: Scenario) -> None:
    """Raises InputError where the scenario's faults are not the kinds that there are, or lack what a kind wants."""
    _same("fault", scenario.fault, [kind.kind for kind in _classes()])
    for kind in _classes():
        found = scenario.fault[kind.kind]
        where = f"fault.{kind.kind}"
        _same(f"{where}.numbers", found.numbers, kind.named)
        for name, course in (("precursor", found.precursor), ("rehearsal", found.rehearsal)):
            if isinstance(course, PrecursorCourse):
                _same(f"{where}.{name}.rises", course.rises, kind.rises)
                _same(f"{where}.{name}.marks", course.marks, kind.marks)


def _same(field: str, found: Collection[str], wanted: Collection[str]) -> None:
    for key in found:
        if key not in wanted:
            near = difflib.get_close_matches(key, wanted, n=1, cutoff=0.0)
            raise InputError(f"{field}.{key}", key, "unknown key", f"nearest is {near[0]}" if near else "remove it")
    for key in wanted:
        if key not in found:
            raise InputError(f"{field}.{key}", None, "missing", "copy it from scenarios/default.toml")


def _concrete(base: type[FaultKind]) -> list[type[FaultKind]]:
    subclasses = [sub for child in base.__subclasses__() for sub in (child, *_concrete(child))]
    return [sub for sub in subclasses if "kind" in vars(sub)]


def __getattr__(name: str) -> dict[str, str]:
    """`FAULT_KINDS`: name of each kind to one line on what it does; made when first asked for."""
    if name == "FAULT_KINDS":
        return {kind.kind: kind.help for kind in fault_kinds().values()}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
