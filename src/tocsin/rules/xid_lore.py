"""What goes with an XID and what other projects make of it: sequences seen in the field, and a table of stances."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

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
class Sequence:
    """Numbers that are seen together: any of `codes`, then some of `then`."""

    codes: tuple[int, ...]
    then: tuple[int, ...]
    meaning: str
    handling: str
    provenance: str


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("tocsin.rules").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def _peers() -> dict[int, dict[str, str]]:
    return {int(row["code"]): row for row in _rows("xid_peers.csv")}


def stances(code: int) -> list[Stance]:
    """What other projects make of XID `code`, those left out that say nothing."""
    row = _peers().get(code, {})
    found = []
    for column, (project, about) in PEERS.items():
        cell = row.get(column, "")
        if cell:
            found.append(Stance(project, _YES[column] if cell == "yes" else cell, about))
    return found


def verdict_since(code: int) -> str:
    """Driver branch from which an XID 154 with the driver's verdict follows; empty where none is known to."""
    return _peers().get(code, {}).get("verdict_since", "")


@cache
def sequences() -> tuple[Sequence, ...]:
    """All known sequences."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(";") if part)

    return tuple(
        Sequence(numbers(row["codes"]), numbers(row["then"]), row["meaning"], row["handling"], row["provenance"])
        for row in _rows("xid_sequences.csv")
    )


def sequences_of(code: int) -> list[Sequence]:
    """The sequences that `code` begins or is part of, those that it begins first."""
    begins = [one for one in sequences() if code in one.codes]
    return begins + [one for one in sequences() if code in one.then]
