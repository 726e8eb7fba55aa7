"""Reading a rule file, with errors that name the rule, the field, the value found there and the remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from string import Formatter
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.rules.catalogue import ErrorSpec, SpecT
from tocsin.rules.conditions.base import Condition, condition_of, names
from tocsin.rules.schema import (
    CATALOGUE_ACTION,
    WORDS,
    Correction,
    EngineTable,
    Part,
    Rule,
    RuleFile,
    RuleSet,
    RuleTable,
    SxidTable,
    XidTable,
    did_you_mean,
)
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET, VERSION_SHEET
from tocsin.rules.sxid import CLASSES
from tocsin.rules.xid import XidCatalogue, XidSpec, shipped_catalogue
from tocsin.rules.xid_explain import Catalogues

# Checks of a rule as a whole, once its conditions are sound.


def sheet_of(conditions: Sequence[Condition], prefix: str) -> str:
    """The sheet that the subjects of `conditions` are in; raises InputError where they are of several kinds."""
    sheets = frozenset().union(*(condition.sheets() for condition in conditions))
    parts = sheets - {GPU_SHEET, POOL_SHEET, FLEET_SHEET, VERSION_SHEET}
    whole = sheets - parts
    if len(parts) > 1 or len(whole) > 1 or (parts and whole - {GPU_SHEET}):
        raise InputError(
            f"{prefix}all", sorted(sheets), "conditions are about different kinds of subject", "split the rule"
        )
    return next(iter(parts or whole))


def _check_sentence(rule: Rule, prefix: str) -> None:
    known = WORDS.union(*(condition.words for condition in rule.conditions))
    try:
        used = [name for _, name, _, _ in Formatter().parse(rule.table.alert) if name is not None]
    except ValueError as error:
        raise InputError(f"{prefix}alert", rule.table.alert, str(error), "double a brace that is meant") from None
    for name in used:
        if name not in known:
            raise InputError(f"{prefix}alert", f"{{{name}}}", "no such word", did_you_mean(name, known))


def _check_actions(rule: Rule, xids: XidCatalogue, prefix: str) -> None:
    about_xids = any(rule.conditions[0].about(spec) for spec in xids.specs())
    if rule.table.action == CATALOGUE_ACTION and not about_xids:
        raise InputError(f"{prefix}action", CATALOGUE_ACTION, "the first condition is about no XID", "name an action")
    for value in rule.table.action_by_value:
        if not value.lstrip("-").isdigit():
            raise InputError(f"{prefix}action_by_value", value, "is no whole number", "use whole values as keys")
    if rule.table.action in (ActionKind.NOTIFY, CATALOGUE_ACTION) and not rule.table.action_by_value:
        return
    programs = [spec for spec in xids.specs() if spec.application]
    ours = next((spec for spec in programs for condition in rule.conditions if condition.about(spec)), None)
    if ours is not None:
        raise InputError(
            f"{prefix}action",
            str(rule.table.action),
            f"XID {ours.code} is a program's own fault and never condemns a GPU",
            "use notify, or leave the number out",
        )


def _check_scope(rule: Rule, prefix: str) -> None:
    scope = rule.table.scope
    refused = {
        POOL_SHEET: ("models", "hosts", "labels"),
        FLEET_SHEET: ("models", "hosts", "labels", "pools"),
        VERSION_SHEET: ("hosts", "labels"),
    }
    for name in refused.get(rule.sheet, ()):
        if value := getattr(scope, name):
            raise InputError(f"{prefix}scope.{name}", value, f"a rule about the {rule.sheet} has none", "remove it")


# What pydantic says of a rule file, in Tocsin's one shape of errors.


def name_place(location: tuple[int | str, ...], raw: Mapping[str, Any]) -> tuple[str, int]:
    """Where an error is: a prefix that names the rule or XID, and how much of `location` it stands for."""
    if len(location) > 1 and location[0] in ("rules", "xid", "sxid") and isinstance(location[1], int):
        entry = raw[location[0]][location[1]]
        kind, key = ("rule", "name") if location[0] == "rules" else (str(location[0]), "code")
        name = entry.get(key) if isinstance(entry, Mapping) else None
        return f"{kind} {name if name is not None else f'number {location[1] + 1}'}: ", 2
    return "", 0


def explain(first: Any, model: type[BaseModel], place: tuple[str, int]) -> InputError:
    """pydantic's error `first` about `model` as an InputError; `place` is what `name_place` gives."""
    prefix, skipped = place
    location = [str(part) for part in first["loc"][skipped:] if not _is_branch(part)]
    field = prefix + ".".join(location)
    if first["type"] == "extra_forbidden":
        return InputError(field, first["input"], "unknown key", did_you_mean(location[-1], _keys(model, first["loc"])))
    if first["type"] == "missing":
        return InputError(field, None, "is missing", f"add {location[-1]}")
    problem = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if problem != first["msg"] and first["type"] != "value_error":
        problem = f"should be {problem}"
    return InputError(field, first["input"], problem, f"correct {location[-1] if location else 'it'}")


def first_error(error: ValidationError) -> Any:
    """The first error; of the branches of a union, the one that fits what was written: a table or a plain value."""
    errors = error.errors(include_url=False)
    first = errors[0]
    if not isinstance(first["input"], Mapping):
        return first
    head = tuple(part for part in first["loc"] if not _is_branch(part))
    return next(
        (one for one in errors if len(one["loc"]) > len(first["loc"]) and one["loc"][: len(head)] == head), first
    )


def _is_branch(part: int | str) -> bool:
    """Whether a step of a pydantic location names a branch of a union instead of a key."""
    return isinstance(part, str) and (part in ("float", "Reference") or part.startswith(("constrained", "function-")))


def _keys(model: type[BaseModel], location: Sequence[int | str]) -> set[str]:
    """Keys that are known where `location` ends."""
    for part in location[:-1]:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = _model_in(field.annotation) if field is not None else None
        model = inner or model
    return {field.alias or name for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in getattr(annotation, "__args__", ()) if (found := _model_in(arg))), None)


# Corrections of the XID and SXid catalogues, from a rule file or from a file of their own.

M = TypeVar("M", bound=BaseModel)


class OverrideFile(Part):
    """A file that corrects the catalogues and nothing else."""

    xid: list[XidTable] = Field(default_factory=list)
    """Corrections to the XID catalogue."""
    sxid: list[SxidTable] = Field(default_factory=list)
    """Corrections to the SXid catalogue."""


def corrected(known: Catalogues, xid: Sequence[XidTable], sxid: Sequence[SxidTable]) -> Catalogues:
    """`known` with these corrections; raises InputError for one that cannot be."""
    return Catalogues(
        known.xids.with_overrides(_xid(known.xids, table) for table in xid),
        known.sxids.with_overrides(_corrected(known.sxids.of(table.code), table, "sxid", CLASSES) for table in sxid),
    )


def read_toml(path: Path, what: str) -> str:
    """The text of the file `path`, which is `what` in errors. Raises InputError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "cannot be read"
        raise InputError(what, str(path), problem, "name a readable UTF-8 file") from None


def parsed(text: str, what: str, source: str) -> dict[str, Any]:
    """The TOML `text` of `source`, which is `what` in errors. Raises InputError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(what, source, f"is not TOML: {error}", "correct the line it names") from None
    except RecursionError:
        raise InputError(what, source, "is nested too deeply", "write tables and lists with less depth") from None


def load_overrides(path: Path) -> OverrideFile:
    """The corrections of TOML file `path`. Raises InputError for the first thing that does not fit."""
    what = "override file"
    return validated(OverrideFile, parsed(read_toml(path, what), what, str(path)))


def validated(model: type[M], raw: Mapping[str, Any]) -> M:
    """`raw` as `model`; raises InputError that names the rule or number it is about."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = first_error(error)
        raise explain(first, model, name_place(first["loc"], raw)) from None


def _xid(xids: XidCatalogue, table: XidTable) -> XidSpec:
    made = _corrected(xids.of(table.code), table, "xid", xids.classes())
    if made.application and made.action is not ActionKind.NOTIFY:
        raise InputError(
            f"xid {table.code}: action",
            made.action.value,
            f"class {made.xid_class} is a program's own fault and never condemns a GPU",
            "use notify, or give it another class",
        )
    return made


def _corrected(spec: SpecT, table: Correction, kind: str, classes: Collection[str]) -> SpecT:
    """`spec` with what `table` gives; `kind` is ``xid`` or ``sxid``."""
    if table.class_ is not None and table.class_ not in classes:
        what = {"xid": "XID", "sxid": "SXid"}[kind]
        remedy = did_you_mean(table.class_, classes)
        raise InputError(f"{kind} {table.code}: class", table.class_, f"no such {what} class", remedy)
    given: dict[str, Any] = {
        f"{kind}_class" if name == "class_" else name: value
        for name, value in table
        if name not in ("code", "reason") and value is not None
    }
    return replace(
        spec,
        **given,
        provenance=f"override: {table.reason}",
        changes=spec.changes + _changes(spec, given),
        overridden=spec.overridden | given.keys(),
    )


def _changes(spec: ErrorSpec, given: Mapping[str, Any]) -> tuple[str, ...]:
    """What `given` changes, in words; what it only repeats is left out."""

    def word(value: object) -> str:
        return str(value.value) if isinstance(value, Enum) else str(value)

    return tuple(
        f"{'class' if name.endswith('class') else name}: {word(getattr(spec, name))} -> {word(value)}"
        for name, value in given.items()
        if getattr(spec, name) != value
    )


_SHIPPED = "defaults.toml"


def load_rules(path: Path | None = None, overrides: Path | None = None) -> RuleSet:
    """The rules of the TOML file `path`, or the shipped ones, with the catalogues corrected by the file `overrides`.

    Raises InputError for the first thing that does not fit: its field is ``rule NAME: key``.
    """
    corrections = load_overrides(overrides) if overrides is not None else OverrideFile()
    if path is not None:
        return parse_rules(read_toml(path, "rule file"), str(path), corrections)
    return parse_rules(_shipped_text(), _SHIPPED, corrections) if overrides is not None else _shipped()


def _shipped_text() -> str:
    return resources.files("tocsin.rules").joinpath(_SHIPPED).read_text(encoding="utf-8")


@cache
def _shipped() -> RuleSet:
    """Nothing in it can be changed, so that every brain and command of a process may have the same."""
    return parse_rules(_shipped_text(), _SHIPPED)


def parse_rules(text: str, source: str, corrections: OverrideFile | None = None) -> RuleSet:
    """The rules that `text` holds; `source` is its name in errors. Raises InputError.

    `corrections` come after those of `text`.
    """
    raw = parsed(text, "rule file", source)
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
    _check_sentence(rule, prefix)
    _check_actions(rule, xids, prefix)
    _check_scope(rule, prefix)
    return rule


def _condition(raw: Mapping[str, Any], prefix: str, xids: XidCatalogue) -> Condition:
    kind = raw.get("kind")
    if kind is None:
        raise InputError(f"{prefix}kind", None, "is missing", f"add one of {', '.join(names())}")
    if kind not in names():
        raise InputError(f"{prefix}kind", kind, "no such kind of condition", did_you_mean(str(kind), names()))
    model = condition_of(kind)
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
