"""What the labels of a series say: of which GPU it is, and which metric it holds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tocsin.domain.metrics import BY_FIELD, variant
from tocsin.domain.reading import Gpu
from tocsin.store import points

MARK = "gpu_info_index"
"""Written with every reading, by the store as by the agent: it tells the instants of a GPU without its other series."""


@lru_cache(maxsize=65_536)
def gpu_of(uuid: str, host: str, mig: str) -> Gpu:
    """The bare GPU or MIG instance that the labels name; raises PointError."""
    return points.gpu_of_tags({"gpu_uuid": uuid, "host": host, "mig_uuid": mig})


def key_of(labels: Mapping[str, str]) -> tuple[str, bool] | None:
    """Metric key of a series, and whether it holds reasons; an empty key for `MARK`, None for what is none of ours."""
    if not labels.get("gpu_uuid"):
        return None
    if labels["__name__"] == MARK:
        return "", False
    if not labels["__name__"].startswith("gpu_"):
        # Another exporter's, that knows the same GPUs.
        return None
    field = labels["__name__"].removeprefix("gpu_")
    is_reason = field not in BY_FIELD
    if (spec := BY_FIELD.get(field.removeprefix("missing_"))) is None:
        return None
    value = labels.get(spec.label, "") if spec.label else ""
    return (variant(spec.name, spec.label, value) if value else spec.name), is_reason
