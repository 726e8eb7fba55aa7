"""The one door to AMD's library: handles, one call, the library's events, and its errors by number.

The package loads ``libamd_smi.so`` while it is imported and raises KeyError where ROCm is missing (amdsmi 7.0.2). It is
imported here alone, and only when the source is opened.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, Protocol

from tocsin.domain.errors import Unavailable, install_extra
from tocsin.domain.reading import Missing

MOST_CARDS = 256
"""Cards, or parts of cards, of one node: eight cards of eight parts are 64."""
MOST_EVENTS = MOST_RECORDS = 1_000
"""Events of one call, and records of one card's error log, that are taken."""
MOST_WORDS = 200
"""Characters of one event's name or text that are taken."""
CPER_BUFFER_BYTES = 1 << 20
CPER_SEVERITIES = 0b111
"""Mask of all severities: non-fatal uncorrected, fatal, non-fatal corrected."""


class Status(IntEnum):
    """Errors of the library (``amdsmi_status_t``) that are told apart."""

    INVAL = 1
    NOT_SUPPORTED = 2
    NOT_YET_IMPLEMENTED = 3
    TIMEOUT = 8
    RETRY = 9
    NO_PERM = 10
    INTERRUPT = 11
    IO = 12
    FILE_ERROR = 14
    BUSY = 30
    NOT_FOUND = 31
    NOT_INIT = 32
    DRIVER_NOT_LOADED = 34
    MORE_DATA = 39
    NO_DATA = 40
    UNEXPECTED_DATA = 43
    FILE_NOT_FOUND = 52
    SETTING_UNAVAILABLE = 55


ABSENT = frozenset({Status.NOT_SUPPORTED, Status.NOT_YET_IMPLEMENTED, Status.NO_DATA, Status.SETTING_UNAVAILABLE})
"""The card does not have it: not asked again."""
MAYBE_LOST = frozenset({Status.IO, Status.FILE_ERROR, Status.NOT_FOUND, Status.FILE_NOT_FOUND})
"""What a card answers that is gone, and also one that only lacks a file."""
CLOSED = frozenset({Status.NOT_INIT, Status.DRIVER_NOT_LOADED})
"""The library has to be opened again."""


def missing_of(code: int) -> Missing:
    """Why a call that failed with `code` has no value."""
    if code in ABSENT:
        return Missing.UNSUPPORTED
    if code == Status.NO_PERM:
        return Missing.DENIED
    return Missing.TIMED_OUT if code == Status.TIMEOUT else Missing.BLANK


class AmdFailure(Exception):
    """A call that failed; `code` is the library's number, which may be none of `Status`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"amdsmi error {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class AmdEvent:
    """One event of the driver: the position of its card among `AmdSmi.handles`, the library's name of it, its text."""

    card: int
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One record of the card's own log of hardware errors (CPER)."""

    severity: str
    kind: str
    time: str


class AmdSmi(Protocol):
    """What the source needs of the library."""

    def open(self) -> int:
        """Open it, anew where it is open; returns how many cards, or parts of cards, there are.

        Raises Unavailable where the package, ROCm, the driver or every card is missing."""

    def ask(self, card: int, call: str) -> Any:
        """What `call` answers, such as ``amdsmi_get_clock_info(GFX)``. Raises AmdFailure."""

    def records(self, card: int, cursor: int) -> tuple[list[ErrorRecord], int]:
        """Records from `cursor` on, and the cursor behind them. Raises AmdFailure."""

    def events(self) -> list[AmdEvent]:
        """What the driver reported since the call before; without waiting."""

    def close(self) -> None:
        """Let go of the library; safe to repeat."""


_CALL = re.compile(r"^(amdsmi_[a-z_]+)(?:\(([A-Z0-9_, ]+)\))?$")
_ARGUMENTS = {
    "amdsmi_get_temp_metric": ("AmdSmiTemperatureType", "AmdSmiTemperatureMetric"),
    "amdsmi_get_clock_info": ("AmdSmiClkType",),
    "amdsmi_get_gpu_ecc_count": ("AmdSmiGpuBlock",),
}
"""Enumerations of the arguments behind the handle, by function."""
_MISREAD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What the wrapper raises that meets a number its tables lack, bytes that are no text, or more parts than it has."""
_LISTENED = ("GPU_PRE_RESET", "GPU_POST_RESET", "THERMAL_THROTTLE")
_EVENT_WAIT_MS = 1
_NOT_FOUND = (
    "library not found: the source amdsmi needs ROCm's libamd_smi.so and the Python package amdsmi of the same release"
)


def load_package() -> Any:
    """The package amdsmi. Raises Unavailable where it or ROCm is missing."""
    try:
        # It prints where it looked in vain, in the middle of what a command says in JSON.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:
        raise Unavailable(f"{_NOT_FOUND} ({install_extra('amd')}): {error}") from None


class AmdSmiLibrary:
    """The real library."""

    def __init__(self, package: Any = None) -> None:
        self._package = package
        self._handles: Sequence[Any] = ()
        self._readers: list[Any] = []
        self._opened = False

    def open(self) -> int:
        self.close()
        if self._package is None:
            self._package = load_package()
        try:
            self._package.amdsmi_init()
            self._opened = True
            handles = self._package.amdsmi_get_processor_handles()
        except self._package.AmdSmiException as error:
            self.close()
            raise Unavailable(f"amdsmi cannot be opened: is the driver amdgpu loaded? {_words(error)}") from None
        if not isinstance(handles, list) or len(handles) > MOST_CARDS:
            self.close()
            raise Unavailable(f"amdsmi answers no list of at most {MOST_CARDS} cards: is it of the driver's release?")
        if not handles:
            self.close()
            raise Unavailable("amdsmi finds no AMD GPU on this node")
        self._handles = handles
        self._listen()
        return len(self._handles)

    def ask(self, card: int, call: str) -> Any:
        name, arguments = self._resolved(call)
        return self._call(name, self._handles[card], *arguments)

    def records(self, card: int, cursor: int) -> tuple[list[ErrorRecord], int]:
        name = "amdsmi_get_gpu_cper_entries"
        found = self._call(name, self._handles[card], CPER_SEVERITIES, CPER_BUFFER_BYTES, cursor)
        if not isinstance(found, tuple) or len(found) < 2 or not isinstance(found[0], dict):
            raise AmdFailure(Status.UNEXPECTED_DATA)
        if not isinstance(behind := found[1], int) or not 0 <= behind < 1 << 64:
            raise AmdFailure(Status.UNEXPECTED_DATA)
        entries = [entry for entry in islice(found[0].values(), MOST_RECORDS) if isinstance(entry, dict)]
        return [_record(entry) for entry in entries], behind

    def events(self) -> list[AmdEvent]:
        if not self._readers:
            return []
        try:
            found = self._readers[0].read(_EVENT_WAIT_MS)
        except (self._package.AmdSmiException, *_MISREAD):
            return []
        numbers = {_number(handle): card for card, handle in enumerate(self._handles)}
        told = []
        for one in found[:MOST_EVENTS] if isinstance(found, list) else ():
            if not isinstance(one, dict):
                continue
            who, name = _number(one.get("processor_handle")), one.get("event")
            if isinstance(who, int | str) and who in numbers and isinstance(name, str):
                told.append(AmdEvent(numbers[who], name[:MOST_WORDS], str(one.get("message", ""))[:MOST_WORDS]))
        return told

    def close(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            self._quietly(reader.stop)
        if self._opened:
            self._opened = False
            self._quietly(self._package.amdsmi_shut_down)
        self._handles = ()

    def _quietly(self, end: Any) -> None:
        try:
            end()
        except self._package.AmdSmiException:
            # It is let go of either way: after a reset of the driver there is nothing left to end.
            return

    def _listen(self) -> None:
        """Ask for events of each card; a driver that gives none, or not to this user, is read all the same."""
        kinds = getattr(self._package, "AmdSmiEvtNotificationType", None)
        reader = getattr(self._package, "AmdSmiEventReader", None)
        if kinds is None or reader is None:
            return
        wanted = [kinds[name] for name in _LISTENED if name in kinds.__members__]
        for handle in self._handles:
            try:
                self._readers.append(reader(handle, wanted))
            except self._package.AmdSmiException:
                continue

    def _resolved(self, call: str) -> tuple[str, list[Any]]:
        match = _CALL.match(call)
        if match is None:
            raise AmdFailure(Status.INVAL)
        words = [word.strip() for word in match[2].split(",")] if match[2] else []
        kinds = _ARGUMENTS.get(match[1], ())
        if len(words) != len(kinds):
            raise AmdFailure(Status.INVAL)
        try:
            return match[1], [getattr(self._package, kind)[word] for kind, word in zip(kinds, words, strict=True)]
        except (AttributeError, KeyError):
            # An older release of the package.
            raise AmdFailure(Status.NOT_SUPPORTED) from None

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._package, name, None)
        if function is None:
            raise AmdFailure(Status.NOT_SUPPORTED)
        try:
            return function(*arguments)
        except self._package.AmdSmiLibraryException as error:
            raise AmdFailure(int(error.get_error_code())) from None
        except self._package.AmdSmiException:
            raise AmdFailure(Status.INVAL) from None
        except _MISREAD:
            raise AmdFailure(Status.UNEXPECTED_DATA) from None


def _record(entry: dict[str, Any]) -> ErrorRecord:
    severity, kind, time = (str(entry.get(name, ""))[:40] for name in ("error_severity", "notify_type", "timestamp"))
    return ErrorRecord(severity.lower(), kind, time)


def _number(handle: Any) -> Any:
    return getattr(handle, "value", handle)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
