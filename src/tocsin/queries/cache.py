"""An answer that takes long, kept for a while: made by one caller at a time, however many ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")

TIMES = 20.0
"""An answer is kept this many times as long as it took: making it fills a twentieth of a core at most (own choice)."""
QUICK_S = 0.05
"""What took no longer is made anew for each who asks."""


class Cache(Generic[R]):
    """What `make` answered last. Safe to use from several threads.

    While it is made anew, those who ask get the one of before; without one they wait for it.
    """

    def __init__(self, monotonic: Callable[[], float], make: Callable[[], R]) -> None:
        self._monotonic, self._make = monotonic, make
        self._making = threading.Lock()
        self._last: tuple[R, float] | None = None

    def get(self) -> R:
        """The answer. Raises what `make` raises; what failed is not kept."""
        last = self._last
        if last is not None and (self._monotonic() < last[1] or self._making.locked()):
            return last[0]
        with self._making:
            now_s = self._monotonic()
            if self._last is None or now_s >= self._last[1]:
                made = self._make()
                took_s = self._monotonic() - now_s
                self._last = (made, now_s + took_s + (TIMES * took_s if took_s > QUICK_S else 0.0))
            return self._last[0]
