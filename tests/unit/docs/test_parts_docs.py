"""Every plug-in has its kind's laws and a page; every other way in and out has a page, settings, and in the limits what
was never met."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from tocsin.config.settings import Settings
from tocsin.plugins import BUILT_IN, Kind

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GENERATED = {"settings.md", "commands.md", "endpoints.md", "metrics.md", "own_metrics.md"}
NEVER = re.compile(r"\bnever\b|\bnot run\b|were not (run|applied)|\bnot tried\b")

PARTS: dict[str, tuple[str, str, str]] = {
    "source promql": ("promql.md", "promql.url", "promql.md"),
    "source amdsmi": ("amd.md", "agent.source", "amd.md"),
    "source npu_smi": ("ascend.md", "agent.source", "ascend.md"),
    "companion network": ("network.md", "agent.network", "network.md"),
    "companion redfish": ("redfish.md", "redfish.urls", "redfish.md"),
    "companion versions": ("drift.md", "agent.versions", "drift.md"),
    "single GPUs by DRA": ("dra.md", "kubernetes.device_rules", "dra.md"),
    "faults at nodes": ("kubernetes.md", "kubernetes.show_faults", "kubernetes.show_faults"),
    "conditions of others": ("kubernetes.md", "kubernetes.read_conditions", "kubernetes.md#what-others-say-of-a-node"),
    "repair by Karpenter": ("kubernetes.md", "kubernetes.repair_condition", "Karpenter"),
    "Kueue": ("kubernetes.md", "kubernetes.fault_taint", "Kueue"),
    "JobSet": ("kubernetes.md", "kubernetes.fault_taint", "JobSet"),
    "release of everything": ("kubernetes.md", "kubernetes.node_condition", "tocsin release --all"),
    "remote write": ("push.md", "api", "Remote write 1.0"),
    "OTLP in": ("push.md", "api", "OTLP never met"),
    "OTLP out": ("push.md", "otlp", "OTLP never met"),
    "Alertmanager in": ("alerts.md", "alertmanager.url", "Alertmanager's alerts"),
    "slurmrestd": ("slurm.md", "slurm.rest_url", "slurm.md#slurmrestd"),
    "usage": ("usage.md", "prices", "usage.md"),
    "Teams": ("tickets.md", "notify.channels", "tickets.md"),
    "tickets": ("tickets.md", "notify.channels", "tickets.md"),
    "Slack": ("slack.md", "notify.channels", "slack.md"),
    "the assistant": ("mcp.md", "dashboard.api_url", "mcp.md"),
    "Helm chart": ("helm.md", "api.listen", "Helm chart"),
}
"""By part: its page, a setting of it, and words of the entry in the limits that is about it."""


def _entries() -> list[str]:
    """The entries of the page of limits, each in one line."""
    text = (DOCS / "limits.md").read_text()
    return [" ".join(one.split()) for one in re.split(r"(?m)^- ", text)[1:]]


def _is_setting(path: str) -> bool:
    found: Any = Settings
    for name in path.split("."):
        if not (isinstance(found, type) and issubclass(found, BaseModel)) or name not in found.model_fields:
            return False
        hint = found.model_fields[name].annotation
        models = [one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, BaseModel)]
        found = models[0] if models else None
    return True


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_laws_that_take_their_names_from_the_registry(kind: Kind) -> None:
    files = [*(ROOT / "tests" / "laws").glob(f"test_{kind}_*laws.py")]
    assert files, f"no law suite of kind {kind}"
    text = "".join(one.read_text() for one in [*files, ROOT / "tests" / "laws" / "conftest.py"])
    registry = {Kind.STORE: "KINDS", Kind.EXECUTOR: "executors()", Kind.FORECASTER: "names()", Kind.SCORER: "names()"}
    assert registry.get(kind, f"plugins(Kind.{kind.name})") in text


@pytest.mark.parametrize("kind", list(Kind))
def test_every_plug_in_is_on_a_page_written_by_hand(kind: Kind) -> None:
    pages = [one.read_text() for one in DOCS.rglob("*.md") if one.name not in GENERATED and "zh" not in one.parts]
    lacking = [
        name for name in BUILT_IN[kind] if not any(re.search(rf"[`\"|] ?{name}\b", p, re.MULTILINE) for p in pages)
    ]
    assert lacking == []


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_a_page_a_setting_and_says_what_it_never_met(part: str) -> None:
    page, setting, words = PARTS[part]
    assert (DOCS / page).is_file()
    assert page in (ROOT / "mkdocs.yml").read_text()
    assert _is_setting(setting), setting
    about = [one for one in _entries() if words in one]
    assert about, f"no entry in limits.md about {part}"
    assert any(NEVER.search(one) for one in about), f"limits.md does not say what {part} never met"
