"""An event loop whose time is its own: where nothing is left to do now it is at once the time of what comes next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout:
            self.loop.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """For what neither uses threads nor the network."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
