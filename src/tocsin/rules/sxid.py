"""The SXid catalogue: what each NVSwitch error number means and how far it reaches.

Numbers, names and classes follow NVIDIA's fabric manager guide (provenance ``fabric_manager_guide``); severity, cause
rank, action and the sentences of `help` are Tocsin's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from tocsin.domain.finding import ActionKind, Severity
from tocsin.domain.phrase import word_in_chinese
from tocsin.rules.catalogue import Catalogue, ErrorSpec, common_fields, csv_rows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidSpec(ErrorSpec):
    """One row; `sxid_class` is one of `CLASSES`."""

    sxid_class: str

    @property
    def fatal(self) -> bool:
        """Whether it ends what runs over the fabric or over a part of it."""
        return self.sxid_class in (FABRIC, PARTITION)

    @property
    def help_zh(self) -> str:
        own, fatal, _ = self.help.partition(f"; {_SAYS_FATAL}")
        return word_in_chinese(own) + (f"；{word_in_chinese(_SAYS_FATAL)}" if fatal else "")


class SxidCatalogue(Catalogue[SxidSpec]):
    """Rows by code; `of` answers for every number, also one that is not in it."""

    def of(self, code: int) -> SxidSpec:
        """The row of `code`; a number without one is a warning of class ``unknown`` that calls for a notification."""
        spec = self._specs.get(code)
        if spec is not None:
            return spec
        return SxidSpec(
            code=code,
            name=f"SXid {code}",
            sxid_class=UNKNOWN,
            severity=Severity.WARNING,
            action=ActionKind.NOTIFY,
            vendor_action="",
            cause_rank=72,
            provenance=UNKNOWN,
            help="A number that is not in the catalogue",
        )

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


@cache
def shipped_sxids() -> SxidCatalogue:
    """The catalogue that comes with Tocsin."""
    return SxidCatalogue(
        SxidSpec(**common_fields(row), sxid_class=row["class"]) for row in csv_rows("sxid_catalogue.csv")
    )
