"""PromQL of the panels."""

from __future__ import annotations

from tocsin.domain.metrics import METRICS
from tocsin.telemetry.metrics import OWN_METRICS

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
