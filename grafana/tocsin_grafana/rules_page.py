"""The generated part of docs/rules.md: the language of rules and the shipped rules, from the code and the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from tocsin.rules.conditions.base import kinds
from tocsin.rules.load import load_rules
from tocsin.rules.schema import EngineTable, Rule, RuleScope, RuleSet, RuleTable, SxidTable, XidTable
from tocsin.rules.sxid import CLASSES, SxidCatalogue
from tocsin.rules.units import show_duration
from tocsin.rules.xid import XidCatalogue
from tocsin_grafana.page import BEGIN, END


def rules_page(before: str) -> str:
    """docs/rules.md, `before`, with the generated part renewed."""
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{generated(load_rules())}\n\n{END}{tail}"


def generated(ruleset: RuleSet) -> str:
    """Everything in the documentation of rules that follows from code, catalogue and rule file."""
    parts = ("## Rules", rules_table(ruleset), "## Reference", language_tables())
    xids = ("### XID classes", "Critical numbers are bold.", classes_table(ruleset.xids))
    return "\n\n".join([*parts, *xids, "### SXid classes", switch_classes_table(ruleset.sxids)])


def rules_table(ruleset: RuleSet) -> str:
    """One row a rule: what it proposes and when it holds."""
    rows = [
        (
            f"`{rule.name}`",
            rule.table.summary,
            rule.table.severity.value,
            rule.level.value,
            rule.table.category.value,
            _action(rule),
            _timing(rule),
            _escape(rule.meaning()),
        )
        for rule in ruleset
    ]
    return _table(("Rule", "About", "Severity", "Level", "Category", "Proposes", "Timing", "Holds when"), rows)


def _action(rule: Rule) -> str:
    by_value = rule.table.action_by_value
    chosen = ", ".join(f"{value}: `{action}`" for value, action in by_value.items())
    return f"{chosen}, else `{rule.table.action}`" if chosen else f"`{rule.table.action}`"


def _timing(rule: Rule) -> str:
    parts = [f"for {show_duration(rule.table.for_)}"] if rule.table.for_ else []
    parts += [f"{rule.table.samples} readings"] if rule.table.samples > 1 else []
    parts += [f"clears after {show_duration(rule.table.clear_for)}"] if rule.table.clear_for else []
    return ", ".join(parts) or "at once"


def language_tables() -> str:
    """The keys of a rule file: rules, scopes, engine, XID corrections, and every kind of condition."""
    parts: list[tuple[str, type[BaseModel]]] = [
        ("### Keys of a rule", RuleTable),
        ("### Keys of a scope", RuleScope),
        ("### Keys of the engine", EngineTable),
        ("### Keys of an XID correction", XidTable),
        ("### Keys of an SXid correction", SxidTable),
    ]
    text = [f"{title}\n\n{_keys(model)}" for title, model in parts]
    for name, model in kinds().items():
        first = " ".join((model.__doc__ or "").split())
        text.append(f"### Condition `{name}`\n\n{first}\n\n{_keys(model, leave_out=('kind',))}")
    return "\n\n".join(text)


def classes_table(xids: XidCatalogue) -> str:
    """The classes of the XID catalogue with their numbers, critical ones in bold."""
    rows = []
    for name in sorted(xids.classes()):
        specs = [spec for spec in xids.specs() if spec.xid_class == name]
        codes = ", ".join(f"**{spec.code}**" if spec.severity.rank == 2 else str(spec.code) for spec in specs)
        rows.append((f"`{name}`", codes or "every number that is not in the catalogue"))
    return _table(("Class", "Numbers"), rows)


def switch_classes_table(sxids: SxidCatalogue) -> str:
    """The classes of the SXid catalogue with what they mean and their numbers."""
    codes = {name: [str(spec.code) for spec in sxids.specs() if spec.sxid_class == name] for name in CLASSES}
    rows = [(f"`{name}`", text, ", ".join(codes[name]) or "every other number") for name, text in CLASSES.items()]
    return _table(("Class", "Means", "Numbers"), rows)


def _keys(model: type[BaseModel], leave_out: Sequence[str] = ()) -> str:
    rows = [
        (
            f"`{field.alias or name}`",
            "required" if field.is_required() else _default(field.get_default(call_default_factory=True)),
            " ".join((field.description or "").replace("``", "`").split()),
        )
        for name, field in model.model_fields.items()
        if name not in leave_out
    ]
    return _table(("Key", "Default", "Meaning"), rows) if rows else "It has no keys."


def _default(value: object) -> str:
    if value is None or value in ([], {}, "") or isinstance(value, BaseModel):
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, int) and value >= 1000:
        return show_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
