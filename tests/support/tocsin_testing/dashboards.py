"""The committed dashboards, their panels and queries, and what may stand in a query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.config.settings import Settings
from tocsin.domain.metrics import METRICS
from tocsin.telemetry.metrics import OWN_METRICS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "grafana" / "dashboards"
BACKENDS = ("prometheus", "influxdb")
NAMES = ("fleet", "node", "gpu", "predictions", "actions")
GPU_LABELS = frozenset(
    {"gpu_uuid", "gpu_index", "model", "host", "pool", "mig_uuid", "mig_profile", "simulated", "instance", "job"}
)
_NAME = re.compile(r"\b(?:gpu|fleet|pool|host|network|vllm|tocsin)_[a-z0-9_]+\b")
_SERIES = re.compile(r"([a-z_][a-z0-9_]*)\{([^}]*)\}")
_BY = re.compile(r"\b(?:by|on|ignoring|group_left|group_right|without)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Asked:
    """One query of one panel."""

    board: str
    panel: str
    text: str
    instant: bool = False


def load(backend: str, name: str) -> dict[str, Any]:
    """A committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / backend / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels, less the headlines of rows."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def asked(backend: str) -> list[Asked]:
    """Every query of every panel of one kind of data source."""
    key = "expr" if backend == "prometheus" else "query"
    return [
        Asked(name, panel["title"], target[key], target.get("instant", False))
        for name in NAMES
        for panel in panels(load(backend, name))
        for target in panel["targets"]
    ]


def series_in(promql: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Metrics named in `promql` with the labels that are asked of them; the labels of `by` and `on` are left out."""
    labelled = {match.start(1): match for match in _SERIES.finditer(promql)}
    bare = _BY.sub(lambda match: " " * len(match[0]), promql)
    bare = re.sub(r"\{[^}]*\}", lambda match: " " * len(match[0]), bare)
    for match in _NAME.finditer(bare):
        inside = labelled.get(match.start())
        yield match[0], tuple(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", inside[2])) if inside else ()


def base_name(name: str) -> str:
    """The metric of a series of a histogram."""
    for suffix in ("_bucket", "_sum", "_count"):
        stem = name.removesuffix(suffix)
        if stem != name and stem in OWN_METRICS and OWN_METRICS[stem].kind == "histogram":
            return stem
    return name


def labels_of(name: str) -> frozenset[str]:
    """Labels that series of a metric may carry in Prometheus. Raises KeyError for a name in no table."""
    name = base_name(name)
    if name in METRICS:
        return GPU_LABELS | {"cell"} | ({METRICS[name].label} if METRICS[name].label else frozenset())
    return frozenset(OWN_METRICS[name].labels) | {"cell", "instance", "job", "le"}


def filled(promql: str) -> str:
    """`promql` as Grafana asks it, all cells, pools, hosts and GPUs chosen."""
    for variable, value in (
        ("$__rate_interval", "1m"),
        ("$__range", "5m"),
        ("$cell", ".*"),
        ("$pool", ".*"),
        ("$host", ".*"),
        ("$gpu", ".*"),
    ):
        promql = promql.replace(variable, value)
    assert "$" not in promql, promql
    return promql


def small() -> Settings:
    """Two simulated hosts, and no process for the models."""
    plain = Settings()
    simulation = plain.simulation.model_copy(update={"gpus": 16})
    forecast = plain.forecast.model_copy(update={"worker": False})
    return plain.model_copy(update={"simulation": simulation, "forecast": forecast})
