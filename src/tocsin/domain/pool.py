"""State of a pool as its scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolState:
    """`pending_gpus` is the number of GPUs for which work waits, None where no scheduler tells.

    `elastic` allows the pool to be scaled on load alone. `gpus` is how many it has now, None where no scheduler tells.
    """

    name: str
    pending_gpus: float | None = None
    elastic: bool = False
    gpus: float | None = None
