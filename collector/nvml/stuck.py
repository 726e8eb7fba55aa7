"""Which calls into the driver hang, since when, and when to try again."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.telemetry.log import logger

_log = logger("nvml")

FIRST_RETRY_MS = 5 * MINUTE
"""How long a call may hang before its GPU is tried on another thread; the pause doubles with each try."""
MAX_RETRY_MS = HOUR
MOST_LEFT_BEHIND = 8
"""Threads that may hang in the driver for good; with as many no further try is made."""


@dataclass(slots=True)
class _Spell:
    """One time without an answer."""

    since_ms: int
    retry_ms: int
    pause_ms: int = FIRST_RETRY_MS


class Stuck:
    """Keeps account of calls that have not come back. Begin and end of a spell are logged."""

    most_left_behind = MOST_LEFT_BEHIND

    def __init__(self) -> None:
        self._spells: dict[str, _Spell] = {}

    @property
    def uuids(self) -> AbstractSet[str]:
        """What hangs: GPUs by UUID, and the library as a whole."""
        return self._spells.keys()

    def note(self, stuck: AbstractSet[str], now_ms: int) -> None:
        """`stuck` are those whose call is out after the reading at `now_ms`."""
        for uuid in stuck - self._spells.keys():
            self._spells[uuid] = _Spell(now_ms, now_ms + FIRST_RETRY_MS)
            _log.warning("a call into the driver hangs: it is not asked again until that comes back", reader=uuid)
        for uuid in self._spells.keys() - stuck:
            spell = self._spells.pop(uuid)
            _log.info("it answers again", reader=uuid, seconds=(now_ms - spell.since_ms) / SECOND)

    def due(self, uuid: str, now_ms: int) -> bool:
        """Whether to try `uuid` afresh now; if so, the next try is put off further."""
        spell = self._spells.get(uuid)
        if spell is None or 0 < spell.retry_ms - now_ms <= spell.pause_ms:  # a longer wait is a clock that was set back
            return False
        spell.pause_ms = min(2 * spell.pause_ms, MAX_RETRY_MS)
        spell.retry_ms = now_ms + spell.pause_ms
        return True
