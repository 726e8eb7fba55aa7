"""Reading line protocol: every usable line is kept, every other is named by its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.domain.batch import Batch
from tocsin.domain.clock import to_iso
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.metrics import BY_FIELD, METRICS, nearest
from tocsin.domain.number_row import Apart, joined
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import MAX_FUTURE_MS, MOST_OWNERS, Gpu, Missing, Owner, Reading, sanitise
from tocsin.store import points
from tocsin.store.line_protocol.grammar import (
    HEAD_END,
    NANOSECONDS,
    LineError,
    OpenTextError,
    cut,
    cut_head,
    instant,
    parse_fields,
    parse_head,
    scan_fields,
)
from tocsin.store.line_protocol.heads import (
    BOUNDS,
    LONGEST_FIELDS,
    GpuHead,
    fields_of,
    gpu_head,
    info_of,
    key_of,
    owners_in,
    owners_of_point,
    reasons_of,
)
from tocsin.store.line_protocol.packed import BEGIN as PACKED_BEGIN
from tocsin.store.line_protocol.packed import PackedLine, cut_packed
from tocsin.store.line_protocol.packed_names import Member, known_members, known_names, known_reasons, reason_of
from tocsin.store.line_protocol.repeats import Block, Blocks, Items, Tails
from tocsin.store.points import FieldValue, Point, PointError

# ---------------------------------------------------------------------- rows
#
# Lines about GPUs, put together to readings: one for each (GPU, instant).


@dataclass(slots=True)
class _Row:
    """The reading of one (GPU, instant) while its lines come in."""

    gpu: Gpu
    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
    """Shared by all that lack the same: never changed, only replaced."""
    owners: tuple[Owner, ...] = ()
    own: dict[str, Missing] | None = None

    def add(self, values: Mapping[str, float]) -> None:
        """Of two values the later holds."""
        self.values = joined(self.values, values)

    @property
    def lacks(self) -> dict[str, Missing]:
        """The reasons as this row's own, which may be changed: however many lines add to them, they are copied once."""
        if self.own is None:
            self.missing = self.own = dict(self.missing)
        return self.own


class LineRows:
    """Collects values, reasons and attributes in the order of their lines; of two values the later holds."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], _Row] = {}
        self._infos: dict[tuple[str, int], Gpu] = {}
        self._newest_info: dict[str, tuple[int, Gpu]] = {}

    def put(self, gpu: Gpu, at_ms: int, values: Mapping[str, float], missing: Mapping[str, Missing]) -> _Row | None:
        """Take over `values` and share `missing`; a line that has neither makes no reading."""
        if not values and not missing:
            return None
        if (row := self._rows.get((gpu.uuid, at_ms))) is None:
            row = self._rows[gpu.uuid, at_ms] = _Row(gpu, values, missing)
            return row
        row.add(values)
        if missing and not row.missing:
            row.missing = missing
        elif missing:
            row.lacks.update(missing)
        return row

    def put_info(self, gpu: Gpu, at_ms: int) -> None:
        """The attributes of `gpu`, which is a reading, if of nothing else."""
        key = (gpu.uuid, at_ms)
        self._infos[key] = gpu
        if at_ms >= self._newest_info.get(gpu.uuid, (at_ms, gpu))[0]:
            self._newest_info[gpu.uuid] = (at_ms, gpu)
        if key not in self._rows:
            self._rows[key] = _Row(gpu)

    def put_owners(self, gpu: Gpu, at_ms: int, owners: tuple[Owner, ...]) -> None:
        """The processes on `gpu`; a line that lists none takes none away."""
        row = self._rows.setdefault((gpu.uuid, at_ms), _Row(gpu))
        row.owners = owners or row.owners

    def _gpu_of(self, key: tuple[str, int], bare: Gpu) -> Gpu:
        return self._infos.get(key) or self._newest_info.get(key[0], (0, bare))[1]

    def readings(self) -> list[Reading]:
        """One for each GPU and instant, in the order of their first lines; a value outranks a reason."""
        found = []
        apart = Apart()
        for key, row in self._rows.items():
            missing = row.missing
            if not apart(row.values, missing):
                missing = {name: reason for name, reason in missing.items() if name not in row.values}
            found.append(Reading(self._gpu_of(key, row.gpu), key[1], row.values, missing, row.owners))
        return found


# ---------------------------------------------------------------------- the decoder

_TAILS = Tails()
_ITEMS = Items()
_BLOCKS = Blocks()

MAX_WARNINGS = 100
"""Warnings that are spelt out; the others are counted in one more."""
MAX_REJECTED = 1_000
"""Bad lines that are named; all are counted."""

_MAX_SUGGESTIONS = 8
"""Each compares a name with all of the metric table: milliseconds."""
_LONGEST_NAME = max(map(len, BY_FIELD))
_OTHERS = "other values are dropped"
_MAX_TEXT = 256 * 1024
_MAX_INSTANTS = 1_000
_PLAIN = (f"{points.GPU},", f"{points.MISSING},")
_REPEATED = (f"{points.INFO},", f"{points.OWNER},")
_REASONS = {reason.value: reason for reason in Missing}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was not kept: its number, counted from 1, the line (shortened), and why."""

    number: int
    line: str
    problem: str


Admit = Callable[[str, str, tuple[str, ...]], str]
"""Why whoever sent a line may not say it, by its measurement, its host (empty where it names none) and the UUIDs that
it is about, a GPU's before its MIG instance's; empty where it may."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a body of line protocol held.

    `rejected` are the first `MAX_REJECTED` of the `refused` lines that were not kept. `warnings` tell of single values
    that were not kept although their line was, and `dropped` counts those values: blank ones (kept as `Missing.BLANK`)
    and ones of unknown fields.
    """

    batch: Batch
    rejected: list[BadLine] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dropped: int = 0
    refused: int = 0


_PROCESS = ",pid="
"""Begins the tail of a line about a process, which no two GPUs have in common: it ends a block that they share."""


class _Said:
    """The GPU and the instant that the last line was about: most that follow say more of the same."""

    def __init__(self, begin: str, end: str, row: _Row) -> None:
        self._begin, self._end = begin, end
        self._from, self._to = len(begin), -len(end)
        self._row = row
        self._block = _BLOCKS.get(begin)
        self._tails: list[str] = []
        self._met: dict[str, float] = {}
        self._open = True

    def goes_on(self, lines: list[str], at: int) -> int:
        """Take the lines from `at` on that say of this GPU and instant what is known, as far as can be seen at a look;
        how many they are."""
        if (block := self._block) is not None:
            self._block = None
            begin, end = self._begin, self._end
            if lines[at : at + len(block.tails)] == [f"{begin}{tail}{end}" for tail in block.tails]:
                self._row.add(block.values)
                return len(block.tails)
        line = lines[at]
        if not line.startswith(self._begin) or not line.endswith(self._end):
            return 0
        tail = line[self._from : self._to]
        if (values := _TAILS.get(tail)) is None:
            return 0
        self._row.add(values)
        self._open = self._open and not tail.startswith(_PROCESS)
        if self._open:
            self._tails.append(tail)
            self._met.update(values)
        return 1

    def learn(self) -> None:
        """Remember the lines that went on, which are over."""
        if self._tails:
            _BLOCKS.put(self._begin, Block((*self._tails,), self._met))


def _known_values(head: GpuHead, text: str) -> dict[str, float] | None:
    """The fast way, for fields that are all known and in their bounds, in an order seen before where they have a label:
    nearly all. None where that is not so."""
    if len(text) > LONGEST_FIELDS:
        return None
    if not head.label:
        return _ITEMS.values(text)
    items = text.replace("=", ",").split(",")
    known = fields_of(tuple(items[::2]), head.label)
    raws = tuple(items[1::2])
    if known is None or len(raws) != len(known.metrics) or known.form % raws != text:
        return None
    try:
        values = [*map(float, raws)]
    except ValueError:
        return None
    # A NaN is in no bounds, and float() takes digit separators, which the format does not have.
    if not known.holds(values) or text.count("_") != known.underscores:
        return None
    keys = (key_of(metric, head.label, head.value) for metric in known.metrics)
    return dict(zip(keys, values, strict=True))


class _Decoder:
    def __init__(self, precision: str, now_ms: int, admit: Admit | None) -> None:
        if precision not in NANOSECONDS:
            raise InputError("precision", precision, "is not known", f"use one of {', '.join(NANOSECONDS)}")
        self._step = NANOSECONDS[precision]
        self._now_ms = now_ms
        self._admit = admit
        self._rows = LineRows()
        self._said: _Said | None = None
        self._events: list[Event] = []
        self._findings: list[Finding] = []
        self._predictions: list[Prediction] = []
        self._rejected: list[BadLine] = []
        self._warnings: Counter[str] = Counter()
        self._suggested: dict[str, str] = {}
        self._instants: dict[str, int] = {}
        self._dropped = 0
        self._refused = 0

    def _admitted(self, measurement: str, host: str, uuids: tuple[str, ...]) -> None:
        """Raise LineError where the sender may not say this. Every line is asked about before any of it is taken."""
        if self._admit is not None and (problem := self._admit(measurement, host, uuids)):
            raise LineError(problem)

    def _admitted_of(self, measurement: str, gpu: Gpu) -> None:
        self._admitted(measurement, gpu.host, _uuids(gpu))

    # ------------------------------------------------------------------ lines

    def run(self, text: str, undecodable: bool) -> None:
        """Read every line of `text`, in time that grows with its length whatever it holds."""
        lines = text.split("\n")
        at = seen = start = 0
        while at < len(lines):
            if (said := self._said) is not None:
                if taken := said.goes_on(lines, at):
                    at += taken
                    continue
                said.learn()
                self._said = None
            line, taken = lines[at].removesuffix("\r"), 1
            try:
                if line.startswith(PACKED_BEGIN) and not undecodable:
                    self._packed(line.rstrip(" "), at + 1)
                elif line.startswith(_PLAIN) and '"' not in line and not undecodable:
                    self._plain(line.strip(" "), at + 1)
                elif not self._odd(line, at + 1, undecodable):
                    start += sum(map(len, lines[seen:at])) + at - seen
                    seen = at
                    taken = self._spread(text, start, line, at + 1)
            except (LineError, PointError) as error:
                self._reject(line.strip(" "), at + 1, str(error))
            at += taken

    def _reject(self, line: str, line_number: int, problem: str) -> None:
        self._refused += 1
        if len(self._rejected) < MAX_REJECTED:
            shown = line.encode("utf-8", "replace").decode()
            self._rejected.append(BadLine(line_number, shown if len(shown) <= 200 else shown[:197] + "...", problem))

    def _odd(self, line: str, line_number: int, undecodable: bool) -> bool:
        """Decode `line`; False where it opens quoted text that does not end on it."""
        whole = line.strip(" ")
        if not whole or whole.isspace() or whole.startswith("#"):
            return True
        if undecodable and not _is_utf8(line):
            raise LineError("not UTF-8")
        if " " not in whole:
            self._reject(whole, line_number, "no fields")
            return True
        try:
            self._line(whole, line_number)
        except OpenTextError:
            return False
        return True

    def _spread(self, text: str, start: int, line: str, line_number: int) -> int:
        """Decode `line`, at `start` of `text`, whose quoted text goes on after a newline; how many lines it took.

        Raises OpenTextError where what follows does not complete it. A line that opens text has an odd number of
        quotes, so that the text of an earlier one ends on it: however many are tried in vain, each character is met a
        few times at most.
        """
        head = HEAD_END.search(line, len(line) - len(line.lstrip(" ")))
        assert head is not None, "a line without fields opens no text"
        begin = start + len(line) - len(line[head.end() :].lstrip(" "))
        try:
            fields, position = scan_fields(text, begin, min(len(text), start + _MAX_TEXT))
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            stamp = text[position:end].strip(" \r")
            if _is_utf8(text[start:end]):
                self._typed(line[: head.start()].lstrip(" "), fields, self._instant(stamp), line_number)
                return text.count("\n", start, end) + 1
        except (LineError, PointError):
            pass
        raise OpenTextError("quoted text does not end")

    def _line(self, line: str, line_number: int) -> None:
        if line.startswith(_REPEATED):
            body, _, stamp = line.rpartition(" ")
            if stamp.isdigit():
                # The text first: where it is open, what stands last on the line is no instant.
                if line.startswith("gpu_info,"):
                    gpu = info_of(body)
                    self._admitted_of(points.INFO, gpu)
                    self._rows.put_info(gpu, self._instant(stamp))
                elif (owned := owners_in(body)) is not None:
                    self._admitted_of(points.OWNER, owned[0])
                    self._put_owners(owned[0], self._instant(stamp), owned[1])
                return
        if '"' in line:
            head, rest = cut_head(line)
            fields, stamp = parse_fields(rest)
            self._typed(head, fields, self._instant(stamp), line_number)
            return
        if line.startswith(_PLAIN):
            self._plain(line, line_number)
            return
        head, text, stamp = cut(line)
        self._typed(head, parse_fields(text)[0], self._instant(stamp), line_number)

    def _plain(self, line: str, line_number: int) -> None:
        """A line about a GPU without quoted text."""
        head, text, stamp = cut(line)
        parsed, at_ms = gpu_head(head), self._instant(stamp)
        self._admitted_of(head.partition(",")[0], parsed.gpu)
        if not head.startswith("gpu,"):
            self._reasons(parsed, text, at_ms, line_number)
            return
        values = _known_values(parsed, text)
        if values is None:
            self._take(parsed, parse_fields(text)[0], at_ms, line_number)
            return
        row = self._put(parsed, at_ms, values, {})
        if row is None or parsed.strange or "\\" in line or not stamp:
            return
        begin, _, last = head.rpartition(",") if parsed.label else (head, "", "")
        if parsed.label and not last.startswith(f"{parsed.label}="):
            # What is remembered of a line must not have in it whom the line is about.
            return
        end = f" {stamp}"
        self._said = _Said(begin, end, row)
        if line.endswith(f"{text}{end}"):
            # What is handed on as the values of a row is changed by the lines that follow.
            _TAILS.put(line[len(begin) : -len(end)], dict(values))

    def _packed(self, line: str, line_number: int) -> None:
        """What GPUs of a host say alike. Raises LineError where one may not be spoken of; the others are kept."""
        packed = cut_packed(line)
        packed.check()
        tags, at_ms = parse_head(packed.head)[1], self._instant(packed.stamp)
        for name in tags.keys() - {"host", "label"}:
            self._warn(f"tag {name[:100]!r} is not known, ignored")
        label = tags.get("label", "")
        members = known_members(tags.get("host", ""), packed.gpus)
        problems = [self._against(member, label) for member in members]
        heads = [
            None if problem else GpuHead(member.gpu, label, member.value, ())
            for member, problem in zip(members, problems, strict=True)
        ]
        if packed.values is None:
            self._packed_reasons(packed, label, [*filter(None, heads)], line_number, at_ms)
        else:
            self._packed_values(packed, packed.values, label, heads, at_ms, line_number)
        if problem := next(filter(None, problems), ""):
            raise LineError(problem)

    def _against(self, member: Member, label: str) -> str:
        """Why a packed line may not speak of a GPU; empty where it may."""
        if bool(label) is not bool(member.value):
            return f"{member.gpu.uuid[:60]!r} has {'no' if label else 'a'} label in its braces"
        return self._admit(points.GPU, member.gpu.host, _uuids(member.gpu)) if self._admit is not None else ""

    def _packed_values(
        self,
        packed: PackedLine,
        raw: bytes,
        label: str,
        heads: Sequence[GpuHead | None],
        at_ms: int,
        line_number: int,
    ) -> None:
        known = known_names(packed.names, label)
        rows = None if known is None else known.rows(raw, len(heads))
        if known is None or rows is None:
            groups = packed.by_label(label)
            for head, row in zip(heads, packed.rows(), strict=True):
                for own, value, fields in groups:
                    if head is not None:
                        of = GpuHead(head.gpu, own, value, ()) if own else head
                        self._take(of, {name: row[place] for place, name in fields}, at_ms, line_number)
            return
        for head, numbers in zip(heads, rows, strict=True):
            if head is not None:
                self._put(head, at_ms, known.values(head.value, numbers), {})

    def _packed_reasons(
        self, packed: PackedLine, label: str, heads: Sequence[GpuHead], line_number: int, at_ms: int
    ) -> None:
        if label:
            raise LineError(f"a line of reasons has label {label[:60]!r}; name it with each of its names")
        if not heads:
            return
        found = known_reasons(packed.names, packed.reasons)
        if found is None:
            # Once for all of them: what they lack is the same.
            codes, named = packed.reasons.split(","), dict[str, Missing]()
            for own, value, fields in packed.by_label(""):
                of = GpuHead(heads[0].gpu, own, value, ())
                said = {name: reason_of(codes[place]) or codes[place][:60] for place, name in fields}
                named |= self._reasons_by_key(of, said, line_number)
            found = named
        for head in heads:
            self._put(head, at_ms, {}, found)

    def _instant(self, stamp: str) -> int:
        if (known := self._instants.get(stamp)) is None:
            known = self._new_instant(stamp)
            if len(self._instants) < _MAX_INSTANTS:
                self._instants[stamp] = known
        return known

    def _new_instant(self, stamp: str) -> int:
        at_ms = instant(stamp, self._step, self._now_ms)
        if at_ms > self._now_ms + MAX_FUTURE_MS:
            ahead = (at_ms - self._now_ms) / 1000
            raise LineError(
                f"dated {ahead:.0f} s in the future ({_shown(at_ms)}); check the sender's clock and the precision"
            )
        if at_ms < 0:
            raise LineError(f"dated before 1970 ({at_ms} ms); check the sender's clock and the precision")
        return at_ms

    # ------------------------------------------------------------------ points

    def _typed(self, head: str, fields: Mapping[str, FieldValue], at_ms: int, line_number: int) -> None:
        measurement, tags = parse_head(head)
        uuids = tuple(tags[name] for name in ("gpu_uuid", "mig_uuid") if name in tags)
        self._admitted(measurement, tags.get("host", ""), uuids)
        if measurement in (points.GPU, points.MISSING):
            text = [name for name, value in fields.items() if isinstance(value, str)]
            for name in text:
                self._drop(f"field {name[:100]!r} of {measurement} is text, dropped")
            rest = {name: value for name, value in fields.items() if name not in text}
            parsed = gpu_head(head)
            if measurement == points.MISSING:
                self._missing(parsed, rest, at_ms, line_number)
            else:
                self._take(parsed, rest, at_ms, line_number)
            return
        if (reader := _READERS.get(measurement)) is None:
            raise LineError(f"unknown measurement {measurement[:60]!r}")
        reader(self, Point(measurement, tags, fields, at_ms))

    def _put(
        self, head: GpuHead, at_ms: int, values: Mapping[str, float], missing: Mapping[str, Missing]
    ) -> _Row | None:
        for name in head.strange:
            self._warn(f"tag {name[:100]!r} is not known, ignored")
        return self._rows.put(head.gpu, at_ms, values, missing)

    def _take(
        self,
        head: GpuHead,
        fields: Mapping[str, FieldValue],
        at_ms: int,
        line_number: int,
    ) -> None:
        values: dict[str, float] = {}
        missing: dict[str, Missing] = {}
        suspects: dict[str, float] = {}
        for name, value in fields.items():
            if (key := self._key(name, head)) is None:
                continue
            low, high = BOUNDS[name][2:]
            if low <= float(value) <= high:
                values[key] = float(value)
            else:
                suspects[key] = float(value)
        if suspects:
            cleaned, problems = sanitise(Reading(head.gpu, at_ms, suspects))
            missing.update(cleaned.missing)
            for problem in problems:
                self._drop(f"line {line_number}: {problem}")
        self._put(head, at_ms, values, missing)

    def _reasons(self, head: GpuHead, text: str, at_ms: int, line_number: int) -> None:
        known = reasons_of(text, head.label, head.value) if len(text) <= LONGEST_FIELDS else None
        if known is None:
            self._missing(head, parse_fields(text)[0], at_ms, line_number)
        else:
            self._put(head, at_ms, {}, known)

    def _missing(self, head: GpuHead, fields: Mapping[str, FieldValue], at_ms: int, line_number: int) -> None:
        self._put(head, at_ms, {}, self._reasons_by_key(head, fields, line_number))

    def _reasons_by_key(self, head: GpuHead, fields: Mapping[str, FieldValue], line_number: int) -> dict[str, Missing]:
        missing: dict[str, Missing] = {}
        for name, code in fields.items():
            if (key := self._key(name, head)) is None:
                continue
            reason = _REASONS.get(int(code)) if isinstance(code, int | float) and code == code // 1 else None
            if reason is None:
                self._drop(f"line {line_number}: {key} = {code!r} is no reason's code, kept as blank")
            missing[key] = reason or Missing.BLANK
        return missing

    def _key(self, name: str, head: GpuHead) -> str | None:
        """Canonical name of a field, with the line's label; None, with a warning, where there is no such metric."""
        spec = BOUNDS.get(name)
        if spec is None:
            self._drop(f"field {name[:100]!r} is not in the metric table, dropped{self._suggestion(name)}")
            return None
        if not head.label:
            return spec[0]
        if head.label != spec[1]:
            self._drop(f"field {name[:100]!r} has no label {head.label!r}, dropped")
            return None
        return key_of(spec[0], head.label, head.value)

    def _suggestion(self, name: str) -> str:
        if name not in self._suggested and len(self._suggested) < _MAX_SUGGESTIONS:
            self._suggested[name] = f"; the nearest is {METRICS[nearest('gpu_' + name[:_LONGEST_NAME])].field!r}"
        return self._suggested.get(name, "")

    def take_info(self, point: Point) -> None:
        self._rows.put_info(points.read_info(point), point.at_ms)

    def take_owners(self, point: Point) -> None:
        if (owned := owners_of_point(point)) is not None:
            self._put_owners(owned[0], point.at_ms, owned[1])

    def _put_owners(self, gpu: Gpu, at_ms: int, owners: tuple[Owner, ...]) -> None:
        # The brain leaves them out, whichever way they come; here the sender is told.
        if (more := len(owners) - MOST_OWNERS) > 0:
            self._drop(
                f"{more} owners of {gpu.uuid[:100]} are more than {MOST_OWNERS}, dropped; send those that use it"
            )
        self._rows.put_owners(gpu, at_ms, owners)

    def take_event(self, point: Point) -> None:
        self._events.append(points.read_event(point))

    def take_finding(self, point: Point) -> None:
        self._findings.append(points.read_finding(point))

    def take_prediction(self, point: Point) -> None:
        self._predictions.append(points.read_prediction(point))

    # ------------------------------------------------------------------ result

    def _drop(self, text: str) -> None:
        self._dropped += 1
        self._warn(text)

    def _warn(self, text: str) -> None:
        self._warnings[text if text in self._warnings or len(self._warnings) < MAX_REJECTED else _OTHERS] += 1

    def result(self) -> Decoded:
        warnings = [text if count == 1 else f"{text} ({count} times)" for text, count in self._warnings.items()]
        if len(warnings) > MAX_WARNINGS:
            warnings[MAX_WARNINGS:] = [f"and {len(warnings) - MAX_WARNINGS} more warnings"]
        batch = Batch(self._rows.readings(), self._events, self._findings, self._predictions)
        return Decoded(batch, self._rejected, warnings, self._dropped, self._refused)


_READERS: dict[str, Callable[[_Decoder, Point], None]] = {
    points.INFO: _Decoder.take_info,
    points.OWNER: _Decoder.take_owners,
    points.EVENT: _Decoder.take_event,
    points.FINDING: _Decoder.take_finding,
    points.PREDICTION: _Decoder.take_prediction,
}


def _uuids(gpu: Gpu) -> tuple[str, ...]:
    return (gpu.parent, gpu.uuid) if gpu.parent else (gpu.uuid,)


def _is_utf8(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(at_ms: int) -> str:
    try:
        return to_iso(at_ms)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def decode(text: str | bytes, *, precision: str = "ms", now_ms: int, admit: Admit | None = None) -> Decoded:
    """Read line protocol with timestamps in `precision`: ``ns``, ``us``, ``ms`` or ``s``.

    Lines that `admit` speaks against are rejected with what it says; without it whoever sent them may say anything.

    A point without a timestamp is dated `now_ms`. Lines of one GPU and instant become one `Reading`; within it a value
    outranks a reason for its absence, and of two values the later line's holds. Readings carry the attributes of their
    own ``gpu_info`` line, else of the GPU's newest one in `text`. A line dated more than `MAX_FUTURE_MS` ahead of
    `now_ms`, or before 1970, is rejected. Raises InputError for an unknown `precision`.
    """
    undecodable = False
    if isinstance(text, bytes):
        try:
            body = text.decode()
        except UnicodeDecodeError:
            body, undecodable = text.decode("utf-8", "surrogateescape"), True
    else:
        body = text
    decoder = _Decoder(precision, now_ms, admit)
    decoder.run(body, undecodable)
    return decoder.result()
