"""Messages between a training process and the agent: one JSON object a packet of a Unix SEQPACKET socket.

From the process: ``hello``, ``stats``, ``oom``, ``ack``. From the agent: ``request``. Sizes are bytes, durations
seconds; neither side sends an instant, so that their clocks need not agree.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

VERSION: Final = 1
MAX_MESSAGE: Final = 32 * 1024
"""Largest packet in bytes; room for the figures of more GPUs than a node has."""
MAX_DEVICES: Final = 32
"""Most GPUs that one message may speak of."""

SOCKET_VARIABLE: Final = "TOCSIN_HOOK_SOCKET"
DEFAULT_SOCKET: Final = "/run/tocsin/hook.sock"

EMPTY_CACHE: Final = "empty_cache"
CHECKPOINT: Final = "checkpoint"
REQUESTS: Final = frozenset({EMPTY_CACHE, CHECKPOINT})
"""What an agent may ask of a process."""

DONE: Final = "done"
FAILED: Final = "failed"
REFUSED: Final = "refused"
EXPIRED: Final = "expired"
LOST: Final = "lost"
OUTCOMES: Final = frozenset({DONE, FAILED, REFUSED, EXPIRED, LOST})
"""How a request ends; ``lost`` is said by the agent alone, of a process that went away."""


def socket_path() -> str:
    """Where the agent listens: ``TOCSIN_HOOK_SOCKET``, else the default."""
    return os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET


def pack(message: dict[str, Any]) -> bytes:
    """`message` as a packet. Raises ValueError where it is larger than a packet may be."""
    packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(packet)} bytes is larger than {MAX_MESSAGE}")
    return packet


def unpack(packet: bytes) -> dict[str, Any]:
    """The message in `packet`. Raises ValueError where it is none."""
    if len(packet) > MAX_MESSAGE:
        raise ValueError(f"a packet of {len(packet)} bytes is larger than {MAX_MESSAGE}")
    try:
        message = json.loads(packet)
    except RecursionError:
        raise ValueError("the packet nests too deep") from None
    if isinstance(message, dict):
        return message
    raise ValueError("the packet holds no object")
