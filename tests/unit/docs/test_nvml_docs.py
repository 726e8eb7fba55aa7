"""The page about NVML says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.collector.nvml.events import MAX_WAITING
from tocsin.collector.nvml.probes import Tier
from tocsin.collector.nvml.source import ENUMERATE_MS, FIRST_RETRY_MS, MAX_RETRY_MS, MOST_LEFT_BEHIND
from tocsin.collector.release import MOST_SECONDS
from tocsin.collector.workers import PATIENCE_SECONDS
from tocsin.domain.clock import MINUTE, SECOND
from tocsin.domain.event import EventKind
from tocsin.domain.metrics import METRICS
from tocsin.telemetry.metrics import OWN_METRICS

PAGE = (Path(__file__).parents[3] / "docs" / "nvml.md").read_text()


def test_every_metric_it_names_exists() -> None:
    named = set(re.findall(r"`(gpu_[a-z0-9_]+)`", PAGE))
    assert named
    assert named - set(EventKind) <= set(METRICS)
    own = set(re.findall(r"`(tocsin_[a-z_]+)", PAGE))
    assert own
    assert own <= set(OWN_METRICS)


def test_its_periods_are_those_of_the_code() -> None:
    periods = dict(re.findall(r"^\| (processes|slow|static) \| ([0-9]+ (?:s|min)) \|", PAGE, re.MULTILINE))
    assert periods == {
        "processes": f"{Tier.PROCESSES.value // SECOND} s",
        "slow": f"{Tier.SLOW.value // SECOND} s",
        "static": f"{ENUMERATE_MS // MINUTE} min",
    }


def test_its_bounds_are_those_of_the_code() -> None:
    assert f"More than {MAX_WAITING:,} XIDs" in PAGE
    assert f"longer than {PATIENCE_SECONDS * SECOND:.0f} ms" in PAGE
    assert f"or after {FIRST_RETRY_MS // MINUTE} min" in PAGE
    assert f"at most {MOST_LEFT_BEHIND} times" in PAGE
    assert f"up to {MAX_RETRY_MS // SECOND} s" in PAGE
    assert f"{MOST_SECONDS / 60:.0f} minutes at most" in PAGE
