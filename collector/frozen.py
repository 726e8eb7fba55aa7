"""Marks values that repeat while they cannot: what a source gives that has stopped reading and does not say so.

Each rule needs a contradiction, not mere silence: an idle GPU's power, temperature and clocks do stand still for hours.
In A100 telemetry at 10-minute steps (GWDG, doi:10.5281/zenodo.19052367) idle GPUs repeat one power for up to seven
hours and agree with their energy counters to 1 W, while exporters that froze repeat 310 W for six days.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.metrics import spec_of
from tocsin.domain.reading import Missing, Reading
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("frozen")

REPEATS = 5
"""Least number of identical readings behind the first; guards against a step of the clock."""
REPEAT_MS = 2 * MINUTE
"""Least time for which a value repeats; dcgm-exporter itself renews its values every 30 or 60 s."""
BUSY_REPEAT_MS = HOUR
"""The same where no energy counter says that time passes; busy GPUs of the GWDG set repeat for 20 minutes at most."""
CONTRADICTION_MS = 10 * MINUTE
"""Least time over which power and energy are compared; values renewed every minute then err by a tenth."""
MAX_STEP_MS = 10 * MINUTE
MAX_SILENT_STEP_MS = MINUTE
"""Most that one reading adds to the time of a repetition: a step of the clock must not make it look long."""
RENEWALS = 3
"""A source that renews its values more slowly than it is read is believed for so many of its own steps."""
DRAWING_WATTS = 5.0
"""Power above which the energy counter has to grow; NVML counts millijoules."""
APART_WATTS = 15.0
APART_SHARE = 0.25
"""How far power and the mean power that energy gives may lie apart, in watts and as a share of power."""
LUCK = 14.0
"""Readings may by chance all meet the rests between bursts of work. Of n readings at random instants all miss what
takes a share d of the time with a chance of at most exp(-n d): here one in a million. d follows from the mean, if what
was missed drew the power limit; one of GWDG's idle A100s shows that it happens at 10-minute steps."""
MOST_WATTS = 1000.0
"""The power limit where the source does not give it."""
BUSY_WATTS = 100.0
"""Power above which no GPU of a data centre idles."""
WORKING_SHARE = 0.3
"""Share of the enforced power limit well above idle: an H100 idles at 70 of 700 W."""
FULL_RATIO = 0.99
ACTIVITY_REPEATS = 2
"""Readings behind the first with no activity at all under full utilisation before that is not believed."""
MAX_KEPT_MS = HOUR
"""A GPU that has not been read for so long is forgotten."""

POWER = "gpu_power_watts"
ENERGY = "gpu_energy_joules_total"
UTILISATION = "gpu_utilization_ratio"
LIMIT = "gpu_power_limit_enforced_watts"
ACTIVITY = (
    "gpu_graphics_engine_active_ratio",
    "gpu_sm_active_ratio",
    "gpu_sm_occupancy_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_fp64_active_ratio",
    "gpu_fp32_active_ratio",
    "gpu_fp16_active_ratio",
)
"""Profiling metrics, which can freeze at 0 together."""
LIVE = (
    POWER,
    "gpu_power_instant_watts",
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_memory_clock_hertz",
    UTILISATION,
    "gpu_memory_copy_utilization_ratio",
    *ACTIVITY,
)
"""What moves on a GPU that works."""


@dataclass(slots=True)
class _FrozenRun:
    """One value, or several together, that have been the same for `repeats` readings behind the first."""

    value: object = None
    repeats: int = 0
    held_ms: int = 0

    def see(self, value: object, elapsed_ms: int) -> bool:
        """Take the next value; whether it is the same."""
        if value == self.value:
            self.repeats += 1
            self.held_ms += elapsed_ms
            return True
        self.value, self.repeats, self.held_ms = value, 0, 0
        return False

    def lasts(self, milliseconds: int) -> bool:
        """Whether it has repeated often and for long enough."""
        return self.repeats >= REPEATS and self.held_ms >= milliseconds


@dataclass(slots=True)
class _Track:
    """What is remembered of one GPU: repetitions, and the source's own pace.

    `base_joules` and `base_ms` are energy and instant from which power has repeated at an even pace.
    """

    at_ms: int
    seen_ms: int
    step_ms: int = 0
    silent_ms: int = 0
    renewal_ms: int = 0
    base_joules: float | None = None
    base_ms: int = 0
    energy: _FrozenRun = field(default_factory=_FrozenRun)
    power: _FrozenRun = field(default_factory=_FrozenRun)
    live: _FrozenRun = field(default_factory=_FrozenRun)
    dead: _FrozenRun = field(default_factory=_FrozenRun)
    marked: frozenset[str] = frozenset()


class FrozenValues:
    """A companion that takes values out which repeat while they cannot, and gives `Missing.FROZEN` in their place.

    - Energy that does not grow while power is drawn; with it everything else, where that repeats too.
    - Power that repeats while energy says another one; with it temperature, clocks, utilisation and activity, where
      all of them repeat.
    - The same of a busy GPU without an energy counter, after an hour.
    - Activity that is 0 throughout at full utilisation and much power: profiling that has stopped.
    - A reading whose instant does not move on: it is given at `now_ms` without any value.

    A value that moves is trusted again at once. Memory is a few numbers for each GPU of the last hour.
    """

    name = "frozen"

    def __init__(self, own: OwnMetrics) -> None:
        self._own = own
        self._tracks: dict[str, _Track] = {}
        self._pruned_ms: int | None = None

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        self._forget(now_ms)
        readings = [self._judged(reading, now_ms) for reading in batch.readings]
        if all(after is before for after, before in zip(readings, batch.readings, strict=True)):
            return batch
        return replace(batch, readings=tuple(readings))

    def close(self) -> None:
        """Nothing is held open."""

    def _judged(self, reading: Reading, now_ms: int) -> Reading:
        uuid = reading.gpu.uuid
        if (track := self._tracks.get(uuid)) is None:
            track = self._tracks[uuid] = _Track(reading.at_ms, now_ms)
            _learn(track, reading)
            return reading
        silent_ms = min(max(now_ms - track.seen_ms, 0), MAX_SILENT_STEP_MS)
        track.seen_ms = now_ms
        if reading.at_ms == track.at_ms:
            track.silent_ms += silent_ms
            # An instant that repeats says something only after longer than the source's own step explains.
            if not (track.step_ms > 0 and track.silent_ms >= max(RENEWALS * track.step_ms, REPEAT_MS)):
                return reading
            return self._marked(track, replace(reading, at_ms=now_ms), _moving(reading.values))
        track.silent_ms = 0
        _learn(track, reading)
        return self._marked(track, reading, _frozen(track, reading.values))

    def _marked(self, track: _Track, reading: Reading, names: Collection[str]) -> Reading:
        if not names:
            if track.marked:
                _log.info("values move again", gpu=reading.gpu.uuid, metrics=len(track.marked))
                track.marked = frozenset()
            return reading
        if not track.marked:
            _log.warning("values repeat while they cannot", gpu=reading.gpu.uuid, metrics=sorted(names)[:8])
        track.marked = frozenset(names)
        self._own.count("tocsin_frozen_values_total", len(names))
        values = {name: value for name, value in reading.values.items() if name not in track.marked}
        return replace(reading, values=values, missing={**reading.missing, **dict.fromkeys(names, Missing.FROZEN)})

    def _forget(self, now_ms: int) -> None:
        if self._pruned_ms is not None and abs(now_ms - self._pruned_ms) < MAX_KEPT_MS:
            return
        self._pruned_ms = now_ms
        # A GPU that was seen after `now_ms` was seen before the clock was set back: nothing says how long ago.
        self._tracks = {u: t for u, t in self._tracks.items() if abs(now_ms - t.seen_ms) < MAX_KEPT_MS}


def _learn(track: _Track, reading: Reading) -> None:
    """Take what a reading of another instant says into what is remembered."""
    get = reading.values.get
    step_ms = reading.at_ms - track.at_ms
    elapsed_ms = min(max(step_ms, 0), MAX_STEP_MS)
    energy, power = get(ENERGY), get(POWER)
    if energy is not None:
        held_ms = track.energy.held_ms
        if not track.energy.see(energy, elapsed_ms):
            track.renewal_ms = max(track.renewal_ms, min(held_ms, MAX_STEP_MS))
    if power is not None:
        track.live.see(tuple(map(get, LIVE)), elapsed_ms)
        even = 0 < step_ms <= 2 * track.step_ms
        if not (track.power.see(power, elapsed_ms) and even):
            track.base_joules, track.base_ms = energy, reading.at_ms
    track.dead.see(_is_dead(reading.values), elapsed_ms)
    track.at_ms = reading.at_ms
    track.step_ms = max(step_ms, 0)


def _frozen(track: _Track, values: Mapping[str, float]) -> Collection[str]:
    """Names in `values` that repeat while they cannot."""
    power, energy = values.get(POWER), values.get(ENERGY)
    if power is not None and power > DRAWING_WATTS:
        patience_ms = max(REPEAT_MS, RENEWALS * track.renewal_ms)
        all_the_same = track.live.lasts(patience_ms)
        if energy is None:
            if power >= BUSY_WATTS and track.live.lasts(BUSY_REPEAT_MS):
                return _moving(values)
        elif track.energy.lasts(patience_ms):
            return _moving(values) if all_the_same else (ENERGY,)
        elif _contradicted(track, power, energy, values.get(LIMIT, MOST_WATTS)):
            return [name for name in (LIVE if all_the_same else (POWER,)) if name in values]
    if track.dead.value and track.dead.repeats >= ACTIVITY_REPEATS:
        return [name for name in ACTIVITY if name in values]
    return ()


def _contradicted(track: _Track, power: float, energy: float, limit: float) -> bool:
    """Whether `power` repeats although the energy that was drawn meanwhile gives another mean."""
    span_ms = track.at_ms - track.base_ms
    if track.base_joules is None or energy < track.base_joules or span_ms < CONTRADICTION_MS:
        return False
    apart = (energy - track.base_joules) / (span_ms / SECOND) - power
    if track.power.repeats < REPEATS or abs(apart) <= max(APART_WATTS, APART_SHARE * power):
        return False
    share = apart / max(limit - power, apart) if apart > 0 else -apart / power
    return track.power.repeats * share >= LUCK


def _is_dead(values: Mapping[str, float]) -> bool:
    """Whether profiling says that nothing runs on a GPU that is fully utilised and draws much power."""
    if values.get(UTILISATION, 0.0) < FULL_RATIO:
        return False
    limit = values.get(LIMIT)
    if values.get(POWER, 0.0) < (WORKING_SHARE * limit if limit is not None else BUSY_WATTS):
        return False
    found = [value for name in ACTIVITY if (value := values.get(name)) is not None]
    return bool(found) and not any(found)


def _moving(values: Mapping[str, float]) -> list[str]:
    """Names in `values` of what is not fixed for a GPU."""
    return [name for name in values if (spec := spec_of(name)) is None or not spec.static]
