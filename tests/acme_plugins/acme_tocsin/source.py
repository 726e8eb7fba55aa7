"""Source ``acme_bmc``: two accelerators as a management controller shows them."""

from __future__ import annotations

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.telemetry.metrics import OwnMetrics


class BmcSource:
    """Temperature alone; what a controller cannot see is unsupported."""

    name = "acme_bmc"

    def __init__(self, host: str) -> None:
        self._gpus = [Gpu(f"ACME-{slot}", host, index=slot) for slot in range(2)]

    def gpus(self) -> list[Gpu]:
        return list(self._gpus)

    def read(self, now_ms: int) -> Batch:
        values = {"gpu_temperature_celsius": 41.0}
        missing = {"gpu_utilization_ratio": Missing.UNSUPPORTED}
        return Batch(readings=tuple(Reading(gpu, now_ms, values, missing) for gpu in self._gpus))

    def close(self) -> None:
        """Nothing is held."""


def open_bmc(settings: Settings, clock: Clock, own: OwnMetrics) -> BmcSource:
    """What the entry point names."""
    return BmcSource(settings.agent.host or "acme-node")
