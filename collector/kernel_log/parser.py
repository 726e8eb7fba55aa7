"""Events out of the records of the kernel log: single lines of the driver, and events of several lines.

Pure but for `KernelLogParser`, which remembers the lines that an event is still made of; no input raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.reading import normalise_pci_bus_id
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid_nvlink import NvlinkMeaning, decode

# Forms of single lines are those of the open kernel modules 595.45.04 and of logs that operators published; the older
# ones have no ``PCI:`` before the address and no process.

MARKS = ("NVRM", "SXid")
"""A line with neither is none of the driver's; looking for them is all that most lines of a log cost."""


class LineKind(Enum):
    """What a line says."""

    XID = auto()
    SXID = auto()
    """NVSwitch error, with its severity."""
    SXID_MORE = auto()
    """Continuation of a fatal SXid: the same number again, without a severity."""
    BUS_LOSS = auto()
    """A GPU has fallen off the bus, without an XID."""
    LOSS_HEAD = auto()
    """First of the lines that say so in pieces; it has the address."""
    LOSS_TAIL = auto()
    """Last of them."""
    IDENTITY = auto()
    """Address and UUID of a GPU; stands before its first XID."""
    DRIVER_LOADED = auto()
    """The kernel module was loaded."""


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line; what does not apply is empty or None.

    `bus` is as `normalise_pci_bus_id` writes it, empty where `address` (what the line had) is no PCI address. `text` is
    what follows number and process. `words` are the hexadecimal words of an NVLink error, `unit` its unit, `link` its
    link. `device` names the switch, `instance` the MIG instance. `fatal` is the severity that the line itself gives an
    SXid or an NVLink error of generation 5.
    """

    kind: LineKind
    code: int = 0
    bus: str = ""
    address: str = ""
    instance: str = ""
    pid: int | None = None
    process: str = ""
    text: str = ""
    unit: str = ""
    link: int | None = None
    words: tuple[int, ...] = ()
    device: str = ""
    fatal: bool | None = None
    uuid: str = ""
    driver: str = ""


_BUS = r"(?:PCI:)?([0-9a-fA-F:.]{5,20})"
_XID = re.compile(r"NVRM: Xid \(((?:PCI:)?[^)\s]{1,40})(?:\s+([^)]{0,40}))?\):? ([0-9]{1,5})(?![0-9])(.*)")
_PROCESS = re.compile(r", ?pid='?([^,']{0,64})'?(?:, ?name='?([^,']{0,64})'?)?(?=,|$)")
_REGISTERS = re.compile(r"\blink (-?[0-9]{1,3}) ?\(((?:0x[0-9a-fA-F]{1,8},? ?){1,8})")
_NVLINK5 = re.compile(
    r"^([A-Z][A-Z0-9_/]{1,60})\s+([A-Za-z-]{1,20})\s+\S{1,8}\s+\S{1,8}\s+Link (-?[0-9]{1,3})\s*"
    r"(?:\(((?:0x[0-9a-fA-F]{1,8}\s*){1,8}))?"
)
_FATALITY = {"fatal": True, "nonfatal": False, "non-fatal": False}
_WORD = re.compile(r"0x([0-9a-fA-F]{1,8})")
_SXID = re.compile(r"(nvidia-nvswitch[0-9]{1,3}): SXid \(((?:PCI:)?[^)\s]{1,40})\): ([0-9]{1,6})(?![0-9]),? ?(.*)")
_SEVERITY = re.compile(r"(Fatal|Non-fatal|Nonfatal)\b,? ?(.*)", re.IGNORECASE)
_LINK = re.compile(r"\bLink (-?[0-9]{1,3})\b")
_LOSS = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_BUS}:?\b.*\bfallen off the bus")
_HEAD = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}")
_TAIL = re.compile(r"NVRM: .*\bfallen off the bus and is not responding|NVRM: fallen off the bus")
_IDENTITY = re.compile(rf"NVRM: GPU at {_BUS}: (GPU-[0-9a-fA-F-]{{8,40}})")
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX .*?\b([0-9]{2,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)\b")

_MOST_CHARACTERS = 8_192
"""The kernel's own lines end far before; behind it a line could cost what it likes."""
MAX_XID = 65_535
"""Greatest number that the metric table takes."""


def parse_line(text: str) -> KernelLine | None:
    """What `text`, a line with or without the prefixes of a log, says; None where it is nothing of the above."""
    text = text[:_MOST_CHARACTERS]
    if "SXid" in text:
        return _sxid(text)
    if "NVRM" not in text:
        return None
    if "Xid" in text:
        return _xid(text)
    if "fallen off the bus" in text:
        match = _LOSS.search(text)
        if match is None:
            return KernelLine(LineKind.LOSS_TAIL) if _TAIL.search(text) else None
        bus = _bus(match[1])
        return KernelLine(LineKind.BUS_LOSS, 79, bus, match[1], text=_after(text, "NVRM: ")) if bus else None
    return _other(text)


def _other(text: str) -> KernelLine | None:
    match = _IDENTITY.search(text)
    if match is not None:
        return KernelLine(LineKind.IDENTITY, bus=_bus(match[1]), address=match[1], uuid=match[2].replace("gpu", "GPU"))
    match = _HEAD.search(text)
    if match is not None:
        bus = _bus(match[1])
        return KernelLine(LineKind.LOSS_HEAD, 79, bus, match[1], text=_after(text, "NVRM: ")) if bus else None
    match = _LOADED.search(text)
    return KernelLine(LineKind.DRIVER_LOADED, driver=match[1]) if match is not None else None


def _xid(text: str) -> KernelLine | None:
    match = _XID.search(text)
    if match is None:
        return None
    address, instance, number, rest = match.groups()
    code = int(number)
    if not 0 < code <= MAX_XID:
        return None
    pid, process, rest = _split_process(rest)
    unit, link, words, fatal = _nvlink(code, rest)
    return KernelLine(
        LineKind.XID,
        code,
        _bus(address),
        address,
        instance or "",
        pid,
        process,
        rest,
        unit=unit,
        link=link,
        words=words,
        fatal=fatal,
    )


def _split_process(rest: str) -> tuple[int | None, str, str]:
    """Number and name of the process, None and empty where the driver did not know them, and what comes behind."""
    match = _PROCESS.match(rest)
    if match is None:
        return None, "", rest.lstrip(", ").rstrip()
    pid, name = match[1].strip(), (match[2] or "").strip()
    number = int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 11 else None
    return number, "" if name.startswith("<") else name, rest[match.end() :].lstrip(", ").rstrip()


def _nvlink(code: int, rest: str) -> tuple[str, int | None, tuple[int, ...], bool | None]:
    if code == 74:
        match = _REGISTERS.search(rest)
        return ("", int(match[1]), _words(match[2]), None) if match is not None else ("", None, (), None)
    if 144 <= code <= 150:
        match = _NVLINK5.match(rest)
        if match is not None:
            return match[1], int(match[3]), _words(match[4] or ""), _FATALITY.get(match[2].lower())
    return "", None, (), None


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in _WORD.findall(text))


def _sxid(text: str) -> KernelLine | None:
    match = _SXID.search(text)
    if match is None:
        return None
    device, address, number, rest = match.groups()
    severity = _SEVERITY.match(rest)
    said = severity[2] if severity is not None else rest
    link = _LINK.search(said)
    return KernelLine(
        LineKind.SXID if severity is not None else LineKind.SXID_MORE,
        int(number),
        _bus(address),
        address,
        text=said.rstrip(),
        link=int(link[1]) if link is not None else None,
        device=device,
        fatal=severity[1].lower() == "fatal" if severity is not None else None,
    )


def _bus(address: str) -> str:
    return normalise_pci_bus_id(address.rstrip(":."))


def _after(text: str, mark: str) -> str:
    return text[text.index(mark) + len(mark) :].rstrip()


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
    decoded: NvlinkMeaning | None = None

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


def _message(line: KernelLine, decoded: NvlinkMeaning | None) -> str:
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
