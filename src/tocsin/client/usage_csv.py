"""Usage as CSV."""

from __future__ import annotations

import csv
import io

from tocsin.client.models_usage import UsageOut, UsageRow

NUMBERS = (
    "gpu_hours",
    "used",
    "idle",
    "untold",
    "free",
    "stranded",
    "not_seen",
    "kwh",
    "unmetered",
    "cost",
    "unpriced",
    "energy_cost",
    "unpriced_kwh",
)
_SPREADSHEET = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would take for a formula."""


def csv_of(found: UsageOut) -> str:
    """A row a group: what it is summed by, whether anybody held it, the figures, empty where there is no price."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["start", "end", *found.by, "held", "rest", *NUMBERS, "currency"])
    for row in found.rows:
        names = [_plain(row.group.get(name, "")) for name in found.by]
        marks = [str(row.held).lower(), str(row.rest).lower()]
        writer.writerow([found.start, found.end, *names, *marks, *_numbers(row), found.currency])
    return file.getvalue()


def _numbers(row: UsageRow) -> list[str]:
    values = [getattr(row, name) for name in NUMBERS]
    return ["" if value is None else f"{value:.6f}" for value in values]


def _plain(text: str) -> str:
    """Names are a stranger's word: none of them becomes a formula."""
    return f"'{text}" if text.startswith(_SPREADSHEET) else text
