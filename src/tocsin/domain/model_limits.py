"""Limits of GPU models, for a GPU that does not report its own, and what a GPU of a model can show at all.

The tables have what public captures and vendor documents say of a model. A GPU's own answer about a limit always comes
first: one model ships with several. What it can show is asked about what a stranger says of it: there the table counts.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

LIMITS = (
    "gpu_temperature_max_operating_celsius",
    "gpu_temperature_slowdown_celsius",
    "gpu_temperature_shutdown_celsius",
    "gpu_memory_temperature_max_operating_celsius",
)
"""Metrics that the table has."""
_HIGHEST = {
    "gpu_temperature_celsius": (1.0, 10.0),
    "gpu_memory_temperature_celsius": (1.0, 15.0),
    "gpu_power_watts": (1.5, 0.0),
}
"""How far a metric may lie above what the table of ranges has, as factor and as addition (own choice): a GPU is off
soon after its shutdown temperature, HBM some degrees above its operating temperature, and power has peaks."""
RANGED = tuple(_HIGHEST)
"""Metrics that models have a range of; it begins at 0 for each."""
_MAKERS = ("nvidia ", "tesla ")


def _plain(model: str) -> str:
    """``NVIDIA Tesla T4`` and ``Tesla T4`` are one model."""
    name = " ".join(model.lower().split())
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    return name


@cache
def _table(file: str, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    text = resources.files("tocsin.domain").joinpath(file).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {_plain(row["model"]): {name: float(row[name]) for name in names if row[name]} for row in rows}


def model_limit(model: str, metric: str) -> float | None:
    """The limit `metric` of `model` as drivers name it; None where it is not known."""
    return _table("model_limits.csv", LIMITS).get(_plain(model), {}).get(metric)


def highest_shown(model: str, metric: str) -> float | None:
    """The highest value of `metric`, one of `RANGED`, that a GPU of `model` can show; None of a model not known.

    Of a model whose temperature limits are margins, the highest of any model counts.
    """
    table = _table("model_ranges.csv", RANGED)
    known = table.get(_plain(model))
    if known is None:
        return None
    factor, more = _HIGHEST[metric]
    top = known.get(metric) or max(one.get(metric, 0.0) for one in table.values())
    return top * factor + more
