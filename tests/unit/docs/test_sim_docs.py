"""docs/simulation.md says of each fault kind what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.clock import HOUR
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultKind, Span

TEXT = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()


def span(times: Span) -> str:
    def one(milliseconds: float) -> str:
        hours = milliseconds / HOUR
        return f"{hours:g} h" if hours >= 1 else f"{hours * 60:g} min"

    first, last = times
    return one(first) if first == last else f"{one(first)} to {one(last)}"


def row(kind: FaultKind) -> str:
    lead = span(kind.lead) if kind.precursor else "none"
    shares = f"{kind.abrupt_share:.2f} | {kind.benign_share:.2f}"
    return f"| `{kind.kind}` | {kind.fault_class} | {kind.per_gpu_year:.5f} | {shares} | {lead} | {span(kind.repair)} |"


@pytest.mark.parametrize("kind", sorted(fault_kinds()))
def test_rates_and_durations_are_documented(kind: str) -> None:
    assert row(fault_kinds()[kind]) in TEXT.splitlines()


@pytest.mark.parametrize("kind", sorted(fault_kinds()))
def test_what_it_looks_like_is_documented(kind: str) -> None:
    assert f"`{kind}`" in TEXT.split("### What each looks like")[1].split("## Rehearsal")[0]
