"""All faults of a fleet: those that begin by themselves, those injected, and what each is doing.

Spontaneous faults are independent Poisson streams per kind, GPUs weighted by their rates.
"""

from __future__ import annotations

import difflib
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, SECOND
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import ActionKind
from tocsin.sim.faults import fault_kinds
from tocsin.sim.faults.base import FaultKind, FaultRun, Stage
from tocsin.sim.inventory import Floats, Inventory, Stream, generator
from tocsin.sim.spec import Fault, FaultScales, FleetSpec, HardFault
from tocsin.sim.thermal import ClockThrottle
from tocsin.sim.world import SimWorld, StepWindow

YEAR_MS = 365.25 * DAY


@dataclass(frozen=True, slots=True)
class Draw:
    """One fault that begins now."""

    kind: str
    gpu: int
    abrupt: bool
    benign: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """One precursor of `lead` milliseconds that began `age` milliseconds ago."""

    draw: Draw
    lead: float
    age: float


def shares(kind: FaultKind) -> tuple[float, float, float]:
    """Of one fault that strikes: how many strike abruptly, how many after a precursor, and benign ones beside them."""
    warned = 1.0 - kind.abrupt_share
    return kind.abrupt_share, warned, warned * kind.benign_share / (1.0 - kind.benign_share)


class FaultScheduler:
    """Draws the faults of a span of time; equal seed, step and span give equal faults."""

    def __init__(self, inventory: Inventory, kinds: Mapping[str, FaultKind], seed: int, scales: FaultScales) -> None:
        self._kinds = kinds
        self._seed = seed
        self._scales = scales
        self._rates: dict[str, Floats] = {name: kind.rates(inventory) for name, kind in kinds.items()}

    def draw(self, step: int, interval_ms: int) -> list[Draw]:
        """The faults that begin in step `step` of `interval_ms`."""
        rng = generator(self._seed, Stream.SCHEDULE, step)
        return [one for name in self._kinds for one in self._some(rng, name, interval_ms, self._shares(name))]

    def under_way(self) -> list[Begun]:
        """The precursors that are in progress before the first step: those that began up to their length ago, so that
        long ones are more frequent than among those that begin."""
        rng = generator(self._seed, Stream.SCHEDULE, 0)
        found: list[Begun] = []
        for name, kind in self._kinds.items():
            least, most = kind.lead
            _, warned, benign = self._shares(name)
            for draw in self._some(rng, name, (least + most) / 2, (0.0, warned, benign)):
                lead = math.sqrt(rng.uniform(least**2, most**2))
                found.append(Begun(draw, lead, float(rng.uniform(0.0, lead))))
        return found

    def _shares(self, name: str) -> tuple[float, float, float]:
        """`shares` of a kind, by the scales."""
        kind = self._kinds[name]
        strikes = self._scales.hard if kind.hard else self._scales.software
        abrupt, warned, benign = shares(kind)
        return abrupt * strikes, warned * strikes, benign * self._scales.benign

    def _some(
        self, rng: np.random.Generator, name: str, span_ms: float, parts: tuple[float, float, float]
    ) -> Iterator[Draw]:
        """What begins of a kind within `span_ms`, split over `parts`: abrupt ones, others that strike, benign ones."""
        rates, (abrupt, warned, _) = self._rates[name], parts
        expected = float(rates.sum()) * sum(parts) * span_ms / YEAR_MS
        if not (count := int(rng.poisson(expected)) if expected > 0 else 0):
            return
        gpus = rng.choice(len(rates), size=count, p=rates / rates.sum())
        turns = rng.uniform(0.0, sum(parts), size=count)
        for gpu, turn in zip(gpus.tolist(), turns.tolist(), strict=True):
            yield Draw(name, gpu, turn < abrupt, turn >= abrupt + warned)


def kind_named(name: str) -> FaultKind:
    """The fault kind `name`; InputError with the nearest name where there is none."""
    kinds = fault_kinds()
    if (found := kinds.get(name)) is None:
        close = difflib.get_close_matches(name, kinds, n=1, cutoff=0.0)[0]
        raise InputError("kind", name, "no such fault kind", f"nearest is {close}; known: {', '.join(kinds)}")
    return found


class FaultLine:
    """The faults of one fleet in the order in which they began."""

    def __init__(self, spec: FleetSpec, world: SimWorld) -> None:
        self._spec = spec
        self._world = world
        self._kinds = fault_kinds(spec.scenario)
        self._scheduler = FaultScheduler(world.inventory, self._kinds, spec.seed, spec.scales)
        self._runs: list[FaultRun] = []
        self._active: list[FaultRun] = []
        if spec.under_way:
            self._resume()

    def faults(self) -> list[Fault]:
        return [run.truth(self._world.inventory.gpus[run.gpu].uuid) for run in self._runs]

    def hard_faults(self) -> list[HardFault]:
        found = []
        for run in self._runs:
            kind = self._kinds[run.kind]
            strikes = not run.benign and (run.onset_ms is not None or run.stage is not Stage.OVER)
            onset_ms = run.shown_ms if kind.heats else run.onset_at_ms if strikes else None
            if kind.hard and onset_ms is not None:
                found.append(self._hard_fault(kind, run, onset_ms))
        return found

    def _hard_fault(self, kind: FaultKind, run: FaultRun, onset_ms: int) -> HardFault:
        inventory = self._world.inventory
        hit = [inventory.gpus[number] for number in kind.touches(run, self._world).tolist()]
        places = {gpu.uuid for gpu in hit} | {gpu.host for gpu in hit}
        for rack in {gpu.rack for gpu in hit}:
            if sum(gpu.rack == rack for gpu in hit) == sum(gpu.rack == rack for gpu in inventory.gpus):
                places.add(rack)
        uuid = inventory.gpus[run.gpu].uuid
        own = frozenset({gpu.uuid for gpu in hit} if kind.heats else {uuid})
        return HardFault(
            run.kind, uuid, frozenset(places), own, run.started_ms, onset_ms, run.shown_ms, precursor=not run.abrupt
        )

    def show(self, throttle: ClockThrottle, window: StepWindow) -> None:
        """Note what the readings at the end of `window` show of the faults."""
        for run in self._active:
            self._kinds[run.kind].show(run, self._world, throttle, window)

    def inject(self, kind: FaultKind, gpu: int, now_ms: int) -> Fault:
        """Begin a rehearsal: the precursor (or, for a kind without one, the onset) starts right after `now_ms`.

        Raises InputError where the kind cannot befall the GPU, Conflict where it already does.
        """
        who = self._world.inventory.gpus[gpu]
        name = f"{who.host} GPU {who.index}"
        if objection := kind.objection(self._world.inventory, gpu):
            remedy = f"for example GPU {self._suited(kind)}"
            raise InputError("gpu", name, f"{kind.kind} cannot befall it: {objection}", remedy)
        if self._present(kind.kind, gpu) or self._world.state.lost[gpu]:
            raise Conflict(f"{name} already has {kind.kind} or is lost; choose another GPU or wait until it is over")
        lead = kind.rehearsal_lead if kind.precursor else 0.0
        run = self._begin(kind, gpu, now_ms, abrupt=not kind.precursor, benign=False, lead=lead, injected=True)
        return run.truth(who.uuid)

    def _suited(self, kind: FaultKind) -> str:
        inventory = self._world.inventory
        number = next((n for n in range(len(inventory)) if not kind.objection(inventory, n)), None)
        return "none in this fleet: choose another kind or a larger fleet" if number is None else str(number)

    def _present(self, kind: str, gpu: int) -> bool:
        return any(run.kind == kind and run.gpu == gpu for run in self._active)

    def _begin(
        self, kind: FaultKind, gpu: int, now_ms: int, *, abrupt: bool, benign: bool, lead: float, injected: bool
    ) -> FaultRun:
        rng = generator(self._spec.seed, Stream.FAULT, zlib.crc32(kind.kind.encode()), gpu, now_ms)
        started = now_ms + SECOND
        onset = started + int(lead)
        repair = kind.rehearsal_repair if injected else float(rng.uniform(*kind.repair))
        run = FaultRun(kind.kind, gpu, started, onset, onset + int(repair), abrupt, benign, injected, rng)
        run.loudness = kind.loudness(run)
        run.peak = kind.peak(run)
        self._runs.append(run)
        self._active.append(run)
        return run

    def _resume(self) -> None:
        """Begin in the midst of what is under way."""
        for one in self._scheduler.under_way():
            draw, at_ms = one.draw, self._spec.start_ms - round(one.age)
            if not self._present(draw.kind, draw.gpu):
                kind = self._kinds[draw.kind]
                self._begin(kind, draw.gpu, at_ms, abrupt=False, benign=draw.benign, lead=one.lead, injected=False)

    def _take(self, draw: Draw, window: StepWindow) -> None:
        kind = self._kinds[draw.kind]
        state = self._world.state
        if self._present(draw.kind, draw.gpu) or state.lost[draw.gpu] or state.frozen[draw.gpu]:
            return
        rng = generator(self._spec.seed, Stream.FAULT, zlib.crc32(draw.kind.encode()), draw.gpu, window.end_ms)
        lead = 0.0 if draw.abrupt else float(rng.uniform(*kind.lead))
        self._begin(kind, draw.gpu, window.start_ms, abrupt=draw.abrupt, benign=draw.benign, lead=lead, injected=False)

    def advance(self, step: int, window: StepWindow) -> None:
        """Begin what begins in `window` and bring every fault to its end."""
        for draw in self._scheduler.draw(step, window.end_ms - window.start_ms):
            self._take(draw, window)
        for run in self._active:
            self._kinds[run.kind].advance(run, self._world, window)
        self._active = [run for run in self._active if run.stage is not Stage.OVER]

    def cure(self, action: ActionKind, gpus: Iterable[int], now_ms: int) -> int:
        """End every fault on `gpus` that `action` ends; how many those were."""
        wanted = set(gpus)
        cured = 0
        for run in self._active:
            kind = self._kinds[run.kind]
            if run.gpu in wanted and kind.cures(run, action):
                kind.finish(run, self._world, now_ms)
                cured += 1
        self._active = [run for run in self._active if run.stage is not Stage.OVER]
        return cured
