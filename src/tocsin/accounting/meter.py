"""Readings to GPU-seconds and joules by UTC day, GPU and holder.

Every second between two readings of a GPU is counted exactly once. The earlier of the two says whose it is, as long as
the later one comes within the gap; else nobody saw it. After a day without a reading the GPU had left the fleet, and
that time is nobody's. Parts of one GPU, MIG instances and holders that share it, divide its seconds and its joules:

- a MIG instance has its compute slices' share of its GPU, what no instance has is free;
- holders of one GPU or instance at the same time have equal shares;
- energy is divided like time. It comes from the energy counter where that rises, else from the mean of the two power
  readings, else it is unmetered. A counter that begins anew tells nothing of the time in which it did.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from tocsin.accounting.holders import NOBODY, UNKNOWN, Holder, Said, holders_of
from tocsin.accounting.profile import Profile
from tocsin.domain.clock import DAY, SECOND
from tocsin.domain.fragmentation import stranded
from tocsin.domain.mig_layout import template_of
from tocsin.domain.number_row import picked
from tocsin.domain.reading import Reading

IDLE_ACTIVITY = 0.05
"""Activity below which a GPU does nothing: that of the diagnosis of idle GPUs."""
HELD_MEMORY = 0.02
"""Share of memory in use from which on a GPU is held, where no process list is given."""
LEFT_MS = DAY
"""A GPU without a reading for longer had left the fleet."""
MOST_WATTS = 10_000.0
"""Mean power above which a rise of the energy counter is no energy (own choice: several times any GPU's limit)."""


ENERGY, POWER = "gpu_energy_joules_total", "gpu_power_watts"


class Use(IntEnum):
    """What a second of a GPU was; the place of its sum in `Row.seconds`."""

    USED = 0
    IDLE = 1
    """Held, and next to nothing was done."""
    UNTOLD = 2
    """Read, without telling whether anything was done."""
    FREE = 3
    STRANDED = 4
    """Free, and with the node's other free ones too few for a job of a whole node."""
    NOT_SEEN = 5


@dataclass(slots=True)
class Row:
    """Sums of one day, GPU and holder: `seconds` by `Use`, and `joules`; of `unmetered_s` the energy is not known."""

    seconds: list[float] = field(default_factory=lambda: [0.0] * len(Use))
    joules: float = 0.0
    unmetered_s: float = 0.0
    profile: Profile | None = None

    def merge(self, other: Row) -> None:
        """Take in `other`."""
        self.seconds = [mine + more for mine, more in zip(self.seconds, other.seconds, strict=True)]
        self.joules += other.joules
        self.unmetered_s += other.unmetered_s
        if other.profile is not None:
            self.profile = self.profile or Profile()
            self.profile.merge(other.profile)


class RowKey(NamedTuple):
    """`day` counts from the epoch, `gpu` is the UUID of the whole GPU, `holder` the key of a `Holder`."""

    day: int
    host: str
    gpu: str
    holder: str


@dataclass(slots=True)
class _Part:
    """A whole GPU less its instances, or an instance, at one reading."""

    uuid: str
    share: float
    use: Use
    holders: tuple[Holder, ...]
    memory: float | None
    total: float | None
    activity: float | None
    bound: bool
    link: float | None
    gpus: int = 1
    """GPUs of the host that its holder has at the same time."""


@dataclass(slots=True)
class _Sample:
    at_ms: int
    parts: list[_Part]
    joules: float | None
    watts: float | None


@dataclass(slots=True)
class _Together:
    """What the GPUs of a host came to at `at_ms`: the oldest instant of those that counted, and what free ones are."""

    at_ms: int
    oldest_ms: int
    use: Use


class Meter:
    """Takes readings of each GPU in the order of time. For one thread.

    What it has summed since the last call of `drain` is there only once: whoever drains it keeps it.
    """

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms
        self._last: dict[str, dict[str, _Sample]] = {}
        self._together: dict[str, _Together] = {}
        self._floor: dict[tuple[str, str], int] = {}
        self._rows: dict[RowKey, Row] = {}
        self._holders: dict[tuple[str, str], Holder] = {}

    def take(self, readings: Sequence[Reading]) -> set[tuple[str, int]]:
        """Count `readings`; those that come too late to be counted are named, by host and instant."""
        late: set[tuple[str, int]] = set()
        groups: dict[tuple[int, str], list[Reading]] = defaultdict(list)
        for reading in readings:
            groups[reading.at_ms, reading.gpu.host].append(reading)
        for at_ms, host in sorted(groups):
            if not self._host(at_ms, host, groups[at_ms, host]):
                late.add((host, at_ms))
        return late

    def resume(self, cursors: Mapping[tuple[str, str], int]) -> None:
        """Go on from the instants up to which GPUs, by host and UUID, are counted.

        Readings of two gaps before are to follow once more, so that it is known what each was and its node: nothing is
        counted of them. Where there is none, nobody saw the GPU from its instant on.
        """
        self._floor = dict(cursors)

    def drain(self) -> tuple[dict[RowKey, Row], Said]:
        """The sums since the last call, and the holders that they name."""
        rows, holders = self._rows, self._holders
        self._rows, self._holders = {}, {}
        return rows, holders

    def give_back(self, rows: Mapping[RowKey, Row], holders: Said) -> None:
        """Take back what could not be kept."""
        for key, row in rows.items():
            self._rows.setdefault(key, Row()).merge(row)
        self._holders = {**holders, **self._holders}

    def counted_to(self, host: str) -> dict[str, int]:
        """The instant up to which each GPU of a host is counted."""
        return {uuid: sample.at_ms for uuid, sample in self._last.get(host, {}).items()}

    def cursors(self) -> dict[tuple[str, str], int]:
        """The same of all, by host and UUID."""
        return {(host, uuid): one.at_ms for host, known in self._last.items() for uuid, one in known.items()}

    def forget(self, before_ms: int) -> list[tuple[str, str]]:
        """Let go of GPUs without a reading since `before_ms`; returns their hosts and UUIDs."""
        gone = [key for key, at_ms in {**self._floor, **self.cursors()}.items() if at_ms < before_ms]
        for host, uuid in gone:
            self._last.get(host, {}).pop(uuid, None)
            self._together.pop(host, None)
            self._floor.pop((host, uuid), None)
        return gone

    def _host(self, at_ms: int, host: str, readings: Sequence[Reading]) -> bool:
        known = self._last.setdefault(host, {})
        members: dict[str, list[Reading]] = defaultdict(list)
        for reading in readings:
            members[reading.gpu.parent or reading.gpu.uuid].append(reading)
        in_time, fresh = True, list[tuple[_Sample | None, _Sample]]()
        for uuid, found in members.items():
            before = last = known.get(uuid)
            floor = self._floor.get((host, uuid))
            if last is None and floor is not None and floor < at_ms:
                last = _Sample(floor, [_unseen(uuid)], None, None)
            if last is not None and at_ms < last.at_ms:
                in_time = False
                continue
            sample = _sample(uuid, at_ms, found, last if last is not None and last.at_ms == at_ms else None)
            if last is not None and last.at_ms < at_ms:
                self._count(host, uuid, last, sample)
            known[uuid] = sample
            fresh.append((before, sample))
        if not self._as_before(host, at_ms, fresh):
            present = [one for one in known.values() if at_ms - one.at_ms <= self._gap_ms]
            use = self._strand(present, at_ms)
            self._gang(present)
            self._together[host] = _Together(at_ms, min((one.at_ms for one in present), default=at_ms), use)
        return in_time

    def _as_before(self, host: str, at_ms: int, fresh: Sequence[tuple[_Sample | None, _Sample]]) -> bool:
        """Tell samples that say what those before them said, with the same GPUs beside them, what those were told;
        False where they do not. A host may have hundreds of GPUs, and send a reading of one at a time."""
        together = self._together.get(host)
        if together is None or not together.at_ms <= at_ms <= together.oldest_ms + self._gap_ms:
            return False
        if not all(old is not None and at_ms - old.at_ms <= self._gap_ms and _alike(old, new) for old, new in fresh):
            return False
        for old, new in fresh:
            free = _is_free(new)
            for was, part in zip(old.parts if old is not None else (), new.parts, strict=True):
                part.gpus = was.gpus
                if free:
                    part.use = together.use
        together.at_ms = at_ms
        return True

    def _gang(self, present: Sequence[_Sample]) -> None:
        """How many GPUs of the host each holder has."""
        held = Counter(holder.key for one in present for holder in {one for part in one.parts for one in part.holders})
        for one in present:
            for part in one.parts:
                part.gpus = max((held[holder.key] for holder in part.holders), default=1)

    def _strand(self, present: Sequence[_Sample], at_ms: int) -> Use:
        """Free GPUs of a node are stranded where they are too few for a job of a whole node. Returns what they are."""
        free = [one for one in present if _is_free(one)]
        use = Use.STRANDED if stranded(len(free), len(present)) else Use.FREE
        for one in free:
            if one.at_ms == at_ms:
                for part in one.parts:
                    part.use = use
        return use

    def _count(self, host: str, uuid: str, last: _Sample, now: _Sample) -> None:
        span_ms = now.at_ms - last.at_ms
        if span_ms > LEFT_MS:
            return
        seen = span_ms <= self._gap_ms
        watts = _watts(last, now, span_ms, seen=seen)
        parts = last.parts if seen else [_unseen(uuid)]
        begin = max(last.at_ms, self._floor.get((host, uuid), last.at_ms))
        for day in range(begin // DAY, (now.at_ms - 1) // DAY + 1) if begin < now.at_ms else ():
            seconds = (min(now.at_ms, (day + 1) * DAY) - max(begin, day * DAY)) / SECOND
            for part in parts:
                self._add(day, host, uuid, part, seconds, watts)

    def _add(self, day: int, host: str, uuid: str, part: _Part, seconds: float, watts: float | None) -> None:
        keys = part.holders or (_NOBODY,)
        share = part.share * seconds / len(keys)
        for holder in keys:
            key = RowKey(day, host, uuid, holder.key)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = Row()
                self._holders[host, holder.key] = holder
            row.seconds[part.use] += share
            if watts is None:
                row.unmetered_s += share
            else:
                row.joules += watts * share
        if len(keys) == 1 and part.share == 1.0 and part.use <= Use.UNTOLD and keys[0] is not _NOBODY:
            row = self._rows[key]
            profile = row.profile = row.profile or Profile()
            profile.add(seconds, part.memory, part.total, part.activity, part.link)
            profile.hold(part.gpus)
            if part.bound:
                profile.bound(seconds)


_NOBODY = Holder(NOBODY)
_UNKNOWN = (Holder(UNKNOWN),)


def _is_free(sample: _Sample) -> bool:
    for part in sample.parts:  # noqa: SIM110 - asked for every reading, and quicker so
        if part.use is not Use.FREE and part.use is not Use.STRANDED:
            return False
    return True


def _alike(one: _Sample, other: _Sample) -> bool:
    """Whether two samples of a GPU have the same holders on the same parts, and are both free or both not."""
    if len(one.parts) != len(other.parts):
        return False
    same = all(old.holders == new.holders for old, new in zip(one.parts, other.parts, strict=True))
    return same and _is_free(one) is _is_free(other)


def _unseen(uuid: str) -> _Part:
    return _Part(uuid, 1.0, Use.NOT_SEEN, (), None, None, None, False, None)


def _watts(last: _Sample, now: _Sample, span_ms: int, *, seen: bool) -> float | None:
    """Mean power between two readings; of a gap only the counter tells. None where it is not known."""
    if last.joules is not None and now.joules is not None and now.joules >= last.joules:
        mean = (now.joules - last.joules) / (span_ms / SECOND)
        if mean <= MOST_WATTS:
            return mean
    known = [one for one in (last.watts, now.watts) if one is not None] if seen else []
    return sum(known) / len(known) if known else None


def _sample(uuid: str, at_ms: int, readings: Sequence[Reading], same: _Sample | None) -> _Sample:
    """The whole GPU `uuid` at an instant; `same` is what came of that instant before."""
    if same is None and len(readings) == 1 and readings[0].gpu.uuid == uuid:  # As a rule.
        return _Sample(at_ms, [_part(readings[0], 1.0)], *picked(readings[0].values, _METERED))
    known = {} if same is None else {part.uuid: part for part in same.parts}
    whole = next((one for one in readings if one.gpu.uuid == uuid), None)
    instances = {one.gpu.uuid: _part(one, slice_share(one)) for one in readings if one.gpu.uuid != uuid}
    before = {name: part for name, part in known.items() if name != uuid}
    parts = _fitted([*{**before, **instances}.values()])
    rest = 1.0 - sum(part.share for part in parts)
    if not parts:
        parts = [known[uuid] if whole is None else _part(whole, 1.0)]
    elif rest > 1e-9:
        parts.append(_Part(uuid, rest, Use.FREE, (), None, None, None, False, None))
    values = {} if whole is None else whole.values
    return _Sample(
        at_ms,
        parts,
        values.get(ENERGY, None if same is None else same.joules),
        values.get(POWER, None if same is None else same.watts),
    )


def _fitted(parts: list[_Part]) -> list[_Part]:
    """`parts` with shares that are one GPU together at most, whatever was said of them."""
    total = sum(part.share for part in parts)
    if total > 1.0:
        for part in parts:
            part.share /= total
    return parts


_SLICES = re.compile(r"^(?:MIG )?(\d+)g\b")


def slice_share(reading: Reading) -> float:
    """Share of its GPU that a MIG instance has: its compute slices of seven, of four on an A30; one where untold."""
    slices = template_of(reading.gpu.model).compute_slices
    match = _SLICES.match(reading.gpu.mig_profile)
    return min(1.0, (int(match[1]) if match else 1) / slices)


_METERED = ENERGY, POWER
_TOLD = (
    "gpu_utilization_ratio",
    "gpu_graphics_engine_active_ratio",
    "gpu_sm_active_ratio",
    "gpu_processes",
    "gpu_memory_used_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_nvlink_transmit_bytes_per_second",
    "gpu_nvlink_receive_bytes_per_second",
    "gpu_nvlink_bandwidth_bytes_per_second",
)


def _part(reading: Reading, share: float) -> _Part:
    busy, engine, active, processes, ratio, used, total, sent, received, both = picked(reading.values, _TOLD)
    busy = engine if busy is None else busy
    holders = holders_of(reading.owners) if reading.owners else ()
    empty = None if holders else _empty(processes, ratio)
    use = _use(busy, empty, bool(holders)) if reading.values else Use.NOT_SEEN
    if use is Use.NOT_SEEN:
        holders = ()
    elif not holders and (use in (Use.USED, Use.IDLE) or (use is Use.UNTOLD and (processes or 0) > 0)):
        holders = _UNKNOWN
    return _Part(
        reading.gpu.uuid,
        share,
        use,
        holders,
        used,
        total,
        busy if active is None else active,
        active is None and busy is not None,
        both if sent is None and received is None else (sent or 0.0) + (received or 0.0),
    )


def _use(busy: float | None, empty: bool | None, held: bool) -> Use:
    if busy is not None and busy >= IDLE_ACTIVITY:
        return Use.USED
    if empty:
        return Use.FREE
    return Use.UNTOLD if busy is None or (empty is None and not held) else Use.IDLE


def _empty(processes: float | None, memory: float | None) -> bool | None:
    """Whether nobody holds a GPU without known owners; None where nothing tells."""
    if processes is not None:
        return processes == 0
    return None if memory is None else memory < HELD_MEMORY


def hosts_and_days(late: Iterable[tuple[str, int]], today: int) -> set[tuple[str, int]]:
    """The hosts and days, up to `today`, whose sums a late reading may change.

    It ends one interval and begins another, and where it fills a gap of several days' edges these change too.
    """
    spans = ((host, range((at_ms - LEFT_MS) // DAY, min(today, (at_ms + LEFT_MS) // DAY) + 1)) for host, at_ms in late)
    return {(host, day) for host, days in spans for day in days}
