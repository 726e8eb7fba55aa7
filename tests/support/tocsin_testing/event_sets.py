"""Small made-up data sets in the formats of Titan and InfiniteHBD, with failures that gather in places and repeat."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

TITAN_HEAD = ("SN", "location", "insert", "remove", "duration", "out", "event")
TITAN_START = datetime(2014, 1, 21, 10, 28, 50, tzinfo=UTC)
TITAN_DAYS = 1075


def titan_lines(seed: int = 0) -> list[tuple[str, ...]]:
    """144 slots until the end of 2016: the upper cage fails often, and who failed fails again."""
    rng = np.random.default_rng(seed)
    lines: list[tuple[str, ...]] = []
    places = [(c, r, g, s, n) for c in range(3) for r in range(2) for g in range(3) for s in range(2) for n in range(4)]
    for number, (column, row, cage, blade, node) in enumerate(places):
        serial, place = f"03237120{number:05d}", f"c{column}-{row}c{cage}s{blade}n{node}"
        often = (0.2, 0.5, 3.0)[cage]
        days = np.sort(rng.uniform(60, TITAN_DAYS - 1, rng.poisson(often)))
        lines += [_titan_line(serial, place, None, day, "DBE" if day % 1 < 0.7 else "OTB") for day in days]
        left = max(600.0, *(days + 20), 0.0) if number % 9 == 4 else None
        left = None if left is None or left > TITAN_DAYS else left
        lines.append(_titan_line(serial, place, 0.0, left, ""))
    lines.append(_titan_line("0323712099999", "c0-0c0s0n0", 5.0, float(TITAN_DAYS), ""))
    return lines


def _titan_line(serial: str, place: str, insert: float | None, remove: float | None, event: str) -> tuple[str, ...]:
    return (serial, place, _titan_time(insert), _titan_time(remove), "", "", event)


def _titan_time(days: float | None) -> str:
    return "" if days is None else (TITAN_START + timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S")


def write_titan(folder: Path, lines: list[tuple[str, ...]]) -> Path:
    """A folder with these lines as a CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lives.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([TITAN_HEAD, *lines])
    return folder


def trace_entries(seed: int = 0, days: float = 200.0, nodes: int = 150) -> list[dict[str, object]]:
    """Faults of which most repeat within days of their repair."""
    rng = np.random.default_rng(seed)
    entries = []
    for number in range(nodes):
        at = float(rng.uniform(0, days))
        while at < days:
            kind = "GPU" if rng.random() < 0.4 else "NIC"
            fault = {"Level": "Hardware Failure", "Class": kind, "Desc": f"{kind} lost"}
            end = at + float(rng.exponential(0.5)) + 0.01
            entries.append(_entry(number, at, "fault_start", fault))
            if end < days:
                entries.append(_entry(number, end, "fault_end", fault))
            at = end + float(rng.exponential(2.0) if rng.random() < 0.6 else rng.exponential(150.0))
    return sorted(entries, key=lambda one: float(str(one["event_time"])))


def _entry(number: int, at: float, kind: str, fault: dict[str, str]) -> dict[str, object]:
    return {"node_id": f"node-{number:03d}", "event_time": round(at, 4), "event_type": kind, "fault_type": fault}


def write_trace(folder: Path, entries: list[dict[str, object]]) -> Path:
    """A folder with these entries as JSON, beside a file that is something else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.json").write_text(json.dumps(entries), encoding="utf-8")
    (folder / "fault_statistics.json").write_text('{"total": 1}', encoding="utf-8")
    return folder
