"""How long readings are kept, at which resolution; and one round of looking after a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tocsin.config.settings import StoreSettings
from tocsin.domain.clock import DAY, MINUTE
from tocsin.store.port import Store

STEPS = (0, MINUTE, 10 * MINUTE)
"""Widths of the windows that history is kept in, in ms; 0 is readings as they were taken."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages, in ms, up to which readings are kept as taken, by the minute, and by ten minutes."""

    raw_ms: int
    minute_ms: int
    ten_minute_ms: int

    @classmethod
    def of(cls, settings: StoreSettings) -> Retention:
        return cls(int(settings.raw_days * DAY), int(settings.minute_days * DAY), int(settings.ten_minute_days * DAY))

    def step_of(self, age_ms: int) -> int:
        """Width in ms of the windows that readings of this age are kept in; 0 for readings as they were taken."""
        if age_ms < self.raw_ms:
            return STEPS[0]
        return STEPS[1] if age_ms < self.minute_ms else STEPS[2]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a round did, in rows: `removed` are those beyond all retention, with events, findings and predictions.

    `damaged` is how many files of history cannot be read, `damaged_rows` how many rows were found damaged and set aside
    elsewhere, both since the store was made.
    """

    compacted: int = 0
    joined: int = 0
    rolled: int = 0
    removed: int = 0
    damaged: int = 0
    damaged_rows: int = 0


@runtime_checkable
class Maintained(Protocol):
    """A store that looks after its own files."""

    def maintain(self, now_ms: int, retention: Retention) -> Upkeep:
        """One round of upkeep. Raises Conflict while another process does it, and StoreUnavailable."""


class FileStore(Store, Maintained, Protocol):
    """A store in files of its own, which the process looks after."""


@runtime_checkable
class Interruptible(Protocol):
    """A store whose upkeep can be ended early."""

    def interrupt(self) -> None:
        """End the round of upkeep that is under way soon; what it had not finished is as it was."""


@runtime_checkable
class Strict(Protocol):
    """A store that leaves out what others have put among its own on a server; `unusable` counts it."""

    unusable: int


def interrupt(store: Store) -> None:
    """End the round of upkeep that is under way, where the store has such."""
    if isinstance(store, Interruptible):
        store.interrupt()


def look_after(store: Store, settings: StoreSettings, now_ms: int) -> Upkeep:
    """One round of upkeep of `store`; of one that has no files, removal of what is older than `raw_days`."""
    if isinstance(store, Maintained):
        return store.maintain(now_ms, Retention.of(settings))
    removed = store.prune(now_ms - int(settings.raw_days * DAY))
    return Upkeep(removed=removed, damaged_rows=store.unusable if isinstance(store, Strict) else 0)
