"""What runs beside a source and adds to what it read (laws in ``tests/laws/test_companion_laws.py``)."""

from __future__ import annotations

from typing import Protocol

from tocsin.domain.batch import Batch


class Companion(Protocol):
    """Adds events, values or owners to the batch of a source: the kernel log, the hook of a training process, owners.

    A companion never takes anything away but what it knows better (an event that it saw at its true instant), never
    raises for what it meets outside, and never waits: what takes time it does in a thread of its own.
    """

    name: str

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch`, read at `now_ms`, with what this companion knows of it; the same object where that is nothing."""
        ...

    def close(self) -> None:
        """Let go of files, sockets and threads; safe to repeat."""
        ...
