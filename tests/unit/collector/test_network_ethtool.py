"""The driver's own counters of an interface by ``SIOCETHTOOL``, from a double of the kernel that reads and writes the
structures of ``linux/ethtool.h`` where the request points to."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Mapping

import pytest

from tocsin.collector.network.ethtool import MOST_STATISTICS, pause_frames, statistics

SIOCETHTOOL, GSTRINGS, GSTATS, GSSET_INFO = 0x8946, 0x1B, 0x1D, 0x37
ETH_SS_STATS = 1
MLX5 = {
    "rx_packets": 2**63 + 5,
    "rx_prio0_pause": 3,
    "rx_prio3_pause": 5,
    "tx_prio3_pause": 7,
    "rx_prio3_pause_duration": 9_000,
    "rx_pause_ctrl_phy": 15,
    "a_name_of_all_thirty_two_letters": 1,
}


class _Kernel:
    """Answers for interface `name`, whose driver counts `counters`.

    `claims` is how many there are by its first word, `writes` how many it then says that it wrote; unset: as many as
    there are. Names and values come whole, as kernels give them whatever number the request has.
    """

    def __init__(self, counters: Mapping[str, int], name: bytes = b"eth7") -> None:
        self.counters, self.name = counters, name
        self.claims: int | None = None
        self.writes: int | None = None
        self.mask = 1 << ETH_SS_STATS
        self.error = 0
        self.asked: list[int] = []
        self._rooms: dict[int, int] = {}

    def buffer(self, said: bytes, size: int) -> ctypes.Array[ctypes.c_char]:
        """As `ctypes.create_string_buffer`; its size is kept, which no request tells."""
        made = (ctypes.c_char * size)()
        ctypes.memmove(made, said, len(said))
        self._rooms[ctypes.addressof(made)] = size
        return made

    def ioctl(self, door: socket.socket, request: int, argument: bytes) -> int:
        assert (door.family, request, len(argument)) == (socket.AF_INET, SIOCETHTOOL, 40)
        name, place = struct.unpack("@16sP16x", argument)
        if name.rstrip(b"\0") != self.name:
            raise OSError(errno.ENODEV, "No such device")
        (command,) = struct.unpack("=I", ctypes.string_at(place, 4))
        self.asked.append(command)
        if self.error:
            raise OSError(self.error, "refused")
        {GSSET_INFO: self._info, GSTRINGS: self._strings, GSTATS: self._stats}[command](place)
        return 0

    def _info(self, place: int) -> None:
        """``ethtool_sset_info``: cmd, reserved, mask of the sets asked for and there, then one length a set."""
        _, reserved, mask, _ = struct.unpack("=IIQI", ctypes.string_at(place, 20))
        assert (reserved, mask) == (0, 1 << ETH_SS_STATS)
        count = len(self.counters) if self.claims is None else self.claims
        self._write(place, struct.pack("=IIQI", GSSET_INFO, 0, self.mask, count))

    def _strings(self, place: int) -> None:
        """``ethtool_gstrings``: cmd, set, number, then 32 bytes a name, filled up with zeros."""
        _, wanted, _ = struct.unpack("=III", ctypes.string_at(place, 12))
        assert wanted == ETH_SS_STATS
        names = [name.encode("latin-1").ljust(32, b"\0") for name in self.counters]
        self._write(place, struct.pack("=III", GSTRINGS, wanted, self._written()) + b"".join(names))

    def _stats(self, place: int) -> None:
        """``ethtool_stats``: cmd, number, then 64 bits a counter."""
        values = list(self.counters.values())
        self._write(place, struct.pack(f"=II{len(values)}Q", GSTATS, self._written(), *values))

    def _written(self) -> int:
        return len(self.counters) if self.writes is None else self.writes

    def _write(self, place: int, said: bytes) -> None:
        assert len(said) <= self._rooms[place], "written past the end of the caller's memory"
        ctypes.memmove(place, said, len(said))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Kernel:
    made = _Kernel(MLX5)
    monkeypatch.setattr("tocsin.collector.network.ethtool.fcntl.ioctl", made.ioctl)
    monkeypatch.setattr("tocsin.collector.network.ethtool.ctypes.create_string_buffer", made.buffer)
    return made


def test_each_counter_comes_by_its_name_and_with_its_number(kernel: _Kernel) -> None:
    assert statistics("eth7") == MLX5
    assert kernel.asked == [GSSET_INFO, GSTRINGS, GSTATS]


def test_the_pause_frames_of_a_port_are_the_sum_of_its_priorities(kernel: _Kernel) -> None:
    assert pause_frames("eth7") == 15
    kernel.counters = {"rx_pause_ctrl_phy": 4, "tx_pause_ctrl_phy": 2**40, "rx_bytes": 9}
    assert pause_frames("eth7") == 2**40 + 4
    kernel.counters = {"rx_bytes": 9}
    assert pause_frames("eth7") is None


@pytest.mark.parametrize("claims", [0, MOST_STATISTICS + 1, 2**31, 2**32 - 1])
def test_a_driver_that_claims_none_or_absurdly_many_is_asked_nothing_more(kernel: _Kernel, claims: int) -> None:
    kernel.claims = claims
    assert statistics("eth7") == {}
    assert pause_frames("eth7") is None
    assert set(kernel.asked) == {GSSET_INFO}


def test_as_many_as_may_be_are_all_read(kernel: _Kernel) -> None:
    kernel.counters = {f"rx{n}_packets": n for n in range(MOST_STATISTICS)}
    assert statistics("eth7") == kernel.counters


def test_a_driver_that_counts_more_since_its_first_word_finds_room_for_all(kernel: _Kernel) -> None:
    kernel.claims = 2
    assert statistics("eth7") == dict(list(MLX5.items())[:2])


@pytest.mark.parametrize("writes", [0, 2, 2**32 - 1])
def test_what_a_driver_says_that_it_wrote_counts_and_never_more_than_there_was_room_for(
    kernel: _Kernel, writes: int
) -> None:
    kernel.writes = writes
    assert statistics("eth7") == dict(list(MLX5.items())[:writes])


def test_a_driver_without_counters_or_that_refuses_has_none(kernel: _Kernel) -> None:
    kernel.mask = 0
    assert statistics("eth7") == {}
    kernel.mask, kernel.error = 1 << ETH_SS_STATS, errno.EOPNOTSUPP
    assert statistics("eth7") == {}
    kernel.error = 0
    assert statistics("eth8") == {}, "no such interface"


def test_names_of_any_bytes_and_interfaces_of_any_length_are_no_error(kernel: _Kernel) -> None:
    kernel.counters = {"rx\xff\xfe": 1, "": 2}
    assert statistics("eth7") == {"rx��": 1, "": 2}
    assert statistics("e" * 40) == {}
    kernel.name = b"e" * 15
    assert statistics("e" * 15) == {"rx��": 1, "": 2}
