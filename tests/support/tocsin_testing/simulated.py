"""Small simulated fleets, and how to watch one GPU of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Reading
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.inventory import build
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0


def fleet(
    gpus: int = 64, seed: int = 7, interval_ms: int = MINUTE, scale: float = 0.0, start_ms: int = T0
) -> SimulatedFleet:
    """A fleet in which nothing fails unless told."""
    return SimulatedFleet(FleetSpec(gpus, seed, start_ms, interval_ms, scale))


@dataclass
class Watched:
    """One GPU's readings and the fleet's events over some steps."""

    readings: list[Reading] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def xids(self, uuid: str) -> list[int]:
        """XIDs of one GPU in the order of time."""
        return [event.code for event in self.events if event.kind is EventKind.XID and event.gpu == uuid]

    def series(self, name: str) -> list[float]:
        """A metric where it could be read."""
        return [reading.values[name] for reading in self.readings if name in reading.values]

    def variants(self, prefix: str) -> dict[str, list[float]]:
        """All variants of a metric, over the readings that have them."""
        found: dict[str, list[float]] = {}
        for reading in self.readings:
            for name, value in reading.values.items():
                if name.startswith(prefix + "{"):
                    found.setdefault(name, []).append(value)
        return found


def watch(simulated: SimulatedFleet, gpu: int, steps: int, into: Watched | None = None) -> Watched:
    """Step `simulated` and keep what GPU number `gpu` showed."""
    seen = into or Watched()
    for _ in range(steps):
        batch = simulated.step()
        seen.readings.append(batch.readings[gpu])
        seen.events.extend(batch.events)
    return seen


def first_suited(kind: str, gpus: int = 64, model: str = "") -> int:
    """Number of the first GPU (of `model`) that fault `kind` can befall."""
    inventory = build(FleetSpec(gpus, 7, T0))
    fault = fault_kinds()[kind]
    return next(
        number
        for number in range(gpus)
        if not fault.objection(inventory, number) and model in inventory.gpus[number].model
    )
