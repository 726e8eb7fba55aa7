"""A journal in memory, for tests that append a great deal; the payload passes through JSON as on disk."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tocsin.domain.clock import Clock
from tocsin.domain.entry import GENESIS, Entry, EntryKind, canonical
from tocsin.journal.port import Draft


class JournalDouble:
    """Appends and reads like the real one, without hashes. `fail_after` entries it dies, as a killed process does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.log: list[Entry] = []
        self.fail_after: int | None = None

    def append(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> Entry:
        return self.append_many([(kind, payload, simulated)], actor=actor)[0]

    def append_many(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> list[Entry]:
        if self.fail_after is not None and len(self.log) + len(drafts) > self.fail_after:
            raise KilledError
        at_ms, first = self._clock.now_ms(), len(self.log) + 1
        entries = [
            Entry(first + n, 1, at_ms, str(kind), actor, json.loads(canonical(payload)), simulated, GENESIS, GENESIS)
            for n, (kind, payload, simulated) in enumerate(drafts)
        ]
        self.log.extend(entries)
        return entries

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        chosen = [e for e in self.log if e.seq > after and (kinds is None or e.kind in kinds)]
        return iter(chosen[:limit])

    def folded(self, _part: str) -> tuple[int, Any]:
        """No checkpoint."""
        return 0, None

    def of(self, *kinds: EntryKind) -> list[Entry]:
        """Entries of these kinds."""
        return [entry for entry in self.log if entry.kind in kinds]


class KilledError(BaseException):
    """The process dies here: nothing may catch it."""
