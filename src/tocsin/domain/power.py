"""What a GPU says of its limits and its heat, as the thermal controller and the writers of limits need it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.errors import TocsinError

MARGIN_BELOW_SLOWDOWN_C = 2.0
"""Degrees between the maximum operating temperature, where the driver's margin is zero, and hardware slowdown: H100
slows down at a margin of -2 (its T.Limit offset). With it a GPU without a margin is judged alike."""


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """Milliwatts: the limit that was set, the one in force, the default, and the range that may be set."""

    current_mw: int
    enforced_mw: int
    default_mw: int
    min_mw: int
    max_mw: int


@dataclass(frozen=True, slots=True)
class ClockRange:
    """MHz: the lowest and highest SM clocks that can be locked, and the clock now.

    `held` says that something already holds the clocks: a lock of somebody else's cannot be read, only undone.
    """

    low_mhz: int
    high_mhz: int
    now_mhz: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class Heat:
    """One look at a GPU; None where it does not say. Degrees Celsius, watts.

    `margin_c` is the driver's own distance to the nearest slowdown, `slowdown_c` the temperature of hardware slowdown.
    """

    temperature_c: float
    power_w: float | None = None
    margin_c: float | None = None
    slowdown_c: float | None = None

    @property
    def margin(self) -> float | None:
        """Degrees left: the driver's margin, or the same from the slowdown temperature; the smaller where both are."""
        derived = None
        if self.slowdown_c is not None:
            derived = self.slowdown_c - MARGIN_BELOW_SLOWDOWN_C - self.temperature_c
        known = [value for value in (self.margin_c, derived) if value is not None]
        return min(known, default=None)


class Obstacle(StrEnum):
    """Why a limit could not be read or written."""

    PERMISSION = "permission"
    UNSUPPORTED = "unsupported"
    UNKNOWN_GPU = "unknown_gpu"
    LOST = "lost"
    HUNG = "hung"
    """A call into the driver has not come back."""
    DRIVER = "driver"
    """The driver is gone or was reloaded; it may come back."""
    REFUSED = "refused"
    """The driver said no, or said yes and did something else."""
    OVERRULED = "overruled"
    """Somebody else has changed the limit meanwhile: theirs stays."""

    @property
    def passes(self) -> bool:
        """Whether the same may work later."""
        return self in (Obstacle.LOST, Obstacle.HUNG, Obstacle.DRIVER, Obstacle.UNKNOWN_GPU)


class LimitFailure(TocsinError):
    """A limit could not be read or written; the message says what was asked and what to do."""

    def __init__(self, obstacle: Obstacle, text: str) -> None:
        self.obstacle = obstacle
        super().__init__(text)
