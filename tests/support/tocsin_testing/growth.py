"""How the work of something grows with its size: by the CPU time of the thread, never by a wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMES = 4
MOST = 10.0
"""Work that is linear grows by `TIMES`, work that is quadratic by 16: this lies between, far from both."""
_LEAST_SECONDS = 0.002
"""What is quicker than that is not told from nothing."""


def growth(make: Callable[[int], T], work: Callable[[T], object], size: int) -> float:
    """How many times the work at `TIMES` the size is that at `size`; what `make` does is not counted."""

    def spent(whole: int) -> float:
        seconds = []
        for _ in range(3):
            made = make(whole)
            begun = time.thread_time()
            work(made)
            seconds.append(time.thread_time() - begun)
        return max(min(seconds), _LEAST_SECONDS)

    small = spent(size)
    return spent(TIMES * size) / small
