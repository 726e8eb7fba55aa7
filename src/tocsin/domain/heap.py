"""The heap of the C library: how many of them the threads of a process have, and giving back what is free in them.

A reading is taken by one of many threads and let go by another when the next has come. Where each thread has an arena
of its own, as glibc gives it, every arena grows to what it ever held. `make scale` shows what a brain holds.
"""

from __future__ import annotations

import ctypes

ARENAS = 2
"""Heaps that the threads share (own choice): they hardly wait for each other, as one has the interpreter at a time."""
_M_ARENA_MAX = -8
"""As in glibc's malloc.h."""


def share_heaps() -> None:
    """From now on threads that are new share `ARENAS` heaps."""
    _of_libc("mallopt", _M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return what is free to the system; meanwhile no thread waits that needs no memory."""
    _of_libc("malloc_trim", 0)


def _of_libc(name: str, *numbers: int) -> None:
    """Call a function of glibc; nothing where the C library is another."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)
