"""What an alert is, with the situations in which it must fire and must not."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]
Tier = Literal["cause", "symptom", "service"]


def matching(labels: Mapping[str, str]) -> str:
    """`labels` as they stand between the braces of a selector."""
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


GPU_LABELS = "gpu_uuid, gpu_index, host, pool, simulated"
WHERE = "{{ $labels.host }} GPU {{ $labels.gpu_index }}"
EXPECTED_GPU = {"gpu_uuid": "GPU-1", "gpu_index": "3", "host": "n1", "pool": "train"}
ONE_GPU = matching(EXPECTED_GPU)
RULE = "Rule {} of src/tocsin/rules/defaults.toml."
OWN = "Own choice: {}."
DRAIN = "Drain the host, then reset the GPU or replace it, as the runbook of action drain says."


@dataclass(frozen=True, slots=True)
class Case:
    """Series in promtool's notation, one value a minute, and when to look.

    `labels` are those of the alert, less its own; `shown` is what the value reads as in its description.
    """

    series: Mapping[str, str]
    at: str = "30m"
    labels: Mapping[str, str] = field(default_factory=dict)
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    `tier` orders causes before what follows from them: a cause silences symptoms of the same GPU. `remedy` says what to
    do, `source` where the level comes from. `fires` and `rests` are the situations that its tests put it in.
    """

    name: str
    expr: str
    held: str
    severity: Severity
    tier: Tier
    summary: str
    description: str
    remedy: str
    source: str
    fires: Case
    rests: Case

    @property
    def labels(self) -> dict[str, str]:
        """Labels that it puts on top of those of its series."""
        return {"severity": self.severity, "tier": self.tier}

    def annotations(self, docs: str) -> dict[str, str]:
        """What a person reads; `docs` is where the documentation can be read."""
        return {
            "summary": self.summary,
            "description": f"{self.description} {self.remedy}",
            "runbook_url": f"{docs}/alerts/#{self.name.lower()}",
        }


def per_gpu(expr: str) -> str:
    """`expr` with the labels that name a GPU and no others: two scrapers of one agent make one alert."""
    return f"max by ({GPU_LABELS}) ({expr})"


def grown(metric: str, over: str, where: str = "") -> str:
    """Series of a counter that grew within `over`; one that began within it counts as having grown."""
    series = f"{metric}{{{where}}}" if where else metric
    return f"(increase({series}[{over}]) > 0 or ({series} > 0 unless {series} offset {over}))"


def only_metric(expr: str, table: Container[str]) -> str:
    """The one metric of `table` that `expr` names; raises ValueError where it names none, or several."""
    words: list[str] = re.findall(r"\w+", expr)
    (found,) = {word for word in words if word in table}
    return found


def silent(metric: str, keys: str, past: str = "1h") -> str:
    """Series of `metric` that were there within `past` and are no more."""
    return f"(last_over_time({metric}[{past}]) unless on ({keys}) {metric})"


def filled(text: str, labels: Mapping[str, str], shown: str) -> str:
    """`text` as Prometheus renders it: labels by name, the value as `shown`."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels.get(match[1], ""), text)
    return re.sub(r"\{\{ [^}]*\$value[^}]* \}\}", shown, text)
