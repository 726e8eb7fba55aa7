"""Events out of records of the kernel log, also where one event takes several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tocsin.collector.kernel_log.lines import MARKS, KernelLine, LineKind, parse_line
from tocsin.collector.kernel_log.records import KernelRecord
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Severity
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid_nvlink import Decoded, decode

BUS_LOSS_CODE = 79
VERDICT_CODE = 154
_ONE_LOSS_MS = 5 * MINUTE
"""Within this the forms of the message that a GPU has fallen off the bus are about one loss."""
_MOST_LINES_BETWEEN = 3
_MESSAGE_LIMIT = 500
_MOST_LINES = 200
"""Lines of one record that are looked at; the kernel's own limit on a record is far below."""

_VERDICT = re.compile(r"\bto (?:0x([0-9a-fA-F]{1,2}) ?)?\(?([^)]*)\)?\s*$")
_VERDICT_WORDS = (
    ("drain and reset", 4),
    ("drain p2p", 3),
    ("drain", 3),
    ("imex", 5),
    ("bus reset", 6),
    ("system reboot", 7),
    ("node reboot", 2),
    ("os reboot", 2),
    ("gpu reset", 1),
    ("flr", 1),
    ("none", 0),
)
"""Words of the driver to NVML field 230's enumeration, for lines without the number."""
_MOST_VERDICT = 7


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One happening; `message` is all of it in one line.

    `bus` and `uuid` are empty where unknown, `at_ms` None where the record had no time. `line` has the parts, `decoded`
    what the words of an NVLink error mean.
    """

    kind: EventKind
    code: int
    bus: str
    message: str
    at_ms: int | None = None
    when: str = ""
    uuid: str = ""
    line: KernelLine | None = None
    decoded: Decoded | None = None

    @property
    def severity(self) -> Severity | None:
        """How bad this one is; None where only its number says so.

        What the driver calls fatal in the line is critical whatever its words decode to. Where they decode to nothing,
        the driver's word that an NVLink error is not fatal makes it a warning.
        """
        if self.kind not in (EventKind.XID, EventKind.SXID):
            return None
        fatal = self.line.fatal if self.line is not None else None
        if fatal:
            return Severity.CRITICAL
        if self.decoded is not None and (self.decoded.rating is not None or self.decoded.known):
            return self.decoded.rating
        return Severity.WARNING if fatal is False and self.kind is EventKind.XID else None

    @property
    def remedy(self) -> str:
        """NVIDIA's word for what to do at once by the sub-code; empty where there is none."""
        return self.decoded.immediate if self.decoded is not None and self.severity is not None else ""


@dataclass(slots=True)
class _Pending:
    line: KernelLine
    seen: int = 0


class KernelLogParser:
    """Feeds on records in the order of the log.

    `uuids` are the GPUs that the log itself named, by bus: it may know one that was lost before anybody else looked.
    `driver` is the version of the driver where it is known, empty otherwise; its branch decides how sub-codes are read.
    """

    def __init__(self, driver: str = "") -> None:
        self.driver = driver
        self.uuids: dict[str, str] = {}
        self._pending: _Pending | None = None
        self._lost: dict[str, tuple[int | None, LineKind]] = {}

    @property
    def branch(self) -> int | None:
        """Branch of the driver, such as 575; None where it is unknown."""
        head = self.driver.partition(".")[0]
        return int(head) if head.isascii() and head.isdigit() else None

    def feed(self, record: KernelRecord) -> list[KernelEvent]:
        """The events that `record` completes, most often none."""
        text = record.text
        if MARKS[0] not in text and MARKS[1] not in text:
            return []
        events: list[KernelEvent] = []
        for part in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
            line = parse_line(part)
            if line is not None:
                events.extend(self._take(line, record))
            elif self._pending is not None:
                self._pending.seen += 1
        return events

    def _take(self, line: KernelLine, record: KernelRecord) -> Iterator[KernelEvent]:
        if line.kind is LineKind.IDENTITY:
            if line.bus:
                self.uuids[line.bus] = line.uuid
        elif line.kind is LineKind.DRIVER_LOADED:
            yield self._loaded(line, record)
        elif line.kind is LineKind.LOSS_HEAD:
            self._pending = _Pending(line)
        elif line.kind is LineKind.LOSS_TAIL:
            pending, self._pending = self._pending, None
            if pending is not None and pending.seen < _MOST_LINES_BETWEEN:
                text = f"{pending.line.text} has fallen off the bus"
                yield from self._lose(replace(pending.line, kind=LineKind.BUS_LOSS, text=text), record)
        elif line.kind is LineKind.BUS_LOSS:
            yield from self._lose(line, record)
        elif line.kind is LineKind.SXID:
            yield self._event(EventKind.SXID, line, record)
        elif line.kind is LineKind.XID:
            yield from self._xid(line, record)

    def _loaded(self, line: KernelLine, record: KernelRecord) -> KernelEvent:
        self.driver = line.driver
        self._lost.clear()
        message = f"driver {line.driver} was loaded"
        return KernelEvent(EventKind.DRIVER_RELOAD, 0, "", message, record.at_ms, record.when, line=line)

    def _xid(self, line: KernelLine, record: KernelRecord) -> Iterator[KernelEvent]:
        if line.code == BUS_LOSS_CODE:
            yield from self._lose(line, record)
            return
        event = self._event(EventKind.XID, line, record)
        yield event
        verdict = verdict_of(line.text) if line.code == VERDICT_CODE else None
        if verdict is not None:
            yield replace(event, kind=EventKind.RECOVERY_ACTION, code=verdict)

    def _lose(self, line: KernelLine, record: KernelRecord) -> Iterator[KernelEvent]:
        """The driver says it up to three times, with and without its number: that is one loss."""
        before = self._lost.get(line.bus) if line.bus else None
        if before is not None and not line.kind is before[1] is LineKind.XID and _near(before[0], record.at_ms):
            return
        self._lost[line.bus] = (record.at_ms, line.kind)
        yield self._event(EventKind.XID, line, record)

    def _event(self, kind: EventKind, line: KernelLine, record: KernelRecord) -> KernelEvent:
        decoded = None
        if kind is EventKind.XID:
            decoded = decode(line.code, line.words, unit=line.unit, driver=self.branch)
        message = _message(line, decoded)
        uuid = self.uuids.get(line.bus, "") if kind is EventKind.XID else ""
        return KernelEvent(kind, line.code, line.bus, message, record.at_ms, record.when, uuid, line, decoded)


def _near(one_ms: int | None, other_ms: int | None) -> bool:
    return one_ms is None or other_ms is None or abs(one_ms - other_ms) < _ONE_LOSS_MS


def _message(line: KernelLine, decoded: Decoded | None) -> str:
    parts = [line.text or f"XID {line.code}"]
    if line.kind is LineKind.SXID:
        spec = shipped_sxids().of(line.code)
        parts = [f"{line.device} {line.bus or line.address} {'fatal' if line.fatal else 'non-fatal'}: {line.text}"]
        parts += [f"class {spec.sxid_class}"]
    parts += [decoded.sentence()] if decoded is not None else []
    parts += [f"instance {line.instance}"] if line.instance else []
    parts += [f"process {' '.join(str(x) for x in (line.pid, line.process) if x)}"] if line.pid or line.process else []
    text = "; ".join(parts)
    clean = "".join(mark if mark.isprintable() else " " for mark in text)
    return clean if len(clean) <= _MESSAGE_LIMIT else clean[: _MESSAGE_LIMIT - 3] + "..."


def verdict_of(text: str) -> int | None:
    """The new verdict of the `text` of XID 154 in NVML's enumeration; None where the text does not say."""
    match = _VERDICT.search(text)
    if match is None:
        return None
    if match[1] is not None:
        number = int(match[1], 16)
        return number if number <= _MOST_VERDICT else None
    words = match[2].lower()
    return next((number for phrase, number in _VERDICT_WORDS if phrase in words), None)
