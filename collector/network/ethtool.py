"""Pause frames of an Ethernet interface, which are in no file: the driver's own statistics, by ``SIOCETHTOOL``.

Structures as in ``linux/ethtool.h``: ``ethtool_sset_info``, ``ethtool_gstrings``, ``ethtool_stats``.
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import socket
import struct

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_STATISTICS = 1
"""``ETH_SS_STATS``."""
_NAME_BYTES = 32
MOST_STATISTICS = 16_384
"""Counters of one interface that are looked at; drivers with many queues have thousands."""

_PAUSE = re.compile(r"^(?:rx|tx)_prio[0-7]_pause$|^rx_pause_ctrl_phy$|^tx_pause_ctrl_phy$")
"""Counters of pause frames as mlx5 names them."""


def pause_frames(interface: str) -> int | None:
    """Pause frames of all priorities in both directions since the driver was loaded; None where none are counted."""
    return sum_of_pauses(statistics(interface))


def sum_of_pauses(counters: dict[str, int]) -> int | None:
    """The pause frames among the driver's counters: by priority, else of the whole port."""
    found = {name: value for name, value in counters.items() if _PAUSE.match(name)}
    by_priority = [value for name, value in found.items() if "_prio" in name]
    return sum(by_priority or found.values()) if found else None


def statistics(interface: str) -> dict[str, int]:
    """The driver's counters by name; none where the interface is not there, or its driver counts nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        try:
            return _statistics(door, interface)
        except (OSError, struct.error):
            return {}


def _statistics(door: socket.socket, interface: str) -> dict[str, int]:
    told = _ask(door, interface, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATISTICS, 0), 0)
    mask, count = struct.unpack_from("=QI", told, 8)
    if not mask or not 0 < count <= MOST_STATISTICS:
        return {}
    names = _ask(door, interface, struct.pack("=III", _GSTRINGS, _STATISTICS, count), _NAME_BYTES)
    values = _ask(door, interface, struct.pack("=II", _GSTATS, count), 8)
    # Between the three the driver may have come to count more or fewer; it says how many it wrote.
    count = min(count, struct.unpack_from("=I", names, 8)[0], struct.unpack_from("=I", values, 4)[0])
    words = (names[12 + _NAME_BYTES * i :][:_NAME_BYTES].split(b"\0", 1)[0] for i in range(count))
    keys = [word.decode("ascii", errors="replace") for word in words]
    return dict(zip(keys, struct.unpack_from(f"={count}Q", values, 8), strict=True))


def _ask(door: socket.socket, interface: str, question: bytes, width: int) -> bytes:
    """The answer, in `width` bytes a counter.

    There is room for as many as are ever looked at: kernels write all that the driver counts by now, whatever number
    the question has.
    """
    buffer = ctypes.create_string_buffer(question, len(question) + width * MOST_STATISTICS)
    request = struct.pack("@16sP16x", interface.encode()[:15], ctypes.addressof(buffer))
    fcntl.ioctl(door, _SIOCETHTOOL, request)
    return buffer.raw
