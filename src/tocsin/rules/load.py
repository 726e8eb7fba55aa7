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
from tocsin.rules.check import check_rule, sheet_of
from tocsin.rules.conditions.base import Condition
from tocsin.rules.explain import explain, first_error
from tocsin.rules.overrides import OverrideFile, corrected, load_overrides, validated
from tocsin.rules.registry import kinds
from tocsin.rules.schema import EngineTable, Rule, RuleFile, RuleSet, RuleTable
from tocsin.rules.suggest import did_you_mean
from tocsin.rules.xid import XidCatalogue, shipped_catalogue
from tocsin.rules.xid_explain import Catalogues

__all__ = ["RuleSet", "load_rules", "parse_rules"]

_SHIPPED = "defaults.toml"


def load_rules(path: Path | None = None, overrides: Path | None = None) -> RuleSet:
    """The rules of the TOML file `path`, or the shipped ones, with the catalogues corrected by the file `overrides`.

    Raises InputError for the first thing that does not fit: its field is ``rule NAME: key``.
    """
    corrections = load_overrides(overrides) if overrides is not None else OverrideFile()
    if path is None:
        text = resources.files("tocsin.rules").joinpath(_SHIPPED).read_text(encoding="utf-8")
        return parse_rules(text, _SHIPPED, corrections)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "cannot be read"
        raise InputError("rule file", str(path), problem, "name a readable UTF-8 file") from None
    return parse_rules(text, str(path), corrections)


def parse_rules(text: str, source: str, corrections: OverrideFile | None = None) -> RuleSet:
    """The rules that `text` holds; `source` is its name in errors. Raises InputError.

    `corrections` come after those of `text`.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("rule file", source, f"is not TOML: {error}", "correct the line it names") from None
    file = validated(RuleFile, raw)
    base = load_rules() if file.defaults else RuleSet((), EngineTable(), shipped_catalogue())
    known = corrected(Catalogues(base.xids, base.sxids), file.xid, file.sxid)
    if corrections is not None:
        known = corrected(known, corrections.xid, corrections.sxid)
    rules = {rule.name: rule for rule in base}
    written: set[str] = set()
    for table in file.rules:
        if table.name in written:
            raise InputError(f"rule {table.name}: name", table.name, "two rules have this name", "rename one of them")
        written.add(table.name)
        rules.pop(table.name, None)
        rule = _rule(table, known.xids)
        if table.enabled:
            rules[table.name] = rule
    engine = file.engine if "engine" in raw else base.engine
    return RuleSet(_with_modes(rules, file, written), engine, known.xids, known.sxids)


def _with_modes(rules: dict[str, Rule], file: RuleFile, written: set[str]) -> tuple[Rule, ...]:
    for name, mode in file.modes.items():
        if name in rules:
            rules[name] = replace(rules[name], table=rules[name].table.model_copy(update={"mode": mode}))
        elif name not in written:
            raise InputError(f"modes.{name}", mode.value, "no such rule", did_you_mean(name, rules))
    return tuple(rules.values())


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
