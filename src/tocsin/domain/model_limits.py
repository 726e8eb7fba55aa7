"""Limits of GPU models, for a GPU that does not report its own.

The table has what public captures and vendor documents say of a model. A GPU's own answer always comes first: one model
ships with several limits.
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
_MAKERS = ("nvidia ", "tesla ")


def _plain(model: str) -> str:
    """``NVIDIA Tesla T4`` and ``Tesla T4`` are one model."""
    name = " ".join(model.lower().split())
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    return name


@cache
def _table() -> dict[str, dict[str, float]]:
    text = resources.files("tocsin.domain").joinpath("model_limits.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {_plain(row["model"]): {name: float(row[name]) for name in LIMITS if row[name]} for row in rows}


def model_limit(model: str, metric: str) -> float | None:
    """The limit `metric` of `model` as drivers name it; None where it is not known."""
    return _table().get(_plain(model), {}).get(metric)
