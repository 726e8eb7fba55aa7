"""Onsets out of what DCGM leaves of an error: a latched code, and where it is exported a count over a window.

The gauge holds the last code, is never cleared and does not show a repeat; `DCGM_EXP_XID_ERRORS_COUNT` counts each code
over the last minutes, rises with a repeat and falls as time passes. One happening that both show is one event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.identity import Gpu

DEFAULT_WINDOW_MS = 5 * MINUTE
"""dcgm-exporter's default for the count's window (option ``--xid-count-window-size``)."""
FATAL = "fatal"
NON_FATAL = "non-fatal"


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a code came within the last `window_ms`."""

    count: int
    window_ms: int


@dataclass(slots=True)
class _Memory:
    """What is known of one GPU."""

    latched: int | None = None
    counts: dict[int, int] = field(default_factory=dict)
    told: dict[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What one scrape says of one GPU: the latched code (None where it has none) and the counts by code."""

    gpu: Gpu
    latched: int | None
    counts: Mapping[int, Counted] = field(default_factory=dict)


class XidOnsets:
    """Compares each GPU with the scrape before. The first scrape after a start is no onset: its codes may be old."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[tuple[str, str], _Memory] = {}

    def forget(self, gpu: Gpu) -> None:
        """Take the next scrape of `gpu` for the first: its exporter or driver was started anew."""
        self._known.pop((gpu.host, gpu.uuid), None)

    def note(self, look: Look, at_ms: int) -> list[Event]:
        """New XIDs of one GPU."""
        key = (look.gpu.host, look.gpu.uuid)
        memory = self._known.get(key)
        if memory is None:
            counts = {code: one.count for code, one in look.counts.items()}
            self._known[key] = _Memory(look.latched, counts)
            return []
        events = self._risen(look, memory, at_ms)
        changed = look.latched is not None and look.latched != memory.latched
        if changed and look.latched:
            code, before = look.latched, memory.latched
            if before is not None and not self._told(memory, code, "count", at_ms, DEFAULT_WINDOW_MS):
                memory.told[code] = ("gauge", at_ms)
                text = f"the last-XID gauge went from {before} to {code}"
                events[code] = self._event(look.gpu, at_ms, code, text)
        if look.latched is not None:
            memory.latched = look.latched
        return list(events.values())

    def _risen(self, look: Look, memory: _Memory, at_ms: int) -> dict[int, Event]:
        events: dict[int, Event] = {}
        for code, now in look.counts.items():
            before = memory.counts.get(code, 0)
            new = now.count - before
            if new > 0 and self._told(memory, code, "gauge", at_ms, now.window_ms or DEFAULT_WINDOW_MS):
                new -= 1
            if new > 0:
                memory.told[code] = ("count", at_ms)
                span = (now.window_ms or DEFAULT_WINDOW_MS) // 1000
                text = f"the count of XID {code} within {span} s rose from {before} to {now.count}"
                events[code] = self._event(look.gpu, at_ms, code, text)
        memory.counts = {code: one.count for code, one in look.counts.items()}
        return events

    @staticmethod
    def _told(memory: _Memory, code: int, by: str, at_ms: int, window_ms: int) -> bool:
        """Whether the other witness reported `code` already; one report excuses one happening."""
        teller, told_ms = memory.told.get(code, ("", 0))
        if teller != by or at_ms - told_ms > window_ms:
            return False
        del memory.told[code]
        return True

    def _event(self, gpu: Gpu, at_ms: int, code: int, text: str) -> Event:
        return Event(EventKind.XID, gpu.uuid, gpu.host, at_ms, code, text, self._source, gpu.simulated)


class SxidOnsets:
    """The same for the latched codes of NVSwitches; an event belongs to the host, switches of one code share it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[tuple[str, str, str], int] = {}

    def forget(self, host: str) -> None:
        """Take the next scrape of `host` for the first."""
        self._known = {key: code for key, code in self._known.items() if key[0] != host}

    def note(self, host: str, codes: Iterable[tuple[str, str, int]], at_ms: int) -> list[Event]:
        """New SXIDs; `codes` are (switch, `FATAL` or `NON_FATAL`, code) of one scrape of one host."""
        fresh: dict[int, list[str]] = {}
        for switch, severity, code in codes:
            before = self._known.get((host, switch, severity))
            self._known[host, switch, severity] = code
            if before is not None and code != before and code > 0:
                fresh.setdefault(code, []).append(f"NVSwitch {switch} ({severity})")
        return [
            Event(EventKind.SXID, "", host, at_ms, code, f"SXID {code} of {', '.join(where)}", self._source)
            for code, where in fresh.items()
        ]
