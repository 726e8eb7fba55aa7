"""The journal backwards, in pages, with filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import InputError
from tocsin.journal import page as module
from tocsin.journal.journal import Journal
from tocsin.journal.page import Wanted, read_numbered, read_page
from tocsin_testing.builders import T0

COUNT = 60


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sixty entries, a second apart: decisions by Tocsin, approvals by two people, pauses."""
    clock = ManualClock(T0)
    where = tmp_path_factory.mktemp("journal") / "journal.db"
    journal = Journal.open(where, clock)
    for n in range(COUNT):
        if n % 3 == 0:
            payload = {
                "id": f"d{n}",
                "key": f"k{n}",
                "sentence": f"Drain node-{n} 100% of_it",
                "subject": {"name": "x"},
            }
            journal.append(EntryKind.DECISION, payload)
        elif n % 3 == 1:
            journal.append(EntryKind.APPROVAL, {"decision": f"d{n - 1}"}, actor="ann" if n % 2 else "bob")
        else:
            journal.append(EntryKind.PAUSE, {"reason": "Power works"}, actor="ann")
        clock.advance(SECOND)
    yield where
    journal.close()


def numbers(path: Path, wanted: Wanted | None = None, before: int | None = None, limit: int = 1000) -> list[int]:
    return [entry.seq for entry in read_page(path, before, limit, wanted or Wanted()).entries]


@given(limit=st.integers(1, 25), people=st.booleans(), kind=st.sampled_from(["", "pause", "approval", "login"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_pages_together_are_the_journal_once(path: Path, limit: int, people: bool, kind: str) -> None:
    wanted = Wanted(kinds=(kind,) if kind else (), people=people)
    seen: list[int] = []
    before: int | None = None
    for _ in range(COUNT + 1):
        found = read_page(path, before, limit, wanted)
        seen += [entry.seq for entry in found.entries]
        before = found.next_before
        if before is None:
            break
    assert before is None
    assert seen == numbers(path, wanted)
    assert seen == sorted(set(seen), reverse=True)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Wanted(), 60),
        (Wanted(kinds=("decision",)), 20),
        (Wanted(people=True), 40),
        (Wanted(actor="bob"), 10),
        (Wanted(actor="tocsin"), 20),
        (Wanted(text="power WORKS"), 20),
        (Wanted(text="node-6 "), 1),
        (Wanted(text="100%"), 20),
        (Wanted(text="of_it"), 20),
        (Wanted(text="of%it"), 0),
        (Wanted(text="ofxit"), 0),
        (Wanted(text="bob"), 10),
        (Wanted(start_ms=T0 + 10 * SECOND), 50),
        (Wanted(end_ms=T0 + 10 * SECOND), 10),
        (Wanted(start_ms=T0 + 10 * SECOND, end_ms=T0 + 12 * SECOND), 2),
        (Wanted(kinds=("approval",), actor="ann", text="d6"), 1),
    ],
)
def test_filters(path: Path, wanted: Wanted, count: int) -> None:
    assert len(numbers(path, wanted)) == count


def test_a_page_looks_at_so_many_entries_and_says_where_to_go_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOOKED_AT", 25)
    first = read_page(path, None, 10, Wanted(text="node-6 "))
    assert (first.entries, first.next_before, first.head) == ([], 36, COUNT)
    second = read_page(path, first.next_before, 10, Wanted(text="node-6 "))
    assert (second.entries, second.next_before) == ([], 11)
    third = read_page(path, second.next_before, 10, Wanted(text="node-6 "))
    assert ([entry.seq for entry in third.entries], third.next_before) == ([7], None)


def test_what_entries_name_is_told_by_its_sentence(path: Path) -> None:
    found = read_page(path, 9, 3, Wanted())
    assert [entry.seq for entry in found.entries] == [8, 7, 6]
    assert found.told == {"d6": "Drain node-6 100% of_it"}
    assert read_page(path, 3, 1, Wanted(kinds=("approval",))).told == {"d0": "Drain node-0 100% of_it"}


def test_entries_by_number_come_in_order(path: Path) -> None:
    assert [entry.seq for entry in read_numbered(path, [9, 2, 5, 999])] == [2, 5, 9]
    assert list(read_numbered(path, [])) == []


def test_what_is_no_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        read_page(tmp_path / "nothing.db", None, 10, Wanted())
