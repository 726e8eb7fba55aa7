"""Single lines of the NVIDIA driver in the kernel log, as data. Pure: no state, no clock, and no input raises.

Forms are those of the open kernel modules 595.45.04 and of logs that operators published; the older ones have no
``PCI:`` before the address and no process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from tocsin.domain.identity import normalise_pci_bus_id

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

MAX_XID = 65_535
"""Greatest number that the metric table takes."""


def parse_line(text: str) -> KernelLine | None:
    """What `text`, a line with or without the prefixes of a log, says; None where it is nothing of the above."""
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
