"""Examples from a recorded or simulated past: one walk forward in time with the builder that also serves live.

Also the examples of now, on which scorers answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.progress import work
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.builder import FeatureBuilder, shown_values
from tocsin.forecaster.features.examples import NEVER, Codes, Examples, Ints, Mask, Singles
from tocsin.forecaster.features.feed import ColumnSource, Condenser, chunk_of, jobs_of
from tocsin.forecaster.features.heat import HEAT_METRICS, HeatWatch
from tocsin.forecaster.features.onsets import GAP_MS, QUIET_MS, Onset, label, onsets_of
from tocsin.forecaster.features.plan import OWN_NAMES, FeaturePlan
from tocsin.forecaster.features.rings import Rings
from tocsin.store.port import Columns


def host_of(gpu: Gpu) -> str:
    """The usual group: GPUs of one host stay on one side of a split."""
    return gpu.host


@dataclass(frozen=True, slots=True)
class Span:
    """Decisions are made at the multiples of `every_ms` in (`start_ms`, `end_ms`]."""

    start_ms: int
    end_ms: int
    every_ms: int = HOUR

    def instants(self) -> range:
        first = (self.start_ms // self.every_ms + 1) * self.every_ms
        return range(first, self.end_ms + 1, self.every_ms)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a walk is labelled: see `tocsin.forecaster.features.onsets` and `labels`."""

    gap_ms: int = GAP_MS
    quiet_ms: int = QUIET_MS
    group_of: Callable[[Gpu], str] = host_of


@dataclass(slots=True)
class StepData:
    """What falls into one step: `columns` sorted by instant, `events`, and the job on each GPU where it is known."""

    columns: Columns | None = None
    events: Sequence[Event] = ()
    gpus: Sequence[Gpu] = ()
    jobs: dict[str, str] | None = None


def examples_from(
    source: ColumnSource | Iterable[Batch],
    gpus: Sequence[Gpu],
    span: Span,
    plan: FeaturePlan | None = None,
    onsets: Sequence[Onset] | None = None,
    rules: Rules | None = None,
) -> Examples:
    """Walk through `source` and give a row for each GPU and decision instant of `span`, labelled.

    `source` is a store, which is read from the longest window before the start, or batches in the order of time, which
    are all taken. Without `onsets` they are those of the walk up to the end of `span`. The rows come by instant; their
    sequences are gathered when asked for. Raises InputError where decisions do not fall on the grid of `plan`.
    """
    plan, rules = plan or FeaturePlan(), rules or Rules()
    if span.every_ms % plan.step_ms:
        raise InputError("every_ms", span.every_ms, "decisions are off the grid", f"give a multiple of {plan.step_ms}")
    parts = batch_parts(source, plan) if isinstance(source, Iterable) else store_parts(source, plan, span, len(gpus))
    walk = Walk(plan, gpus, span, rules.quiet_ms)
    reached = (span.start_ms - max(plan.windows_ms)) // plan.step_ms
    with work("telemetry", span.end_ms // plan.step_ms - reached) as bar:
        for step, part in parts:
            if step * plan.step_ms >= span.end_ms:
                break
            walk.take(step, part)
            bar.advance(max(0, step - reached))
            reached = max(step, reached)
    walk.close()
    return walk.examples(walk.onsets() if onsets is None else onsets, rules)


def metrics_of(plan: FeaturePlan) -> tuple[str, ...]:
    """What a walk asks a source for: what features are made of, and what tells of onsets."""
    return tuple(dict.fromkeys((*plan.metrics, *HEAT_METRICS)))


def store_parts(source: ColumnSource, plan: FeaturePlan, span: Span, gpus: int) -> Iterator[tuple[int, StepData]]:
    """Steps with what a store of so many GPUs has of them."""
    begin = (span.start_ms - max(plan.windows_ms)) // plan.step_ms * plan.step_ms
    width = chunk_of(plan, gpus)
    for start_ms in range(max(begin, 0), span.end_ms, width):
        # A step ends with its last instant, a query before it.
        end_ms = min(start_ms + width, span.end_ms)
        columns = source.columns(metrics_of(plan), start_ms + 1, end_ms + 1)
        events = source.events(start_ms + 1, end_ms + 1)
        yield from _split(columns, events, plan)


def _split(columns: Columns, events: Sequence[Event], plan: FeaturePlan) -> Iterator[tuple[int, StepData]]:
    steps = (columns.at_ms - 1) // plan.step_ms
    of_event = [(event.at_ms - 1) // plan.step_ms for event in events]
    for step in sorted({*np.unique(steps).tolist(), *of_event}):
        first, last = np.searchsorted(steps, [step, step + 1])
        rows = slice(int(first), int(last))
        cut = Columns(columns.gpus, columns.metrics, columns.gpu[rows], columns.at_ms[rows], columns.values[rows])
        yield step, StepData(cut, [event for event, own in zip(events, of_event, strict=True) if own == step])


def batch_parts(batches: Iterable[Batch], plan: FeaturePlan) -> Iterator[tuple[int, StepData]]:
    """Steps with what falls into them; batches come in the order of time."""
    condenser = Condenser(plan, metrics_of(plan))
    held: list[Batch] = []
    now: int | None = None
    for batch in batches:
        step = _step_of(batch, plan)
        if step is None:
            continue
        if now is not None and step > now:
            yield now, _joined(held, condenser)
            held = []
        now = step if now is None else max(now, step)
        held.append(batch)
    if now is not None:
        yield now, _joined(held, condenser)


def _step_of(batch: Batch, plan: FeaturePlan) -> int | None:
    newest = max([one.at_ms for one in batch.readings] + [one.at_ms for one in batch.events], default=None)
    return None if newest is None else (newest - 1) // plan.step_ms


def _joined(batches: Sequence[Batch], condenser: Condenser) -> StepData:
    readings: list[Reading] = [reading for batch in batches for reading in batch.readings]
    events = [event for batch in batches for event in batch.events]
    gpus = list({reading.gpu.uuid: reading.gpu for reading in readings}.values())
    return StepData(condenser.columns(readings), events, gpus, jobs_of(readings))


@dataclass(slots=True)
class _Block:
    at_ms: int
    device: Codes
    features: Singles
    seen_ms: Ints
    history_ms: Ints


@dataclass
class Walk:
    """A walk in progress: `take` each step in turn, then `close`, then ask for `examples`."""

    plan: FeaturePlan
    gpus: Sequence[Gpu]
    span: Span
    quiet_ms: int = QUIET_MS
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder = FeatureBuilder(self.plan, self.gpus)
        self._heat = HeatWatch(self.quiet_ms)
        self._due = set(self.span.instants())
        first = self.span.start_ms // self.plan.step_ms - self.plan.steps
        steps = self.span.end_ms // self.plan.step_ms - first + 1
        self._recording = Recording(self.plan, first, steps)
        self._blocks: list[_Block] = []
        self._step: int | None = None

    def take(self, step: int, part: StepData) -> None:
        """The next step that has anything; those between had nothing."""
        self._skip(step)
        self._step = step
        known = set(self.builder.gpus)
        self.builder.know([gpu for gpu in part.gpus if gpu.uuid not in known])
        if part.jobs is not None and part.jobs != self.builder.parts.roster.jobs:
            self.builder.assign(part.jobs)
        self.builder.update(part.columns, part.events)
        self.events.extend(part.events)
        if part.columns is not None:
            self._heat.take(part.columns)
        self._end(step)

    def close(self) -> None:
        self._skip(self.span.end_ms // self.plan.step_ms)

    def _skip(self, end: int) -> None:
        """End the steps before `end` in which nothing came."""
        if self._step is not None:
            for step in range(self._step + 1, end):
                self._end(step)

    def _end(self, step: int) -> None:
        at_ms = (step + 1) * self.plan.step_ms
        if step < self._recording.first:
            return
        self.builder.begin(at_ms)
        self._recording.add(self.builder.parts.rings, step, len(self.builder.gpus))
        while self.builder.frozen:
            one = self.builder.frozen.popleft()
            self._recording.freeze(one.gpu, one.first, one.known)
        if at_ms in self._due:
            self._decide(at_ms)

    def _decide(self, at_ms: int) -> None:
        table = self.builder.table(at_ms)
        rows = np.flatnonzero(table.history_ms >= 0)
        self._blocks.append(
            _Block(at_ms, rows.astype(np.int32), table.values[rows], table.seen_ms[rows], table.history_ms[rows])
        )

    def onsets(self) -> list[Onset]:
        """The onsets in what was taken. Heat is that of whole GPUs, not once more of their MIG instances."""
        gpus = self.builder.parts.roster.gpus
        parts = {gpu.uuid for gpu in gpus if gpu.is_mig}
        heat = {uuid: spans for uuid, spans in self._heat.heat().items() if uuid not in parts}
        return onsets_of(self.events, gpus, quiet_ms=self.quiet_ms, heat=heat)

    def examples(self, onsets: Sequence[Onset], rules: Rules) -> Examples:
        """The rows that may be learned from. The walk gives its memory away and is over."""
        blocks, self._blocks = self._blocks, []
        devices, observed_ms = self.builder.gpus, self.builder.parts.arrays["last_ms"].copy()
        at_ms = _joint([np.full(block.device.size, block.at_ms) for block in blocks], np.int64)
        device = _joint([block.device for block in blocks], np.int32)
        labels = label(at_ms, device, devices, onsets, observed_ms, gap_ms=rules.gap_ms)
        kept = np.flatnonzero(labels.keep)
        groups, group_of = groups_of(self.builder.parts.roster.gpus, rules.group_of)
        sequences = RecordedSequences(self.plan, self._recording, device[kept], at_ms[kept] // self.plan.step_ms - 1)
        return Examples(
            devices,
            device[kept],
            groups,
            group_of[device[kept]],
            at_ms[kept],
            self.builder.names,
            _features(blocks, labels.keep, len(self.builder.names)),
            _joint([block.seen_ms for block in blocks], np.int64)[kept],
            _joint([block.history_ms for block in blocks], np.int64)[kept],
            labels.event_ms[kept],
            labels.until_ms[kept],
            labels.event_class[kept],
            np.ones(kept.size),
            sequences,
        )


def _features(blocks: list[_Block], keep: Mask, width: int) -> Singles:
    """The kept rows of all blocks; each block is let go as soon as it is copied."""
    found = np.empty((int(keep.sum()), width), np.float32)
    row = place = 0
    for block in blocks:
        chosen = block.features[keep[row : row + block.device.size]]
        found[place : place + len(chosen)] = chosen
        row, place = row + block.device.size, place + len(chosen)
        block.features = chosen[:0]
    return found


def groups_of(gpus: Sequence[Gpu], group_of: Callable[[Gpu], str]) -> tuple[tuple[str, ...], Codes]:
    """The groups of `gpus`, by name, and the number of each GPU's own."""
    names = [group_of(gpu) for gpu in gpus]
    groups = tuple(sorted(set(names)))
    number = {name: place for place, name in enumerate(groups)}
    return groups, np.array([number[name] for name in names], dtype=np.int32)


def _joint(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate([*arrays, np.empty(0, dtype)]).astype(dtype, copy=False)


# The grid of a whole walk, kept once; the window of each row is gathered when it is asked for.

Halves = npt.NDArray[np.float16]
_NEVER = 255


class Recording:
    """Collects closed steps from number `first` on: half precision [g, steps, channels].

    `known_after` says after how many steps it was known that a value only repeated an older one: a window that ended
    earlier still shows it, as it was shown then.
    """

    def __init__(self, plan: FeaturePlan, first: int, steps: int) -> None:
        self._plan = plan
        self.first = first
        self._nothing = np.array([0.0 if name in OWN_NAMES else np.nan for name in plan.sequence], np.float16)
        self._places = np.array([plan.names.index(name) for name in plan.sequence], dtype=np.intp)
        self.values: Halves = np.empty((0, steps, len(plan.sequence)), np.float16)
        self.known_after = np.empty((0, steps), np.uint8)

    def add(self, rings: Rings, step: int, gpus: int) -> None:
        self._grow(gpus)
        place = step - self.first
        if not 0 <= place < self.values.shape[1]:
            return
        values, here = rings.values(step)
        self.values[:, place] = shown_values(self._plan, values[self._places], here[self._places]).T

    def _grow(self, gpus: int) -> None:
        have, steps, channels = self.values.shape
        if gpus > have:
            more = np.broadcast_to(self._nothing, (gpus - have, steps, channels))
            self.values = np.concatenate([self.values, more])
            self.known_after = np.concatenate([self.known_after, np.full((gpus - have, steps), _NEVER, np.uint8)])

    def freeze(self, gpu: int, first: int, known: int) -> None:
        """In step `known` it came out that steps `first` to `known` only repeated."""
        for step in range(max(first, self.first), min(known + 1, self.first + self.values.shape[1])):
            self.known_after[gpu, step - self.first] = min(known - step, _NEVER - 1)


class RecordedSequences:
    """Sequences of rows of (`device`, `last`): the GPU's number and the newest step of the window."""

    def __init__(self, plan: FeaturePlan, recording: Recording, device: Codes, last: Ints) -> None:
        self.channels, self.steps = plan.sequence, plan.steps
        self._measured = np.array([name not in OWN_NAMES for name in plan.sequence])
        self._recording = recording
        self._device = device
        self._place = last - recording.first

    def take(self, rows: Ints) -> Singles:
        device = self._device[rows][:, None]
        ends = self._place[rows][:, None]
        places = ends - np.arange(self.steps - 1, -1, -1)
        found: Singles = self._recording.values[device, places].astype(np.float32)
        after = self._recording.known_after[device, places]
        known = (after != _NEVER) & (places + after <= ends)
        found[known[:, :, None] & self._measured] = np.nan
        return found


# The rows that a scorer answers on, at the present instant of a builder.


def examples_now(builder: FeatureBuilder, now_ms: int) -> Examples:
    """A row for each GPU that has been read, by number; nothing is known of what comes.

    The same instants, features and sequences as a walk gives. Raises InputError where something later has been fed.
    """
    table = builder.table(now_ms)
    rows = np.flatnonzero(table.history_ms >= 0)
    groups, group = groups_of(builder.parts.roster.gpus, host_of)
    unknown = np.full(rows.size, now_ms, np.int64)
    return Examples(
        table.gpus,
        rows.astype(np.int32),
        groups,
        group[rows],
        unknown,
        table.names,
        table.values[rows],
        table.seen_ms[rows],
        table.history_ms[rows],
        np.full(rows.size, NEVER, np.int64),
        unknown.copy(),
        np.full(rows.size, "", dtype="<U16"),
        np.ones(rows.size),
        PresentSequences(builder, now_ms, rows),
    )


class PresentSequences:
    """Sequences up to `now_ms` of the GPUs that have the numbers `gpus`, made when asked for: few models look at them,
    and those of 10,000 GPUs are 150 MB."""

    def __init__(self, builder: FeatureBuilder, now_ms: int, gpus: Ints) -> None:
        self.channels, self.steps = builder.plan.sequence, builder.plan.steps
        self._builder, self._fed = builder, builder.fed
        self._last = builder.closed(now_ms)
        self._gpus = gpus

    def take(self, rows: Ints) -> Singles:
        """As `Sequences.take`. Raises InputError where the builder has been fed since."""
        if self._builder.fed != self._fed:
            raise InputError("rows", len(rows), "the builder has been fed since", "ask before feeding what is later")
        return self._builder.window(self._last, self.steps, self._gpus[rows])
