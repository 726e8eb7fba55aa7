"""The tables of docs/scan.md as test cases, and a scan of one GPU from two looks."""

from __future__ import annotations

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

PAGE = (Path(__file__).parents[3] / "docs" / "scan.md").read_text(encoding="utf-8")
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


def section(title: str) -> list[list[str]]:
    """The cells of the table under `title`, without backticks."""
    text = PAGE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


RULES = load_rules()
ROWS = [Row(seen, rule, VERDICTS[health]) for _, seen, rule, health in section("Values")]


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
