"""The map of the fleet, kept for all sessions: what has not changed is neither sent nor read again."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tocsin.client.client import Client
from tocsin.client.models import FleetMap
from tocsin.client.whole_views import whole_map

_MOST = 32
"""Maps that are kept: one for each cell that somebody looks at."""


class Maps:
    """The newest map of each brain. Every look asks the brain with the asker's own token, so that who may not read the
    fleet gets nothing from here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[str, FleetMap]] = {}
        self._whole: tuple[list[tuple[str, FleetMap]], FleetMap] | None = None

    def look(self, client: Client) -> FleetMap:
        """The map as it is now; the same object as before where nothing has changed. Raises as `client` does."""
        place = client.base_url, client.cell
        with self._lock:
            known = self._known.get(place)
        found, tag = client.fleet_map(known[0] if known else "")
        if found is None:
            # Only a tag that was sent is answered so.
            return known[1] if known else FleetMap()
        with self._lock:
            self._known.pop(place, None)
            self._known[place] = (tag, found)
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return found

    def whole(self, maps: Mapping[str, FleetMap]) -> FleetMap:
        """The maps of several cells as one; the same object as before where none of them has changed."""
        parts = list(maps.items())
        with self._lock:
            kept = self._whole
        if kept is not None and len(kept[0]) == len(parts):
            same = zip(kept[0], parts, strict=True)
            if all(name == other and one is now for (name, one), (other, now) in same):
                return kept[1]
        made = whole_map(maps)
        with self._lock:
            self._whole = parts, made
        return made


MAPS = Maps()
"""Of this process."""
