"""`tocsin backtest` over a fleet's own past: a store, or recorded files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.collector.replay.recording import ReplayRecording
from tocsin.collector.replay.source import read_recording
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, Clock, to_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.engine import Engine
from tocsin.forecaster.evaluation.forward import Forward, forward
from tocsin.forecaster.evaluation.result import Result
from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.features.walk import Span, examples_from
from tocsin.store.port import Store

PAST_MS = 90 * DAY
"""How much of a store is judged unless said otherwise."""


@dataclass(frozen=True, slots=True)
class BacktestSpan:
    """What to judge: decisions every `every_ms` in (`start_ms`, `end_ms`]; None: from the first to the last reading of
    the files, or the last `PAST_MS` of a store."""

    start_ms: int | None = None
    end_ms: int | None = None
    every_ms: int = HOUR


def over_files(
    paths: Sequence[Path], past: BacktestSpan, wanted: Forward, clock: Clock, engine: Engine | None = None
) -> Result:
    """Walk forward over recordings of any format that a replay reads.

    Raises InputError where nothing can be read or the past is too short, NotEnoughData where nothing can be learned.
    """
    begun = clock.monotonic()
    recording = read_recording(paths)
    span = _span(past, recording.start_ms, max(int(track.at_ms[-1]) for track in recording.tracks))
    examples = examples_from(batches(recording), [track.gpu for track in recording.tracks], span)
    result = _judged(examples, wanted, f"{len(paths)} recorded files, {_told(span)}", engine)
    notes = [*result.notes, *(str(problem) for problem in recording.problems)]
    return replace(result, notes=notes, seconds=clock.monotonic() - begun)


def over_store(store: Store, past: BacktestSpan, wanted: Forward, clock: Clock, engine: Engine | None = None) -> Result:
    """Walk forward over what a store holds. Raises as `over_files`, and what the store raises."""
    begun, now_ms = clock.monotonic(), clock.now_ms()
    span = _span(past, now_ms - PAST_MS, now_ms)
    examples = examples_from(store, store.gpus(), span)
    result = _judged(examples, wanted, f"the store, {_told(span)}", engine)
    return replace(result, seconds=clock.monotonic() - begun)


def batches(recording: ReplayRecording) -> Iterator[Batch]:
    """Readings and events of a recording in the order of time."""
    events, place = recording.events(), 0
    for at_ms, readings in recording.instants():
        first = place
        while place < len(events) and events[place].at_ms <= at_ms:
            place += 1
        yield Batch(readings, events[first:place])
    if place < len(events):
        yield Batch([], events[place:])


def _judged(examples: Examples, wanted: Forward, source: str, engine: Engine | None) -> Result:
    if len(examples) == 0:
        raise InputError("span", source, "no GPU has a reading to decide on", "choose --from and --to with telemetry")
    return forward(examples, wanted, source, engine)


def _span(past: BacktestSpan, first_ms: int, last_ms: int) -> Span:
    start_ms = first_ms if past.start_ms is None else past.start_ms
    end_ms = last_ms if past.end_ms is None else past.end_ms
    if end_ms <= start_ms:
        raise InputError("--to", to_iso(end_ms), f"not after {to_iso(start_ms)}", "choose a later end")
    return Span(start_ms, end_ms, past.every_ms)


def _told(span: Span) -> str:
    return f"{to_iso(span.start_ms)[:16]} to {to_iso(span.end_ms)[:16]}, a decision every {span.every_ms / HOUR:g} h"
