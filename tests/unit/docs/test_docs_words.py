"""The documentation does not grow back, and what is said to be written by programs is."""

from __future__ import annotations

import pytest

from tocsin_testing import figures
from tocsin_testing.docs_words import ROOT, WRITTEN_BY_PROGRAMS, by_hand, pages, words

MOST = 56_500
"""Words that are written by hand, at most; whoever adds a page makes room for it. Lower it after a cut."""
MOST_OF_A_PAGE = 2_800


def test_the_pages_written_by_hand_are_no_more_than_people_read() -> None:
    counts = {path.relative_to(ROOT).as_posix(): words(by_hand(path.read_text("utf-8"))) for path in pages()}
    assert sum(counts.values()) <= MOST, "python -m tocsin_testing.docs_words lists the pages"
    assert [name for name, count in counts.items() if count > MOST_OF_A_PAGE] == []


@pytest.mark.parametrize(("name", "program"), WRITTEN_BY_PROGRAMS.items(), ids=list(WRITTEN_BY_PROGRAMS))
def test_a_page_that_a_program_writes_says_so(name: str, program: str) -> None:
    head = "\n".join((ROOT / "docs" / name).read_text("utf-8").splitlines()[:12])
    assert program.split(" --", maxsplit=1)[0] in head or "make " in head


def test_what_programs_print_is_not_counted() -> None:
    page = f"one\n```console\n$ tocsin status\nmuch is printed\n```\n{figures.BEGIN} a table {figures.END} | --- | two"
    assert by_hand(page).split() == ["one", "$", "tocsin", "status", "|", "---", "|", "two"]
    assert words(by_hand(page)) == 4
