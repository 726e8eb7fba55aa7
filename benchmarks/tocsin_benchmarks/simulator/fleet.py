"""Examples from a simulated fleet: one walk of the feature builder, labelled with the faults that struck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.progress import work
from tocsin.forecaster.features.examples import NEVER, Examples, Mask
from tocsin.forecaster.features.onsets import Onset
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.walk import Rules, Span, StepData, Walk
from tocsin.offline.train import WARM_UP_MS, sicker
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultClass
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenario import Scenario
from tocsin.sim.spec import Fault, FleetSpec

START_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z, a Wednesday."""
STEP_MS = HOUR
EVERY_MS = 6 * HOUR
"""Between two decisions."""
OF_DAYS_MS = 3 * DAY
"""A precursor of days lasts at least as long as the label window and a day more (own choice)."""
CLASS_OF = {
    "row_remap": "memory",
    "row_remap_failure": "memory",
    "sram_error": "memory",
    "fallen_off_bus": "bus",
    "frozen_telemetry": "bus",
    "nvlink_recovery": "nvlink",
    "gsp_error": "firmware",
    "gsp_timeout": "firmware",
    "thermal_drift": "thermal",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A fleet to simulate: `scale` multiplies the rates of hardware faults alone, so that there are enough to count."""

    gpus: int
    days: float
    seed: int
    scale: float
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a fleet came to. `warned` [n] tells rows whose next fault has a precursor, `of_days` [n] those where it
    lasts days; `faults` is the truth about hardware faults, benign precursors among them."""

    examples: Examples
    warned: Mask
    of_days: Mask
    faults: tuple[Fault, ...]

    def judged(self, horizon_ms: int) -> Examples:
        """The rows of known label on which faults with a precursor of days are told from health: those within the
        horizon of such a fault, and all that have no fault at all ahead. Benign precursors, and instants of a precursor
        before the horizon, count as health."""
        event_ms = np.where(self.of_days, self.examples.event_ms, NEVER)
        return replace(self.examples, event_ms=event_ms).take(self.rows(horizon_ms))

    def rows(self, horizon_ms: int) -> Mask:
        """Which rows `judged` takes."""
        label, known = self.examples.label(horizon_ms)
        return known & (~label | self.of_days)


def plan() -> FeaturePlan:
    """What the builder keeps: a grid of an hour, a day of it as a sequence."""
    return FeaturePlan(step_ms=STEP_MS, steps=24)


def simulate(recipe: Recipe) -> Simulated:
    """Run the fleet and walk along with it."""
    scenario = sicker(recipe.scenario, recipe.scale)
    spec = FleetSpec(recipe.gpus, recipe.seed, START_MS, STEP_MS, 1.0, scenario)
    fleet = SimulatedFleet(spec)
    end_ms = START_MS + int(recipe.days * DAY)
    walk = Walk(plan(), fleet.gpus, Span(START_MS + WARM_UP_MS, end_ms, EVERY_MS))
    for step, part in _parts(fleet, walk.plan, end_ms):
        walk.take(step, part)
    walk.close()
    faults = tuple(fault for fault in fleet.faults if _of_hardware(fault))
    examples = walk.examples([_onset(fault, end_ms) for fault in faults if fault.onset_ms is not None], Rules())
    warned = [fault for fault in faults if fault.onset_ms is not None and not fault.abrupt]
    slow = [fault for fault in warned if lasts_days(fault)]
    return Simulated(examples, _before(examples, warned), _before(examples, slow), faults)


def _parts(fleet: SimulatedFleet, kept: FeaturePlan, end_ms: int) -> Iterator[tuple[int, StepData]]:
    metrics = kept.metrics
    with work("simulation", (end_ms - fleet.now_ms) // STEP_MS) as bar:
        while fleet.now_ms < end_ms:
            columns, events = fleet.step_columns(metrics)
            yield (fleet.now_ms - 1) // kept.step_ms, StepData(columns, events)
            bar.advance()


def _of_hardware(fault: Fault) -> bool:
    return fault_kinds()[fault.kind].fault_class is FaultClass.HARDWARE


def _onset(fault: Fault, end_ms: int) -> Onset:
    assert fault.onset_ms is not None
    return Onset(fault.gpu, fault.onset_ms, CLASS_OF[fault.kind], fault.ended_ms or end_ms)


def lasts_days(fault: Fault) -> bool:
    """Whether it struck after a precursor of days."""
    return fault.onset_ms is not None and not fault.abrupt and fault.onset_ms - fault.started_ms >= OF_DAYS_MS


def _before(examples: Examples, faults: Sequence[Fault]) -> Mask:
    """Rows whose next fault is one of `faults`."""
    number = {uuid: place for place, uuid in enumerate(examples.devices)}
    chosen = {(number[fault.gpu], fault.onset_ms) for fault in faults}
    rows = zip(examples.device.tolist(), examples.event_ms.tolist(), strict=True)
    return np.array([event != NEVER and (device, event) in chosen for device, event in rows], dtype=np.bool_)
