"""What every fault kind is, and how a fault goes through its life.

A fault begins with a precursor (unless it is abrupt), strikes, lasts until it is repaired, and ends. A benign fault is
a precursor that fades away again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np

from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.finding import ActionKind
from tocsin.sim.inventory import Floats, GpuModel, Ints, Inventory
from tocsin.sim.scenario import PrecursorCourse, Scenario, Span
from tocsin.sim.spec import Fault
from tocsin.sim.thermal import ClockThrottle
from tocsin.sim.world import SimWorld, StepWindow


class FaultClass(StrEnum):
    """Whose fault it is."""

    HARDWARE = "hardware"
    FACILITY = "facility"
    SOFTWARE = "software"


RESETS = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE})
LEAVES = RESETS | {ActionKind.MIGRATE, ActionKind.DRAIN}
"""Actions after which no process of before is left on the GPU."""


class Stage(StrEnum):
    """Where a fault stands."""

    PRECURSOR = "precursor"
    STRUCK = "struck"
    OVER = "over"


@dataclass
class FaultRun:
    """One fault in progress. `rng` belongs to it alone, so that it shifts no other random number."""

    kind: str
    gpu: int
    started_ms: int
    onset_at_ms: int
    repaired_at_ms: int
    abrupt: bool
    benign: bool
    injected: bool
    rng: np.random.Generator
    stage: Stage = Stage.PRECURSOR
    onset_ms: int | None = None
    ended_ms: int | None = None
    done: set[str] = field(default_factory=set)
    base: dict[str, float] = field(default_factory=dict)
    loudness: float = 1.0
    """Factor on what its precursor raises."""
    peak: float = 0.5
    """Strength that a benign precursor reaches."""
    shown_ms: int | None = None
    """First instant at which an event line or a reading shows that it struck; of heat, that hardware slows a GPU."""

    def strength(self, at_ms: int) -> float:
        """How far the precursor has come, 0 to 1. A benign one rises as any other to its peak and fades from there."""
        grown = self.grown(at_ms)
        if not self.benign:
            return grown
        return min(grown, self.peak * (1.0 - grown) / (1.0 - self.peak))

    def grown(self, at_ms: int) -> float:
        """Share of the precursor's time that has passed, 0 to 1."""
        lead = max(1, self.onset_at_ms - self.started_ms)
        return min(1.0, max(0.0, (at_ms - self.started_ms) / lead))

    def once(self, mark: str) -> bool:
        """True the first time that it is asked for `mark`."""
        if mark in self.done:
            return False
        self.done.add(mark)
        return True

    def truth(self, uuid: str) -> Fault:
        return Fault(
            self.kind, uuid, self.started_ms, self.onset_ms, self.ended_ms, self.abrupt, self.benign, self.injected
        )


class FaultKind:
    """One kind, with its numbers from the scenario. Rates are per GPU and year of faults that strike.

    `lead` is the length of a spontaneous precursor, `rehearsal_lead` that of an injected one; `repair` is how long
    the fault lasts after it struck when nobody acts. `abrupt_share` of the faults strike without a precursor;
    `benign_share` of the precursors lead to nothing. `cured_by` are the actions that end a fault that struck; one of
    software ends with its process, struck or not. A `hard` one stops work until somebody sees to the machine: it is
    worth waking a person for. The onset of an `announced` one gives an event line; one that `heats` is hard once
    hardware slows a GPU down, not before: while the driver holds the clocks back, it can wait. `rises`, `marks` and
    `named` are the keys that the kind's tables of the scenario must have.
    """

    kind: ClassVar[str]
    help: ClassVar[str]
    fault_class: ClassVar[FaultClass] = FaultClass.HARDWARE
    hard: ClassVar[bool] = True
    announced: ClassVar[bool] = True
    heats: ClassVar[bool] = False
    cured_by: ClassVar[frozenset[ActionKind]] = frozenset()
    rises: ClassVar[frozenset[str]] = frozenset()
    marks: ClassVar[frozenset[str]] = frozenset()
    named: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, scenario: Scenario) -> None:
        found = scenario.fault[self.kind]
        self.per_gpu_year = scenario.per_gpu_year(self.kind)
        self.abrupt_share, self.benign_share = found.abrupt_share, found.benign_share
        self.benign_holds_share, self._benign_peak = found.benign_holds_share, found.benign_peak
        self.numbers: Mapping[str, float] = found.numbers
        self.repair: Span = (found.repair_hours[0] * HOUR, found.repair_hours[1] * HOUR)
        self.rehearsal_repair = found.rehearsal_repair_hours * HOUR
        self._precursor, self._rehearsal = found.precursor, found.rehearsal
        self.lead: Span = found.precursor.lead if found.precursor else (0.0, 0.0)
        self.rehearsal_lead = found.rehearsal.lead[0] if found.rehearsal else 0.0

    @property
    def precursor(self) -> bool:
        """Whether any fault of this kind announces itself."""
        return self.abrupt_share < 1.0

    def course(self, run: FaultRun) -> PrecursorCourse:
        """The numbers of the precursor of `run`, which has one."""
        course = self._rehearsal if run.injected else self._precursor
        assert course is not None
        return course

    def loudness(self, run: FaultRun) -> float:
        """What `run` multiplies its rises by: drawn once."""
        spread = 0.0 if run.abrupt else self.course(run).spread
        return float(np.exp(spread * run.rng.standard_normal())) if spread > 0 else 1.0

    def peak(self, run: FaultRun) -> float:
        """How strong the benign `run` gets before it fades or stops: drawn once, even between the scenario's ends."""
        least, most = self._benign_peak
        return float(run.rng.uniform(least, most)) if run.benign and most > least else least

    def more(
        self, run: FaultRun, world: SimWorld, rise: str, counter: str, strength: float, window: StepWindow
    ) -> float:
        """How many errors more than usual the precursor makes over `window`: Poisson numbers.

        `rise` names the table of the scenario, `counter` the normal counter that its `growth` multiplies.
        """
        numbers = self.course(run).rises[rise]
        per_hour = numbers.per_hour + numbers.growth * float(world.normal.per_day[counter][run.gpu]) / 24.0
        hours = window.after(run.started_ms) * SECOND / HOUR
        return float(run.rng.poisson(run.loudness * per_hour * strength**numbers.shape * hours))

    def objection(self, inventory: Inventory, gpu: int) -> str:
        """Why this kind cannot befall the GPU; empty where it can."""
        return ""

    def model_factor(self, model: GpuModel) -> float:
        """Rate of this model as a multiple of `per_gpu_year`."""
        return 1.0

    def rates(self, inventory: Inventory) -> Floats:
        """Faults that strike per year, for each GPU."""
        fits = np.array([not self.objection(inventory, gpu) for gpu in range(len(inventory))], dtype=np.float64)
        factors = np.array([self.model_factor(model) for model in inventory.model_of])
        return np.asarray(fits * factors * self.per_gpu_year)

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        """Show the precursor at `strength` over `window`."""

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        """What happens at the onset, once."""

    def hold(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        """What goes on while the fault lasts; called in every step after the onset, the onset's own among them."""

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        """What the repair, or the end of a benign precursor, puts right."""

    def advance(self, run: FaultRun, world: SimWorld, window: StepWindow) -> None:
        if run.stage is Stage.PRECURSOR:
            if not run.abrupt:
                self.warn(run, world, run.strength(window.end_ms), window)
            if window.end_ms >= run.onset_at_ms:
                self._turn(run, world)
        if run.stage is Stage.STRUCK:
            if window.end_ms >= run.repaired_at_ms:
                self.finish(run, world, run.repaired_at_ms)
            else:
                self.hold(run, world, window)

    def _turn(self, run: FaultRun, world: SimWorld) -> None:
        if run.benign:
            self.finish(run, world, run.onset_at_ms)
            return
        # What the fault kills must not be held running on behalf of its precursor.
        world.state.effects.pinned[run.gpu] = False
        run.stage = Stage.STRUCK
        run.onset_ms = run.onset_at_ms
        self.strike(run, world, run.onset_at_ms)

    def touches(self, run: FaultRun, world: SimWorld) -> Ints:
        """Numbers of the GPUs that show it."""
        return np.array([run.gpu])

    def show(self, run: FaultRun, world: SimWorld, throttle: ClockThrottle, window: StepWindow) -> None:
        """Note on `run` what the readings at the end of `window` show of it."""
        if self.heats:
            hit = self.touches(run, world)
            if run.shown_ms is None and throttle.hw_thermal[hit].any():
                run.shown_ms = window.end_ms
        elif run.stage is Stage.STRUCK and run.shown_ms is None:
            run.shown_ms = run.onset_ms if self.announced else window.end_ms

    def cures(self, run: FaultRun, action: ActionKind) -> bool:
        """Whether `action` on its GPU ends the fault as it stands now."""
        return action in self.cured_by and (run.stage is Stage.STRUCK or self.fault_class is FaultClass.SOFTWARE)

    def finish(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.stage is Stage.OVER:
            return
        self.clear(run, world, at_ms)
        run.stage = Stage.OVER
        run.ended_ms = at_ms
