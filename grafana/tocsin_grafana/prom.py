"""PromQL of the panels."""

from __future__ import annotations

import re

from tocsin.domain.metrics import METRICS
from tocsin.telemetry.metrics import OWN_METRICS

CELL = 'cell=~"$cell"'
"""Which cells are chosen, by the label that scrapes give; all of them, `.*`, also meets what has no such label."""
_SERIES = re.compile(r'(?<![\w"$])([a-z][a-z0-9]*_\w+)(\{)?')
FLEET = 'mig_uuid="",pool=~"$pool"'
HOST = 'mig_uuid="",host=~"$host"'
GPU = 'mig_uuid="",gpu_uuid=~"$gpu"'
BY_GPU = "{{host}} {{gpu_index}}"
BY_INDEX = "GPU {{gpu_index}}"
POOL = 'pool=~"$pool"'


def of(metric: str, where: str) -> str:
    """The series of `metric` that meet `where`. Raises KeyError for a name that is in no table."""
    assert OWN_METRICS[metric] if metric.startswith("tocsin_") else METRICS[metric]
    return f"{metric}{{{where}}}"


def rate(metric: str, where: str, by: str = "") -> str:
    """Change per second of a counter; summed by labels where some are named."""
    plain = f"rate({of(metric, where)}[$__rate_interval])"
    return f"sum by ({by}) ({plain})" if by else plain


def growth(metric: str, where: str, over: str = "$__range") -> str:
    """What a counter grew by within `over`, also where its series began within it.

    `increase` alone says nothing of a series that begins above zero, as that of an XID does with its first.
    """
    series = of(metric, where)
    return f"(increase({series}[{over}]) > 0 or ({series} > 0 unless {series} offset {over}))"


def in_cell(promql: str) -> str:
    """`promql` with each of its series bound to the cells that are chosen."""

    def bound(found: re.Match[str]) -> str:
        name, opened = found[1], found[2]
        stem = re.sub(r"_(?:bucket|sum|count)$", "", name)
        if not {name, stem} & (METRICS.keys() | OWN_METRICS.keys()):
            return found[0]
        return f"{name}{{{CELL}," if opened else f"{name}{{{CELL}}}"

    return _SERIES.sub(bound, promql)
