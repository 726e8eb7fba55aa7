"""GPUs through one `dcgmi dmon` that runs on, for nodes that have a DCGM host engine and no dcgm-exporter."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tocsin.collector.child_process import run_within
from tocsin.collector.dcgm.fields import Field, blank_number, blank_text, field_numbered, readable_ids
from tocsin.collector.dcgm.readings import XID, DcgmRow, XidOnsets, XidState, absent
from tocsin.collector.source import NodeIdentity
from tocsin.collector.transitions import Transitions
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, Clock
from tocsin.domain.errors import Unavailable
from tocsin.domain.reading import Gpu, Missing, Reading, normalise_pci_bus_id
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

READ_BYTES = 1 << 16
MAX_LINE = 1 << 16
MOST_READS = 64
"""Most pieces taken at a time: a program that never stops printing must not keep the reader."""
_GRACE_SECONDS = 1.0


def ask(command: Sequence[str], arguments: Sequence[str], seconds: float) -> str | None:
    """What a run printed on either channel, whatever its status; None where it did not end in time.

    Raises OSError where the program cannot be run.
    """
    ended = run_within([*command, *arguments], seconds, errors=subprocess.STDOUT)
    return None if ended is None else ended.out.decode("utf-8", "replace")


class Child:
    """A running process whose output is taken without ever waiting for it. Raises OSError where it cannot be run.

    `ended` is whether it ended and all that it printed was taken.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._fd, writing = os.pipe()
        os.set_blocking(self._fd, False)
        try:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.STDOUT
            )
        except OSError:
            os.close(self._fd)
            raise
        finally:
            os.close(writing)
        self._rest = b""
        self.ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_output(self, seconds: float) -> bool:
        """Wait until there is something to take, its end included; whether there is."""
        return self.ended or bool(select.select([self._fd], [], [], max(0.0, seconds))[0])

    def lines(self) -> list[str]:
        """Whole lines printed since the last call; the last unfinished one too once the process has ended."""
        pieces = [self._rest]
        for _ in range(MOST_READS):
            if self.ended:
                break
            try:
                piece = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                break
            self.ended = not piece
            pieces.append(piece)
        whole, _, self._rest = b"".join(pieces).rpartition(b"\n")
        if self.ended or len(self._rest) > MAX_LINE:
            whole, self._rest = whole + b"\n" + self._rest, b""
        return [line for line in whole.decode("utf-8", "replace").split("\n") if line]

    def stop(self) -> None:
        """End it; one that sits in the driver and does not even die is left behind. Safe to repeat."""
        for end in (self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
                break
        self.ended = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Backoff:
    """When a child may be started again: at once, then after 1, 2, 4 ... `most` seconds."""

    def __init__(self, clock: Clock, most: float = 60.0) -> None:
        self._clock = clock
        self._most = most
        self._pause = 0.0
        self._due = clock.monotonic()

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._due

    def failed(self) -> None:
        """Begin a pause, longer than the one before."""
        self._due = self._clock.monotonic() + self._pause
        self._pause = min(self._most, 2 * self._pause or 1.0)

    def worked(self) -> None:
        """Begin anew: what was started does its work."""
        self._pause = 0.0


# Columns of `dmon` are known by the order of `-e` alone: titles can repeat, and DCGM 4.6 changed some.

_ENTITY = re.compile(r"^(GPU-CI|GPU-I|GPU)\s+(\d+)(?:\s+LINK\s+(\d+))?\s+(?=\S)")
_GPU_ID = re.compile(r"^\|\s*(\d+)\s*\|\s*Name:\s*(.*?)\s*\|\s*$")
_DETAIL = re.compile(r"^\|\s*\|\s*(PCI Bus ID|Device UUID):\s*(.*?)\s*\|\s*$")
_INSTANCE = re.compile(r"^\|\s*->\s*I\s+(\d+)/(\d+)\s*\|.*EntityID:\s*(\d+)")
_LISTED = re.compile(r"^\S+\s+\S+\s+(\d+)\s*$")
GPU, GPU_INSTANCE, COMPUTE_INSTANCE = "GPU", "GPU-I", "GPU-CI"


@dataclass(frozen=True, slots=True)
class DmonRow:
    """One entity at one tick. `values` are in the order of `-e`: numbers, or the reason for having none."""

    entity: str
    number: int
    link: str
    values: tuple[float | Missing, ...]


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU of `dcgmi discovery -l`; `uuid` is empty where DCGM knows it no more, as after a fall off the bus."""

    number: int
    model: str
    pci_bus_id: str
    uuid: str


def is_heading(line: str) -> bool:
    """Whether `line` is one of the two lines of titles, which come again every few rows."""
    return line.startswith(("#Entity", "# Entity", "ID "))


def _cell(text: str) -> float | Missing | None:
    try:
        raw = float(text)
    except ValueError:
        return blank_text(text)
    reason = blank_number(raw, text)
    return raw if reason is None else reason


def dmon_row(line: str, columns: int) -> DmonRow | None:
    """The row on `line`; None where it is none, or has another number of columns."""
    if (match := _ENTITY.match(line)) is None:
        return None
    cells = [_cell(text) for text in line[match.end() :].split()]
    values = tuple(cell for cell in cells if cell is not None)
    return DmonRow(match[1], int(match[2]), match[3] or "", values) if len(values) == len(cells) == columns else None


def _known(text: str) -> str:
    return "" if blank_text(text) is not None else text


def discovered(text: str) -> list[ListedGpu]:
    """The GPUs of `dcgmi discovery -l`, by number."""
    found: dict[int, dict[str, str]] = {}
    details: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _GPU_ID.match(line)) is not None:
            details = found.setdefault(int(match[1]), {"Name": _known(match[2])})
        elif (match := _DETAIL.match(line)) is not None:
            details[match[1]] = _known(match[2])
    return [
        ListedGpu(number, d["Name"], normalise_pci_bus_id(d.get("PCI Bus ID", "")), d.get("Device UUID", ""))
        for number, d in sorted(found.items())
    ]


def instances(text: str) -> dict[int, tuple[int, int]]:
    """GPU instances of `dcgmi discovery -c`: entity id, as `dmon` names it, to (GPU, instance of that GPU)."""
    matches = (_INSTANCE.match(line) for line in text.splitlines())
    return {int(m[3]): (int(m[1]), int(m[2])) for m in matches if m is not None}


def listed_fields(text: str) -> frozenset[int]:
    """Ids that `dcgmi dmon -l` lists: those that this DCGM knows."""
    matches = (_LISTED.match(line) for line in text.splitlines())
    return frozenset(int(m[1]) for m in matches if m is not None)


def dmon_arguments(ids: Sequence[int], delay_ms: int, gpus: Sequence[int]) -> list[str]:
    """Arguments of `dcgmi` for an endless `dmon`; no `gpus` means all."""
    arguments = ["dmon", "-e", ",".join(map(str, ids)), "-d", str(delay_ms)]
    return [*arguments, "-i", ",".join(map(str, gpus))] if gpus else arguments


_log = logger("dcgmi")

NAME = "dcgmi"
ASK_SECONDS = 5.0
"""How long a `dcgmi` that is to end by itself may take; one reading waits for at most one that does not."""
SILENT_SECONDS = 10.0
"""How long `dmon` may be silent at least, and three of its delays, before it counts as stuck."""
FIRST_SECONDS = 10.0
"""How long the first row is waited for at the start."""
ENUMERATE_SECONDS = 5 * MINUTE / SECOND
LINK_STATE = 1508
"""The link state belongs to link entities, which a `dmon` over GPUs does not show."""
PROFILING = range(1001, 1100)
_PROFILING_TROUBLE = re.compile(r"profiling", re.IGNORECASE)
_LOST = re.compile(r"GPU is lost", re.IGNORECASE)


@dataclass(slots=True)
class _KnownGpu:
    """One GPU or instance. `row` is what `dmon` said last, at `row_s` on the monotonic scale."""

    gpu: Gpu
    names: dict[str, None]
    row: DcgmRow | None = None
    row_s: float = 0.0
    lost: bool = False
    answered: bool = False


@dataclass(slots=True)
class _Entities:
    """GPUs by DCGM's number, instances by DCGM's entity id."""

    gpus: dict[int, _KnownGpu] = field(default_factory=dict)
    instances: dict[int, _KnownGpu] = field(default_factory=dict)

    def all(self) -> Iterable[_KnownGpu]:
        """Every one, GPUs first."""
        return (*self.gpus.values(), *self.instances.values())

    def alive(self) -> tuple[int, ...]:
        """Numbers of the GPUs that DCGM still knows."""
        return tuple(number for number, known in self.gpus.items() if not known.lost)


class DcgmiSource:
    """A `Source` over one `dcgmi dmon`.

    A value is at most two delays of `dmon` old; older ones give way to a reason (timed out). A child that ends is
    started again after a growing pause, one that falls silent is ended first; both are counted. A GPU that fell off
    the bus keeps a whole `dmon` from starting: it is left out, reported as lost, and the others go on. Raises
    Unavailable where the program is not installed.
    """

    name = NAME

    def __init__(
        self,
        command: Sequence[str],
        node: NodeIdentity,
        clock: Clock,
        own: OwnMetrics,
        *,
        interval_seconds: float = 10.0,
    ) -> None:
        self._command = tuple(command)
        self._node = node
        self._clock = clock
        self._own = own
        self._delay = min(max(interval_seconds / 2, 1.0), 10.0)
        self._entities = _Entities()
        self._ids: tuple[int, ...] = ()
        self._fields: tuple[Field, ...] = ()
        self._left_out: frozenset[int] = frozenset()
        self._child: Child | None = None
        self._grouped: tuple[int, ...] = ()
        self._backoff = Backoff(clock)
        self._reason = "first"
        self._heard_s = self._listed_s = clock.monotonic()
        self._problem = ""
        self._words: deque[str] = deque(maxlen=4)
        self._xids = XidOnsets(NAME)
        self._transitions = Transitions(NAME)
        self._start()
        self._await_first()

    def gpus(self) -> list[Gpu]:
        return [known.gpu for known in self._entities.all()]

    def read(self, now_ms: int) -> Batch:
        self._supervise()
        self._drain()
        readings = [self._reading(known, now_ms) for known in self._entities.all()]
        events = self._transitions.note([reading for reading in readings if not reading.gpu.is_mig], now_ms)
        for known, reading in zip(self._entities.all(), readings, strict=True):
            if (code := reading.values.get(XID)) is not None:
                events += self._xids.note(XidState(known.gpu, int(code)), now_ms)
        return Batch(readings, events)

    def close(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _ask(self, *arguments: str) -> str | None:
        try:
            answer = ask(self._command, arguments, ASK_SECONDS)
        except OSError as error:
            raise Unavailable(
                f"{self._command[0]} cannot be run: {error.strerror}; install DCGM or choose another source"
            ) from None
        if answer is None:
            self._say(f"`{' '.join((*self._command, *arguments))}` did not end within {ASK_SECONDS:g} s")
        return answer

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.warning("dcgmi (said once per problem)", problem=problem)

    def _start(self) -> None:
        if not self._enumerate() or not self._learn_fields():
            self._backoff.failed()
            return
        ids = tuple(n for n in self._ids if n not in self._left_out)
        self._fields = tuple(f for n in ids if (f := field_numbered(n)) is not None)
        for known in self._entities.gpus.values():
            known.names = dict.fromkeys(f.key() for f in self._fields)
        alive = self._entities.alive()
        self._grouped = alive if len(alive) < len(self._entities.gpus) else ()
        if not alive:
            self._backoff.failed()
            return
        self._child = Child([*self._command, *dmon_arguments(ids, round(self._delay * SECOND), self._grouped)])
        self._heard_s = self._clock.monotonic()
        self._own.count("tocsin_child_starts_total", source=NAME, reason=self._reason)

    def _learn_fields(self) -> bool:
        """Ask once which fields this DCGM knows: one unknown id keeps `dmon` from starting."""
        if not self._ids:
            supported = listed_fields(self._ask("dmon", "-l") or "")
            self._ids = tuple(n for n in readable_ids() if n in supported and n != LINK_STATE)
        return bool(self._ids)

    def _enumerate(self) -> bool:
        """List GPUs and instances; whether the host engine answered."""
        self._listed_s = self._clock.monotonic()
        text = self._ask("discovery", "-l")
        if not (listing := discovered(text or "")):
            if text is not None:
                self._say("`dcgmi discovery -l` shows no GPU: is the host engine running?")
            return False
        self._entities.gpus = {one.number: self._listed(one) for one in listing}
        hierarchy = instances(self._ask("discovery", "-c") or "")
        self._entities.instances = {
            number: self._entities.instances.get(number) or self._instance(gpu, instance)
            for number, (gpu, instance) in hierarchy.items()
            if gpu in self._entities.gpus
        }
        return True

    def _listed(self, one: ListedGpu) -> _KnownGpu:
        """What is known of a GPU; one that lost its UUID keeps the one from before."""
        before = self._entities.gpus.get(one.number)
        lost = not one.uuid
        if before is not None and (lost or before.gpu.uuid == one.uuid):
            before.lost = lost
            return before
        known = Gpu(one.uuid or f"/gpu{one.number}", "", one.number, one.model, pci_bus_id=one.pci_bus_id)
        return _KnownGpu(self._node.complete(known), {}, lost=lost)

    def _instance(self, number: int, instance: int) -> _KnownGpu:
        parent = self._entities.gpus[number].gpu
        gpu = Gpu(f"{parent.uuid}/gi{instance}", parent.host, number, parent.model, parent=parent.uuid)
        return _KnownGpu(self._node.complete(gpu), {})

    def _await_first(self) -> None:
        until = self._clock.monotonic() + FIRST_SECONDS
        while self._child is not None and not any(known.row for known in self._entities.all()):
            left = until - self._clock.monotonic()
            if left <= 0 or self._child.ended or not self._child.wait_for_output(left):
                return
            self._drain()
            self._mend()

    def _supervise(self) -> None:
        now = self._clock.monotonic()
        if self._child is not None:
            self._drain()
            silent = now - self._heard_s
            if not self._child.ended and silent > max(3 * self._delay, SILENT_SECONDS):
                self._end(f"dmon has been silent for {silent:.0f} s", "stuck")
            elif now - self._listed_s > ENUMERATE_SECONDS:
                self._enumerate()
                if self._grouped and self._entities.alive() != self._grouped:
                    self._end("the GPUs that answer changed", "regrouped")
        self._mend()
        if self._child is None and self._backoff.is_due():
            self._start()

    def _mend(self) -> None:
        """After the child's end: leave out what kept it from working, or begin a pause."""
        if self._child is None or not self._child.ended:
            return
        problem = "; ".join(word for word in self._words if word)
        self._words.clear()
        self._end(f"dmon ended: {problem}", "ended")
        if _PROFILING_TROUBLE.search(problem) and not self._left_out:
            self._left_out = frozenset(PROFILING)
        elif not (_LOST.search(problem) and self._lost_more()):
            return
        self._reason = "regrouped"
        self._start()

    def _lost_more(self) -> bool:
        before = self._entities.alive()
        return self._enumerate() and self._entities.alive() != before

    def _end(self, problem: str, reason: str) -> None:
        self._say(problem)
        if self._child is not None:
            self._child.stop()
        self._child, self._reason = None, reason
        self._backoff.failed()
        # A host engine that was started anew shows codes that may be old.
        for known in self._entities.all():
            self._xids.forget(known.gpu)

    def _drain(self) -> None:
        if self._child is None:
            return
        for line in self._child.lines():
            if (row := dmon_row(line, len(self._fields))) is not None:
                self._take(row)
            elif not is_heading(line):
                self._own.count("tocsin_dcgm_lines_total", outcome="malformed")
                self._words.append(line.strip()[:200])

    def _take(self, line: DmonRow) -> None:
        self._heard_s = self._clock.monotonic()
        self._backoff.worked()
        entities = {GPU: self._entities.gpus, GPU_INSTANCE: self._entities.instances}.get(line.entity, {})
        if (known := entities.get(line.number)) is None:
            self._own.count("tocsin_dcgm_lines_total", outcome="other_entity")
            return
        self._own.count("tocsin_dcgm_lines_total", outcome="used")
        row = DcgmRow(known.gpu) if not line.link or known.row is None else known.row
        for which, cell in zip(self._fields, line.values, strict=True):
            if line.link and (isinstance(cell, Missing) or not which.of_links()):
                continue
            blank = cell if isinstance(cell, Missing) else None
            row.add(which, which.key(line.link), 0.0 if blank is not None else float(cell), blank)
        known.row, known.row_s = row, self._heard_s
        if not line.link:
            self._judge(known, row)

    def _judge(self, known: _KnownGpu, row: DcgmRow) -> None:
        """A GPU of which only the latched XID is left may be lost; the listing knows."""
        if any(name != XID for name in row.values):
            known.answered, known.lost = True, False
        elif known.answered and not known.lost and not known.gpu.is_mig:
            known.answered = False
            self._enumerate()

    def _reading(self, known: _KnownGpu, now_ms: int) -> Reading:
        if known.lost:
            return absent(known.gpu, now_ms, known.names, Missing.LOST)
        if known.row is None or self._clock.monotonic() - known.row_s > 2 * self._delay:
            return absent(known.gpu, now_ms, known.names, Missing.TIMED_OUT)
        reading = known.row.reading(now_ms, known.names)
        known.names.update(dict.fromkeys(reading.values))
        return reading


def open_dcgmi(settings: Settings, clock: Clock, own: OwnMetrics) -> DcgmiSource:
    """The source `dcgmi` of the settings. A host engine that does not answer yet is tried again at later readings.

    Raises Unavailable where the program cannot be run.
    """
    wanted = settings.agent
    node = NodeIdentity(wanted.host, wanted.pool, wanted.rack, wanted.labels)
    return DcgmiSource(wanted.dcgmi_command, node, clock, own, interval_seconds=wanted.interval_seconds)
