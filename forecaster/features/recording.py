"""The grid of a whole walk, kept once; the window of each row is gathered when it is asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.forecaster.features.channels import OWN_CHANNELS
from tocsin.forecaster.features.examples import Codes, Ints, Singles
from tocsin.forecaster.features.plan import Plan
from tocsin.forecaster.features.rings import Rings
from tocsin.forecaster.features.sequence import shown_values

Halves = npt.NDArray[np.float16]
_NEVER = 255


class Recording:
    """Collects closed steps from number `first` on: half precision [g, steps, channels].

    `known_after` says after how many steps it was known that a value only repeated an older one: a window that ended
    earlier still shows it, as it was shown then.
    """

    def __init__(self, plan: Plan, first: int, steps: int) -> None:
        self._plan = plan
        self.first = first
        own = {name for name, _ in OWN_CHANNELS}
        self._nothing = np.array([0.0 if name in own else np.nan for name in plan.sequence], np.float16)
        self._places = np.array([plan.names.index(name) for name in plan.sequence], dtype=np.intp)
        self.values: Halves = np.empty((0, steps, len(plan.sequence)), np.float16)
        self.known_after = np.empty((0, steps), np.uint8)

    def add(self, rings: Rings, step: int, gpus: int) -> None:
        """Keep `step`, which is closed or complete."""
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

    def __init__(self, plan: Plan, recording: Recording, device: Codes, last: Ints) -> None:
        self.channels, self.steps = plan.sequence, plan.steps
        own = {name for name, _ in OWN_CHANNELS}
        self._measured = np.array([name not in own for name in plan.sequence])
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
