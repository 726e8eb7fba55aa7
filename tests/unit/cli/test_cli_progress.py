"""The bar of long work: who hears of it, and when it is drawn."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tocsin.cli.progress import Terminal, bars
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.progress import heard_by, is_heard, track, work
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.builders import T0


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float | None]] = []
        self.done = 0.0
        self.closed = 0

    def begin(self, what: str, total: float | None) -> Heard:
        self.begun.append((what, total))
        return self

    def advance(self, steps: float = 1.0) -> None:
        self.done += steps

    def close(self) -> None:
        self.closed += 1


class Screen(io.StringIO):
    """Standard error that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_work_within_work_has_no_bar_of_its_own() -> None:
    heard = Heard()
    with heard_by(heard):
        assert list(track([1, 2, 3], "outer")) == [1, 2, 3]
        with work("counted", 10) as bar:
            bar.advance(4)
            list(track(range(5), "inner"))
    assert heard.begun == [("outer", 3), ("counted", 10)]
    assert (heard.done, heard.closed) == (7.0, 2)


def test_nobody_need_listen() -> None:
    assert not is_heard()
    assert list(track(iter("ab"), "letters")) == ["a", "b"]


def test_work_that_fails_ends_its_bar() -> None:
    heard = Heard()
    with pytest.raises(RuntimeError), heard_by(heard), work("breaks", None):
        raise RuntimeError
    assert heard.closed == 1
    assert not is_heard()


def test_the_journal_tells_how_far_it_is(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", ManualClock(T0))
    for _ in range(3):
        journal.append(EntryKind.RESUME, {}, actor="anna")
    journal.close()
    heard = Heard()
    with heard_by(heard):
        assert verify(tmp_path / "journal.db").ok
    assert heard.begun == [("journal", 3)]
    assert heard.done == 3


@pytest.mark.parametrize(
    ("terminal", "as_json", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_bar_is_for_terminals_and_never_beside_json(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, as_json: bool, shown: bool
) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with bars(as_json):
        assert is_heard() is shown
        list(track(range(3), "steps"))
    assert ("steps" in screen.getvalue()) is shown


@pytest.mark.parametrize("total", [100.0, None])
def test_a_bar_has_rate_share_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch, total: float | None) -> None:
    screen, clock = Screen(True), ManualClock()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = Terminal(clock).begin("folds", total)
    for _ in range(50):
        clock.advance(200)
        bar.advance(1.0)
    bar.close()
    drawn = screen.getvalue()
    assert "folds" in drawn
    assert "5/s" in drawn
    assert ("50%" in drawn) is (total is not None)
    assert ("0:00:10 left" in drawn) is (total is not None)


def test_a_bar_is_drawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Screen(True), ManualClock()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = Terminal(clock).begin("entries", 1e6)
    before = len(screen.getvalue())
    for _ in range(1000):
        bar.advance()
    assert len(screen.getvalue()) == before
    clock.advance(1_000)
    bar.advance()
    assert len(screen.getvalue()) > before
    bar.close()
