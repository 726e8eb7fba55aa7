"""Answers that take long: made by one caller at a time, and kept in proportion to what they took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tocsin.domain.errors import Unavailable
from tocsin.queries.cache import QUICK_S, TIMES, Cache, by_effort


class Hand:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """One answer of a cache."""

    def __init__(self, hand: Hand, make: Callable[[], int]) -> None:
        self.cache = Cache[str, int](hand, by_effort, most=1)
        self.make = make

    def get(self) -> int:
        return self.cache.get("answer", self.make)


def slow(hand: Hand, took_s: float) -> Callable[[], int]:
    made: list[int] = []

    def make() -> int:
        hand.now_s += took_s
        made.append(1)
        return len(made)

    return make


def test_an_answer_is_kept_in_proportion_to_what_it_took() -> None:
    hand = Hand()
    kept = Kept(hand, slow(hand, 2.0))
    assert kept.get() == 1
    hand.now_s += TIMES * 2.0 - 0.001
    assert kept.get() == 1
    hand.now_s += 0.002
    assert kept.get() == 2


def test_what_is_quick_is_made_anew_each_time() -> None:
    hand = Hand()
    kept = Kept(hand, slow(hand, QUICK_S / 2))
    assert [kept.get(), kept.get()] == [1, 2]


def test_a_failure_is_told_and_not_kept() -> None:
    answers: Iterator[Unavailable | int] = iter([Unavailable("the store rests"), 7])

    def make() -> int:
        answer = next(answers)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    kept = Kept(Hand(), make)
    with pytest.raises(Unavailable):
        kept.get()
    assert kept.get() == 7


def test_only_one_makes_it_while_the_others_get_the_one_of_before() -> None:
    hand, begun, go_on = Hand(), threading.Event(), threading.Event()
    count = 0

    def make() -> int:
        nonlocal count
        count += 1
        if count > 1:
            begun.set()
            assert go_on.wait(30)
        hand.now_s += 1.0
        return count

    kept = Kept(hand, make)
    assert kept.get() == 1
    hand.now_s += TIMES + 1.0
    found: list[int] = []
    maker = threading.Thread(target=lambda: found.append(kept.get()))
    maker.start()
    assert begun.wait(30)
    assert kept.get() == 1
    go_on.set()
    maker.join(30)
    assert found == [2]
    assert count == 2


def test_answers_are_by_key_and_the_oldest_goes_first() -> None:
    hand, made = Hand(), list[str]()
    cache = Cache[str, int](hand, lambda _took_s: 10.0, most=2)

    def get(key: str) -> int:
        def make() -> int:
            made.append(key)
            return len(made)

        return cache.get(key, make)

    assert [get("a"), get("b"), get("a"), get("c"), get("b")] == [1, 2, 1, 3, 2]
    assert get("a") == 4
    hand.now_s += 10.0
    assert get("c") == 5


def test_who_cannot_wait_gets_the_answer_from_before() -> None:
    hand, go_on = Hand(), threading.Event()
    cache = Cache[str, int](hand, lambda _took_s: 10.0)
    assert cache.get_soon("key", lambda: 1, 30.0, 0) == 1
    hand.now_s += 10.0

    def late() -> int:
        assert go_on.wait(30)
        return 2

    assert cache.get_soon("key", late, 0.0, 0) == 1
    assert cache.get_soon("other", late, 0.0, 0) == 0
    assert cache.get_soon("key", late, 30.0, 0) == 1, "it is being made"
    go_on.set()
    assert cache.get("other", late) == 2
