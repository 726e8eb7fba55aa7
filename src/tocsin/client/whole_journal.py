"""The journals of all cells in the order of time; each keeps its own numbers and its own hash chain."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tocsin.client.models import JournalPage
from tocsin.domain.clock import from_iso
from tocsin.domain.entry import Entry

ENDED = 1
"""Below this number no journal has an entry: the cell has been read to its first one."""


@dataclass(frozen=True, slots=True)
class CellEntry:
    """An entry, and the cell in whose journal it stands; an empty name where one cell is the whole fleet."""

    cell: str
    entry: Entry


def whole_journal(answers: Mapping[str, JournalPage], most: int) -> list[CellEntry]:
    """The newest `most` entries of `answers`, newest first, each cell's in its own order.

    They end where a cell has been looked at no further: something newer than what follows could stand there. Of one
    cell at least they hold all, if they are not `most`, so that whoever reads on gets on.
    """
    bound_ms = max((_bound(page) for page in answers.values()), default=float("-inf"))
    lists = [[CellEntry(name, one) for one in answers[name].entries] for name in sorted(answers)]
    merged = heapq.merge(*lists, key=lambda one: -one.entry.at_ms)
    return list(takewhile(lambda one: one.entry.at_ms >= bound_ms, merged))[:most]


def _bound(page: JournalPage) -> float:
    """The instant down to which a cell has been looked at, in UTC milliseconds; minus infinity: to its first entry."""
    if page.next_before is None:
        return float("-inf")
    # A clock that was put back leaves older entries behind newer ones: all of its own are within.
    own = [one.at_ms for one in page.entries]
    if page.reached is not None:
        return min([from_iso(page.reached), *own])
    return min(own, default=float("inf"))


def read_on(
    answers: Mapping[str, JournalPage], before: Mapping[str, int], shown: Sequence[CellEntry]
) -> dict[str, int]:
    """What to ask each cell for below, after `shown`, which `whole_journal` gave, was read of what came `before`.

    A cell that did not answer is asked where it would have been; one that is at its end has `ENDED`.
    """
    last = {one.cell: one.entry.seq for one in shown}
    found = dict(before)
    for name, page in answers.items():
        if not page.entries or last.get(name) == page.entries[-1].seq:
            found[name] = page.next_before or ENDED
        else:
            # One of which nothing was shown goes on with what it had, not with what has come since.
            found[name] = last.get(name, page.entries[0].seq + 1)
    return found
