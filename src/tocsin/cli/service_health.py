"""How the service itself is, from its own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin.client.models import Readiness

NAMES = (
    "tocsin_brain_active",
    "tocsin_store_writes_total",
    "tocsin_store_write_failures_total",
    "tocsin_store_damaged_segments",
    "tocsin_forecast_seconds_count",
    "tocsin_forecast_failures_total",
    "tocsin_forecast_worker_deaths",
    "tocsin_model_silent_gpus",
    "tocsin_loop_failures_total",
)
"""Own metrics that `tocsin status` looks at."""
_BAD = (
    "tocsin_store_write_failures_total",
    "tocsin_store_damaged_segments",
    "tocsin_forecast_failures_total",
    "tocsin_forecast_worker_deaths",
    "tocsin_loop_failures_total",
)


def own_metrics(page: str) -> dict[str, float]:
    """Metric to value, of those in `NAMES` that `page` has; samples with different labels are added up."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in NAMES:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def needs_a_look(service: Mapping[str, float]) -> bool:
    """Whether anything has failed since the brain started."""
    return any(service.get(name, 0.0) > 0 for name in _BAD)


def health_lines(ready: Readiness, service: Mapping[str, float]) -> list[str]:
    """Brain, store and forecaster, a line each."""

    def count(name: str) -> int:
        return round(service.get(name, 0.0))

    waits = "; ".join(ready.reasons) or "no reason given"
    standby = "" if service.get("tocsin_brain_active", 1.0) else ", on standby: another brain holds the lease"
    loops = count("tocsin_loop_failures_total")
    brain = f"brain: {'ready' if ready.ready else f'not ready ({waits})'}{standby}"
    damaged = count("tocsin_store_damaged_segments")
    store = f"store: {count('tocsin_store_writes_total')} writes, {count('tocsin_store_write_failures_total')} failed"
    silent = count("tocsin_model_silent_gpus")
    forecaster = (
        f"forecaster: {count('tocsin_forecast_seconds_count')} forecasts, "
        f"{count('tocsin_forecast_failures_total')} failed, worker died {count('tocsin_forecast_worker_deaths')} times"
    )
    return [
        brain + (f"; {loops} unexpected errors survived (see its log)" if loops else ""),
        store + (f", {damaged} files damaged and set aside (see docs/store_embedded.md)" if damaged else ""),
        forecaster + (f"; it can say nothing of {silent} GPUs" if silent else ""),
    ]
