"""What every source of readings offers, and every companion, which runs beside a source and adds to what it read.

Laws: ``tests/laws/test_source_laws.py`` and ``tests/laws/test_companion_laws.py``.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tocsin.domain.batch import Batch
from tocsin.domain.identity import Gpu


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


class Source(Protocol):
    """Reads GPUs.

    A metric that cannot be read is in `Reading.missing` with its reason; the failure of one GPU never costs another's
    reading. A GPU that no longer answers has a reading whose values are all missing as lost, until it is no longer
    enumerated.
    """

    name: str

    def gpus(self) -> list[Gpu]:
        """The GPUs that it sees now, MIG instances among them."""
        ...

    def read(self, now_ms: int) -> Batch:
        """One reading of each GPU, dated `now_ms` where the source has no time of its own, and new events."""
        ...

    def close(self) -> None:
        """Let go of handles; safe to repeat."""
        ...


@runtime_checkable
class HasReaders(Protocol):
    """A source that reads each GPU on a thread of its own, which may hang in the driver."""

    @property
    def stuck_readers(self) -> int:
        """GPUs whose reader hangs now."""
        ...
