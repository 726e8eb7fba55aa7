"""Companion ``acme_room``: works on the room's power, which the site keeps in a calendar, as an event of each GPU."""

from __future__ import annotations

from dataclasses import replace

from tocsin.domain.batch import Batch
from tocsin.domain.event import Event, EventKind
from tocsin.runtime.agent.companions import Context

WORKS = frozenset({"rack-in-works"})
"""The calendar."""


class Room:
    """Tells of the works once."""

    name = "acme_room"

    def __init__(self, rack: str) -> None:
        self._done = rack not in WORKS

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        if self._done or not batch.readings:
            return batch
        self._done = True
        gpu = batch.readings[0].gpu
        event = Event(EventKind.MAINTENANCE_NOTICE, gpu.uuid, gpu.host, now_ms, message="works", source=self.name)
        return replace(batch, events=(*batch.events, event))

    def close(self) -> None:
        """Nothing is held."""


def open_room(context: Context) -> Room:
    """What the entry point names."""
    return Room(context.settings.agent.rack)
