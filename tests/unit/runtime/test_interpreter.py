"""Python in the brain's process: no full collection by itself, one at its time, and all as before at the end."""

from __future__ import annotations

import gc
import sys
import weakref

from tocsin.domain.clock import MINUTE, ManualClock, SystemClock
from tocsin.runtime.interpreter import FULL_SECONDS, steady
from tocsin_testing.chaos import until


class Ring:
    """Refers to itself, so that it goes with a collection alone."""

    def __init__(self) -> None:
        self.me = self


def test_no_full_collection_comes_by_itself_and_all_is_as_before_at_the_end() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    with steady(SystemClock()):
        full = gc.get_stats()[2]["collections"]
        kept = [[n] for n in range(500_000)]
        assert gc.get_stats()[2]["collections"] <= full + 1  # the one of the start
        assert sys.getswitchinterval() < before[1]
        assert kept
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_cycles_that_grew_old_go_at_the_next_full_collection() -> None:
    clock = ManualClock(0)
    with steady(clock):
        ring = Ring()
        gc.collect(0)
        gc.collect(1)
        gone = weakref.ref(ring)
        del ring
        gc.collect(1)
        assert gone() is not None
        clock.advance(int(FULL_SECONDS * 1000) + MINUTE)
        until(lambda: gone() is None, "the full collection")
