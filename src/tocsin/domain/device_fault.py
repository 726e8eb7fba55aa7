"""What an event of kind ``device_fault`` says: a fault of a card whose vendor has no XIDs, by its meaning."""

from __future__ import annotations

from enum import IntEnum

OVER = 100
"""Added to the number of a fault: it is over."""


class DeviceFault(IntEnum):
    """The meaning; the number is the event's `code`, and `OVER` more where the fault is over."""

    MEMORY_UNCORRECTED = 1
    """An uncorrectable error of the card's memory."""
    MEMORY_WORN_OUT = 2
    """The card's memory has more bad pages than its driver accepts, or nearly so many."""
    LINK = 3
    """A link to other cards failed."""
    LOST = 4
    """The card is lost to its host."""
    TOO_HOT = 5
    """The card is too hot."""
    BLOCK_UNCORRECTED = 6
    """An uncorrectable error of a part other than the memory."""
    RESET = 7
    """The card was reset: what ran on it is lost."""
    RESET_FAILED = 8
    """A reset failed, or none will come: the card cannot be used."""
    HANG = 9
    """A job hung on the card."""
    BUS = 10
    """The bus to the card failed, and recovery from that."""
    ISOLATE = 11
    """The vendor asks to reset the card or to take it out of use, and does not say what is wrong."""
    WATCH = 12
    """The vendor reports it and asks for nothing."""
    UNKNOWN = 99
    """A code or text that no table has."""

    @property
    def over(self) -> int:
        """The code of the event that takes it back."""
        return self + OVER


BROKEN = frozenset(
    {
        DeviceFault.MEMORY_UNCORRECTED,
        DeviceFault.LOST,
        DeviceFault.BLOCK_UNCORRECTED,
        DeviceFault.RESET_FAILED,
        DeviceFault.ISOLATE,
    }
)
"""Faults that say that hardware failed, as a critical XID does."""
