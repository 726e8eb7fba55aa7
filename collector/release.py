"""Asking the agent to let go of the GPUs: handles that are open keep a GPU from being reset, unbound or split."""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.clock import Clock
from tocsin.telemetry.log import logger

_log = logger("release")

MOST_SECONDS = 1800.0
"""How long a request holds: one that was forgotten must not leave a node unwatched."""


class ReleaseFile:
    """A file that asks for it by being there; what it holds means nothing. An empty path asks never."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._since: float | None = None
        self._logged = False

    def __call__(self) -> bool:
        """Whether to let go now."""
        if not self._is_there():
            if self._since is not None:
                _log.info("the request to let go of the GPUs is withdrawn", path=str(self._path))
            self._since = None
            self._logged = False
            return False
        if self._since is None:
            self._since = self._clock.monotonic()
            _log.warning("asked to let go of the GPUs", path=str(self._path), most_seconds=MOST_SECONDS)
        if self._clock.monotonic() - self._since < MOST_SECONDS:
            return True
        if not self._logged:
            self._logged = True
            _log.warning("the request to let go of the GPUs is too old, they are read again", path=str(self._path))
        return False

    def _is_there(self) -> bool:
        try:
            return self._path is not None and self._path.exists()
        except OSError:  # a folder that the agent may not look into
            return False
