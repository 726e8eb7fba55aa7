"""Kind ``frozen``: the agent has taken values out because they repeat while they cannot."""

from __future__ import annotations

from typing import Literal

from tocsin.rules.conditions.base import Condition, Probe, World
from tocsin.rules.table import Bools


class Frozen(Condition):
    """Holds where the newest reading has values marked as frozen."""

    kind: Literal["frozen"]

    def bind(self, world: World) -> Probe:
        return FrozenProbe(world)

    def meaning(self) -> str:
        return "values of the newest reading are marked as frozen"


class FrozenProbe(Probe):
    """Looks at the reasons of the newest reading, as the frame keeps them."""

    heeds_events = False

    def __init__(self, world: World) -> None:
        self._frame = world.frame

    def true(self) -> Bools:
        return self._frame.frozen.v & ~self._frame.stale.v

    def known(self) -> Bools:
        return (self._frame.gpus.at.v > 0) & ~self._frame.stale.v
