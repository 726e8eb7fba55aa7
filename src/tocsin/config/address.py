"""Addresses to listen on, and of servers that are asked."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from tocsin.domain.errors import InputError


def split_address(text: str, field: str) -> tuple[str, int]:
    """`text` as (host, port). Raises InputError that names `field`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(
            field, text, "is no address", "write HOST:PORT, for example 127.0.0.1:8470; port 0 is a free one"
        )
    return host.strip("[]"), int(port)


def _to_listen_on(text: str) -> str:
    try:
        split_address(text, "listen")
    except InputError as error:
        raise ValueError(f"{error.problem}: {error.remedy}") from None
    return text


def _of_a_server(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError("is no address of a server: write http://HOST:PORT or https://HOST:PORT")
    return url


ListenAddress = Annotated[str, AfterValidator(_to_listen_on)]
"""HOST:PORT."""
HttpUrl = Annotated[str, AfterValidator(_of_a_server)]
"""URL of a server that speaks HTTP; may be empty, which means none."""


def is_loopback(host: str) -> bool:
    """Whether only this host can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PortClaim:
    """A port that was free and that no other process of Tocsin takes until `release`.

    Between finding a port free and listening on it another process could take it; demos that start together would.
    """

    def __init__(self, host: str, port: int, *, field: str = "") -> None:
        """Claim `port` where nothing listens on it, else a free one. Raises InputError where `host` has none.

        With `field`, the setting that names the address, no other port will do: InputError where it is busy.
        """
        for candidate in (port,) if field else (port, 0, 0, 0):
            found = _bindable(host, candidate)
            if found is not None and self._lock(found):
                self.port = found
                return
        if field:
            busy = "cannot be listened on (another program does, or it is no address of this host)"
            raise InputError(field, f"{host}:{port}", busy, "stop the other program or choose another port")
        raise InputError("listen", host, "no port can be bound", "use an address of this host")

    _file: IO[str] | None = None

    def _lock(self, port: int) -> bool:
        path = Path(tempfile.gettempdir(), f"tocsin-port-{os.getuid()}-{port}.lock")
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="ascii")
        except OSError:
            # Where no lock can be had, the port may still be free: listening will tell.
            self._file = None
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            return False
        return True

    def release(self) -> None:
        """Let others have the port; safe to repeat."""
        if self._file is not None:
            self._file.close()


def _bindable(host: str, port: int) -> int | None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
