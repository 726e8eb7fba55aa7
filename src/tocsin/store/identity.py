"""Which attributes of a GPU hold when several readings tell of them."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.domain.identity import Gpu


def is_bare(gpu: Gpu) -> bool:
    """Whether nothing but UUID, parent and host is known, as of a reading that came without its attributes."""
    return not gpu.model and gpu.index is None


@dataclass(slots=True)
class Known:
    """A GPU as it is known now; `told_ms` is the instant of the reading that told, None while it is bare."""

    gpu: Gpu
    told_ms: int | None = None

    def learn(self, gpu: Gpu, at_ms: int) -> bool:
        """Take over the attributes of a reading at `at_ms`; a bare or older reading has nothing to tell."""
        if is_bare(gpu):
            return False
        if self.told_ms is not None and at_ms < self.told_ms:
            return False
        self.gpu, self.told_ms = gpu, at_ms
        return True
