"""What a simulated fleet is made from, and the truth about its faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError
from tocsin.sim.scenario import Scenario, default_scenario

MAX_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class FaultScales:
    """Multipliers on the rates of spontaneous faults: of those that strike, hard ones and those of software, and of
    benign precursors of any kind."""

    hard: float
    software: float
    benign: float


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet of `gpus` GPUs whose first reading is one interval after `start_ms`.

    `fault_rate_scale` multiplies the rates of spontaneous faults; 0 leaves only what is injected. `scenario` decides
    how hard the fleet is to predict. `software_rate_scale` and `benign_rate_scale` multiply those of software and of
    benign precursors in its place, None: as the rest. One that is `under_way` begins with as many precursors in
    progress as there are at any other time; else with none, so that faults after a precursor of days are missing at
    first. Raises InputError for a value outside its range.
    """

    gpus: int = 64
    seed: int = 7
    start_ms: int = 0
    interval_ms: int = MINUTE
    fault_rate_scale: float = 1.0
    scenario: Scenario = field(default_factory=default_scenario, repr=False)
    software_rate_scale: float | None = None
    benign_rate_scale: float | None = None
    under_way: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MAX_GPUS:
            raise InputError("gpus", self.gpus, f"a fleet has 1 to {MAX_GPUS} GPUs", "give a number in that range")
        if self.interval_ms < 1:
            raise InputError("interval_ms", self.interval_ms, "time must move forward", "give at least 1 ms")
        for name in ("fault_rate_scale", "software_rate_scale", "benign_rate_scale"):
            scale = getattr(self, name)
            if scale is not None and not (math.isfinite(scale) and scale >= 0):
                raise InputError(name, scale, "not a finite number from 0 up", "give 0, 1 or a factor")

    @property
    def scales(self) -> FaultScales:
        """What multiplies the rates of each group of faults."""
        every = self.fault_rate_scale
        software, benign = self.software_rate_scale, self.benign_rate_scale
        return FaultScales(every, every if software is None else software, every if benign is None else benign)


@dataclass(frozen=True, slots=True)
class HardFault:
    """Ground truth of a fault that a person must see to: of hardware or power, a hang, or heat at which hardware slows.

    `places` are the UUIDs of the GPUs that show it, their hosts, and their racks where all of a rack do. `own` are
    those of the GPUs that have it: `gpu`, and where it is heat all that share it. `first_ms` is its first symptom,
    `onset_ms` when it strikes or, of heat, hardware first slows a GPU, maybe after the last step. `shown_ms` is the
    first event line or reading that shows it; None while there is none.
    """

    kind: str
    gpu: str
    places: frozenset[str]
    own: frozenset[str]
    first_ms: int
    onset_ms: int
    shown_ms: int | None
    precursor: bool


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
