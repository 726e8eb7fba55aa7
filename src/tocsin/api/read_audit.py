"""Who read what, put on record in bounded form: one entry of the journal for all reads of a span of time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import structlog

from tocsin.api.principal import Principal
from tocsin.config.access import ReadAuditSettings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import TocsinError

log = structlog.get_logger()

MOST_ROWS = 500
"""Readers and paths that one entry tells apart; what is beyond is counted."""
_LETTERS = 200
"""Of a path; a longer one is cut."""


@dataclass(slots=True)
class ReadRow:
    """How often one reader read one path, first and last within the span."""

    who: str
    role: str
    path: str
    count: int
    first_ms: int
    last_ms: int

    def as_json(self) -> dict[str, object]:
        """As it stands in the journal."""
        return {name: getattr(self, name) for name in ("who", "role", "path", "count", "first_ms", "last_ms")}


Record = Callable[[Sequence[dict[str, object]], int], None]
"""Puts rows on record, with how many reads are in none of them. Raises TocsinError."""


def _always() -> None:
    """Whatever is read can be put on record."""


class ReadAudit:
    """Counts reads and hands them to `record`, at `look`, which somebody calls now and then. Safe to use from several
    threads. What cannot be put on record waits for the next time, within the same bound."""

    def __init__(
        self, settings: ReadAuditSettings, clock: Clock, record: Record, must_lead: Callable[[], None] = _always
    ) -> None:
        self._roles = frozenset(settings.roles)
        self._tenants, self._paths = settings.tenants, tuple(settings.paths)
        self._clock, self._record, self._must_lead = clock, record, must_lead
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._rows: dict[tuple[str, str, str], ReadRow] = {}
        self._left_out = 0

    def note(self, who: Principal, method: str, path: str) -> None:
        """Count a request that is answered, where the settings ask for it. Raises what `must_lead` raises where it
        could never be put on record: then it is not answered."""
        if method not in {"GET", "HEAD"} or not self._wants(who):
            return
        if not any(fnmatchcase(path, pattern) for pattern in self._paths):
            return
        self._must_lead()
        now_ms, key = self._clock.now_ms(), (who.name, who.role.value, path[:_LETTERS])
        with self._lock:
            self._add(ReadRow(*key, 1, now_ms, now_ms))

    def _wants(self, who: Principal) -> bool:
        return (self._tenants and bool(who.namespaces)) or who.role in self._roles

    def _add(self, row: ReadRow) -> None:
        key = (row.who, row.role, row.path)
        if (known := self._rows.get(key)) is not None:
            known.count += row.count
            known.first_ms = min(known.first_ms, row.first_ms)
            known.last_ms = max(known.last_ms, row.last_ms)
        elif len(self._rows) < MOST_ROWS:
            self._rows[key] = row
        else:
            self._left_out += row.count

    def look(self) -> None:
        """Put on record what was read since the last time, if anything was."""
        with self._looking:
            with self._lock:
                rows, left_out = list(self._rows.values()), self._left_out
                self._rows, self._left_out = {}, 0
            if not rows and not left_out:
                return
            try:
                self._record([row.as_json() for row in rows], left_out)
            except TocsinError as error:
                log.warning("reads cannot be put on record and wait", reads=len(rows), error=str(error))
                with self._lock:
                    self._left_out += left_out
                    for row in rows:
                        self._add(row)
