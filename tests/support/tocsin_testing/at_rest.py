"""Keys of the state for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tocsin.at_rest.keys import RING, StateKey

KEY, OTHER = StateKey(b"k" * 32), StateKey(b"o" * 32)


@contextmanager
def holding(*keys: StateKey) -> Iterator[None]:
    """The process holds `keys`, the first for new files, until the end of the block."""
    RING.hold(lambda: keys)
    try:
        yield
    finally:
        RING.hold(tuple)
