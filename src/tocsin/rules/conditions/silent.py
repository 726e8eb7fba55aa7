"""Kind ``silent``: a GPU that has stopped reporting."""

from __future__ import annotations

from typing import Literal

from tocsin.domain.clock import DAY
from tocsin.rules.conditions.base import Condition, Duration, Probe, World
from tocsin.rules.table import Bools, Ints
from tocsin.rules.units import show_duration


class Silent(Condition):
    """Holds where the newest reading is older than `after` and stale; after `memory` the GPU is taken as removed."""

    kind: Literal["silent"]
    after: Duration
    """Least age of the newest reading."""
    memory: Duration = DAY
    """How long the GPU is expected back."""

    def bind(self, world: World) -> Probe:
        return SilentProbe(self, world)

    def meaning(self) -> str:
        return f"no reading for {show_duration(self.after)}"


class SilentProbe(Probe):
    """Compares the age of the newest reading with the present instant."""

    clocked = True
    heeds_events = False

    def __init__(self, condition: Silent, world: World) -> None:
        self._condition = condition
        self._frame = world.frame
        self._table = world.frame.gpus

    def true(self) -> Bools:
        stale = self._frame.stale.v
        if not stale.any():
            return stale
        age = self._frame.now_ms - self._table.at.v
        late: Bools = stale & (age >= self._condition.after) & (age <= self._condition.memory)
        return late & (self._table.at.v > 0)

    def known(self) -> Bools:
        return self._table.at.v > 0

    def since(self) -> Ints | None:
        return self._table.at.v
