"""Requests that come at once are worked on together, and each has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tocsin.api.micro_batching import (
    CROWD,
    LINGER_SECONDS,
    MOST,
    MOST_CALLERS,
    PATIENT_SECONDS,
    QUIET_SECONDS,
    REMEMBERED_SECONDS,
    RESTED_SECONDS,
    Crowd,
    MicroBatcher,
)
from tocsin_testing.virtual_loop import run_virtual


class Works:
    """Each group takes `seconds`; a name that begins with ``bad`` fails, and of a group `most` are answered."""

    def __init__(self, seconds: float = 0.0, most: int = MOST) -> None:
        self.seconds, self.most = seconds, most
        self.groups: list[list[str]] = []
        self.batcher: MicroBatcher[str, str] = MicroBatcher(self.work)

    async def work(self, names: Sequence[str]) -> Sequence[str | Exception]:
        names = names[: self.most]
        self.groups.append([*names])
        await asyncio.sleep(self.seconds)
        if "all bad" in names:
            raise ValueError("all")
        return [ValueError(name) if name.startswith("bad") else name.upper() for name in names]

    async def later(
        self, seconds: float, name: str, *, hurry: bool = False, patient: bool = False
    ) -> tuple[str, float]:
        """The answer, and how long it took."""
        await asyncio.sleep(seconds)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        return await self.batcher.submit(name, hurry=hurry, patient=patient), loop.time() - begun


def at(works: Works, *calls: Awaitable[tuple[str, float]]) -> list[tuple[str, float]]:
    async def all_of_them() -> list[tuple[str, float]]:
        return await asyncio.gather(*calls)

    return run_virtual(all_of_them())


def test_who_is_alone_waits_for_nobody() -> None:
    works = Works(seconds=0.005)
    found = at(works, *(works.later(number * 1.0, str(number)) for number in range(5)))
    assert works.groups == [[str(number)] for number in range(5)]
    assert max(seconds for _, seconds in found) == pytest.approx(0.005)


def test_what_comes_while_others_are_worked_on_goes_together() -> None:
    works = Works(seconds=0.5)
    at(works, works.later(0, "first"), works.later(0.001, "a"), works.later(0.002, "b"))
    assert works.groups == [["first"], ["a", "b"]]


def test_after_several_the_next_are_waited_for_until_nobody_comes() -> None:
    works = Works()
    later = [works.later(1.0 + number * QUIET_SECONDS / 2, f"n{number}") for number in range(3)]
    at(works, works.later(0, "first"), works.later(0, "a"), works.later(0, "b"), *later)
    assert works.groups[-1] == ["n0", "n1", "n2"]


def test_nobody_is_waited_for_longer_than_a_moment() -> None:
    works = Works(seconds=0.001)
    begin = [works.later(0, name) for name in "abc"]
    found = at(works, *begin, *(works.later(1.0 + number * QUIET_SECONDS / 2, "n") for number in range(50)))
    assert max(seconds for _, seconds in found) < LINGER_SECONDS + QUIET_SECONDS
    assert max(map(len, works.groups)) < 20


def test_what_is_in_a_hurry_goes_alone_and_leaves_the_others_waiting() -> None:
    works = Works()
    begin = [works.later(0, name) for name in "abc"]
    more = [works.later(1.0, "waits"), works.later(1.001, "event", hurry=True), works.later(1.002, "too")]
    found = at(works, *begin, *more)
    assert works.groups[-2:] == [["event"], ["waits", "too"]]
    assert found[-2] == ("EVENT", pytest.approx(0.0))


def test_the_patient_wait_for_each_other_also_the_first() -> None:
    works = Works()
    found = at(works, *(works.later(number * 0.02, str(number), patient=True) for number in range(10)))
    assert works.groups == [[str(number) for number in range(10)]]
    assert found[0][1] == pytest.approx(PATIENT_SECONDS)


def test_who_is_not_patient_takes_the_patient_along() -> None:
    works = Works()
    patient = [works.later(number * 0.01, f"p{number}", patient=True) for number in range(3)]
    found = at(works, *patient, works.later(0.015, "alone"))
    assert works.groups == [["p0", "p1", "alone"], ["p2"]]
    assert found[-1] == ("ALONE", pytest.approx(0.0))
    works = Works(seconds=0.001)
    begin = [works.later(0, name) for name in "abc"]
    patient = [works.later(1 + number * 0.01, f"p{number}", patient=True) for number in range(6)]
    found = at(works, *begin, *patient, works.later(1.022, "pressed"))
    assert works.groups[-1] == [
        *(f"p{number}" for number in range(3)),
        "pressed",
        *(f"p{number}" for number in (3, 4, 5)),
    ]
    assert found[-1][1] < QUIET_SECONDS * 2 + 0.03 < PATIENT_SECONDS


def test_a_full_group_of_the_patient_goes_at_once() -> None:
    works = Works()
    found = at(works, *(works.later(number * 0.0001, str(number), patient=True) for number in range(MOST)))
    assert [len(group) for group in works.groups] == [MOST]
    assert max(seconds for _, seconds in found) < 0.01


def test_one_of_many_that_has_rested_can_wait() -> None:
    crowd = Crowd()
    names = [f"node-{number}" for number in range(CROWD)]
    assert not any(crowd.can_wait(name, 0.0) for name in names)
    assert not crowd.can_wait("node-0", RESTED_SECONDS - 0.1)
    assert crowd.can_wait("node-1", RESTED_SECONDS)
    assert not crowd.can_wait("new", RESTED_SECONDS)
    few = Crowd()
    assert not any(few.can_wait(name, at) for at in (0.0, 10.0, 20.0) for name in names[1:])


def test_who_was_answered_just_now_has_not_rested() -> None:
    crowd = Crowd()
    for number in range(CROWD):
        crowd.can_wait(number, 0.0)
    crowd.answered(0, RESTED_SECONDS)
    assert not crowd.can_wait(0, RESTED_SECONDS + 1)
    assert crowd.can_wait(1, RESTED_SECONDS + 1)


def test_callers_are_forgotten() -> None:
    crowd = Crowd()
    for number in range(CROWD):
        crowd.can_wait(number, 0.0)
    assert not crowd.can_wait(0, REMEMBERED_SECONDS + 1)
    for number in range(3 * MOST_CALLERS):
        crowd.can_wait(number, 200.0)
    assert len(crowd._last) <= MOST_CALLERS + 1


def test_senders_that_go_on_as_soon_as_they_are_answered_wait_for_silence_alone() -> None:
    """Eight agents that empty their spools: no round takes as long as others are waited for."""
    works = Works(seconds=0.002)

    async def sender(name: str) -> float:
        for _ in range(50):
            await works.batcher.submit(name)
        return asyncio.get_running_loop().time()

    async def all_of_them() -> float:
        return max(await asyncio.gather(*(sender(str(number)) for number in range(8))))

    assert run_virtual(all_of_them()) / 50 < QUIET_SECONDS + 0.01
    assert max(map(len, works.groups)) == 8


def test_what_is_wrong_with_one_costs_no_other() -> None:
    works = Works(seconds=0.1)

    async def told(call: Callable[[], Awaitable[tuple[str, float]]]) -> tuple[str, float]:
        try:
            return await call()
        except ValueError as error:
            return f"{error} failed", 0.0

    names = ("first", "a", "bad", "c")
    found = at(works, *(told(lambda name=name: works.later(0, name)) for name in names))  # type: ignore[misc]
    assert [answer for answer, _ in found] == ["FIRST", "A", "bad failed", "C"]
    works = Works(seconds=0.1)
    found = at(works, told(lambda: works.later(0, "all bad")), told(lambda: works.later(0.01, "d")))
    assert [answer for answer, _ in found] == ["all failed", "D"]


def test_who_is_not_answered_yet_comes_first_in_the_next_group() -> None:
    works = Works(seconds=0.1, most=2)
    found = at(works, *(works.later(0, str(number)) for number in range(6)))
    assert [answer for answer, _ in found] == ["0", "1", "2", "3", "4", "5"]
    assert works.groups == [["0"], ["1", "2"], ["3", "4"], ["5"]]


def test_more_than_a_group_is_never_waited_for() -> None:
    works = Works(seconds=10.0)
    at(works, *(works.later(0, str(number)) for number in range(MOST + 1)))
    assert [len(group) for group in works.groups] == [1, MOST]


def test_who_went_away_stops_nobody() -> None:
    works = Works(seconds=0.1)

    async def leave() -> str:
        await works.batcher.submit("first")
        gone = asyncio.create_task(works.batcher.submit("gone"))
        stays = asyncio.create_task(works.batcher.submit("stays"))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await stays

    assert run_virtual(leave()) == "STAYS"
