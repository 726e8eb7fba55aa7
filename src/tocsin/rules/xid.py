"""The XID catalogue: what each NVIDIA driver error number means and what it calls for.

Names and vendor actions of 1 to 161 follow NVIDIA's XID catalogue as of 2025-10-29, valid from Ampere on (provenance
``catalogue``); from 162 on the names are those of the open kernel modules 595.45.04 and the actions are inferred
(``inferred``). Class, severity, category and cause rank are Tocsin's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.rules.catalogue import Catalogue, ErrorSpec, common_fields, csv_rows

APPLICATION_CLASSES = frozenset({"application", "engine"})
"""Classes of XIDs that programs cause: they call for a notification and never for anything done to the GPU."""

UNKNOWN_CLASS = "unknown"
"""Class of a number that the catalogue does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSpec(ErrorSpec):
    """One row. `xid_class` groups numbers by the part that is in trouble, `investigate` is NVIDIA's word for what to
    look into, empty where it has none."""

    xid_class: str
    category: Category
    investigate: str = ""

    @property
    def application(self) -> bool:
        return self.xid_class in APPLICATION_CLASSES


class XidCatalogue(Catalogue[XidSpec]):
    """Rows by code; `of` answers for every number, also one that is not in it."""

    def of(self, code: int) -> XidSpec:
        """The row of `code`; a number without one is a warning of class ``unknown`` that calls for a notification."""
        spec = self._specs.get(code)
        if spec is not None:
            return spec
        return XidSpec(
            code=code,
            name=f"XID_{code}",
            xid_class=UNKNOWN_CLASS,
            severity=Severity.WARNING,
            category=Category.HARDWARE,
            action=ActionKind.NOTIFY,
            vendor_action="",
            cause_rank=80,
            provenance=UNKNOWN_CLASS,
            help="A number that is not in the catalogue",
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

    def classes(self) -> frozenset[str]:
        """Every class, with the one for unknown numbers."""
        return frozenset(spec.xid_class for spec in self._specs.values()) | {UNKNOWN_CLASS}


@cache
def shipped_catalogue() -> XidCatalogue:
    """The catalogue that comes with Tocsin."""
    return XidCatalogue(
        XidSpec(
            **common_fields(row),
            xid_class=row["class"],
            category=Category(row["category"]),
            investigate=row["investigate"],
        )
        for row in csv_rows("xid_catalogue.csv")
    )


def xid(code: int) -> XidSpec:
    """The shipped row of `code`, or a stand-in of class ``unknown``."""
    return shipped_catalogue().of(code)
