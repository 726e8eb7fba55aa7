"""What held a GPU's clocks down, as spans of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from tocsin.client.models import SeriesResponse
from tocsin.domain.clock import from_iso

REASONS = (
    "gpu_clocks_hw_thermal_slowdown",
    "gpu_clocks_hw_power_brake",
    "gpu_clocks_hw_slowdown",
    "gpu_clocks_sw_thermal_slowdown",
    "gpu_clocks_sw_power_cap",
    "gpu_clocks_reliability",
)
"""Metrics that are 1 while the clocks are held, the worst first. That a GPU is idle, or set so, is no throttling."""
_GAP = 3.0
"""A sample holds until the next, but no longer than so many usual steps: what was not seen is not claimed."""


def spans(at_ms: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, int]]:
    """Spans in which `values` are above 0, as pairs of milliseconds; empty for fewer than two samples."""
    if len(at_ms) < 2:
        return []
    steps = [after - before for before, after in pairwise(at_ms)]
    longest = int(_GAP * median(steps))
    found: list[tuple[int, int]] = []
    for start, step, value in zip(at_ms, [*steps, int(median(steps))], values, strict=True):
        if value is None or value <= 0:
            continue
        end = start + min(step, longest)
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def bands(series: SeriesResponse | None) -> Mapping[str, list[tuple[int, int]]]:
    """Spans of each reason that held the clocks at all."""
    if series is None:
        return {}
    at_ms = [from_iso(at) for at in series.at]
    found = {name: spans(at_ms, series.metrics.get(name, [None] * len(at_ms))) for name in REASONS}
    return {name: held for name, held in found.items() if held}
