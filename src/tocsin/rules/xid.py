"""The XID catalogue: what each NVIDIA driver error number means and what it calls for.

Names and vendor actions of 1 to 161 follow NVIDIA's XID catalogue as of 2025-10-29, valid from Ampere on (provenance
``catalogue``); from 162 on the names are those of the open kernel modules 595.45.04 and the actions are inferred
(``inferred``). Class, severity, category and cause rank are Tocsin's own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from tocsin.domain.finding import ActionKind, Category, Severity

APPLICATION_CLASSES = frozenset({"application", "engine"})
"""Classes of XIDs that programs cause: they call for a notification and never for anything done to the GPU."""

UNKNOWN_CLASS = "unknown"
"""Class of a number that the catalogue does not have."""


@dataclass(frozen=True, slots=True)
class XidSpec:
    """One row.

    `xid_class` groups numbers by the part that is in trouble. `action` is the remedy in Tocsin's words, `vendor_action`
    NVIDIA's own word for it and `investigate` its word for what to look into, empty where it has none. `cause_rank`
    orders causes before effects, least first. `provenance` says where it is from, `changes` what a user's override
    changed, as ``severity: warning -> critical``, `overridden` which fields one gave, changed or not.
    """

    code: int
    name: str
    xid_class: str
    severity: Severity
    category: Category
    action: ActionKind
    vendor_action: str
    cause_rank: int
    provenance: str
    help: str
    investigate: str = ""
    changes: tuple[str, ...] = ()
    overridden: frozenset[str] = frozenset()

    @property
    def application(self) -> bool:
        """Whether a program is at fault rather than the GPU."""
        return self.xid_class in APPLICATION_CLASSES


def _parse(row: Mapping[str, str]) -> XidSpec:
    return XidSpec(
        code=int(row["code"]),
        name=row["name"],
        xid_class=row["class"],
        severity=Severity(row["severity"]),
        category=Category(row["category"]),
        action=ActionKind(row["action"]),
        vendor_action=row["vendor_action"],
        cause_rank=int(row["cause_rank"]),
        provenance=row["provenance"],
        help=row["help"],
        investigate=row["investigate"],
    )


class XidCatalogue:
    """Rows by code; `of` answers for every number, also one that is not in it."""

    def __init__(self, specs: Iterable[XidSpec]) -> None:
        self._specs = {spec.code: spec for spec in specs}

    def of(self, code: int) -> XidSpec:
        """The row of `code`; a number without one is a warning of class ``unknown`` that calls for a notification."""
        spec = self._specs.get(code)
        if spec is not None:
            return spec
        return XidSpec(
            code,
            f"XID_{code}",
            UNKNOWN_CLASS,
            Severity.WARNING,
            Category.HARDWARE,
            ActionKind.NOTIFY,
            "",
            80,
            UNKNOWN_CLASS,
            "A number that is not in the catalogue",
        )

    def seen(self, code: int, severity: Severity | None = None, remedy: str = "") -> XidSpec:
        """The row of `code` as one event had it: with the `severity` and `remedy` that its own words gave it.

        Less than critical, it calls for a notification and nothing more. What an override gave stays.
        """
        spec = self.of(code)
        if severity is None:
            return spec
        spec = replace(spec, vendor_action=remedy or spec.vendor_action)
        if "severity" in spec.overridden:
            return spec
        keep = severity is Severity.CRITICAL or "action" in spec.overridden
        return replace(spec, severity=severity, action=spec.action if keep else ActionKind.NOTIFY)

    def __contains__(self, code: object) -> bool:
        return code in self._specs

    def specs(self) -> list[XidSpec]:
        """All rows by code."""
        return [self._specs[code] for code in sorted(self._specs)]

    def classes(self) -> frozenset[str]:
        """Every class, with the one for unknown numbers."""
        return frozenset(spec.xid_class for spec in self._specs.values()) | {UNKNOWN_CLASS}

    def with_overrides(self, overrides: Iterable[XidSpec]) -> XidCatalogue:
        """A catalogue in which `overrides` replace rows of the same code."""
        return XidCatalogue([*self._specs.values(), *overrides])


@cache
def shipped_catalogue() -> XidCatalogue:
    """The catalogue that comes with Tocsin."""
    text = resources.files("tocsin.rules").joinpath("xid_catalogue.csv").read_text(encoding="utf-8")
    return XidCatalogue(_parse(row) for row in csv.DictReader(text.splitlines()))


def xid(code: int) -> XidSpec:
    """The shipped row of `code`, or a stand-in of class ``unknown``."""
    return shipped_catalogue().of(code)
