"""What a simulated fleet is made from, and the truth about its faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError
from tocsin.sim.scenario import Scenario, default_scenario

MAX_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet of `gpus` GPUs whose first reading is one interval after `start_ms`.

    `fault_rate_scale` multiplies the rates of spontaneous faults; 0 leaves only what is injected. `scenario` decides
    how hard the fleet is to predict. Raises InputError
    for a value outside its range.
    """

    gpus: int = 64
    seed: int = 7
    start_ms: int = 0
    interval_ms: int = MINUTE
    fault_rate_scale: float = 1.0
    scenario: Scenario = field(default_factory=default_scenario, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPUS:
            raise InputError("gpus", self.gpus, f"a fleet has 1 to {MAX_GPUS} GPUs", "give a number in that range")
        if self.interval_ms < 1:
            raise InputError("interval_ms", self.interval_ms, "time must move forward", "give at least 1 ms")
        if not (math.isfinite(self.fault_rate_scale) and self.fault_rate_scale >= 0):
            raise InputError(
                "fault_rate_scale", self.fault_rate_scale, "not a finite number from 0 up", "give 0, 1 or a factor"
            )


@dataclass(frozen=True, slots=True)
class Fault:
    """Ground truth of one fault.

    `gpu` is the UUID where it began. `started_ms` is the first instant at which telemetry differs, `onset_ms` when it
    failed (None while that has not happened), `ended_ms` when it was repaired or passed (None while it lasts).
    `abrupt` faults fail without a precursor; `benign` ones are precursors that lead to nothing. `injected` tells a
    rehearsal from what happened by itself.
    """

    kind: str
    gpu: str
    started_ms: int
    onset_ms: int | None
    ended_ms: int | None
    abrupt: bool
    benign: bool
    injected: bool = False
