"""Warnings of memory that runs full and of fragmentation, judged on simulated fleets at a cadence of a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.forecaster.capacity.filling import HOLES, LAYOUT, OUT_OF_MEMORY
from tocsin.forecaster.capacity.leak import HORIZON_MS, MEMORY_LEAK
from tocsin.forecaster.evaluation.result import Figure, ReportSection, ReportTable
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenario import Scenario
from tocsin.sim.spec import FleetSpec
from tocsin_benchmarks.simulator.fleet import START_MS
from tocsin_benchmarks.simulator.heard import hear

KINDS = ("memory_leak", "allocator_fragmentation", "mig_fragmentation")
LEAST_LEAD = 10
"""Minutes before the event that a warning must come."""
ABOUT = 180
"""Minutes within which the event must follow a warning, or it is false (own choice)."""
CALM = 30
"""Minutes below a limit after which reaching it is a new event (own choice)."""
MERGE = 60
"""Minutes without a warning after which the next is a new one."""
LEAKS_WITHIN = HORIZON_MS // MINUTE
"""Minutes within which a leak that the service speaks of has filled the memory, or the alarm was false."""
LEAST_WARNED, MOST_FALSE = 0.95, 1.0

GPUS, HOURS, SCALE = 256, 48.0, 200.0
NOTES = (
    "Alarms are what the running service says: its watch, its record with the prior that ships, its floor of "
    "precision. It says of memory that it is full soon, and that it leaks: either warns, and each can be false.",
    "An event of memory is an allocation that failed; one of fragmentation is that 30 % is reached, also by what later "
    "fades again. An alarm is false where no event follows within 3 h, of a leak within the 8 h that it speaks of. "
    "GPU-hours of fragmentation are those in which it can be read.",
    "Leaks that stop or shrink by themselves are as many times as frequent as those that do not, and look like them "
    "until then: each that has used up as much of its room as the service waits for is a false alarm.",
    "MIG layouts of the simulated fleet change through a fault alone, in steps: a layout that has begun to shut out "
    "instances is the warning. Real layouts churn, so that its false alarms would be more.",
)

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Told:
    """Of one kind of event: `leads` in minutes, 0 without a warning in time, `false` alarms, and what is behind it."""

    leads: tuple[float, ...]
    false: int
    gpu_hours: float

    @property
    def warned(self) -> float:
        """Share of the events warned of early enough."""
        return float(np.mean([lead >= LEAST_LEAD for lead in self.leads])) if self.leads else float("nan")

    @property
    def false_rate(self) -> float:
        """False alarms per 1,000 GPU-hours."""
        return 1000.0 * self.false / self.gpu_hours if self.gpu_hours else float("nan")


def filling_section(scenario: Scenario, seed: int, quick: bool) -> ReportSection:
    """A fleet of a seed of its own, and what the warnings came to."""
    gpus, hours = (64, 8.0) if quick else (GPUS, HOURS)
    told = watch(scenario, gpus, hours, seed * 1000 + 21, SCALE)
    every = Told(
        tuple(lead for one in told.values() for lead in one.leads),
        sum(one.false for one in told.values()),
        max(one.gpu_hours for one in told.values()),
    )
    bars = {name: name != "MIG fragmentation" for name in told}
    models = {name: figures_of(one, barred) for (name, one), barred in zip(told.items(), bars.values(), strict=True)}
    models["all"] = figures_of(every, True)
    lived = {"gpus": gpus, "hours": hours, "gpu_hours": gpus * hours, "times_as_often": SCALE}
    return ReportSection("Memory and fragmentation, 1 min", models, lived, (_table(told),), (), NOTES)


def figures_of(told: Told, barred: bool) -> dict[str, Figure]:
    """Share warned of in time, false alarms and median lead; with their bars where `barred`."""
    low, high = _wilson(told.warned, len(told.leads))
    figures = {
        "warned_10_min_before": Figure(told.warned, low, high, LEAST_WARNED if barred else None),
        "false_alarms_per_1000_gpu_hours": Figure(told.false_rate, bar=MOST_FALSE if barred else None, least=False),
    }
    if told.leads:
        figures["median_lead_minutes"] = Figure(float(np.median(told.leads)))
    return {name: one for name, one in figures.items() if np.isfinite(one.value)}


def _wilson(share: float, count: int) -> tuple[float | None, float | None]:
    """95 % interval of a share (Wilson 1927)."""
    if not count:
        return None, None
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count**2)))
    return max(0.0, middle - half), min(1.0, middle + half)


def _table(told: Mapping[str, Told]) -> ReportTable:
    rows = [
        (name, len(one.leads), one.warned, min(one.leads, default=None), one.false, one.gpu_hours)
        for name, one in told.items()
    ]
    return ReportTable(
        "Events and warnings", ("kind", "events", "warned in time", "least lead, min", "false", "GPU-hours"), rows
    )


def leaky(scenario: Scenario, scale: float) -> Scenario:
    """`scenario` with leaks and fragmentation `scale` times as often; all else as it was."""
    faults = {
        name: numbers.model_copy(update={"per_gpu_year": scenario.per_gpu_year(name) * scale, "interruptions": None})
        if name in KINDS
        else numbers
        for name, numbers in scenario.fault.items()
    }
    return scenario.model_copy(update={"fault": faults})


def watch(scenario: Scenario, gpus: int, hours: float, seed: int, scale: float) -> dict[str, Told]:
    """Run a fleet for `hours` and listen to the service: what came of leaks, of allocators and of MIG layouts."""
    fleet = SimulatedFleet(FleetSpec(gpus, seed, START_MS, MINUTE, 1.0, leaky(scenario, scale)))
    heard = hear(fleet, int(hours * 60))
    soon, leaking = heard.told[OUT_OF_MEMORY], heard.told[MEMORY_LEAK]
    told = {"memory leak": score_leaks(soon, leaking, _leaks(fleet), soon.size / 60)}
    for name, limit in (("allocator fragmentation", HOLES), ("MIG fragmentation", LAYOUT)):
        seen = heard.values[limit.metric]
        told[name] = score_warnings(heard.told[limit.metric], _crossings(seen, limit.limit), _hours(seen))
    return told


def _hours(values: Floats) -> float:
    return float(np.isfinite(values).sum()) / 60.0


def _leaks(fleet: SimulatedFleet) -> list[tuple[int, int]]:
    """Row and minute of each allocation that failed because of a leak; rows are by UUID."""
    row = {uuid: place for place, uuid in enumerate(sorted(gpu.uuid for gpu in fleet.gpus))}
    struck = [fault for fault in fleet.faults if fault.kind == "memory_leak" and fault.onset_ms is not None]
    return [(row[fault.gpu], _minute(fault.onset_ms or 0)) for fault in struck]


def _minute(at_ms: int) -> int:
    return (at_ms - START_MS) // MINUTE - 1


def _crossings(values: Floats, limit: float) -> list[tuple[int, int]]:
    """Row and minute at which a series first stands at `limit`, half an hour or more after it last did."""
    above = np.nan_to_num(values, nan=0.0) >= limit
    found = []
    for row in np.flatnonzero(above.any(axis=1)).tolist():
        minutes = np.flatnonzero(above[row])
        fresh = np.append(True, np.diff(minutes) > CALM)
        found += [(row, int(minute)) for minute in minutes[fresh]]
    return found


def score_leaks(soon: Bools, leaking: Bools, events: list[tuple[int, int]], gpu_hours: float) -> Told:
    """By both that the service says of memory: that it is full `soon`, and that it is `leaking`. Either warns; each is
    a false alarm of its own, the second where no event follows within the time that it speaks of."""
    either = score_warnings(soon | leaking, events, gpu_hours)
    false = [score_warnings(soon, events, gpu_hours), score_warnings(leaking, events, gpu_hours, LEAKS_WITHIN)]
    return Told(either.leads, sum(one.false for one in false), gpu_hours)


def score_warnings(warned: Bools, events: list[tuple[int, int]], gpu_hours: float, within: int = ABOUT) -> Told:
    """Leads of the earliest warning within `ABOUT` minutes before each event, and the alarms that none followed
    `within` so many. Events of the first hour are left out: there is no past to warn from."""
    events = [(row, minute) for row, minute in events if minute >= HOUR // MINUTE]
    leads = []
    explained = np.zeros(warned.shape, np.bool_)
    for row, minute in events:
        begin = max(0, minute - ABOUT)
        found = np.flatnonzero(warned[row, begin:minute])
        leads.append(float(minute - begin - found[0]) if found.size else 0.0)
        explained[row, max(0, minute - within) : minute + ABOUT] = True
    false = 0
    for row in np.flatnonzero((warned & ~explained).any(axis=1)).tolist():
        minutes = np.flatnonzero(warned[row])
        starts = minutes[np.append(True, np.diff(minutes) > MERGE)]
        # What follows the last warnings of all is not seen any more.
        false += int((~explained[row, starts] & (starts < warned.shape[1] - within)).sum())
    return Told(tuple(leads), false, gpu_hours)
