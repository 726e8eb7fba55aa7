"""The one builder of features: training, backtest and service feed it and ask it alike.

It is fed readings and events in the order of time and can be asked at any instant after them; what it has not been fed
it cannot know. It can be saved and taken up again. Work is numpy over all GPUs at once, and memory is two grids of time
(see `rings`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu
from tocsin.forecaster.features.arrays import NOT_YET, Bools, Floats, Ints, Rows, Singles, rounds
from tocsin.forecaster.features.parts import parts_of
from tocsin.forecaster.features.peers import place_of
from tocsin.forecaster.features.plan import (
    FROZEN,
    HARDWARE_EVENTS,
    OTHER_EVENTS,
    OWN_CHANNELS,
    OWN_NAMES,
    REPORTED,
    ColumnLayout,
    FeatureKind,
    FeaturePlan,
    layout,
)
from tocsin.forecaster.features.table import FeatureTable, names_of, values_of
from tocsin.store.port import Columns

THERMAL_LAG = 6
"""Steps after which a closed step enters the thermal fit: by then it is known whether it was frozen."""


MOST_FROZEN = 100_000
"""Stretches that wait in `FeatureBuilder.frozen` for someone who takes them; the oldest go first."""


@dataclass(frozen=True, slots=True)
class FrozenSteps:
    """From step `first` on nothing of GPU number `gpu` counts; that became known in step `known`."""

    gpu: int
    first: int
    known: int


class FeatureBuilder:
    """Everything known of a fleet, as features.

    Rows that are not newer than their GPU's last, or older than the step in progress, are counted in `late` and left
    out. GPUs may appear at any time; `know` tells what they are.
    """

    def __init__(
        self, plan: FeaturePlan, gpus: Sequence[Gpu] = (), *, installed_ms: Mapping[str, int] | None = None
    ) -> None:
        self.plan = plan
        self.late = 0
        self.fed = 0
        """How often anything was taken in."""
        self.newest_ms = NOT_YET
        self.frozen: deque[FrozenSteps] = deque(maxlen=MOST_FROZEN)
        self.parts = parts_of(plan)
        self.parts.installed_ms.update(installed_ms or {})
        self._arrays, self._rings = self.parts.arrays, self.parts.rings
        self._numbers: dict[str, int] = {}
        self._layouts: dict[tuple[str, ...], ColumnLayout] = {}
        names = plan.names
        self._own = {name: names.index(name) for name, _ in OWN_CHANNELS}
        self._measured = np.array([place for place, name in enumerate(names) if name not in self._own], dtype=np.intp)
        self._heat = [names.index(name) if name in names else -1 for name in ("power", "temperature")]
        self.know(gpus)

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.plan)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs in the order of rows."""
        return tuple(self._numbers)

    def know(self, gpus: Iterable[Gpu]) -> None:
        new: dict[str, Gpu] = {}
        changed = False
        for gpu in gpus:
            number = self._numbers.get(gpu.uuid)
            if number is None:
                new[gpu.uuid] = gpu
            elif place_of(self.parts.roster.gpus[number]) != place_of(gpu):
                self.parts.roster.gpus[number] = gpu
                changed = True
        known = len(self._numbers)
        self._numbers.update((uuid, known + place) for place, uuid in enumerate(new))
        if new:
            self._arrays.grow(len(new))
        if new or changed:
            self.parts.roster.add(list(new.values()))

    def assign(self, jobs: Mapping[str, str]) -> None:
        self.parts.roster.assign(jobs)

    def leave_out(self, surplus: Collection[str]) -> None:
        """From here on GPUs of these UUIDs, which are more than their hosts have, tell nothing about others. It is not
        saved."""
        self.parts.roster.leave_out(surplus)

    # ------------------------------------------------------------------ feeding

    def update(self, columns: Columns | None = None, events: Sequence[Event] = ()) -> None:
        """Take in rows, sorted by instant, and events. Columns that the plan does not use are not looked at."""
        self.fed += 1
        fresh = self.parts.happenings.fresh(events)
        self.know([Gpu(e.gpu, e.host) for e in fresh if e.gpu and e.gpu not in self._numbers])
        if columns is not None and columns.at_ms.size:
            self._rows(columns)
        for event in fresh:
            self._event(event)

    def _rows(self, columns: Columns) -> None:
        self.know([Gpu(uuid, "") for uuid in columns.gpus if uuid not in self._numbers])
        number = np.array([self._numbers[uuid] for uuid in columns.gpus], dtype=np.intp)
        gpus, at_ms = number[columns.gpu], columns.at_ms
        using = self._layout(columns.metrics)
        step = (at_ms - 1) // self.plan.step_ms
        for first, last in _runs(step):
            if step[first] < self._rings.step:
                self.late += last - first
                continue
            self._advance(int(step[first]))
            values = np.ascontiguousarray(columns.values[first:last, using.columns].T)
            for rows in rounds(gpus[first:last]):
                self._round(using, values, gpus[first:last], at_ms[first:last], rows)

    def _layout(self, metrics: tuple[str, ...]) -> ColumnLayout:
        if metrics not in self._layouts:
            self._layouts[metrics] = layout(
                self.plan, self.parts.intake.keys, {name: i for i, name in enumerate(metrics)}
            )
        return self._layouts[metrics]

    def _round(self, using: ColumnLayout, values: Floats, gpus: Rows, at_ms: Ints, rows: Rows) -> None:
        """Readings `rows`, at most one of each GPU."""
        arrays = self._arrays
        new = at_ms[rows] > arrays["last_ms"][gpus[rows]]
        self.late += int(rows.size - new.sum())
        rows = rows[new] if not new.all() else rows
        whole = rows.size == gpus.size
        at_ms, gpus = (at_ms, gpus) if whole else (at_ms[rows], gpus[rows])
        taken = values if whole else values[:, rows]
        arrays["last_ms"][gpus] = at_ms
        arrays["first_ms"][gpus] = np.where(arrays["first_ms"][gpus] == NOT_YET, at_ms, arrays["first_ms"][gpus])
        if at_ms.size:
            self.newest_ms = max(self.newest_ms, int(at_ms.max()))
        was = arrays["frozen"][gpus]
        stuck = self.parts.liveness.take(using, taken, gpus, at_ms)
        self._mark(gpus, REPORTED)
        arrays["count"][self._own[HARDWARE_EVENTS], gpus] += 1
        arrays["count"][self._own[OTHER_EVENTS], gpus] += 1
        if stuck.any():
            self._mark(gpus[stuck], FROZEN)
            self._freeze(gpus[stuck & ~was])
            taken, gpus, at_ms = taken[:, ~stuck], gpus[~stuck], at_ms[~stuck]
        self.parts.intake.take(using, taken, gpus, at_ms)

    def _mark(self, gpus: Rows, name: str) -> None:
        self._arrays["sum"][self._own[name], gpus] = 1.0
        self._arrays["count"][self._own[name], gpus] += 1

    def _freeze(self, gpus: Rows) -> None:
        """Take out what has been repeated since the step in which the values last moved."""
        first = (self._arrays["run_ms"][gpus] - 1) // self.plan.step_ms + 1
        self._rings.take_out(gpus, first, self._measured)
        step = self._rings.step
        self.frozen.extend(FrozenSteps(*one, step) for one in zip(gpus.tolist(), first.tolist(), strict=True))

    def _advance(self, step: int) -> None:
        """Begin `step`; each step that closed `THERMAL_LAG` ago carries the thermal fit on."""
        if self._rings.step == NOT_YET:
            self._rings.advance(step)
        # Behind that many empty steps there is nothing left to fit.
        for _ in range(min(step - self._rings.step, THERMAL_LAG)):
            self._rings.advance(self._rings.step + 1)
            self._fit(self._rings.step - THERMAL_LAG)
        self._rings.advance(step)

    def _fit(self, step: int) -> None:
        power, heat = self._heat
        if power < 0 or heat < 0:
            return
        values, here = self._rings.values(step)
        both = here[power] & here[heat]
        self.parts.thermal.take(values[power].astype(np.float64), values[heat].astype(np.float64), both)

    def _event(self, event: Event) -> None:
        mates = (number for number, gpu in enumerate(self.parts.roster.gpus) if gpu.host == event.host)
        hit = [self._numbers[event.gpu]] if event.gpu else list(mates)
        step = self._rings.step_of(event.at_ms)
        self._go_on(step)
        self.newest_ms = max(self.newest_ms, event.at_ms)
        for gpu in hit:
            fault = self.parts.happenings.take(event, gpu)
            if fault is not None:
                self._rings.count(self._own[HARDWARE_EVENTS if fault else OTHER_EVENTS], gpu, step)

    # ------------------------------------------------------------------ asking

    def table(self, now_ms: int) -> FeatureTable:
        """The features of every GPU at `now_ms`. Raises InputError where something later has been fed."""
        self.begin(now_ms)
        first_ms = self._arrays["first_ms"]
        history_ms = np.where(first_ms == NOT_YET, -1, now_ms - first_ms)
        seen_ms = np.full(history_ms.size, -1 if self.newest_ms == NOT_YET else self.newest_ms, np.int64)
        return FeatureTable(self.gpus, self.names, values_of(self.parts, now_ms), history_ms, seen_ms)

    def sequences(self, now_ms: int) -> Singles:
        """float32[g, steps, channels]: the last closed steps at `now_ms`, the newest last; NaN where there is no value.

        Raises InputError where something later has been fed.
        """
        self.begin(now_ms)
        return self.window(self.closed(now_ms), self.plan.steps)

    def closed(self, now_ms: int) -> int:
        """The newest step that is over at `now_ms`."""
        return now_ms // self.plan.step_ms - 1

    def window(self, last: int, steps: int, gpus: Rows | None = None) -> Singles:
        """float32[g, steps, channels] of the steps up to `last`, as `sequences`; step `last` may be in progress. With
        `gpus`, numbers of rows, of those alone."""
        names = self.plan.names
        places = np.array([names.index(name) for name in self.plan.sequence], dtype=np.intp)
        some, again = (None, slice(None)) if gpus is None else np.unique(gpus, return_inverse=True)
        found = np.empty((self._arrays.size if some is None else some.size, steps, places.size), np.float32)
        for place in range(steps):  # step by step, which stays in the processor's cache
            values, here = self._rings.values(last - steps + 1 + place, some)
            found[:, place] = shown_values(self.plan, values[places], here[places]).T
        return found[again]

    def begin(self, now_ms: int) -> None:
        """Move on to `now_ms`: steps that ended before it are closed. Raises InputError where something later has been
        fed."""
        if now_ms < self.newest_ms:
            problem = f"data up to {self.newest_ms} has been fed, which was not known then"
            raise InputError("now_ms", now_ms, problem, "ask before feeding what is later")
        self._go_on(self._rings.step_of(now_ms))

    def _go_on(self, step: int) -> None:
        if step > self._rings.step:
            self._advance(step)


def _runs(steps: Ints) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(steps)) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), steps.size], strict=True)


# Values of the grid as a network takes them, the same from the live builder and from a recorded grid.

LARGEST = float(np.finfo(np.float16).max)
"""A value beyond it, which no sound GPU reports, stands as it."""

Halves = npt.NDArray[np.float16]


def shown_values(plan: FeaturePlan, values: Singles, here: Bools) -> Halves:
    """One step as sequences show it, float16[c, g], from `values` and `here` in the order of `plan.sequence`.

    The growth of a counter is given as log(1 + growth), a missing value as NaN; the builder's own channels are 0 where
    nothing came. Half precision is what recorded grids are kept in, so live sequences are rounded to it too.
    """
    counters, own = _masks(plan)
    shown = values.copy()
    shown[counters] = np.log1p(values[counters])
    shown[~(here | own[:, None])] = np.nan
    np.clip(shown, -LARGEST, LARGEST, out=shown)
    return np.asarray(shown.astype(np.float16))


@cache
def _masks(plan: FeaturePlan) -> tuple[Bools, Bools]:
    """Which channels of a sequence are counters, and which the builder's own."""
    kinds = {channel.name: channel.kind for channel in plan.channels} | dict(OWN_CHANNELS)
    counters = np.array([kinds[name] is FeatureKind.COUNTER for name in plan.sequence])
    return counters, np.array([name in OWN_NAMES for name in plan.sequence])


# A builder as arrays, so that a service that starts again need not read a month.

VERSION = 2
DENSE_VERSION = 1
"""The version before it, which held every step whole; it is read, and no longer written."""
_ABOUT = "about"


def _plan_text(plan: FeaturePlan) -> str:
    """The plan as states name it; those of before had shorter names for its classes, and are gone on from."""
    text = repr(plan)
    for name in ("Plan", "Channel", "Kind"):
        text = text.replace(f"Feature{name}", name)
    return text


def save(builder: FeatureBuilder) -> dict[str, npt.NDArray[Any]]:
    """Everything that `restore` needs: numeric arrays, one of them JSON text as bytes; to be written, or copied, before
    anything else is fed."""
    parts = builder.parts
    about = {
        "version": VERSION,
        "plan": _plan_text(builder.plan),
        "gpus": [{**asdict(gpu), "labels": dict(gpu.labels)} for gpu in parts.roster.gpus],
        "jobs": dict(parts.roster.jobs),
        "installed_ms": parts.installed_ms,
        "events": parts.happenings.known,
        "newest_ms": int(builder.newest_ms),
        "late": builder.late,
        "step": int(parts.rings.step),
    }
    text = json.dumps(about, ensure_ascii=False, sort_keys=True)
    return {
        **parts.arrays.state(),
        **dict(parts.rings.state()),
        _ABOUT: np.frombuffer(text.encode(), dtype=np.uint8).copy(),
    }


def restore(plan: FeaturePlan, state: Mapping[str, npt.NDArray[Any]]) -> FeatureBuilder:
    """The builder that `save` was given. Raises InputError for a state of another plan or version, or none at all."""
    remedy = "read the past from the store"
    try:
        about = json.loads(state[_ABOUT].tobytes())
    except (KeyError, ValueError):
        raise InputError("state", sorted(state)[:5], "not the state of a feature builder", remedy) from None
    if about.get("version") not in (VERSION, DENSE_VERSION) or about.get("plan") != _plan_text(plan):
        raise InputError("state", about.get("version"), "of another version or plan", remedy)
    builder = FeatureBuilder(plan, [Gpu(**gpu) for gpu in about["gpus"]], installed_ms=about["installed_ms"])
    builder.parts.arrays.restore(state)
    rings = builder.parts.rings
    (rings.restore if about["version"] == VERSION else rings.restore_dense)(about["step"], state)
    builder.parts.happenings.known = about["events"]
    builder.assign(about["jobs"])
    builder.newest_ms, builder.late = about["newest_ms"], about["late"]
    return builder
