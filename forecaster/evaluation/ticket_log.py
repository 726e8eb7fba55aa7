"""Reads an operator's log of incidents: a CSV with columns ``node`` and ``incidentDate``, others as they come."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.clock import DAY, from_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.ticket_clock import LoggedIncident

REQUIRED = ("node", "incidentDate")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WORDED = re.compile(r"^(\d{1,2}) ([A-Za-z]{3})[a-z]* (\d{4})$")


@dataclass(frozen=True, slots=True)
class IncidentLog:
    """The incidents by node and day, each once, and one problem for each line that could not be used."""

    incidents: Sequence[LoggedIncident]
    problems: list[InputError]


def parse_day(text: str) -> int:
    """Milliseconds of 00:00 UTC of a day like ``21 Mar 2025``, or of that of an ISO 8601 date or instant.

    Raises ValueError for anything else. Month names are English whatever the locale.
    """
    match = _WORDED.match(text.strip())
    if match is None:
        at_ms = from_iso(text.strip())
        return at_ms - at_ms % DAY
    day, month, year = match.groups()
    number = _MONTHS.index(month.lower()) + 1
    return from_iso(f"{year}-{number:02d}-{int(day):02d}")


def read_incidents(path: Path) -> IncidentLog:
    """Read `path`. Raises InputError where it cannot be read or lacks a column."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("incidents", str(path), f"cannot be read: {error}", "name a readable CSV") from None
    reader = csv.DictReader(lines)
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        header = lines[0] if lines else ""
        raise InputError(str(path), header, f"column {', '.join(missing)} is missing", "name a log of incidents")
    found: dict[tuple[str, int], LoggedIncident] = {}
    problems = []
    for row in reader:
        node, text = row["node"] or "", row["incidentDate"] or ""
        try:
            day_ms = parse_day(text)
        except ValueError:
            where = f"{path}:{reader.line_num} incidentDate"
            problems.append(InputError(where, text, "is no date", "write 21 Mar 2025 or 2025-03-21"))
            continue
        found.setdefault((node, day_ms), LoggedIncident(node, day_ms, row.get("category") or ""))
    return IncidentLog([found[key] for key in sorted(found)], problems)
