"""Array types and random streams of the simulation."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


class Stream(IntEnum):
    """What a random generator is for; each purpose has its own, so that one never shifts another's numbers."""

    INVENTORY = 1
    LOAD = 2
    NOISE = 3
    BACKGROUND = 4
    SCHEDULE = 5
    FAULT = 6
    MIG = 7
    NORMAL = 8


def generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """The generator of `seed` for one purpose and instant; equal arguments give equal numbers.

    Negative numbers in `seed` and `key` count as their two's complement in 64 bits.
    """
    return np.random.default_rng([number % 2**64 for number in (seed, int(stream), *key)])
