"""What both readers of DCGM make of its answers: readings of each GPU, and onsets of errors.

Of an error DCGM leaves a latched code and, where it is exported, a count over a window. The gauge holds the last code,
is never cleared and does not show a repeat; `DCGM_EXP_XID_ERRORS_COUNT` counts each code over the last minutes, rises
with a repeat and falls as time passes. One happening that both show is one event.

The latch lives in DCGM's host engine, most often inside the exporter. While that process lives, the latch only ever
takes the code of a new error, whatever the driver does meanwhile, so a change into a code is an onset across a reload
too. A process that was started anew may show what an engine outside it has latched for days: there a change is no
proof, and neither is it where nothing tells whether the process is still the same. A count that rose over the same
window is proof all the same: what was in that window before was counted before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tocsin.collector.dcgm.fields import Field
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.metrics import MetricKind, spec_of
from tocsin.domain.reading import Gpu, Missing, Owner, Reading

XID = "gpu_xid_last_code"
USED_RATIO = "gpu_memory_used_ratio"
_USED, _FREE = "gpu_memory_used_bytes", "gpu_memory_free_bytes"


@dataclass(slots=True)
class DcgmRow:
    """Grows by `add`. A value outlives a blank of the same name: shared GPUs have a line for each that uses them."""

    gpu: Gpu
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    owners: set[Owner] = field(default_factory=set)

    def add(self, which: Field, key: str, raw: float, blank: Missing | None) -> bool:
        """Take one raw value, or the reason for having none; whether it was a plausible value or an honest blank."""
        if blank is not None:
            self.missing[key] = blank
            return True
        value = which.scaled(raw)
        spec = which.spec
        if spec.minimum <= value <= spec.maximum:
            if not which.second or key not in self.values:
                self.values[key] = value
            return True
        self.missing[key] = Missing.BLANK
        return False

    @property
    def latched_xid(self) -> int | None:
        """The last XID's code; None where the source has none."""
        code = self.values.get(XID)
        return None if code is None else int(code)

    def reading(self, at_ms: int, expected: Mapping[str, object]) -> Reading:
        """The reading; what is `expected` and has not come is blank. Used over used plus free is added where the
        source has no ratio."""
        values = self.values
        if USED_RATIO not in values and _USED in values and _FREE in values:
            total = values[_USED] + values[_FREE]
            if total > 0:
                values[USED_RATIO] = values[_USED] / total
        missing = {key: reason for key, reason in self.missing.items() if key not in values}
        missing |= {key: Missing.BLANK for key in expected if key not in values and key not in missing}
        return Reading(self.gpu, at_ms, values, missing, tuple(sorted(self.owners)))


def counters(values: Mapping[str, float]) -> dict[str, float]:
    """Those of `values` that only grow."""
    return {key: value for key, value in values.items() if _is_counter(key)}


@cache
def _is_counter(key: str) -> bool:
    spec = spec_of(key)
    return spec is not None and spec.kind is MetricKind.COUNTER


def absent(gpu: Gpu, at_ms: int, expected: Mapping[str, object], reason: Missing) -> Reading:
    """A reading without any value, for the one `reason`."""
    return Reading(gpu, at_ms, {}, dict.fromkeys(expected, reason))


DEFAULT_WINDOW_MS = 5 * MINUTE
"""dcgm-exporter's default for the count's window (option ``--xid-count-window-size``)."""
MAX_CODES = 64
"""Most codes of one GPU that are remembered at a time; a GPU that is broken shows a handful."""
SINCE_START_MS = 1 << 40
"""Window of a count that only grows while its exporter runs."""
FATAL = "fatal"
NON_FATAL = "non-fatal"


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a code came within the last `window_ms`."""

    count: int
    window_ms: int


@dataclass(slots=True)
class _Memory:
    latched: int | None = None
    counts: dict[int, int] = field(default_factory=dict)
    windows: frozenset[int] = frozenset()
    reported: dict[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidState:
    """What one scrape says of one GPU: the latched code (None where it has none) and the counts by code."""

    gpu: Gpu
    latched: int | None
    counts: Mapping[int, Counted] = field(default_factory=dict)


class XidOnsets:
    """Compares each GPU with the scrape before. The first scrape after a start is no onset: its codes may be old.

    `unsettled` has (GPU, code) of the codes that changed or rose where nobody can tell whether they are new: no events,
    but for the caller to report and clear.
    """

    def __init__(self, source: str) -> None:
        self.unsettled: list[tuple[str, int]] = []
        self._source = source
        self._known: dict[tuple[str, str], _Memory] = {}

    def forget(self, gpu: Gpu) -> None:
        """Take the next scrape of `gpu` for the first: its exporter or driver was started anew."""
        self._known.pop((gpu.host, gpu.uuid), None)

    def note(self, look: XidState, at_ms: int, *, settled: bool = True) -> list[Event]:
        """New XIDs of one GPU; `settled` is False where the gauge may come from another process than before."""
        key = (look.gpu.host, look.gpu.uuid)
        if (memory := self._known.get(key)) is None:
            memory = self._known[key] = _Memory(look.latched)
            _keep_counts(memory, look)
            return []
        events = self._risen(look, memory, at_ms, settled)
        _keep_counts(memory, look)
        changed = look.latched is not None and look.latched != memory.latched
        if changed and look.latched:
            code, before = look.latched, memory.latched
            known = before is None or self._was_reported(memory, code, "count", at_ms, DEFAULT_WINDOW_MS)
            if not known and not settled:
                self._doubt(look.gpu, code)
            elif not known:
                _report(memory, code, "gauge", at_ms)
                text = f"the last-XID gauge went from {before} to {code}"
                events[code] = self._event(look.gpu, at_ms, code, text)
        if look.latched is not None:
            memory.latched = look.latched
        return list(events.values())

    def _doubt(self, gpu: Gpu, code: int) -> None:
        if (gpu.uuid, code) not in self.unsettled:
            self.unsettled.append((gpu.uuid, code))

    def _risen(self, look: XidState, memory: _Memory, at_ms: int, settled: bool) -> dict[int, Event]:
        events: dict[int, Event] = {}
        for code, now in look.counts.items():
            before = memory.counts.get(code, 0)
            new, window_ms = now.count - before, now.window_ms or DEFAULT_WINDOW_MS
            if new > 0 and self._was_reported(memory, code, "gauge", at_ms, window_ms):
                new -= 1
            if new > 0 and not settled and now.window_ms not in memory.windows:
                self._doubt(look.gpu, code)
            elif new > 0:
                _report(memory, code, "count", at_ms)
                span = "" if now.window_ms == SINCE_START_MS else f" within {window_ms // 1000} s"
                text = f"the count of XID {code}{span} rose from {before} to {now.count}"
                events[code] = self._event(look.gpu, at_ms, code, text)
        return events

    @staticmethod
    def _was_reported(memory: _Memory, code: int, by: str, at_ms: int, window_ms: int) -> bool:
        """Whether the other of gauge and count reported `code` already; one report excuses one happening."""
        reporter, reported_ms = memory.reported.get(code, ("", 0))
        if reporter != by or at_ms - reported_ms > window_ms:
            return False
        del memory.reported[code]
        return True

    def _event(self, gpu: Gpu, at_ms: int, code: int, text: str) -> Event:
        return Event(EventKind.XID, gpu.uuid, gpu.host, at_ms, code, text, self._source, gpu.simulated)


def _report(memory: _Memory, code: int, by: str, at_ms: int) -> None:
    """Remember who reported `code`, among the newest `MAX_CODES`: codes may be made up."""
    memory.reported.pop(code, None)
    memory.reported[code] = (by, at_ms)
    if len(memory.reported) > MAX_CODES:
        del memory.reported[next(iter(memory.reported))]


def _keep_counts(memory: _Memory, look: XidState) -> None:
    memory.counts = {code: one.count for code, one in look.counts.items()}
    memory.windows = frozenset(one.window_ms for one in look.counts.values())


class SxidOnsets:
    """The same for the latched codes of NVSwitches; an event belongs to the host, switches of one code share it.

    What the gauge of fatal errors shows is of critical severity.
    """

    def __init__(self, source: str) -> None:
        self.unsettled: list[tuple[str, int]] = []
        self._source = source
        self._known: dict[str, dict[tuple[str, str], int]] = {}

    def forget(self, host: str, switch: str = "") -> None:
        """Take the next scrape of `host`, or of one switch of it, for the first."""
        codes = self._known.get(host, {}) if switch else {}
        for severity in (FATAL, NON_FATAL):
            codes.pop((switch, severity), None)
        if not codes:
            self._known.pop(host, None)

    def note(
        self, host: str, codes: Iterable[tuple[str, str, int]], at_ms: int, *, settled: bool = True
    ) -> list[Event]:
        """New SXIDs; `codes` are (switch, `FATAL` or `NON_FATAL`, code) of one scrape of one host."""
        fresh: dict[int, list[tuple[str, str]]] = {}
        known = self._known.setdefault(host, {})
        for switch, severity, code in codes:
            before = known.get((switch, severity))
            known[switch, severity] = code
            if before is None or code == before or code <= 0:
                continue
            if settled:
                fresh.setdefault(code, []).append((switch, severity))
            else:
                self.unsettled.append((switch, code))
        return [self._event(host, at_ms, code, where) for code, where in fresh.items()]

    def _event(self, host: str, at_ms: int, code: int, where: list[tuple[str, str]]) -> Event:
        text = f"SXID {code} of {', '.join(f'NVSwitch {switch} ({severity})' for switch, severity in where)}"
        fatal = Severity.CRITICAL if any(severity == FATAL for _, severity in where) else None
        return Event(EventKind.SXID, "", host, at_ms, code, text, self._source, severity=fatal)
