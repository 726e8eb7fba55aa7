"""The one metric table. Exporter, stores, API, rules, docs and dashboards all read it; adding a metric is one row.

Rows are in ``metric_table.csv``: canonical name with Prometheus unit suffix, entity, kind, unit, bounds, whether it is
static, family, label of its variants, NVML call, DCGM field ids and names, the factor from DCGM's unit to ours, help.
NVML calls were checked against nvidia-ml-py 13.615.71, DCGM ids against DCGM 4.6.0.
"""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources

_VARIANT = re.compile(r'^([a-z][a-z0-9_]*)\{([a-z_]+)="((?:[^"\\]|\\.)*)"\}$')


class MetricKind(StrEnum):
    """Prometheus type."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Only grows; a decrease means that it started again from zero."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table.

    `minimum` and `maximum` bound plausible values in `unit`; anything outside is blank, not data. `label` is the only
    label that variants of the metric may carry, empty where it has none. `family` groups metrics that one source reads
    together. `dcgm_scale` times DCGM's value gives ours. `nvml` and the DCGM columns are empty where nothing reads it.
    """

    name: str
    entity: str
    kind: MetricKind
    unit: str
    minimum: float
    maximum: float
    static: bool
    family: str
    label: str
    nvml: str
    dcgm_ids: tuple[int, ...]
    dcgm_names: tuple[str, ...]
    dcgm_scale: float
    help: str

    @property
    def field(self) -> str:
        """Name of the field in line protocol: the canonical name without ``gpu_``."""
        return self.name.removeprefix("gpu_")


def _parse(row: dict[str, str]) -> MetricSpec:
    return MetricSpec(
        name=row["name"],
        entity=row["entity"],
        kind=MetricKind(row["kind"]),
        unit=row["unit"],
        minimum=float(row["minimum"]),
        maximum=float(row["maximum"]),
        static=row["static"] == "yes",
        family=row["family"],
        label=row["label"],
        nvml=row["nvml"],
        dcgm_ids=tuple(int(x) for x in row["dcgm_ids"].split(";") if x),
        dcgm_names=tuple(x for x in row["dcgm_names"].split(";") if x),
        dcgm_scale=float(row["dcgm_scale"] or "1"),
        help=row["help"],
    )


_TABLE = resources.files("tocsin.domain").joinpath("metric_table.csv").read_text(encoding="utf-8")
METRICS: dict[str, MetricSpec] = {row["name"]: _parse(row) for row in csv.DictReader(_TABLE.splitlines())}
"""Canonical name to row, in the order of the table."""

BY_DCGM_NAME: dict[str, MetricSpec] = {name: spec for spec in METRICS.values() for name in spec.dcgm_names}
"""DCGM field name, old or new spelling, to row."""

BY_FIELD: dict[str, MetricSpec] = {spec.field: spec for spec in METRICS.values()}
"""Line-protocol field name to row."""


@lru_cache(maxsize=16_384)
def split_variant(key: str) -> tuple[str, str, str]:
    """`key` as (canonical name, label, label value); label and value are empty for a plain name."""
    match = _VARIANT.match(key)
    if match is None:
        return key, "", ""
    name, label, value = match.groups()
    return name, label, value.replace('\\"', '"').replace("\\\\", "\\")


def variant(name: str, label: str, value: str) -> str:
    """The key of a variant: ``name{label="value"}``."""
    return f"{variant_opening(name, label)}{variant_ending(value)}"


def variant_opening(name: str, label: str) -> str:
    """What a variant's key has before the label's value."""
    return f'{name}{{{label}="'


def variant_ending(value: str) -> str:
    """The label's value as it stands in a variant's key, and what follows it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{escaped}"}}'


def spec_of(key: str) -> MetricSpec | None:
    """The row of a plain name or variant key; None where the name is unknown or the label is not its own."""
    spec = METRICS.get(key)
    if spec is not None:
        return spec
    name, label, _ = split_variant(key)
    spec = METRICS.get(name)
    return spec if spec is not None and label and label == spec.label else None


def nearest(name: str) -> str:
    """The canonical name closest to `name`, for error messages."""
    return difflib.get_close_matches(name, METRICS, n=1, cutoff=0.0)[0]
