"""What of a card may be had in part: MIG profiles by model, and how far a piece of work must stay below them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tocsin.domain.mig_layout import template_of

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG profile: its share of the compute slices of its card, and its memory in bytes."""

    profile: str
    share: float
    memory: float


@cache
def _table() -> tuple[tuple[tuple[str, ...], float, str, int, float], ...]:
    rows = csv.DictReader((files("tocsin.accounting") / "mig_slices.csv").read_text("utf-8").splitlines())
    return tuple(
        (
            tuple(row["model_words"].split()),
            float(row["card_gib"]),
            row["profile"],
            int(row["compute_slices"]),
            float(row["memory_mib"]),
        )
        for row in rows
    )


def slices_of(model: str, memory_bytes: float) -> list[MigSlice]:
    """The MIG profiles of a card by its model's name and its memory, the smallest first; empty where none is known.

    Sources of the table: recorded `nvidia-smi mig -lgip` of A100, H100, H200 and A30; the memory of further ones is
    not recorded, so that they are left out.
    """
    gib = memory_bytes / (1024 * MIB)
    total = template_of(model).compute_slices
    found = [
        MigSlice(profile, slices / total, memory * MIB)
        for words, card_gib, profile, slices, memory in _table()
        if all(word in model for word in words) and abs(gib - card_gib) <= card_gib * 0.06  # reserved
    ]
    return sorted(found, key=lambda one: (one.share, one.memory))
