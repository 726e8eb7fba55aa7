"""Fault kinds, one module per family, found by registry: a new module's kinds are there without further work."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from tocsin.sim.faults.base import FaultKind


@cache
def fault_kinds() -> dict[str, FaultKind]:
    """Name to kind, sorted by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found = [kind() for kind in _concrete(FaultKind)]
    return {kind.kind: kind for kind in sorted(found, key=lambda kind: kind.kind)}


def _concrete(base: type[FaultKind]) -> list[type[FaultKind]]:
    subclasses = [sub for child in base.__subclasses__() for sub in (child, *_concrete(child))]
    return [sub for sub in subclasses if "kind" in vars(sub)]


def __getattr__(name: str) -> dict[str, str]:
    """`FAULT_KINDS`: name of each kind to one line on what it does; made when first asked for."""
    if name == "FAULT_KINDS":
        return {kind.kind: kind.help for kind in fault_kinds().values()}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
