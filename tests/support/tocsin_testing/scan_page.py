"""What a scan finds (`tests/data/scan`), as test cases and as a page; and a scan of one GPU from two looks.

`python -m tocsin_testing.scan_page > docs/scan_conditions.md` writes the page.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tocsin.collector.source import Source
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.event import Event
from tocsin.domain.metrics import split_variant
from tocsin.domain.model_limits import model_limit
from tocsin.domain.reading import Gpu, Reading
from tocsin.rules.load import load_rules
from tocsin.runtime.agent.scan import NodeHealth, ScanReport, scan
from tocsin_testing.builders import T0

DATA = Path(__file__).parents[2] / "data" / "scan"
HEAD = """# What a scan finds

Made by `python -m tocsin_testing.scan_page`. Every row is a test: on a GPU with these values, and on each recorded or
mocked GPU that has the metrics, [`tocsin scan`](scan.md) finds this rule; the verdict is this one, or a graver one
where another rule speaks too. `+` is growth between the two readings.
"""
ABOUT_EVENTS = """XIDs by class and severity of the [catalogue](xid.md), SXids by class, sub-codes of XID 144 to 150 by
their rating. Of faults of the node and of cards without XIDs the row is that of code 1;
[network.md](network.md#the-node-beside-its-gpus) and [amd.md](amd.md#faults) have the others."""
SECTIONS = (
    ("Values", "values", "What is seen in the values of one GPU."),
    ("Events", "events", ABOUT_EVENTS),
    ("Metrics without a rule", "without_rule", "Hardware metrics that no shipped rule reads."),
)
VERDICTS = {"healthy": NodeHealth.HEALTHY, "attention": NodeHealth.ATTENTION, "act now": NodeHealth.ACT_NOW}


@dataclass(frozen=True)
class Row:
    """What the page says of one condition: what is seen, which rule speaks, what a scan comes to."""

    seen: str
    rule: str
    health: NodeHealth

    @property
    def first(self) -> dict[str, float]:
        """Values at the first look."""
        return {key: 0.0 if sign == "+" else float(value) for key, sign, value in self._parts()}

    @property
    def second(self) -> dict[str, float]:
        """Values at the second look."""
        return {key: float(value) for key, _, value in self._parts()}

    def _parts(self) -> list[tuple[str, str, str]]:
        return re.findall(r"((?:gpu|network)_[a-z0-9_]+(?:\{[^}]*\})?) ([=+]) (\S+?)(?:,|$)", self.seen)


def table(name: str) -> list[dict[str, str]]:
    """The rows of a table by column."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page() -> str:
    """docs/scan_conditions.md."""
    parts = [HEAD]
    for title, name, about in SECTIONS:
        rows = table(name)
        head = list(rows[0])
        parts += [f"## {title}\n\n{about}\n", f"| {' | '.join(head)} |\n|{'---|' * len(head)}"]
        parts += ["| " + " | ".join(_cell(column, row[column]) for column in head) + " |" for row in rows]
        parts.append("")
    return "\n".join(parts)


def _cell(column: str, text: str) -> str:
    if column == "metrics":
        return ", ".join(f"`{name}`" for name in text.split(", "))
    return f"`{text}`" if column in ("seen", "rule") and text != "none" else text


RULES = load_rules()
ROWS = [Row(row["seen"], row["rule"], VERDICTS[row["scan"]]) for row in table("values")]


class TwoLooks:
    """A source with the values of two looks at one GPU."""

    name = "scripted"

    def __init__(self, which: Gpu, looks: Sequence[dict[str, float]]) -> None:
        self._which = which
        self._looks = list(looks)

    def gpus(self) -> list[Gpu]:
        return [self._which]

    def read(self, now_ms: int) -> Batch:
        return Batch([Reading(self._which, now_ms, self._looks.pop(0))])

    def close(self) -> None:
        pass


def looked(source: object, *events: Event) -> ScanReport:
    """A scan of `source` by the shipped rules, with `events` of the kernel log."""
    clock = ManualClock(T0)
    return scan(cast("Source", source), RULES, clock, lambda seconds: clock.advance(round(seconds * SECOND)), events)


def shown_by(reading: Reading) -> Iterator[Row]:
    """The conditions that the GPU of `reading` has the metrics for."""
    known = {split_variant(key)[0] for key in reading.values}
    limit = model_limit(reading.gpu.model, "gpu_temperature_slowdown_celsius")
    for row in ROWS:
        by_model = row.rule == "temperature_limit_reached" and len(row.second) == 1
        if {split_variant(key)[0] for key in row.second} <= known and (not by_model or limit is not None):
            yield row


if __name__ == "__main__":
    print(page(), end="")
