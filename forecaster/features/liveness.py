"""Whether what is read is alive: repetition that cannot be, silence, and families of metrics that have gone."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.features.arrays import NOT_YET, Arrays, Bools, Floats, Ints, Rows
from tocsin.forecaster.features.layout import FAMILIES, LIVELY, Layout
from tocsin.forecaster.trend.resample import FROZEN_MS, FROZEN_SAMPLES

POWER, ENERGY = 0, 1
"""Places in `LIVELY`."""
DRAWING_WATTS = 5.0
"""Power above which the energy counter has to grow."""
BUSY_WATTS = 100.0
"""Power that no idle GPU of a data centre draws."""
BUSY_MS = HOUR
"""How long a busy GPU without an energy counter may seem to stand still; recorded A100s do so for 20 minutes."""
IDLE_MS = 8 * HOUR
"""The same of an idle one; recorded A100s do so for seven hours."""


class Liveness:
    """Follows each GPU's run of equal readings and when each family was last there.

    A reading is frozen where everything lively in it has been the same for `FROZEN_SAMPLES` readings and long enough:
    `FROZEN_MS` where energy is drawn and not counted, else `BUSY_MS` or `IDLE_MS`. A metric that is missing says
    nothing.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        arrays.add("lively", (len(LIVELY),), np.float64, np.nan)
        arrays.add("run_ms", (), np.int64, NOT_YET)
        arrays.add("run", (), np.int64)
        arrays.add("frozen", (), np.bool_)
        arrays.add("family_ms", (len(FAMILIES),), np.int64, NOT_YET)

    def take(self, layout: Layout, values: Floats, gpus: Rows, at_ms: Ints) -> Bools:
        """Take in readings `values` float64[k, n]; which of them are frozen."""
        moved, repeated = self._compare(layout, values, gpus)
        arrays = self._arrays
        arrays["run_ms"][gpus[moved]] = at_ms[moved]
        arrays["run"][gpus] = np.where(moved, 1, arrays["run"][gpus] + repeated)
        frozen = self._judge(gpus, at_ms)
        arrays["frozen"][gpus] = frozen
        live = ~frozen
        for family, rows in layout.families:
            here = np.isfinite(values[rows]).any(axis=0) & live
            arrays["family_ms"][family, gpus[here]] = at_ms[here]
        return frozen

    def _compare(self, layout: Layout, values: Floats, gpus: Rows) -> tuple[Bools, Bools]:
        """Which readings differ from what was seen before, and which only repeat it."""
        moved = np.zeros(gpus.size, np.bool_)
        repeated = np.zeros(gpus.size, np.bool_)
        lively = self._arrays["lively"]
        for number, row in layout.lively:
            value, before = values[row], lively[number, gpus]
            here = np.isfinite(value)
            same = value == before
            moved |= here & ~same
            repeated |= same
            lively[number, gpus] = np.where(here, value, before)
        return moved, repeated & ~moved

    def _judge(self, gpus: Rows, at_ms: Ints) -> Bools:
        lively = self._arrays["lively"]
        lasted = at_ms - self._arrays["run_ms"][gpus]
        power = np.nan_to_num(lively[POWER, gpus])
        counted = np.isfinite(lively[ENERGY, gpus])
        drawn = counted & (power > DRAWING_WATTS) & (lasted >= FROZEN_MS)
        busy = ~counted & (power >= BUSY_WATTS) & (lasted >= BUSY_MS)
        enough = self._arrays["run"][gpus] >= FROZEN_SAMPLES
        return np.asarray(enough & (drawn | busy | (lasted >= IDLE_MS)))

    def families_gone(self, seen_ms: Ints) -> Floats:
        """float64[families, g]: hours for which a family had been missing at each GPU's newest reading `seen_ms`; NaN
        where it was never there."""
        since = self._arrays["family_ms"]
        return np.asarray(np.where(since == NOT_YET, np.nan, (seen_ms - since) / HOUR))
