"""What training processes say to the agent, checked: nothing in a packet is trusted, and any packet may come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.hook.wire import MAX_DEVICES, OUTCOMES, VERSION, unpack

FIGURES = frozenset(
    {
        "allocated", "reserved", "active", "inactive_split", "requested", "limit",
        "free", "largest", "returnable", "group_largest",
        "retries", "ooms", "device_allocations", "device_frees",
    }
)  # fmt: skip
"""Names of an allocator's figures: bytes, but for the counts of the last line."""

LARGEST = 1e18
"""Beyond any memory size and any count in reach; above it a number is nonsense."""
LONGEST_TEXT = 128


@dataclass(frozen=True, slots=True)
class HookDevice:
    """Which GPU a process means: a UUID with or without prefix, and a PCI address; either may be empty."""

    uuid: str
    pci: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """A process introduces itself; `process` is its own word, for people only. It speaks every `every_seconds`."""

    process: str
    every_seconds: float


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """The figures of one framework's allocator on one GPU; names are those of `FIGURES`."""

    device: HookDevice
    framework: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Stats:
    """A sample: `steps` done since the process is watched, mean seconds of one (None: unknown), its allocators."""

    steps: int
    step_seconds: float | None
    checkpoint: bool
    devices: tuple[DeviceStats, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation of `requested` bytes failed while `free` bytes were left on the GPU."""

    device: HookDevice
    requested: float
    free: float


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of a request; `seconds` is how long it took."""

    id: str
    outcome: str
    seconds: float
    detail: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The process ends its watch."""


Message = Hello | Stats | OutOfMemory | Ack | Bye


def parse(packet: bytes) -> Message:
    """The message in `packet`. Raises ValueError, and nothing else, where it holds none."""
    message = unpack(packet)
    kind = message.get("kind")
    if kind == "ack":
        return _ack(message)
    if message.get("v") != VERSION:
        raise ValueError("the message is of another version")
    if kind == "hello":
        every = _number(message, "every_s")
        if every <= 0:
            raise ValueError("a process must speak at an interval above 0")
        return Hello(_text(message, "process"), every)
    if kind == "stats":
        return _stats(message)
    if kind == "oom":
        return OutOfMemory(_device(message), _number(message, "requested"), _number(message, "free"))
    if kind == "bye":
        return Bye()
    raise ValueError("the message is of no known kind")


def _ack(message: dict[str, Any]) -> Ack:
    outcome = _text(message, "outcome")
    if outcome not in OUTCOMES:
        raise ValueError("a request has no such outcome")
    return Ack(_text(message, "id"), outcome, _number(message, "seconds"), _text(message, "detail", longest=200))


def _stats(message: dict[str, Any]) -> Stats:
    devices = message.get("devices")
    if not isinstance(devices, list) or len(devices) > MAX_DEVICES:
        raise ValueError(f"a sample lists up to {MAX_DEVICES} devices")
    step = _number(message, "step_s") if "step_s" in message else None
    found = tuple(_device_stats(entry) for entry in devices)
    return Stats(int(_number(message, "steps")), step, message.get("checkpoint") is True, found)


def _device_stats(entry: object) -> DeviceStats:
    if not isinstance(entry, dict):
        raise ValueError("a device is an object")  # noqa: TRY004  # the one error of what is wrong in a packet
    figures = {name: _number(entry, name) for name in FIGURES & entry.keys()}
    return DeviceStats(_device(entry), _text(entry, "framework"), figures)


def _device(entry: dict[str, Any]) -> HookDevice:
    return HookDevice(_text(entry, "uuid"), _text(entry, "pci"))


def _number(message: dict[str, Any], name: str) -> float:
    value = message.get(name)
    # NaN fails the comparison; an int beyond every float must not reach float().
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return float(value)
    raise ValueError(f"{name} is no number from 0 to {LARGEST:g}")


def _text(message: dict[str, Any], name: str, longest: int = LONGEST_TEXT) -> str:
    value = message.get(name, "")
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{name} is no text of up to {longest} characters")
    return "".join(letter if letter.isprintable() else "?" for letter in value)
