"""Laws of reading several journals as one: every entry once, newest first, whatever is answered how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models import JournalPage
from tocsin.client.whole_journal import ENDED, CellEntry, read_on, whole_journal
from tocsin.domain.clock import to_iso
from tocsin.domain.entry import Entry
from tocsin_testing.builders import T0

Fits = tuple[int, bool]
"""Milliseconds since the entry before it, and whether an entry fits what is looked for."""


def journal(told: Sequence[Fits]) -> list[tuple[Entry, bool]]:
    found, at_ms = [], T0
    for seq, (later, fits) in enumerate(told, start=1):
        at_ms += later
        entry = Entry(seq, 1, at_ms, "login", "ann", {}, simulated=False, hash="", previous_hash="")
        found.append((entry, fits))
    return found


def page(of: Sequence[tuple[Entry, bool]], before: int | None, limit: int, looked_at: int) -> JournalPage:
    """As a brain answers: at most `limit` that fit, of at most `looked_at`."""
    top = len(of) + 1 if before is None else min(before, len(of) + 1)
    floor = max(1, top - looked_at)
    fitting = [entry for entry, fits in of if fits and floor <= entry.seq < top][::-1][:limit]
    last = fitting[-1].seq if len(fitting) == limit else floor
    more = last > 1
    reached = to_iso(of[last - 1][0].at_ms) if more else None
    return JournalPage(entries=fitting, next_before=last if more else None, reached=reached, head=len(of))


def read(
    journals: Mapping[str, Sequence[tuple[Entry, bool]]],
    limit: int,
    most: int,
    looked_at: int,
    away: Sequence[str] = (),
) -> list[list[CellEntry]]:
    """Page after page to the end; cells of `away` in turn do not answer, one a page."""
    before: dict[str, int] = {}
    pages: list[list[CellEntry]] = []
    silent = list(away)
    for _ in range(1_000):
        gone = silent.pop() if silent else ""
        answers = {name: page(of, before.get(name), limit, looked_at) for name, of in journals.items() if name != gone}
        shown = whole_journal(answers, most)
        pages.append(shown)
        before = read_on(answers, before, shown)
        if not silent and all(before.get(name) == ENDED for name in journals):
            return pages
    raise AssertionError("it never ends")


STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12)
SIZES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), STEPS, min_size=1), SIZES)
def test_every_entry_is_read_once_in_the_order_of_time(
    told: dict[str, list[Fits]], sizes: tuple[int, int, int]
) -> None:
    journals = {name: journal(one) for name, one in told.items()}
    limit, most, looked_at = sizes
    found = [one for shown in read(journals, limit, most, looked_at) for one in shown]
    assert {name: [one.entry.seq for one in found if one.cell == name] for name in journals} == {
        name: [entry.seq for entry, fits in of if fits][::-1] for name, of in journals.items()
    }
    times = [one.entry.at_ms for one in found]
    assert times == sorted(times, reverse=True)


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), STEPS, min_size=1), SIZES,
    st.lists(st.sampled_from(["a", "b"]), max_size=6),
)  # fmt: skip
def test_what_does_not_answer_for_a_while_is_read_later(
    told: dict[str, list[Fits]], sizes: tuple[int, int, int], away: list[str]
) -> None:
    journals = {name: journal(one) for name, one in told.items()}
    pages = read(journals, *sizes, away=away)
    found = [(one.cell, one.entry.seq) for shown in pages for one in shown]
    assert sorted(found) == sorted((name, entry.seq) for name, of in journals.items() for entry, fits in of if fits)
    for shown in pages:
        times = [one.entry.at_ms for one in shown]
        assert times == sorted(times, reverse=True)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.lists(st.tuples(st.integers(-5, 5), st.booleans()), max_size=12), min_size=1
    ),
    SIZES,
)
def test_a_clock_that_was_put_back_loses_no_entry(told: dict[str, list[Fits]], sizes: tuple[int, int, int]) -> None:
    journals = {name: journal(one) for name, one in told.items()}
    found = [(one.cell, one.entry.seq) for shown in read(journals, *sizes) for one in shown]
    assert sorted(found) == sorted((name, entry.seq) for name, of in journals.items() for entry, fits in of if fits)
    assert len(found) == len(set(found))
