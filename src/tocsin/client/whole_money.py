"""Money of several cells: what of it can be added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def currencies_of(told: Iterable[tuple[str, bool]]) -> list[str]:
    """The currencies of cells that have any cost, by name. `told` has each cell's currency, empty where its prices name
    none, and whether it has a cost."""
    return sorted({currency for currency, has in told if has})


def one_currency(named: Sequence[str], paid: Sequence[str]) -> str:
    """The currency of the sum, empty where there is no single one: that of `paid`, or of all cells, which have `named`,
    where nothing has a cost."""
    of = set(paid or named)
    return of.pop() if len(of) == 1 else ""


def added(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
