"""What every source of readings offers, and every companion, which runs beside a source and adds to what it read.

Laws: ``tests/laws/test_source_laws.py`` and ``tests/laws/test_companion_laws.py``.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from tocsin.domain.batch import Batch
from tocsin.domain.reading import Gpu


class Companion(Protocol):
    """Adds events, values or owners to the batch of a source: the kernel log, the hook of a training process, owners.

    A companion never takes anything away but what it knows better (an event that it saw at its true instant), never
    raises for what it meets outside, and never waits: what takes time it does in a thread of its own.
    """

    name: str

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch`, read at `now_ms`, with what this companion knows of it; the same object where that is nothing."""

    def close(self) -> None:
        """Let go of files, sockets and threads; safe to repeat."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What the settings say of this node's GPUs; an empty `host` leaves it to what is read, else to the system."""

    host: str = ""
    pool: str = "default"
    rack: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def gpu(self, uuid: str, **known: Any) -> Gpu:
        return Gpu(uuid, self.host, pool=self.pool, rack=self.rack, labels=dict(self.labels), **known)

    def complete(self, gpu: Gpu) -> Gpu:
        """`gpu`, as a source that names its own host gave it, with all that is known of it here."""
        host = self.host or gpu.host or socket.gethostname()
        uuid = host + gpu.uuid if gpu.uuid.startswith("/gpu") else gpu.uuid
        parent = host + gpu.parent if gpu.parent.startswith("/gpu") else gpu.parent
        labels = {**gpu.labels, **self.labels}
        return replace(gpu, uuid=uuid, parent=parent, host=host, pool=self.pool, rack=self.rack, labels=labels)


class Source(Protocol):
    """Reads GPUs.

    A metric that cannot be read is in `Reading.missing` with its reason; the failure of one GPU never costs another's
    reading. A GPU that no longer answers has a reading whose values are all missing as lost, until it is no longer
    enumerated.
    """

    name: str

    def gpus(self) -> list[Gpu]:
        """The GPUs that it sees now, MIG instances among them."""

    def read(self, now_ms: int) -> Batch:
        """One reading of each GPU, dated `now_ms` where the source has no time of its own, and new events."""

    def close(self) -> None:
        """Let go of handles; safe to repeat."""


@runtime_checkable
class Settles(Protocol):
    """A source that may still be opening what it reads when it was made."""

    def settle(self) -> None:
        """Wait for it, within bounds. Raises Unavailable where nothing can be opened."""


@runtime_checkable
class HasReaders(Protocol):
    """A source that reads each GPU on a thread of its own, which may hang in the driver."""

    @property
    def stuck_readers(self) -> int:
        """GPUs whose reader hangs now."""


@runtime_checkable
class Hurries(Protocol):
    """A source that does not ask everything at every reading."""

    def hurry(self) -> None:
        """Ask everything with the next reading."""
