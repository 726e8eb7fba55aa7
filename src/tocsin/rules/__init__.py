"""Rules over the state and the events of the fleet: the file they come from, the engine, XID catalogue and incidents.

The names below are the whole interface; the modules are the package's own. All but the catalogue are loaded when first
asked for: the agent explains XIDs and must not pay for the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tocsin.rules.xid import XidCatalogue, XidSpec, xid

if TYPE_CHECKING:
    from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
    from tocsin.rules.incidents import collapse
    from tocsin.rules.load import load_rules, parse_rules
    from tocsin.rules.schema import Rule, RuleSet

_HOMES = {
    "Evaluation": "engine",
    "Inputs": "engine",
    "Rule": "schema",
    "RuleEngine": "engine",
    "RuleSet": "schema",
    "collapse": "incidents",
    "load_rules": "load",
    "parse_rules": "load",
}
"""Name to the module that defines it."""

__all__ = [
    "Evaluation",
    "Inputs",
    "Rule",
    "RuleEngine",
    "RuleSet",
    "XidCatalogue",
    "XidSpec",
    "collapse",
    "load_rules",
    "parse_rules",
    "xid",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
