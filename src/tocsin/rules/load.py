"""Reading a rule file, with errors that name the rule, the field, the value found there and the remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.rules.check import check_rule, sheet_of
from tocsin.rules.conditions.base import Condition
from tocsin.rules.explain import explain, first_error, name_place
from tocsin.rules.registry import kinds
from tocsin.rules.schema import EngineTable, Rule, RuleFile, RuleSet, RuleTable, XidTable
from tocsin.rules.suggest import did_you_mean
from tocsin.rules.xid import XidCatalogue, XidSpec, shipped_catalogue

__all__ = ["RuleSet", "load_rules", "parse_rules"]

_SHIPPED = "defaults.toml"


def load_rules(path: Path | None = None) -> RuleSet:
    """The rules of the TOML file `path`, or the shipped ones.

    Raises InputError for the first thing that does not fit: its field is ``rule NAME: key``.
    """
    if path is None:
        return parse_rules(resources.files("tocsin.rules").joinpath(_SHIPPED).read_text(encoding="utf-8"), _SHIPPED)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "cannot be read"
        raise InputError("rule file", str(path), problem, "name a readable UTF-8 file") from None
    return parse_rules(text, str(path))


def parse_rules(text: str, source: str) -> RuleSet:
    """The rules that `text` holds; `source` is its name in errors. Raises InputError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("rule file", source, f"is not TOML: {error}", "correct the line it names") from None
    file = _read_file(raw)
    base = load_rules() if file.defaults else RuleSet((), EngineTable(), shipped_catalogue())
    xids = base.xids.with_overrides(_override(base.xids, table) for table in file.xid)
    rules = {rule.name: rule for rule in base}
    written: set[str] = set()
    for table in file.rules:
        if table.name in written:
            raise InputError(f"rule {table.name}: name", table.name, "two rules have this name", "rename one of them")
        written.add(table.name)
        rules.pop(table.name, None)
        rule = _rule(table, xids)
        if table.enabled:
            rules[table.name] = rule
    engine = file.engine if "engine" in raw else base.engine
    return RuleSet(_with_modes(rules, file, written), engine, xids)


def _with_modes(rules: dict[str, Rule], file: RuleFile, written: set[str]) -> tuple[Rule, ...]:
    for name, mode in file.modes.items():
        if name in rules:
            rules[name] = replace(rules[name], table=rules[name].table.model_copy(update={"mode": mode}))
        elif name not in written:
            raise InputError(f"modes.{name}", mode.value, "no such rule", did_you_mean(name, rules))
    return tuple(rules.values())


def _read_file(raw: dict[str, Any]) -> RuleFile:
    try:
        return RuleFile.model_validate(raw)
    except ValidationError as error:
        first = first_error(error)
        raise explain(first, RuleFile, name_place(first["loc"], raw)) from None


def _override(xids: XidCatalogue, table: XidTable) -> XidSpec:
    spec = xids.of(table.code)
    given = {
        name: value
        for name in ("xid_class", "severity", "category", "action", "cause_rank")
        if (value := getattr(table, name)) is not None
    }
    changed = replace(spec, **given, provenance=f"override: {table.reason}")
    if changed.xid_class not in xids.classes():
        remedy = did_you_mean(changed.xid_class, xids.classes())
        raise InputError(f"xid {table.code}: class", changed.xid_class, "no such XID class", remedy)
    if changed.application and changed.action is not ActionKind.NOTIFY:
        raise InputError(
            f"xid {table.code}: action",
            changed.action.value,
            f"class {changed.xid_class} is a program's own fault and never condemns a GPU",
            "use notify, or give it another class",
        )
    return changed


def _rule(table: RuleTable, xids: XidCatalogue) -> Rule:
    prefix = f"rule {table.name}: "
    if not table.all_ and not table.any_:
        raise InputError(f"{prefix}all", None, "the rule has no condition", "add [[rules.all]] or [[rules.any]]")
    every = tuple(_condition(raw, f"{prefix}all.{i}.", xids) for i, raw in enumerate(table.all_))
    some = tuple(_condition(raw, f"{prefix}any.{i}.", xids) for i, raw in enumerate(table.any_))
    rule = Rule(table, every, some, sheet_of((*every, *some), prefix))
    check_rule(rule, xids, prefix)
    return rule


def _condition(raw: Mapping[str, Any], prefix: str, xids: XidCatalogue) -> Condition:
    kind = raw.get("kind")
    if kind is None:
        raise InputError(f"{prefix}kind", None, "is missing", f"add one of {', '.join(kinds())}")
    model = kinds().get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InputError(f"{prefix}kind", kind, "no such kind of condition", did_you_mean(str(kind), kinds()))
    try:
        condition = model.model_validate(raw)
    except ValidationError as error:
        raise explain(first_error(error), model, (prefix, 0)) from None
    try:
        condition.metrics()
        condition.check()
        for name in condition.xid_classes():
            if name not in xids.classes():
                raise InputError("classes", name, "no such XID class", did_you_mean(name, xids.classes()))
    except InputError as error:
        raise InputError(prefix + error.field, error.value, error.problem, error.remedy) from None
    return condition
