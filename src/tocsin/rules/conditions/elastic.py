"""Kind ``elastic``: a pool that its state allows to scale on load alone."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tocsin.rules.conditions.base import Condition, Probe, World
from tocsin.rules.sheet import POOL_SHEET
from tocsin.rules.table import Bools


class Elastic(Condition):
    """Holds for pools whose state says that they are elastic."""

    kind: Literal["elastic"]

    def sheets(self) -> frozenset[str]:
        return frozenset({POOL_SHEET})

    def bind(self, world: World) -> Probe:
        return ElasticProbe(world)

    def meaning(self) -> str:
        return "the pool is elastic"


class ElasticProbe(Probe):
    """Reads the pool's state; a pool of which no state is given is not elastic."""

    heeds_events = False

    def __init__(self, world: World) -> None:
        self._elastic = world.frame.aggregates.elastic

    def true(self) -> Bools:
        return self._elastic.v

    def known(self) -> Bools:
        return np.ones(self._elastic.v.shape, dtype=np.bool_)
