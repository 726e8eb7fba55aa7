"""The map of the fleet, kept for all sessions: what has not changed is neither sent nor read again."""

from __future__ import annotations

import threading

from tocsin.client.client import Client
from tocsin.client.models import FleetMap

_MOST = 16
"""Maps that are kept: one for each brain that somebody looks at."""


class Maps:
    """The newest map of each brain. Every look asks the brain with the asker's own token, so that who may not read the
    fleet gets nothing from here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, FleetMap]] = {}

    def look(self, client: Client) -> FleetMap:
        """The map as it is now; the same object as before where nothing has changed. Raises as `client` does."""
        with self._lock:
            known = self._known.get(client.base_url)
        found, tag = client.fleet_map(known[0] if known else "")
        if found is None:
            # Only a tag that was sent is answered so.
            return known[1] if known else FleetMap()
        with self._lock:
            self._known.pop(client.base_url, None)
            self._known[client.base_url] = (tag, found)
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return found


MAPS = Maps()
"""Of this process."""
