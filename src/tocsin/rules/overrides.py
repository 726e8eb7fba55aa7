"""Corrections of the XID and SXid catalogues, from a rule file or from a file of their own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.rules.explain import explain, first_error, name_place
from tocsin.rules.schema import Part, SxidTable, XidTable
from tocsin.rules.suggest import did_you_mean
from tocsin.rules.sxid import CLASSES, SxidCatalogue, SxidSpec
from tocsin.rules.xid import XidCatalogue, XidSpec
from tocsin.rules.xid_explain import Catalogues

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
        known.sxids.with_overrides(_sxid(known.sxids, table) for table in sxid),
    )


def load_overrides(path: Path) -> OverrideFile:
    """The corrections of TOML file `path`. Raises InputError for the first thing that does not fit."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError("override file", str(path), f"is not TOML: {error}", "correct the line it names") from None
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "cannot be read"
        raise InputError("override file", str(path), problem, "name a readable UTF-8 file") from None
    return validated(OverrideFile, raw)


def validated(model: type[M], raw: Mapping[str, Any]) -> M:
    """`raw` as `model`; raises InputError that names the rule or number it is about."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = first_error(error)
        raise explain(first, model, name_place(first["loc"], raw)) from None


def _xid(xids: XidCatalogue, table: XidTable) -> XidSpec:
    spec = xids.of(table.code)
    given = _given(table, ("xid_class", "severity", "category", "action", "cause_rank"))
    made = replace(spec, **given, provenance=f"override: {table.reason}")
    if made.xid_class not in xids.classes():
        remedy = did_you_mean(made.xid_class, xids.classes())
        raise InputError(f"xid {table.code}: class", made.xid_class, "no such XID class", remedy)
    if made.application and made.action is not ActionKind.NOTIFY:
        raise InputError(
            f"xid {table.code}: action",
            made.action.value,
            f"class {made.xid_class} is a program's own fault and never condemns a GPU",
            "use notify, or give it another class",
        )
    return replace(made, changes=spec.changes + _changes(spec, given), overridden=spec.overridden | given.keys())


def _sxid(sxids: SxidCatalogue, table: SxidTable) -> SxidSpec:
    spec = sxids.of(table.code)
    given = _given(table, ("sxid_class", "severity", "action", "cause_rank"))
    made = replace(spec, **given, provenance=f"override: {table.reason}")
    if made.sxid_class not in CLASSES:
        remedy = did_you_mean(made.sxid_class, CLASSES)
        raise InputError(f"sxid {table.code}: class", made.sxid_class, "no such SXid class", remedy)
    return replace(made, changes=spec.changes + _changes(spec, given), overridden=spec.overridden | given.keys())


def _given(table: BaseModel, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(table, name)) is not None}


def _changes(spec: XidSpec | SxidSpec, given: Mapping[str, Any]) -> tuple[str, ...]:
    """What `given` changes, in words; what it only repeats is left out."""

    def word(value: object) -> str:
        return str(value.value) if isinstance(value, Enum) else str(value)

    return tuple(
        f"{'class' if name.endswith('class') else name}: {word(getattr(spec, name))} -> {word(value)}"
        for name, value in given.items()
        if getattr(spec, name) != value
    )
