"""What the catalogues of driver and switch errors share: rows by number, from a CSV file of this package."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Generic, Self, TypeVar

from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.phrase import word_in_chinese


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSpec:
    """One row.

    `action` is the remedy in Tocsin's words, `vendor_action` NVIDIA's own word for it, empty where it has none.
    `cause_rank` orders causes before effects, least first. `provenance` says where the row is from, `changes` what a
    user's override changed, as ``severity: warning -> critical``, `overridden` which fields one gave, changed or not.
    """

    code: int
    name: str
    severity: Severity
    action: ActionKind
    vendor_action: str
    cause_rank: int
    provenance: str
    help: str
    changes: tuple[str, ...] = ()
    overridden: frozenset[str] = frozenset()

    @property
    def help_zh(self) -> str:
        """`help` in Chinese; as it is where a user's override gave it."""
        return word_in_chinese(self.help)


SpecT = TypeVar("SpecT", bound=ErrorSpec)


def csv_rows(name: str) -> list[dict[str, str]]:
    """The rows of the CSV file `name` of this package."""
    text = resources.files("tocsin.rules").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def common_fields(row: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `ErrorSpec` that a row of a catalogue gives."""
    texts = {name: row[name] for name in ("name", "vendor_action", "provenance", "help")}
    numbers = {name: int(row[name]) for name in ("code", "cause_rank")}
    return {**texts, **numbers, "severity": Severity(row["severity"]), "action": ActionKind(row["action"])}


class Catalogue(Generic[SpecT]):
    """Rows by code."""

    def __init__(self, specs: Iterable[SpecT]) -> None:
        self._specs = {spec.code: spec for spec in specs}

    def __contains__(self, code: object) -> bool:
        return code in self._specs

    def specs(self) -> list[SpecT]:
        """All rows by code."""
        return [self._specs[code] for code in sorted(self._specs)]

    def with_overrides(self, overrides: Iterable[SpecT]) -> Self:
        """A catalogue in which `overrides` replace rows of the same code."""
        return type(self)([*self._specs.values(), *overrides])
