"""Checks of a rule as a whole, once its conditions are sound."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.rules.conditions.base import Condition
from tocsin.rules.schema import CATALOGUE_ACTION, WORDS, Rule
from tocsin.rules.sheet import FLEET_SHEET, GPU_SHEET, POOL_SHEET
from tocsin.rules.suggest import did_you_mean
from tocsin.rules.xid import XidCatalogue


def sheet_of(conditions: Sequence[Condition], prefix: str) -> str:
    """The sheet that the subjects of `conditions` are in; raises InputError where they are of several kinds."""
    sheets = frozenset().union(*(condition.sheets() for condition in conditions))
    parts = sheets - {GPU_SHEET, POOL_SHEET, FLEET_SHEET}
    whole = sheets - parts
    if len(parts) > 1 or len(whole) > 1 or (parts and whole - {GPU_SHEET}):
        raise InputError(
            f"{prefix}all", sorted(sheets), "conditions are about different kinds of subject", "split the rule"
        )
    return next(iter(parts or whole))


def check_rule(rule: Rule, xids: XidCatalogue, prefix: str) -> None:
    """Raise InputError, its field starting with `prefix`, for what does not fit together in `rule`."""
    _check_sentence(rule, prefix)
    _check_actions(rule, xids, prefix)
    _check_scope(rule, prefix)


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
    if rule.sheet not in (POOL_SHEET, FLEET_SHEET):
        return
    for name in ("models", "hosts", "labels") + (("pools",) if rule.sheet == FLEET_SHEET else ()):
        if getattr(scope, name):
            value = getattr(scope, name)
            raise InputError(f"{prefix}scope.{name}", value, f"a rule about the {rule.sheet} has none", "remove it")
