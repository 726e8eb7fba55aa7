"""Records of the kernel log out of what carries them: ``/dev/kmsg``, journald's JSON and plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.domain.clock import from_iso

_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\s?(Z|[+-]\d\d:?\d\d)?")
_START = re.compile(r"NVRM|nvidia-nvswitch")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record; `text` may have several lines.

    `at_ms` is None where nothing says when. `seq` is the kernel's number of it, `cursor` journald's name of it, `when`
    the time as a text log has it.
    """

    text: str
    at_ms: int | None = None
    seq: int | None = None
    cursor: str = ""
    when: str = ""


def kmsg_sequence(raw: bytes) -> int | None:
    """The sequence number of a line of ``/dev/kmsg``; None where it is no record, such as a continuation line."""
    parts = raw.split(b",", 2)
    return int(parts[1][:18]) if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit() else None


def decode_kmsg(raw: bytes, boot_ms: int) -> KernelRecord | None:
    """A line ``priority,sequence,microseconds,flags;text`` (kernel's Documentation/ABI/testing/dev-kmsg).

    The stamp counts from the boot, at `boot_ms`. Lines that start with a space belong to the record before and carry
    nothing that is needed; they and anything malformed give None.
    """
    head, found, body = raw.partition(b";")
    parts = head.split(b",")
    if not found or len(parts) < 4 or not (parts[0].isdigit() and parts[1].isdigit() and parts[2].isdigit()):
        return None
    text = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), body)
    at_ms = boot_ms + int(parts[2][:18]) // 1000
    return KernelRecord(text.decode("utf-8", "replace").rstrip("\n"), at_ms, int(parts[1][:18]))


def decode_journal(raw: bytes) -> KernelRecord | None:
    """An object of ``journalctl -o json``; None where it is none or has no message.

    journald writes a message that is not UTF-8 as a list of bytes, and one that is too long as null.
    """
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, Mapping):
        return None
    text = _message(row.get("MESSAGE"))
    if not text:
        return None
    stamp = row.get("__REALTIME_TIMESTAMP")
    known = isinstance(stamp, str) and stamp.isascii() and stamp.isdigit() and len(stamp) < 19
    cursor = row.get("__CURSOR")
    return KernelRecord(
        text, int(str(stamp)) // 1000 if known else None, cursor=cursor if isinstance(cursor, str) else ""
    )


def _message(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return str(value[0])
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
    return ""


def decode_text(line: str) -> KernelRecord:
    """A line of dmesg, syslog or any other text log: what stands before the driver's words is its prefix.

    `at_ms` is known only where the prefix has an ISO 8601 date; `when` is the prefix without host and process.
    """
    found = _START.search(line)
    if found is None:
        return KernelRecord(line.rstrip())
    prefix = line[: found.start()].strip()
    iso = _ISO.search(prefix)
    at_ms = None
    if iso is not None:
        day, time, offset = iso.groups()
        try:
            at_ms = from_iso(f"{day}T{time.replace(',', '.')}{offset or ''}")
        except (ValueError, OverflowError):
            at_ms = None
    return KernelRecord(line[found.start() :].rstrip(), at_ms, when=iso[0] if iso is not None else _when(prefix))


def _when(prefix: str) -> str:
    """``Nov 21 03:54:16 host kernel: [12.5]`` becomes ``Nov 21 03:54:16``, ``[ 12.5]`` becomes ``12.5``."""
    syslog = re.match(r"\w{3} [ \d]\d \d\d:\d\d:\d\d", prefix)
    if syslog is not None:
        return syslog[0]
    bracket = re.search(r"\[\s*([^\]]{1,40}?)\s*\]", prefix)
    return bracket[1] if bracket is not None else ""


def decode_any(line: bytes) -> KernelRecord:
    """A line of any of the three kinds; the stamp of a kmsg line, which counts from an unknown boot, becomes `when`."""
    if line.startswith(b"{"):
        record = decode_journal(line)
        if record is not None:
            return record
    record = decode_kmsg(line, 0)
    if record is not None and record.at_ms is not None:
        return KernelRecord(record.text, seq=record.seq, when=f"{record.at_ms / 1000:.3f}")
    return decode_text(line.decode("utf-8", "replace"))
