"""Python itself in the brain's process: many threads over a large heap that lasts, where a fault must not wait.

Measured with a fleet of 8,000 GPUs, a full garbage collection stops every thread for 0.2 s, and without this happens
every few seconds; a thread that computes keeps the others waiting 5 ms each time they come back from disk or network.
`make detect` shows both.

A reading is taken by one of many threads and let go by another when the next has come. Where each thread has an arena
of its own, as glibc gives it, every arena grows to what it ever held and none can be given back: with 10,000 GPUs that
was a quarter of the heap.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tocsin.domain.clock import Clock
from tocsin.runtime.brain.periodic import Periodic

THRESHOLDS = (20_000, 20, 1_000_000)
"""New objects until the youngest are looked through, and how often each older generation is; the oldest never by itself
(own choice)."""
FULL_SECONDS = 600.0
"""Between two full collections (own choice): little is left to them, as few of the brain's objects form cycles."""
SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter while others wait (own choice)."""
ARENAS = 2
"""Heaps that the threads share (own choice): they hardly wait for each other, as one has the interpreter at a time."""
_M_ARENA_MAX = -8
"""As in glibc's malloc.h."""


@contextmanager
def steady(clock: Clock) -> Iterator[None]:
    """Run a brain with short pauses: full collections come every `FULL_SECONDS`, not when Python finds it has many
    objects; what is free then goes back to the system. What was set before is set again at the end, but for the number
    of heaps."""
    _of_libc("mallopt", _M_ARENA_MAX, ARENAS)
    thresholds, switch = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    full = Periodic("garbage", _collect, FULL_SECONDS, clock)
    full.start()
    try:
        yield
    finally:
        full.stop()
        sys.setswitchinterval(switch)
        gc.set_threshold(*thresholds)


def _collect() -> None:
    gc.collect()
    _of_libc("malloc_trim", 0)


def _of_libc(name: str, *numbers: int) -> None:
    """Call a function of glibc; nothing where the C library is another."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)
