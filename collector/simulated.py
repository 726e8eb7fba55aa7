"""A simulated fleet as a source of readings."""

from __future__ import annotations

from tocsin.config.settings import SimulationSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import Gpu
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenarios import scenario_of
from tocsin.sim.spec import FleetSpec


class SimulatedSource:
    """Reads a `SimulatedFleet`, which keeps to the reader's time.

    `read(now_ms)` moves the fleet to `now_ms` in one step, whatever its length, and dates the readings so. At an
    instant that the fleet has already reached it gives the last readings again and no event.
    """

    name = "simulated"

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.fleet = fleet
        self._last = Batch()

    def gpus(self) -> list[Gpu]:
        return self.fleet.gpus

    def read(self, now_ms: int) -> Batch:
        ahead = now_ms - self.fleet.now_ms
        if ahead < 1 and self._last.readings:
            return Batch(readings=self._last.readings)
        self._last = self.fleet.step(ahead if ahead > 0 else None)
        return self._last

    def pools(self) -> list[PoolState]:
        return self.fleet.pools()

    def close(self) -> None:
        """Nothing is held."""


def from_settings(settings: SimulationSettings, now_ms: int) -> SimulatedSource:
    """The source of `settings` whose first reading is at `now_ms`."""
    interval_ms = max(1, round(settings.interval_seconds * SECOND))
    scenario = scenario_of(settings.scenario)
    spec = FleetSpec(
        settings.gpus, settings.seed, now_ms - interval_ms, interval_ms, settings.fault_rate_scale, scenario
    )
    return SimulatedSource(SimulatedFleet(spec))
