"""docs/simulation.md says of each fault kind what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.clock import HOUR
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import Span

TEXT = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()


def span(times: Span) -> str:
    def one(milliseconds: float) -> str:
        hours = milliseconds / HOUR
        return f"{hours:g} h" if hours >= 1 else f"{hours * 60:g} min"

    first, last = times
    return one(first) if first == last else f"{one(first)} to {one(last)}"


@pytest.mark.parametrize("kind", sorted(fault_kinds()))
def test_a_row_has_the_class_the_precursor_and_the_repair(kind: str) -> None:
    fault = fault_kinds()[kind]
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{kind}` |")]
    _, _, fault_class, precursor, onset, repair, _ = (cell.strip() for cell in row.split("|"))
    assert (fault_class, repair) == (fault.fault_class, span(fault.repair))
    assert precursor.startswith(f"{span(fault.lead)}: ") if fault.precursor else precursor == ""
    assert onset
