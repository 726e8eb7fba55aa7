"""Everything that is known of one XID or SXid, put together for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tocsin.domain.errors import InputError
from tocsin.rules.catalogue import csv_rows
from tocsin.rules.sxid import CLASSES, SxidCatalogue, SxidSpec
from tocsin.rules.xid import XidCatalogue, XidSpec
from tocsin.rules.xid_nvlink import REGISTERS, REGISTERS_CODE, NvlinkMeaning, decode

# What goes with an XID and what other projects make of it: sequences seen in the field, and a table of stances.

PEERS: dict[str, tuple[str, str]] = {
    "nvsentinel": ("NVSentinel", "recommended action (github NVIDIA/NVSentinel)"),
    "gpud": ("gpud", "event type and suggested actions (github leptonai/gpud, 4a8de33a)"),
    "aws": ("AWS", "severity as second-hand sources give it"),
    "dcgm_health": ("DCGM health", "result of the health watch (github NVIDIA/DCGM, 4.6.0)"),
    "eks": ("EKS node monitoring", "whether it is fatal, as second-hand sources give it"),
    "gke": ("GKE", "whether it is monitored, as second-hand sources give it"),
    "device_plugin": (
        "Kubernetes device plugin",
        "whether it is ignored as a program's fault (github NVIDIA/k8s-device-plugin, 1b826acc6)",
    ),
    "azure_nhc": ("Azure node health check", "whether the check fails, as second-hand sources give it"),
}
"""Column of the table to the project's name, and what its cell says and where from."""

_YES = {
    "eks": "fatal",
    "gke": "monitored",
    "device_plugin": "ignored, a program's fault",
    "azure_nhc": "fails",
}


@dataclass(frozen=True, slots=True)
class Stance:
    """What one project makes of a number."""

    project: str
    says: str
    about: str


@dataclass(frozen=True, slots=True)
class XidSequence:
    """Numbers that are seen together: any of `codes`, then some of `then`."""

    codes: tuple[int, ...]
    then: tuple[int, ...]
    meaning: str
    handling: str
    provenance: str


@cache
def _peers() -> dict[int, dict[str, str]]:
    return {int(row["code"]): row for row in csv_rows("xid_peers.csv")}


def stances(code: int) -> list[Stance]:
    """What other projects make of XID `code`, those left out that say nothing."""
    row = _peers().get(code, {})
    return [
        Stance(project, _YES[column] if cell == "yes" else cell, about)
        for column, (project, about) in PEERS.items()
        if (cell := row.get(column, ""))
    ]


def verdict_since(code: int) -> str:
    """Driver branch from which an XID 154 with the driver's verdict follows; empty where none is known to."""
    return _peers().get(code, {}).get("verdict_since", "")


@cache
def sequences() -> tuple[XidSequence, ...]:
    """All known sequences."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(";") if part)

    return tuple(
        XidSequence(numbers(row["codes"]), numbers(row["then"]), row["meaning"], row["handling"], row["provenance"])
        for row in csv_rows("xid_sequences.csv")
    )


def sequences_of(code: int) -> list[XidSequence]:
    """The sequences that `code` begins or is part of, those that it begins first."""
    begins = [one for one in sequences() if code in one.codes]
    return begins + [one for one in sequences() if code in one.then]


WORDS = {
    "ignore": "nothing: log it",
    "log": "nothing: log it and watch how often it comes",
    "restart_app": "restart the program; the GPU stays usable",
    "reset_gpu": "drain every client of the GPU, and of its NVLink peers where they must go along, then reset it",
    "reset_fabric": "drain all GPUs of the fabric, then reset GPUs and switches together",
    "restart_vm": "restart the virtual machine",
    "restart_bm": "restart the host",
    "restart_fm_if_alone": "restart the fabric manager where it comes alone, else follow the other XID",
    "restart_vm_or_partition": "restart the virtual machine or partition whose link it is",
    "restart_host_or_reset_fabric": "restart the host, or reset switches and GPUs together",
    "check_mechanicals": "check power cables, seating and connectors",
    "update_swfw": "update driver and firmware",
    "check_app": "look for the fault in the program",
    "check_uvm": "see whether unified memory is in use: then reset the GPU",
    "contact_support": "drain, collect logs and run field diagnostics: it may have to be replaced",
    "contact_support_if_repeated": "the same, once it repeats on one link",
    "field_diagnostics": "run the field diagnostics",
    "field_diagnostics_if_repeated": "run the field diagnostics once it repeats",
    "report_if_alone": "report it as a bug where nothing else explains it",
    "report_if_daily": "report it where it comes more than once a day",
    "sympathetic_report_solo": "it follows from another error; report it where it comes alone",
    "follow_others": "follow the other error that it came with",
    "follow_xid_48": "do as for XID 48, which it explains further",
    "xid_154": "do what the new verdict says",
    "xid_154_eval": "do what the driver's verdict says, XID 154 of the same GPU",
    "xid_137_flow": "see whether the peer's address was valid: mostly a fault of the program",
    "workflow_xid_13": "see whether it stays with one part of the GPU or moves with the program",
    "workflow_xid_31": "see whether it stays with one GPU or moves with the program",
    "workflow_xid_45": "follow the XID that came before it",
    "workflow_xid_48": "go by XID 63 or 64 and 94 or 95, which come with it",
    "workflow_nvlink_err": "decided by the registers behind it: give them with --registers",
    "workflow_nvlink5_err": "decided by the sub-code behind it: give it with --intrinfo",
    "check_nvlink_failure_flow": "look for the link that failed",
    "investigate": "look into it",
    "investigate_sw": "look into driver and system software",
    "investigate_sw_user": "look into driver and program",
    "investigate_sw_user_link_si": "look into driver, program and the signal of the link",
    "investigate_link_si": "look into the signal of the link",
    "investigate_link_si_and_cables": "look into the signal of the link and its cables",
    "investigate_peer_device": "look at the other end of the link",
    "investigate_host": "look into the host",
}
"""Words of NVIDIA's catalogue and guide to what they ask for."""

PROVENANCE = {
    "catalogue": "NVIDIA's XID catalogue of 2025-10-29, valid from Ampere on; class, severity and action are Tocsin's",
    "inferred": "name from NVIDIA's open kernel modules 595.45.04; everything else is inferred",
    "fabric_manager_guide": "name and class from NVIDIA's fabric manager guide; severity and action are Tocsin's",
}
"""Provenance to a sentence; an override speaks for itself."""


def asks_for(word: str) -> str:
    """What the catalogue's `word` asks for; the word itself where that is not known."""
    return WORDS.get(word, word.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Catalogues:
    """Both catalogues."""

    xids: XidCatalogue
    sxids: SxidCatalogue


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it. `kind` is ``xid`` or ``sxid``; an SXid has no sequences and no stances.

    `partial` says how many words were given where more belong to the number, and is empty elsewhere.
    """

    kind: str
    spec: XidSpec | SxidSpec
    class_name: str
    class_meaning: str
    immediate: str
    investigate: str
    provenance: str
    changes: tuple[str, ...] = ()
    verdict_since: str = ""
    sequences: tuple[XidSequence, ...] = ()
    stances: tuple[Stance, ...] = ()
    decoded: NvlinkMeaning | None = None
    partial: str = ""

    @property
    def do_now(self) -> str:
        """The catalogue's word for what to do at once: that of the sub-code where one is known."""
        return (self.decoded.immediate if self.decoded is not None else "") or self.immediate

    @property
    def look_into(self) -> str:
        """The catalogue's word for what to look into; a sub-code with a verdict of its own may ask for nothing."""
        if self.decoded is None:
            return self.investigate
        return self.decoded.investigate or ("" if self.decoded.rating is not None else self.investigate)

    def as_json(self) -> dict[str, object]:
        spec = self.spec
        row: dict[str, object] = {
            self.kind: spec.code,
            "name": spec.name,
            "class": self.class_name,
            "severity": spec.severity.value,
            "means": spec.help,
            "action": spec.action.value,
            "driver_catalogue": {
                name: {"word": word, "asks_for": asks_for(word)}
                for name, word in (("immediate", self.do_now), ("investigate", self.look_into))
                if word
            },
            "provenance": self.provenance,
            "overridden": list(self.changes),
        }
        if isinstance(spec, XidSpec):
            row["category"] = spec.category.value
            row["driver_verdict_since"] = self.verdict_since
            row["sequences"] = [
                {"codes": list(one.codes), "then": list(one.then), "meaning": one.meaning, "handling": one.handling}
                for one in self.sequences
            ]
            row["others"] = [{"project": one.project, "says": one.says, "about": one.about} for one in self.stances]
        if self.decoded is not None:
            row["decoded"] = self.decoded.as_json()
        if self.partial:
            row["partial"] = self.partial
        return row


def explain_xid(
    xids: XidCatalogue, code: int, words: Sequence[int] = (), *, unit: str = "", driver: int | None = None
) -> Explanation:
    """What is known of XID `code`, and of the `words` behind it. Raises InputError for a number that is unknown."""
    if code not in xids:
        known = [spec.code for spec in xids.specs()]
        remedy = f"known are {known[0]} to {known[-1]}; give an NVSwitch number with --sxid"
        raise InputError("code", code, "is not in the XID catalogue", remedy)
    decoded = decode(code, words, unit=unit, driver=driver)
    if words and decoded is None:
        raise InputError("code", code, "has no sub-codes", "leave the words out, or name 74 or 144 to 150")
    spec = xids.seen(code, decoded.rating if decoded is not None else None)
    return Explanation(
        "xid",
        spec,
        spec.xid_class,
        "",
        spec.vendor_action,
        spec.investigate,
        PROVENANCE.get(spec.provenance, spec.provenance),
        spec.changes,
        verdict_since(code),
        tuple(sequences_of(code)),
        tuple(stances(code)),
        decoded,
        f"{len(words)} of {REGISTERS} words given" if code == REGISTERS_CODE and 0 < len(words) < REGISTERS else "",
    )


def explain_sxid(sxids: SxidCatalogue, code: int) -> Explanation:
    """What is known of SXid `code`. Raises InputError for a number that is unknown."""
    if code not in sxids:
        near = min((spec.code for spec in sxids.specs()), key=lambda known: abs(known - code))
        raise InputError("--sxid", code, "is not in the SXid catalogue", f"the nearest known is {near}")
    spec = sxids.of(code)
    meaning = CLASSES[spec.sxid_class]
    source = PROVENANCE.get(spec.provenance, spec.provenance)
    return Explanation("sxid", spec, spec.sxid_class, meaning, spec.vendor_action, "", source, spec.changes)
