"""When spontaneous faults begin: independent Poisson streams per kind, GPUs weighted by their rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.domain.clock import DAY
from tocsin.sim.arrays import Floats, Stream, generator
from tocsin.sim.faults.base import FaultKind
from tocsin.sim.inventory import Inventory

YEAR_MS = 365.25 * DAY


@dataclass(frozen=True, slots=True)
class Draw:
    """One fault that begins now."""

    kind: str
    gpu: int
    abrupt: bool
    benign: bool


def shares(kind: FaultKind) -> tuple[float, float, float]:
    """Of one fault that strikes: how many strike abruptly, how many after a precursor, and benign ones beside them."""
    warned = 1.0 - kind.abrupt_share
    return kind.abrupt_share, warned, warned * kind.benign_share / (1.0 - kind.benign_share)


class FaultScheduler:
    """Draws the faults of a span of time; equal seed, step and span give equal faults."""

    def __init__(self, inventory: Inventory, kinds: Mapping[str, FaultKind], seed: int, scale: float) -> None:
        self._kinds = kinds
        self._seed = seed
        self._scale = scale
        self._rates: dict[str, Floats] = {name: kind.rates(inventory) for name, kind in kinds.items()}

    def draw(self, step: int, interval_ms: int) -> list[Draw]:
        """The faults that begin in step `step` of `interval_ms`."""
        rng = generator(self._seed, Stream.SCHEDULE, step)
        found: list[Draw] = []
        for name, kind in self._kinds.items():
            rates = self._rates[name]
            abrupt, warned, benign = shares(kind)
            expected = float(rates.sum()) * (abrupt + warned + benign) * self._scale * interval_ms / YEAR_MS
            count = int(rng.poisson(expected)) if expected > 0 else 0
            if not count:
                continue
            gpus = rng.choice(len(rates), size=count, p=rates / rates.sum())
            turns = rng.uniform(0.0, abrupt + warned + benign, size=count)
            for gpu, turn in zip(gpus.tolist(), turns.tolist(), strict=True):
                found.append(Draw(name, gpu, turn < abrupt, turn >= abrupt + warned))
        return found
