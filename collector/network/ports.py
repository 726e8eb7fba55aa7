"""The network ports of a node as sysfs shows them, and what each of them counts.

``/sys/class/infiniband`` (InfiniBand and RoCE) and, where asked for, Ethernet interfaces of ``/sys/class/net``. Names,
forms and widths of counters are those of Linux 6.1 and its ABI documents. Virtual functions are left out: their
physical function says the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tocsin.collector.pci_tree import device_way
from tocsin.collector.sysfs import entries, number_of, text_of

MOST_PORTS = 64
"""Ports of one node that are read; more are counted as dropped."""
_MOST_ENTRIES = 4_096
"""Names of one folder that are looked at: a node of many containers has many interfaces."""

UP = "network_port_up"
SPEED = "network_port_speed_bytes_per_second"
RECEIVED, SENT = "network_receive_bytes_total", "network_transmit_bytes_total"
LINK_DOWNS = "network_link_downs_total"
PAUSES = "network_pause_frames_total"
DROPS = "network_dropped_packets_total"
RECEIVE_ERRORS = "network_receive_errors_total"

_PORT_COUNTERS = {
    "symbol_error": "network_symbol_errors_total",
    "local_link_integrity_errors": "network_link_integrity_errors_total",
    "port_rcv_errors": RECEIVE_ERRORS,
    "port_xmit_discards": "network_transmit_discards_total",
    "link_downed": LINK_DOWNS,
}
_HARDWARE = {
    "network_out_of_sequence_total": ("out_of_sequence",),
    "network_sequence_errors_total": ("packet_seq_err", "implied_nak_seq_err"),
    "network_ack_timeouts_total": ("local_ack_timeout_err",),
}
"""Metric to the counters of ``hw_counters`` whose sum it is."""
_AT_CAP = {
    "symbol_error": 65_535,
    "port_rcv_errors": 65_535,
    "port_xmit_discards": 65_535,
    "link_downed": 255,
    "local_link_integrity_errors": 15,
}
"""Where the classic counters of a port stay once they are there (16, 8 and 4 bits): what comes after is not seen."""
_WORD = 4
"""``port_xmit_data`` and ``port_rcv_data`` count octets divided by 4."""

_STATE = re.compile(r"^([0-9]):")
_RATE = re.compile(r"^([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
_ACTIVE = frozenset({"4", "5"})
"""``ACTIVE`` and ``ACTIVE_DEFER``."""
_DISABLED = "3"
"""``phys_state`` of a port that a person has switched off."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port: `name` as ``mlx5_0:1``, or that of an interface; `bus` the way to its PCI device, empty where unknown.

    `net` is the interface of the port, empty where it has none. `numa` is None where nobody says.
    """

    name: str
    folder: Path
    bus: tuple[str, ...] = ()
    numa: int | None = None
    net: Path | None = None
    device: str = ""
    ethernet: bool = False


@dataclass(frozen=True, slots=True)
class PortSample:
    """What one port says now. `up` is None where a person has switched it off, or nothing tells; `values` by metric;
    `capped` names the counters that have come to their end."""

    up: bool | None
    values: dict[str, float] = field(default_factory=dict)
    capped: tuple[str, ...] = ()


def find_ports(sys: Path, interfaces: Sequence[str]) -> list[Port]:
    """All ports in order of name: every InfiniBand device, and the interfaces that match a pattern of `interfaces`
    and belong to none."""
    found = list(_infiniband(sys))
    taken = {port.net.name for port in found if port.net is not None}
    for name in entries(sys / "class/net", _MOST_ENTRIES) if interfaces else ():
        folder = sys / "class/net" / name
        if name not in taken and any(fnmatch(name, pattern) for pattern in interfaces) and _is_card(folder):
            device = folder / "device"
            found.append(Port(name, folder, device_way(device), _numa(device), folder, ethernet=True))
    return found


def _infiniband(sys: Path) -> Iterator[Port]:
    for name in entries(sys / "class/infiniband", _MOST_ENTRIES):
        card = sys / "class/infiniband" / name
        if (card / "device/physfn").exists():
            continue
        numbers = entries(card / "ports", _MOST_ENTRIES)
        nets = entries(card / "device/net", _MOST_ENTRIES)
        for number in numbers:
            if not number.isdigit():
                continue
            folder = card / "ports" / number
            ethernet = text_of(folder / "link_layer") == "Ethernet"
            net = _interface(card / "device/net", nets, number, alone=len(numbers) == 1) if ethernet else None
            device = card / "device"
            yield Port(f"{name}:{number}", folder, device_way(device), _numa(device), net, name, ethernet)


def _is_card(folder: Path) -> bool:
    return (folder / "device").exists() and not (folder / "device/physfn").exists()


def _numa(device: Path) -> int | None:
    return number_of(device / "numa_node")  # -1, which is no number here, where the node has one alone


def _interface(folder: Path, names: Sequence[str], number: str, *, alone: bool) -> Path | None:
    """The interface of port `number`: the only one of its card, else the one that says so.

    Beside it a card in switchdev mode has one for each function, whose ``phys_port_name`` begins with ``pf``.
    """
    own = [name for name in names if not (text_of(folder / name / "phys_port_name") or "").startswith("pf")]
    if alone and len(own) == 1:
        return folder / own[0]
    return next((folder / name for name in own if text_of(folder / name / "dev_port") == str(int(number) - 1)), None)


def read_port(port: Port, pauses: Callable[[str], int | None]) -> PortSample:
    """What `port` says now; a file that is absent leaves its metric out. `pauses` counts pause frames by interface."""
    values: dict[str, float] = {}
    capped: list[str] = []
    if port.device:
        _read_infiniband(port, values, capped)
    if port.net is not None:
        _read_interface(port, values, pauses)
    up = _is_up(port)
    if up:
        speed = _speed(port)
        if speed:
            values[SPEED] = speed
    return PortSample(up, values, tuple(capped))


def _is_up(port: Port) -> bool | None:
    if port.net is not None:
        carrier = text_of(port.net / "carrier")  # EINVAL where a person has set the interface down
        return {"0": False, "1": True}.get(carrier or "")
    state = _STATE.match(text_of(port.folder / "state") or "")
    physical = _STATE.match(text_of(port.folder / "phys_state") or "")
    if state is None or (physical is not None and physical[1] == _DISABLED):
        return None
    return state[1] in _ACTIVE


def _speed(port: Port) -> float | None:
    """Bytes a second in one direction."""
    if port.device:
        rate = _RATE.match(text_of(port.folder / "rate") or "")
        return float(rate[1]) * 1e9 / 8 if rate is not None else None
    megabits = number_of(port.folder / "speed")
    return megabits * 1e6 / 8 if megabits else None


def _read_infiniband(port: Port, values: dict[str, float], capped: list[str]) -> None:
    counters, hardware = port.folder / "counters", port.folder / "hw_counters"
    for file, metric in _PORT_COUNTERS.items():
        count = number_of(counters / file)
        if count is not None:
            values[metric] = float(count)
            if count == _AT_CAP.get(file):
                capped.append(file)
    # Without the extended counters these are 32 bits of 4-byte words, which wrap within seconds.
    if number_of(counters / "unicast_rcv_packets") is not None:
        for file, metric in (("port_rcv_data", RECEIVED), ("port_xmit_data", SENT)):
            words = number_of(counters / file)
            if words is not None:
                values[metric] = float(words * _WORD)
    for metric, files in _HARDWARE.items():
        counts = [count for file in files if (count := number_of(hardware / file)) is not None]
        if counts:
            values[metric] = float(sum(counts))


def _read_interface(port: Port, values: dict[str, float], pauses: Callable[[str], int | None]) -> None:
    net = port.net
    if net is None:
        return
    statistics = net / "statistics"
    dropped = [number_of(statistics / file) for file in ("rx_dropped", "tx_dropped")]
    if any(count is not None for count in dropped):
        values[DROPS] = float(sum(count or 0 for count in dropped))
    changes = number_of(net / "carrier_down_count")
    if changes is None:
        both = number_of(net / "carrier_changes")
        changes = both // 2 if both is not None else None
    if changes is not None:
        values[LINK_DOWNS] = float(changes)
    if not port.device:
        for file, metric in (("rx_bytes", RECEIVED), ("tx_bytes", SENT), ("rx_errors", RECEIVE_ERRORS)):
            count = number_of(statistics / file)
            if count is not None:
                values[metric] = float(count)
    frames = pauses(net.name)
    if frames is not None:
        values[PAUSES] = float(frames)
