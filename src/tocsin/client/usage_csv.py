"""Usage as CSV."""

from __future__ import annotations

from decimal import Decimal

from tocsin.client.models_usage import UsageOut, UsageRow
from tocsin.domain.csv_text import csv_text

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


def csv_of(found: UsageOut) -> str:
    """A row a group: what it is summed by, whether anybody held it, the figures, empty where there is no price."""
    rows: list[list[object]] = []
    for row in found.rows:
        names = [row.group.get(name, "") for name in found.by]
        marks = [str(row.held).lower(), str(row.rest).lower()]
        rows.append([found.start, found.end, *names, *marks, *_numbers(row), found.currency])
    return csv_text(["start", "end", *found.by, "held", "rest", *NUMBERS, "currency"], rows)


def _numbers(row: UsageRow) -> list[Decimal | str]:
    values = [getattr(row, name) for name in NUMBERS]
    return ["" if value is None else Decimal(f"{value:.6f}") for value in values]
