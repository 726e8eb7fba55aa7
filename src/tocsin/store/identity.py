"""Which attributes of a GPU hold when several readings tell of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.domain.reading import Gpu, Reading


def is_bare(gpu: Gpu) -> bool:
    """Whether nothing but UUID, parent and host is known, as of a reading that came without its attributes."""
    return not gpu.model and gpu.index is None


@dataclass(slots=True)
class KnownGpu:
    """A GPU as it is known now; `learned_ms` is the instant of the reading with its attributes, None while bare."""

    gpu: Gpu
    learned_ms: int | None = None

    def learn(self, gpu: Gpu, at_ms: int) -> bool:
        """Take over the attributes of a reading at `at_ms`; a bare or older reading changes nothing."""
        if is_bare(gpu) or (self.learned_ms is not None and at_ms < self.learned_ms):
            return False
        self.gpu, self.learned_ms = gpu, at_ms
        return True


class Announcer:
    """Decides when attributes are written again to a store that keeps them as points of their own.

    A GPU's attributes are due when they are new or differ from what was written last, and again every `period_ms`, so
    that retention never takes them while the GPU lives.
    """

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._written: dict[str, tuple[tuple[object, ...], int]] = {}

    def due(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings whose GPU is to be written with its attributes; one a GPU and set of attributes."""
        found: dict[tuple[str, tuple[object, ...]], Reading] = {}
        for reading in readings:
            if is_bare(reading.gpu):
                continue
            attributes = attributes_of(reading.gpu)
            before = self._written.get(reading.gpu.uuid)
            if before is None or before[0] != attributes or abs(reading.at_ms - before[1]) >= self._period_ms:
                found[reading.gpu.uuid, attributes] = reading
        return list(found.values())

    def written(self, readings: Iterable[Reading]) -> None:
        """Remember that the attributes of `readings` were written."""
        for reading in readings:
            self._written[reading.gpu.uuid] = (attributes_of(reading.gpu), reading.at_ms)


def attributes_of(gpu: Gpu) -> tuple[object, ...]:
    """All of `gpu` as one comparable value; `Gpu` itself compares by UUID."""
    rest = (gpu.model, gpu.serial, gpu.pci_bus_id, gpu.parent, gpu.mig_profile, gpu.pool, gpu.rack, gpu.simulated)
    return (gpu.uuid, gpu.host, gpu.index, *rest, tuple(sorted(gpu.labels.items())))
