"""Connections as they are accepted: how many may be open, and how many of these by one address.

A connection costs a file descriptor from the moment it is accepted, before a TLS handshake and before a byte is read.
A process that has none left accepts nobody, and neither journal nor store can open a file.
"""

from __future__ import annotations

import resource
import socket
from collections import Counter, defaultdict
from typing import Any, Protocol

from tocsin.api.buckets import same_network

RESERVED_FILES = 256
"""File descriptors for everything but connections: journal, store, requests to others."""
TOLD = 64
"""Connections beyond a limit that are still taken, to be answered 503; what comes then is closed at once."""
LEAST_SHARE = 64
"""Connections that one address may always have."""
_AT_ONCE = 64
"""Connections that are closed before others of the process get a turn."""


def room_for(wanted: int) -> int:
    """How many connections of the `wanted` ones this process has file descriptors for; its limit is raised as far as it
    may be."""
    needed = wanted + TOLD + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < may:
        resource.setrlimit(resource.RLIMIT_NOFILE, (may, hard))
        soft = may
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - TOLD - RESERVED_FILES))


class IdleConnection(Protocol):
    """A connection between two requests."""

    def end_idle(self) -> None:
        """Close it at once."""


class OpenConnections:
    """Counts what is open; for the thread that accepts. `most` are meant, a quarter of them by one address.

    An agent keeps its connection from one push to the next, and what is idle makes room for what comes: what an address
    that has too many has itself, else what the one has that has most. Of several it is the newest: nodes push in turn,
    so that the oldest would be the next to be used.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        # A site's proxy has few connections; a quarter leaves the rest to every other address.
        self.share = max(LEAST_SHARE, most // 4)
        self._total = 0
        self._addresses: Counter[str] = Counter()
        self._idle: dict[IdleConnection, str] = {}
        self._idle_of: defaultdict[str, dict[IdleConnection, None]] = defaultdict(dict)
        self._leaving: dict[IdleConnection, str] = {}
        self._leaving_of: Counter[str] = Counter()

    def idle(self, one: IdleConnection, address: str) -> None:
        """`one` by `address` waits for its next request."""
        network = same_network(address)
        self._idle[one] = network
        self._idle_of[network][one] = None

    def busy(self, one: IdleConnection) -> None:
        """`one` is idle no more, or closed; it need not have been."""
        network = self._idle.pop(one, None)
        if network is not None:
            del self._idle_of[network][one]
            if not self._idle_of[network]:
                del self._idle_of[network]

    def closed(self, one: IdleConnection) -> None:
        """`one` is closed."""
        self.busy(one)
        network = self._leaving.pop(one, None)
        if network is not None:
            self._leaving_of[network] -= 1
            if not self._leaving_of[network]:
                del self._leaving_of[network]

    def has_room_for(self, address: str) -> bool:
        """Whether the newest connection, by `address`, may stay, if need be in place of one that is idle."""
        if not self.full_for(address):
            return True
        network = same_network(address)
        if self._open_of(network) <= self.share:
            network = max(self._idle_of, key=self._open_of, default="")
        found = next(reversed(self._idle_of.get(network, dict[IdleConnection, None]())), None)
        if found is None:
            return False
        self.busy(found)
        self._leaving[found] = network
        self._leaving_of[network] += 1
        found.end_idle()
        return True

    def _open_of(self, network: str) -> int:
        return self._addresses[network] - self._leaving_of[network]

    def full_for(self, address: str) -> bool:
        """Whether more are open than are meant, with the newest one by `address`."""
        return self._total - len(self._leaving) > self.most or self._open_of(same_network(address)) > self.share

    def add(self, address: str) -> bool:
        """Count one more by `address`; False where it is not even to be told."""
        if self._total >= self.most + TOLD or self._addresses[address] >= self.share + TOLD:
            return False
        self._total += 1
        self._addresses[address] += 1
        return True

    def remove(self, address: str) -> None:
        """One by `address` is closed."""
        self._total -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class Listener(socket.socket):
    """A socket that listens, and closes at once what is beyond the limits of `connections`."""

    connections: OpenConnections

    def accept(self) -> tuple[socket.socket, Any]:
        """As `socket.accept`; raises BlockingIOError also where all that it found was closed."""
        for _ in range(_AT_ONCE):
            taken, peer = super().accept()
            address = same_network(str(peer[0]))
            if self.connections.add(address):
                counted = _Counted(taken.family, taken.type, taken.proto, fileno=taken.detach())
                counted.account(self.connections, address)
                return counted, peer
            taken.close()
        raise BlockingIOError


class _Counted(socket.socket):
    """A connection that is counted until it is closed."""

    _connections: OpenConnections | None = None
    _address = ""

    def account(self, connections: OpenConnections, address: str) -> None:
        self._connections, self._address = connections, address

    def close(self) -> None:
        super().close()
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.remove(self._address)
