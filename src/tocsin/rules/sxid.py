"""The SXid catalogue: what each NVSwitch error number means and how far it reaches.

Numbers, names and classes follow NVIDIA's fabric manager guide (provenance ``fabric_manager_guide``); severity, cause
rank, action and the sentences of `help` are Tocsin's own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from tocsin.domain.finding import ActionKind, Severity

FABRIC, PARTITION, NON_FATAL, NOTABLE, UNKNOWN = "fabric", "partition", "non_fatal", "notable", "unknown"

CLASSES = {
    FABRIC: "fatal to the whole fabric: restart the host, or reset switches and GPUs together",
    PARTITION: "fatal to the partition or virtual machine whose link it is; its GPUs report XID 74",
    NON_FATAL: "not fatal: corrected or harmless alone, worth counting",
    NOTABLE: "not fatal by itself: look into it",
    UNKNOWN: "not in the catalogue",
}
"""Class to what it means."""

_PARTITION_RANK = 23
"""Cause rank of the class `PARTITION`."""
_SAYS_FATAL = "the switch itself called it fatal, so it ends a partition at least"


@dataclass(frozen=True, slots=True)
class SxidSpec:
    """One row; the fields are those of `tocsin.rules.xid.XidSpec`."""

    code: int
    name: str
    sxid_class: str
    severity: Severity
    action: ActionKind
    vendor_action: str
    cause_rank: int
    provenance: str
    help: str
    changes: tuple[str, ...] = ()
    overridden: frozenset[str] = frozenset()

    @property
    def fatal(self) -> bool:
        """Whether it ends what runs over the fabric or over a part of it."""
        return self.sxid_class in (FABRIC, PARTITION)


def _parse(row: Mapping[str, str]) -> SxidSpec:
    return SxidSpec(
        code=int(row["code"]),
        name=row["name"],
        sxid_class=row["class"],
        severity=Severity(row["severity"]),
        action=ActionKind(row["action"]),
        vendor_action=row["vendor_action"],
        cause_rank=int(row["cause_rank"]),
        provenance=row["provenance"],
        help=row["help"],
    )


class SxidCatalogue:
    """Rows by code; `of` answers for every number, also one that is not in it."""

    def __init__(self, specs: Iterable[SxidSpec]) -> None:
        self._specs = {spec.code: spec for spec in specs}

    def of(self, code: int) -> SxidSpec:
        """The row of `code`; a number without one is a warning of class ``unknown`` that calls for a notification."""
        spec = self._specs.get(code)
        if spec is not None:
            return spec
        help_ = "A number that is not in the catalogue"
        return SxidSpec(code, f"SXid {code}", UNKNOWN, Severity.WARNING, ActionKind.NOTIFY, "", 72, UNKNOWN, help_)

    def seen(self, code: int, severity: Severity | None = None) -> SxidSpec:
        """The row of `code` as one event had it: what the switch itself called fatal, hence critical, ends a partition.

        A class that an override gave stays.
        """
        spec = self.of(code)
        if severity is not Severity.CRITICAL or spec.fatal or "sxid_class" in spec.overridden:
            return spec
        help_ = f"an unknown number, not in the catalogue; {_SAYS_FATAL}"
        return replace(
            spec,
            sxid_class=PARTITION,
            severity=severity,
            cause_rank=_PARTITION_RANK,
            help=help_ if spec.sxid_class == UNKNOWN else f"{spec.help}; {_SAYS_FATAL}",
        )

    def __contains__(self, code: object) -> bool:
        return code in self._specs

    def specs(self) -> list[SxidSpec]:
        """All rows by code."""
        return [self._specs[code] for code in sorted(self._specs)]

    def with_overrides(self, overrides: Iterable[SxidSpec]) -> SxidCatalogue:
        """A catalogue in which `overrides` replace rows of the same code."""
        return SxidCatalogue([*self._specs.values(), *overrides])


@cache
def shipped_sxids() -> SxidCatalogue:
    """The catalogue that comes with Tocsin."""
    text = resources.files("tocsin.rules").joinpath("sxid_catalogue.csv").read_text(encoding="utf-8")
    return SxidCatalogue(_parse(row) for row in csv.DictReader(text.splitlines()))
