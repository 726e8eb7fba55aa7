"""The token that an agent shows to a brain: as it is written in the settings, or in a file that others renew."""

from __future__ import annotations

from pathlib import Path

from tocsin.config.load import read_secret
from tocsin.domain.errors import InputError
from tocsin.http_client import stamp
from tocsin.telemetry.log import logger

_log = logger("token")


class BearerToken:
    """`token`, or what the file `path` holds, read again when it changes. For one thread.

    A file that cannot be read any more leaves the token before in use: whoever renews it may be about to. Raises
    InputError, which names `field`, where it cannot be read at the start.
    """

    def __init__(self, token: str = "", path: Path | None = None, field: str = "agent.push_token_file") -> None:
        self._path, self._field = path, field
        # The stamp is from before the reading: what is written in between is seen at the next look.
        self._stamp, self._token = stamp(path), token if path is None else read_secret(path, field)
        self._trouble = ""

    def now(self) -> str:
        """The token as it is by now; empty where there is none."""
        if self._path is None or (seen := stamp(self._path)) == self._stamp:
            return self._token
        try:
            self._token, self._stamp, self._trouble = read_secret(self._path, self._field), seen, ""
        except InputError as error:
            if str(error) != self._trouble:
                _log.warning("the renewed token cannot be read, the one before is used", error=str(error))
            self._trouble = str(error)
        return self._token
