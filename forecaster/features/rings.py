"""The past of every channel and GPU on two grids: steps of the newest day, coarse steps behind it.

A step covers (start, end]; its number is its start over its width. The step in progress is a sum of what has been read;
closed ones are planes (see `planes`), so that the sum over a window is a sum of whole planes. What a frozen source
repeated can be taken out of the fine grid again for as long as any detection takes, since a coarse step is made only
when its last fine step is more than a day old.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import DAY
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Ints, Rows, Singles
from tocsin.forecaster.features.plan import FeatureKind, FeaturePlan
from tocsin.forecaster.features.planes import Plane, State, add_up, empty, saved, taken_up


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Sums of a window: `total` float64[c, g] of the values (of a peak: the largest), `steps` float64[c, g] how many
    fine steps had one."""

    total: Floats
    steps: Floats

    def mean(self, channel: int | slice = slice(None)) -> Floats:
        """Mean of the steps with a value, NaN without one; float64[c, g], or float64[g] of one channel."""
        total, steps = self.total[channel], self.steps[channel]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(steps > 0, total / steps, np.nan))

    def copy(self) -> StepSpan:
        return StepSpan(self.total.copy(), self.steps.copy())


class Rings:
    """Keeps the grids. `step` is the number of the step in progress."""

    def __init__(self, plan: FeaturePlan, arrays: Arrays) -> None:
        self._plan = plan
        self._arrays = arrays
        self.per_coarse = plan.coarse_ms // plan.step_ms
        self.fine = DAY // plan.step_ms + self.per_coarse + 2
        self.coarse = max(1, -(-max(plan.windows_ms) // plan.coarse_ms) + 1)
        self._channels = len(plan.names)
        self._peaks = self._channels - plan.count(FeatureKind.PEAK)
        self._means = slice(plan.count(FeatureKind.COUNTER), self._peaks)
        self.step = NOT_YET
        self._fine: dict[int, Plane] = {}
        self._coarse: dict[int, Plane] = {}
        arrays.add("sum", (self._channels,), np.float64)
        arrays.add("count", (self._channels,), np.int32)

    def state(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """The closed steps as arrays by name: to be written or copied before anything else is fed."""
        yield from saved(self._fine, "fine")
        yield from saved(self._coarse, "coarse")

    def restore(self, step: int, state: State) -> None:
        """Take up what `state` gave when `step` was in progress. Raises InputError where it is of another plan."""
        self.step = step
        packed = self.oldest // self.per_coarse
        spans = {"fine": (step - self.fine, step), "coarse": (packed - self.coarse - 1, packed)}
        found = {name: taken_up(state, name, self._channels, self._arrays.size) for name in spans}
        for name, (first, last) in spans.items():
            if found[name] and not (first < min(found[name]) and max(found[name]) < last):
                raise InputError("state", name, f"has steps not in {first} to {last}", "read the past from the store")
        self._fine, self._coarse = found["fine"], found["coarse"]

    def restore_dense(self, step: int, state: State) -> None:
        """Take up grids as version 1 of a saved builder has them: `fine` float32[k, c, g] with `fine_here`, `coarse`
        float32[m, c, g], means of what is no sum, with `coarse_steps`; each step at its number modulo k or m. Raises
        InputError where they are of another plan."""
        self.step = step
        if step == NOT_YET:
            return
        fine, here = (self._dense(state, name, self.fine) for name in ("fine", "fine_here"))
        for number in range(step - self.fine + 1, step):
            if here[number % self.fine].any():
                self._fine[number] = Plane.of(fine[number % self.fine], here[number % self.fine].astype(np.uint16))
        coarse, steps = (self._dense(state, name, self.coarse) for name in ("coarse", "coarse_steps"))
        packed = self.oldest // self.per_coarse
        for number in range(packed - self.coarse, packed):
            total, counts = coarse[number % self.coarse].copy(), steps[number % self.coarse].astype(np.uint16)
            total[self._means] *= counts[self._means]
            if counts.any() or total.any():
                self._coarse[number] = Plane.of(total, counts)

    def _dense(self, state: State, name: str, steps: int) -> npt.NDArray[Any]:
        found = state.get(name)
        shape = (steps, self._channels, self._arrays.size)
        if found is None or found.shape != shape or found.dtype.kind not in "fbu":
            raise InputError("state", name, f"not of shape {shape}", "read the past from the store")
        return found

    def step_of(self, at_ms: int) -> int:
        """The step that covers `at_ms`; its end belongs to it."""
        return (at_ms - 1) // self._plan.step_ms

    @property
    def oldest(self) -> int:
        """First step that is in the fine grid alone."""
        # Coarse step c is made once step (c + 1) * per_coarse + a day has begun.
        day = DAY // self._plan.step_ms
        return (self.step - day - 1) // self.per_coarse * self.per_coarse

    def advance(self, step: int) -> None:
        if self.step == NOT_YET or step - self.step > self.coarse * self.per_coarse + self.fine:
            if self.step != NOT_YET:
                self._clear()
            self.step = step
            return
        while self.step < step:
            self._close()
            before = self.oldest
            self.step += 1
            if self.oldest > before:
                self._pack(before)
            self._fine.pop(self.step - self.fine, None)

    def _clear(self) -> None:
        self._fine.clear()
        self._coarse.clear()
        self._begin()

    def _begin(self) -> None:
        self._arrays["sum"][:] = 0.0
        self._arrays["count"][:] = 0

    def _close(self) -> None:
        """Make a plane of the step in progress; one in which nothing came needs none."""
        values, here = self._current()
        if here.any():
            self._fine[self.step] = Plane.of(values, here.astype(np.uint16))
            self._begin()

    def _pack(self, first: int) -> None:
        """Make the coarse step that begins with fine step `first`."""
        number = first // self.per_coarse
        whole = self._nothing()
        self._add(whole, first, first + self.per_coarse - 1)
        if whole.steps.any():
            self._coarse[number] = Plane.of(whole.total.astype(np.float32), whole.steps.astype(np.uint16))
        self._coarse.pop(number - self.coarse, None)

    def _current(self) -> tuple[Singles, Bools]:
        """What has been read of the step in progress, as `values` gives it."""
        total, count = self._arrays["sum"], self._arrays["count"]
        values = total.astype(np.float32)
        values[self._means] = total[self._means] / np.maximum(count[self._means], 1)
        return values, count > 0

    def take_out(self, gpus: Rows, first: Ints, channels: Rows) -> None:
        """Make the steps from `first` [n] of each of `gpus` [n] up to that in progress missing in `channels`."""
        if not gpus.size:
            return
        of_channels = np.isin(np.arange(self._channels), channels)
        for step, plane in self._fine.items():
            if (those := gpus[first <= step]).size:
                of_gpus = np.zeros(self._arrays.size, np.bool_)
                of_gpus[those] = True
                plane.take_out(of_channels, of_gpus)
        there = np.ix_(channels, gpus)
        self._arrays["sum"][there] = 0.0
        self._arrays["count"][there] = 0

    def count(self, channel: int, gpu: int, step: int) -> None:
        """One more happening in `step`, which may be closed; what is older than the grids is not counted."""
        if step == self.step:
            self._arrays["sum"][channel, gpu] += 1.0
            self._arrays["count"][channel, gpu] += 1
            return
        if self.step - self.fine < step < self.step:
            self._fine.setdefault(step, empty(self._channels)).count(channel, gpu, seen=True)
        number = step // self.per_coarse
        if self.oldest // self.per_coarse - self.coarse <= number < self.oldest // self.per_coarse:
            self._coarse.setdefault(number, empty(self._channels)).count(channel, gpu, seen=False)

    def values(self, step: int, gpus: Rows | None = None) -> tuple[Singles, Bools]:
        """Value float32[c, n] of each channel in one fine step, and where there is one; of all GPUs, or of `gpus` [n],
        each at most once."""
        if step == self.step:
            values, here = self._current()
            return (values, here) if gpus is None else (values[:, gpus], here[:, gpus])
        asked = np.arange(self._arrays.size) if gpus is None else gpus
        found, steps = self._fine.get(step, empty(self._channels)).take(self._channels, asked)
        return found, steps > 0

    # ------------------------------------------------------------------ windows

    def spans(self, now_ms: int) -> list[StepSpan]:
        """The sums of each window of the plan that ends at `now_ms`, which lies in the step in progress."""
        found: list[StepSpan] = []
        inner, first = self._nothing(), self.step + 1
        for window in self._plan.windows_ms:
            start_ms = now_ms - window
            oldest = max(self.oldest, 0)
            edge = -(-start_ms // self._plan.step_ms)  # first fine step wholly inside
            if edge >= oldest:
                self._add(inner, edge, first - 1)
                first = edge
                found.append(self._with_part(inner, edge, start_ms))
                continue
            if first > oldest:
                self._add(inner, oldest, first - 1)
                first = oldest
            first, part = self._behind(inner, first, start_ms)
            found.append(part)
        return found

    def _with_part(self, inner: StepSpan, edge: int, start_ms: int) -> StepSpan:
        """`inner` and the share of the step before `edge` that lies after `start_ms`."""
        share = edge - start_ms / self._plan.step_ms
        return self._joined(inner, self._fine.get(edge - 1), share)

    def _behind(self, inner: StepSpan, first: int, start_ms: int) -> tuple[int, StepSpan]:
        """Go on into the coarse grid. `first` is a fine step at which a coarse one begins."""
        edge = -(-start_ms // self._plan.coarse_ms)
        behind = range(first // self.per_coarse - 1, edge - 1, -1)
        self._add_planes(inner, [self._coarse[number] for number in behind if number in self._coarse])
        share = edge - start_ms / self._plan.coarse_ms
        return min(first, edge * self.per_coarse), self._joined(inner, self._coarse.get(edge - 1), share)

    def _joined(self, inner: StepSpan, plane: Plane | None, share: float) -> StepSpan:
        """A copy of `inner` with `share` of `plane`; a peak counts whole."""
        whole = inner.copy()
        if plane is not None and share > 0:
            part = self._nothing()
            self._add_planes(part, [plane])
            part.total[: self._peaks] *= share
            whole.total[: self._peaks] += part.total[: self._peaks]
            np.maximum(whole.total[self._peaks :], part.total[self._peaks :], out=whole.total[self._peaks :])
            whole.steps[:] += share * part.steps
        return whole

    def _nothing(self) -> StepSpan:
        shape = self._arrays["sum"].shape
        return StepSpan(np.zeros(shape), np.zeros(shape))

    def _add(self, span: StepSpan, first: int, last: int) -> None:
        """Add the fine steps `first` to `last` to `span`, in the order of time."""
        closed = range(max(first, self.step - self.fine + 1), min(last, self.step - 1) + 1)
        self._add_planes(span, [self._fine[step] for step in closed if step in self._fine])
        if first <= self.step <= last:
            values, here = self._current()
            span.total[: self._peaks] += values[: self._peaks]
            np.maximum(span.total[self._peaks :], values[self._peaks :], out=span.total[self._peaks :])
            span.steps[:] += here

    def _add_planes(self, span: StepSpan, planes: Sequence[Plane]) -> None:
        add_up(planes, span.total, span.steps, self._peaks)
