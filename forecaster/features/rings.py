"""The past of every channel and GPU on two grids: steps of the newest day, coarse steps behind it.

A step covers (start, end]; its number is its start over its width. Values are laid out (step, channel, GPU), so that
the sum over a window is a sum of whole planes. What a frozen source repeated can be taken out of the fine grid again
for as long as any detection takes, since a coarse step is made only when its last fine step is more than a day old.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Rows, Singles
from tocsin.forecaster.features.plan import FeatureKind, FeaturePlan


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Sums of a window: `total` float64[c, g] of the values (of a peak: the largest), `steps` float64[c, g] how many
    fine steps had one."""

    total: Floats
    steps: Floats

    def mean(self) -> Floats:
        """Mean of the steps with a value, NaN without one."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.steps > 0, self.total / self.steps, np.nan))


class Rings:
    """Keeps the grids. `step` is the number of the step in progress."""

    def __init__(self, plan: FeaturePlan, arrays: Arrays) -> None:
        self._plan = plan
        self._arrays = arrays
        self.per_coarse = plan.coarse_ms // plan.step_ms
        self.fine = DAY // plan.step_ms + self.per_coarse + 2
        self.coarse = max(1, -(-max(plan.windows_ms) // plan.coarse_ms) + 1)
        channels = len(plan.names)
        self._peaks = slice(channels - plan.count(FeatureKind.PEAK), channels)
        self._means = slice(plan.count(FeatureKind.COUNTER), self._peaks.start)
        self.step = NOT_YET
        arrays.add("sum", (channels,), np.float64)
        arrays.add("count", (channels,), np.int32)
        arrays.add("fine", (self.fine, channels), np.float32)
        arrays.add("fine_here", (self.fine, channels), np.bool_)
        arrays.add("coarse", (self.coarse, channels), np.float32)
        arrays.add("coarse_steps", (self.coarse, channels), np.uint8)

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
            self.settle()
            before = self.oldest
            self.step += 1
            if self.oldest > before:
                self._pack(before)
            place = self.step % self.fine
            self._arrays["fine"][place] = 0.0
            self._arrays["fine_here"][place] = False
            self._arrays["sum"][:] = 0.0
            self._arrays["count"][:] = 0

    def _clear(self) -> None:
        for name in ("sum", "count", "fine", "fine_here", "coarse", "coarse_steps"):
            self._arrays[name][:] = 0

    def _pack(self, first: int) -> None:
        """Make the coarse step that begins with fine step `first`."""
        place = first // self.per_coarse % self.coarse
        whole = self._window(first, first + self.per_coarse - 1)
        mean = np.where(whole.steps > 0, whole.total / np.maximum(whole.steps, 1), 0.0)
        coarse = self._arrays["coarse"][place]
        coarse[:] = whole.total
        coarse[self._means] = mean[self._means]
        self._arrays["coarse_steps"][place] = whole.steps

    def settle(self) -> None:
        """Bring what has been read of the step in progress into the grid."""
        place = self.step % self.fine
        total, count = self._arrays["sum"], self._arrays["count"]
        plane = self._arrays["fine"][place]
        plane[:] = total
        plane[self._means] = total[self._means] / np.maximum(count[self._means], 1)
        self._arrays["fine_here"][place] = count > 0

    def take_out(self, gpu: int, first: int, channels: Rows) -> None:
        """Make the steps from `first` up to that in progress missing in `channels` of one GPU."""
        for step in range(max(first, self.step - self.fine + 1), self.step + 1):
            self._arrays["fine"][step % self.fine, channels, gpu] = 0.0
            self._arrays["fine_here"][step % self.fine, channels, gpu] = False
        self._arrays["sum"][channels, gpu] = 0.0
        self._arrays["count"][channels, gpu] = 0

    def count(self, channel: int, gpu: int, step: int) -> None:
        """One more happening in `step`, which may be closed; what is older than the grids is not counted."""
        if step == self.step:
            self._arrays["sum"][channel, gpu] += 1.0
            self._arrays["count"][channel, gpu] += 1
            return
        if step > self.step - self.fine:
            self._arrays["fine"][step % self.fine, channel, gpu] += 1.0
            self._arrays["fine_here"][step % self.fine, channel, gpu] = True
        number = step // self.per_coarse
        if self.oldest // self.per_coarse - self.coarse <= number < self.oldest // self.per_coarse:
            self._arrays["coarse"][number % self.coarse, channel, gpu] += 1.0

    def values(self, step: int) -> tuple[Singles, Bools]:
        """Value float32[c, g] of each channel in one fine step, and where there is one."""
        place = step % self.fine
        return self._arrays["fine"][place], self._arrays["fine_here"][place]

    # ------------------------------------------------------------------ windows

    def spans(self, now_ms: int) -> list[StepSpan]:
        """The sums of each window of the plan that ends at `now_ms`, which lies in the step in progress."""
        self.settle()
        ends = [now_ms - window for window in self._plan.windows_ms]
        found: list[StepSpan] = []
        inner, first = self._nothing(), self.step + 1
        for start_ms in ends:
            oldest = max(self.oldest, 0)
            edge = -(-start_ms // self._plan.step_ms)  # first fine step wholly inside
            if edge >= oldest:
                inner, first = self._join(inner, self._window(edge, first - 1)), edge
                found.append(self._with_part(inner, edge, start_ms))
                continue
            if first > oldest:
                inner, first = self._join(inner, self._window(oldest, first - 1)), oldest
            inner, first, part = self._behind(inner, first, start_ms)
            found.append(part)
        return found

    def _with_part(self, inner: StepSpan, edge: int, start_ms: int) -> StepSpan:
        """`inner` and the share of the step before `edge` that lies after `start_ms`."""
        share = edge - start_ms / self._plan.step_ms
        if share <= 0 or edge - 1 <= self.step - self.fine:
            return inner
        return self._join(inner, self._window(edge - 1, edge - 1), share)

    def _behind(self, inner: StepSpan, first: int, start_ms: int) -> tuple[StepSpan, int, StepSpan]:
        """Go on into the coarse grid. `first` is a fine step at which a coarse one begins."""
        edge = -(-start_ms // self._plan.coarse_ms)
        for number in range(first // self.per_coarse - 1, edge - 1, -1):
            inner = self._join(inner, self._coarse(number))
        share = edge - start_ms / self._plan.coarse_ms
        whole = inner if share <= 0 else self._join(inner, self._coarse(edge - 1), share)
        return inner, min(first, edge * self.per_coarse), whole

    def _coarse(self, number: int) -> StepSpan:
        place = number % self.coarse
        steps = self._arrays["coarse_steps"][place].astype(np.float64)
        total = self._arrays["coarse"][place].astype(np.float64)
        total[self._means] *= steps[self._means]
        return StepSpan(total, steps)

    def _nothing(self) -> StepSpan:
        shape = self._arrays["sum"].shape
        return StepSpan(np.zeros(shape), np.zeros(shape))

    def _window(self, first: int, last: int) -> StepSpan:
        pieces = [self._piece(start, end) for start, end in self._places(first, last)]
        if not pieces:
            return self._nothing()
        whole = pieces[0]
        for piece in pieces[1:]:
            whole = self._join(whole, piece)
        return whole

    def _places(self, first: int, last: int) -> list[tuple[int, int]]:
        """Places [start, end) in the ring of fine steps `first` to `last`, in the order of time."""
        first = max(first, self.step - self.fine + 1)
        if first > last:
            return []
        start, length = first % self.fine, last - first + 1
        wrapped = start + length - self.fine
        if wrapped <= 0:
            return [(start, start + length)]
        return [(start, self.fine), (0, wrapped)]

    def _piece(self, start: int, end: int) -> StepSpan:
        values, here = self._arrays["fine"][start:end], self._arrays["fine_here"][start:end]
        total = np.empty(values.shape[1:])
        cut = self._peaks.start
        total[:cut] = values[:, :cut].sum(axis=0, dtype=np.float64)
        total[cut:] = values[:, cut:].max(axis=0)
        return StepSpan(total, here.sum(axis=0, dtype=np.uint16).astype(np.float64))

    def _join(self, one: StepSpan, other: StepSpan, share: float = 1.0) -> StepSpan:
        """`one` and `share` of `other`; a peak counts whole."""
        total = one.total + share * other.total
        np.maximum(one.total[self._peaks], other.total[self._peaks], out=total[self._peaks])
        steps = one.steps + share * other.steps
        return StepSpan(total, steps)
