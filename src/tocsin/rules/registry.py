"""Finds the kinds of conditions: every module of `tocsin.rules.conditions` that defines one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import get_args

from tocsin.rules import conditions
from tocsin.rules.conditions.base import Condition


@cache
def kinds() -> dict[str, type[Condition]]:
    """Kind to class, by name."""
    found: dict[str, type[Condition]] = {}
    for module in pkgutil.iter_modules(conditions.__path__):
        loaded = importlib.import_module(f"{conditions.__name__}.{module.name}")
        for item in vars(loaded).values():
            if isinstance(item, type) and issubclass(item, Condition) and item.__module__ == loaded.__name__:
                for name in get_args(item.model_fields["kind"].annotation):
                    found[name] = item
    return dict(sorted(found.items()))
