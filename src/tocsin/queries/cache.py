"""Answers that are kept for a while: each is made by one caller at a time, however many ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

TIMES = 20.0
"""An answer is kept this many times as long as it took: making it fills a twentieth of a core at most (own choice)."""
QUICK_S = 0.05
"""What took no longer is made anew for each who asks."""


def by_effort(took_s: float) -> float:
    """Seconds that an answer is kept, in proportion to what it took."""
    return TIMES * took_s if took_s > QUICK_S else 0.0


@dataclass(frozen=True, slots=True)
class _Answer(Generic[R]):
    """`until_s` is on the monotonic clock."""

    value: R
    until_s: float


class Cache(Generic[K, R]):
    """Answers by key, the newest `most` of them. Safe to use from several threads.

    While an answer is made anew, those who ask get the one from before; without one they wait for it. `keep_s` says for
    how many seconds an answer is kept, by the seconds that it took.
    """

    def __init__(self, monotonic: Callable[[], float], keep_s: Callable[[float], float], *, most: int = 64) -> None:
        self._monotonic, self._keep_s, self._most = monotonic, keep_s, most
        self._lock = threading.Lock()
        self._answers: dict[K, _Answer[R]] = {}
        self._making: dict[K, threading.Lock] = {}

    def get(self, key: K, make: Callable[[], R]) -> R:
        """The answer to `key`. Raises what `make` raises; what failed is not kept."""
        answer, making = self._look(key)
        if answer is not None and (self._monotonic() < answer.until_s or making.locked()):
            return answer.value
        with making:
            answer, begun_s = self._look(key)[0], self._monotonic()
            if answer is None or begun_s >= answer.until_s:
                value, ended_s = make(), self._monotonic()
                answer = _Answer(value, ended_s + self._keep_s(ended_s - begun_s))
                self._enter(key, answer, ended_s)
            return answer.value

    def get_soon(self, key: K, make: Callable[[], R], wait_s: float, otherwise: R) -> R:
        """The answer to `key`, made in a thread of its own by `make`, which must not raise.

        Where it takes longer than `wait_s`, the answer from before, else `otherwise`.
        """
        answer, making = self._look(key)
        if (answer is None or self._monotonic() >= answer.until_s) and not making.locked():
            thread = threading.Thread(target=self.get, args=(key, make), name=f"cache-{key}", daemon=True)
            thread.start()
            thread.join(wait_s)
            answer, _ = self._look(key)
        return otherwise if answer is None else answer.value

    def _look(self, key: K) -> tuple[_Answer[R] | None, threading.Lock]:
        with self._lock:
            return self._answers.get(key), self._making.setdefault(key, threading.Lock())

    def _enter(self, key: K, answer: _Answer[R], now_s: float) -> None:
        with self._lock:
            self._answers.pop(key, None)
            others = [(name, one) for name, one in self._answers.items() if now_s < one.until_s]
            self._answers = dict([*others, (key, answer)][-self._most :])
            self._making = {name: lock for name, lock in self._making.items() if name in self._answers or lock.locked()}
