"""Why a value is not there. Missing is a reason, never a zero and never a bare NaN."""

from __future__ import annotations

from enum import IntEnum


class Missing(IntEnum):
    """The reason; the integer is what travels in measurement ``gpu_missing``."""

    UNSUPPORTED = 1
    """This GPU, driver or source does not have the metric."""
    DENIED = 2
    """The reader lacks the privilege."""
    LOST = 3
    """The GPU does not answer: fallen off the bus, or the driver lost it."""
    TIMED_OUT = 4
    """The call did not come back before its deadline."""
    BLANK = 5
    """The source answered with a blank sentinel, a NaN, an infinity or a value outside the metric's bounds."""
    FROZEN = 6
    """The source repeats old values; this one is not trusted."""
    NOT_DUE = 7
    """The metric has a slower cadence and was not read at this instant."""
    RESET_REQUIRED = 8
    """The driver answers that the GPU must be reset first."""

    @property
    def label(self) -> str:
        """The reason in lower case, as printed in JSON and in metric labels."""
        return self.name.lower()
