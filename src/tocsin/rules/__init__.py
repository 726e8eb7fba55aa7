"""Rules over the state and the events of the fleet: the file they come from, the engine, XID catalogue and incidents.

The names below are the whole interface; the modules are the package's own.
"""

from tocsin.rules.engine import Evaluation, Inputs, RuleEngine
from tocsin.rules.incidents import collapse
from tocsin.rules.load import load_rules, parse_rules
from tocsin.rules.schema import Rule, RuleSet
from tocsin.rules.xid import XidCatalogue, XidSpec, xid

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
