"""Addresses to listen on."""

from __future__ import annotations

import socket

from tocsin.domain.errors import InputError


def split_address(text: str, field: str) -> tuple[str, int]:
    """`text` as (host, port). Raises InputError that names `field`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(
            field, text, "is no address", "write HOST:PORT, for example 127.0.0.1:8470; port 0 is a free one"
        )
    return host.strip("[]"), int(port)


def free_or(host: str, port: int) -> int:
    """`port` where nothing listens on it, else a port that is free now."""
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise InputError("listen", host, "no port can be bound", "use an address of this host")
