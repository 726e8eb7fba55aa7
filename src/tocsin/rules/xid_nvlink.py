"""What the words behind an NVLink XID say: registers of 74 (NVLink 2 to 4), sub-codes of 144 to 150 (NVLink 5).

Both tables restate NVIDIA's XID catalogue as of 2025-10-29 (provenance ``catalogue``). Its footnotes mark a severity as
uncertain now and then; here it is the severity without the mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tocsin.domain.finding import Severity
from tocsin.rules.catalogue import csv_rows

NVLINK5_CODES = range(144, 151)
REGISTERS_CODE = 74
REGISTERS = 7
"""Words behind XID 74."""
DECODED_CODES = frozenset({REGISTERS_CODE, *NVLINK5_CODES})

V2_DRIVER = 575
"""First driver branch of the second layout: sub-code in bits 6:0 instead of 9:5 (of which 4:0 name the XID)."""

_REASON_SHIFT, _REASON_MASK = 20, 0x3F
"""Link-down reason: bits 25:20 of the first word, in both layouts."""

_FATAL = frozenset({"fatal", "link_fatal"})
_HANDS_ON = frozenset({"check_mechanicals", "reset_gpu", "reset_fabric"})

_URGENCY = ("", "ignore", "follow_others", "xid_154_eval", "check_mechanicals", "reset_gpu", "reset_fabric")
"""Immediate actions from the least urgent on."""


@dataclass(frozen=True, slots=True)
class SubCode:
    """One row of the table of NVLink 5; patterns are 32 characters of ``0``, ``1`` and ``-``, bit 31 first."""

    xid: int
    unit: str
    before_r575: str
    from_r575: str
    error_status: int
    immediate: str
    investigate: str
    severity: str
    second_action: str
    side: str
    local: str
    remote: str
    provenance: str

    def matches(self, word: int, v2: bool) -> bool:
        """Whether `word` fits this row in the second (`v2`) or first layout."""
        mask, wanted = _bits(self.from_r575 if v2 else self.before_r575)
        return word & mask == wanted

    def named(self, unit: str) -> bool:
        """Whether the driver's `unit` is this row's; rows have up to two names with ``/`` between them."""
        return not unit or unit == self.unit or unit in self.unit.split("/")


@cache
def _bits(pattern: str) -> tuple[int, int]:
    mask = int("".join("0" if mark == "-" else "1" for mark in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)


@dataclass(frozen=True, slots=True)
class RegisterBits:
    """Bits of one of the seven registers of XID 74 (`register` counts from 1) that mean the same."""

    register: int
    bits: tuple[int, ...]
    immediate: str
    investigate: str
    meaning: str
    provenance: str


@cache
def sub_codes() -> tuple[SubCode, ...]:
    """All rows of NVLink 5."""
    return tuple(
        SubCode(**{**row, "xid": int(row["xid"]), "error_status": int(row["error_status"], 16)})  # type: ignore[arg-type]
        for row in csv_rows("xid_nvlink5.csv")
    )


@cache
def register_bits() -> tuple[RegisterBits, ...]:
    """All rows of XID 74."""
    return tuple(
        RegisterBits(
            int(row["register"]),
            tuple(int(bit) for bit in row["bits"].split()),
            row["immediate"],
            row["investigate"],
            row["meaning"],
            row["provenance"],
        )
        for row in csv_rows("xid_nvlink_registers.csv")
    )


@dataclass(frozen=True, slots=True)
class NvlinkMeaning:
    """What the words mean; empty strings where nothing is known.

    `layout` is ``before R575`` or ``R575 on``, empty for XID 74. `reason` is the link-down reason of NVLink 5 and None
    elsewhere. `meanings` are short sentences. `known` is False where no row of the table fits, `whole` where the words
    say more than the rows that fit.
    """

    known: bool
    unit: str = ""
    layout: str = ""
    reason: int | None = None
    severity: str = ""
    immediate: str = ""
    investigate: str = ""
    second_action: str = ""
    side: str = ""
    local: str = ""
    remote: str = ""
    meanings: tuple[str, ...] = field(default=())
    whole: bool = True

    @property
    def rating(self) -> Severity | None:
        """How bad it is; None where that is not known, as for words that say more than the rows do.

        Critical where it is fatal, or calls for a reset or a look at the connection; else a warning where there is
        something to look into, and info where NVIDIA says to ignore it.
        """
        if not self.known:
            return None
        if self.severity in _FATAL or (not self.severity and self.immediate in _HANDS_ON):
            return Severity.CRITICAL
        if not self.whole:
            return None
        nothing = {self.immediate, self.investigate} <= {"", "ignore"}
        return Severity.INFO if nothing else Severity.WARNING

    def as_json(self) -> dict[str, object]:
        """Its fields, with those left out that say nothing."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "whole"}
        return {name: value for name, value in values.items() if value not in ("", None, ())}

    def sentence(self) -> str:
        if not self.known:
            return f"{self.unit or 'sub-code'} is not in the table"
        parts = [self.unit, *self.meanings, self.severity.replace("_", "-")]
        parts += [f"link-down reason {self.reason}"] if self.reason else []
        parts += [f"immediate action {self.immediate}"] if self.immediate else []
        parts += [f"then {self.investigate}"] if self.investigate not in ("", "ignore") else []
        parts += [f"here: {self.local}"] if self.local else []
        parts += [f"other end: {self.remote}"] if self.remote else []
        return "; ".join(part for part in parts if part)


def decode(code: int, words: Sequence[int], *, unit: str = "", driver: int | None = None) -> NvlinkMeaning | None:
    """What `words`, as the driver wrote them behind XID `code`, mean; None where the code has no sub-codes or no words.

    `unit` is the driver's name of the unit, such as ``NETIR_LINK_EVT``, `driver` the branch of the driver, such as 575:
    the more is known, the surer the layout. Where both are unknown a word that fits rows of both layouts is read in the
    first that fits, newest first.
    """
    if not words:
        return None
    if code == REGISTERS_CODE:
        return _decode_registers(words)
    if code not in NVLINK5_CODES:
        return None
    layouts = (True, False) if driver is None else (driver >= V2_DRIVER,)
    status = words[1] if len(words) > 1 else None
    near: NvlinkMeaning | None = None
    for v2 in layouts:
        rows = [row for row in sub_codes() if row.xid == code and row.named(unit) and row.matches(words[0], v2)]
        chosen = rows if status is None else _by_status(rows, status, exact=code >= 149)
        if chosen:
            return replace(_merge(chosen, words[0], v2), whole=_covered(chosen, status))
        near = near or (NvlinkMeaning(False, rows[0].unit, _layout(v2), _reason(words[0])) if rows else None)
    return near or NvlinkMeaning(False, unit, _layout(driver >= V2_DRIVER) if driver else "", _reason(words[0]))


def _by_status(rows: Sequence[SubCode], status: int, *, exact: bool) -> list[SubCode]:
    """Rows of this error status; where it is a set of flags, those of any flag that is set."""
    found = [row for row in rows if row.error_status == status]
    return found if found or exact else [row for row in rows if row.error_status & status]


def _covered(rows: Sequence[SubCode], status: int | None) -> bool:
    """Whether `rows` account for every flag of the error status."""
    rest = status or 0
    for row in rows:
        rest &= ~row.error_status
    return not rest


def _merge(rows: Sequence[SubCode], word: int, v2: bool) -> NvlinkMeaning:
    """One answer out of rows that all fit: that of the most urgent, and its units."""
    worst = max(rows, key=lambda row: (_URGENCY.index(row.immediate), row.severity != "non_fatal"))
    units = dict.fromkeys(row.unit for row in rows)
    return NvlinkMeaning(
        True,
        " or ".join(units),
        _layout(v2),
        _reason(word),
        worst.severity,
        worst.immediate,
        worst.investigate,
        worst.second_action,
        worst.side,
        worst.local,
        worst.remote,
    )


def _layout(v2: bool) -> str:
    return "R575 on" if v2 else "before R575"


def _reason(word: int) -> int:
    return word >> _REASON_SHIFT & _REASON_MASK


def _decode_registers(words: Sequence[int]) -> NvlinkMeaning:
    rows: list[RegisterBits] = []
    strays: list[str] = []
    for number, word in enumerate(words, start=1):
        rest = word
        for row in register_bits():
            mask = sum(1 << bit for bit in row.bits)
            if row.register == number and word & mask:
                rows.append(row)
                rest &= ~mask
        # The catalogue calls only registers 1, 3, 4 and 5 valid for this.
        if rest and number in (1, 3, 4, 5):
            strays.append(f"bits of register {number} that the catalogue does not name: 0x{rest:x}")
    if not rows:
        return NvlinkMeaning(False, meanings=tuple(strays))
    worst = max(rows, key=lambda row: _URGENCY.index(row.immediate))
    meanings = dict.fromkeys([*(f"register {row.register}: {row.meaning}" for row in rows), *strays])
    return NvlinkMeaning(
        True, immediate=worst.immediate, investigate=worst.investigate, meanings=tuple(meanings), whole=not strays
    )


_BETWEEN = re.compile(r"[\s,()]+")


def parse_words(text: str) -> tuple[int, ...]:
    """Hexadecimal words, with or without ``0x``, as they stand in a line: separated by commas, spaces or brackets.

    Raises ValueError for anything that is no 32-bit word.
    """
    words = tuple(int(part, 16) for part in _BETWEEN.split(text) if part)
    if any(not 0 <= word < 1 << 32 for word in words):
        raise ValueError(text)
    return words
