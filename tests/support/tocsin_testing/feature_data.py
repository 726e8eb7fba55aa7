"""A small made-up fleet for features: columns and events that are cheap to make and different for every GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.feed import ColumnSource, StoreFeed
from tocsin.store.port import Columns
from tocsin_testing.builders import gpu

STEP = 10 * MINUTE
START = 1_795_000_000_000 // (36 * STEP) * (36 * STEP)
"""A boundary of ten minutes and of six hours."""

METRICS = (
    "gpu_power_watts",
    "gpu_energy_joules_total",
    "gpu_temperature_celsius",
    "gpu_utilization_ratio",
    "gpu_sm_clock_hertz",
    "gpu_sm_clock_max_hertz",
    "gpu_pcie_replay_total",
    "gpu_ecc_corrected_volatile_total",
    "gpu_pcie_link_width",
    "gpu_pcie_link_width_max",
    "gpu_row_remap_pending",
)


def fleet(count: int = 8) -> list[Gpu]:
    """GPUs of one model, four to a host, two hosts to a rack."""
    return [
        gpu(n, host=f"node-{n // 4}", rack=f"rack-{n // 8}", serial=f"13206{n // 6:02d}00{n:04d}", index=n % 4)
        for n in range(count)
    ]


def columns(gpus: Sequence[Gpu], first: int, last: int, *, seed: int = 0, every_ms: int = STEP) -> Columns:
    """Readings at every `every_ms` in (START + first * STEP, START + last * STEP].

    A value depends on seed, GPU and instant alone, so that pieces of a history are the same as the whole.
    """
    uuids = tuple(sorted(one.uuid for one in gpus))
    instants = np.arange(START + first * STEP + every_ms, START + last * STEP + 1, every_ms)
    at_ms = np.repeat(instants, len(uuids))
    number = np.tile(np.arange(len(uuids), dtype=np.int32), instants.size)
    identity = np.array([int(uuid.rsplit("-", 1)[1]) for uuid in uuids])
    values = np.stack([_reading(int(at), identity, seed) for at in instants]).reshape(-1, len(METRICS))
    return Columns(uuids, METRICS, number, at_ms, values)


def _reading(at_ms: int, identity: np.ndarray, seed: int) -> np.ndarray:
    minutes = (at_ms - START) / MINUTE
    rng = np.random.default_rng([seed, at_ms // MINUTE])
    noise = rng.random((2, 1_000))[:, identity]
    load = 0.5 + 0.4 * np.sin(minutes / 200.0 + identity)
    power = 80.0 + 300.0 * load + noise[0]
    return np.stack(
        [
            power,
            minutes * 60.0 * (200.0 + identity),
            25.0 + 0.12 * power + noise[1],
            load,
            1.4e9 - 1e8 * noise[0],
            np.full(identity.size, 1.4e9),
            np.floor(minutes / (40.0 + identity)),
            np.floor(minutes / (300.0 + 10.0 * identity)),
            np.full(identity.size, 16.0),
            np.full(identity.size, 16.0),
            np.zeros(identity.size),
        ],
        axis=1,
    )


class Recorded:
    """Columns and events as a store gives them."""

    def __init__(self, rows: Columns, events: Sequence[Event] = ()) -> None:
        self._rows = rows
        self._events = list(events)

    def columns(
        self, metrics: Sequence[str], start_ms: int, end_ms: int, gpus: Collection[str] | None = None
    ) -> Columns:
        """As a store's; `gpus` is not looked at."""
        rows = part(self._rows, np.flatnonzero((self._rows.at_ms >= start_ms) & (self._rows.at_ms < end_ms)))
        values = np.full((rows.at_ms.size, len(metrics)), np.nan)
        for place, name in enumerate(metrics):
            if name in rows.metrics:
                values[:, place] = rows.values[:, rows.metrics.index(name)]
        return Columns(rows.gpus, tuple(metrics), rows.gpu, rows.at_ms, values)

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        """As a store's."""
        return [one for one in self._events if start_ms <= one.at_ms < end_ms and gpu in (None, one.gpu)]


def event(kind: EventKind, which: Gpu, step: float, code: int = 0) -> Event:
    """An event `step` steps after `START`."""
    return Event(kind, which.uuid, which.host, START + round(step * STEP), code, "", "test")


def part(whole: Columns, rows: np.ndarray) -> Columns:
    """Some rows of `whole`."""
    return Columns(whole.gpus, whole.metrics, whole.gpu[rows], whole.at_ms[rows], whole.values[rows])


def warm(
    builder: FeatureBuilder,
    source: ColumnSource,
    now_ms: int,
    *,
    latest: Callable[[int], Iterable[Reading]] | None = None,
) -> StoreFeed:
    """Feed `builder` all that its longest window can see at `now_ms`; the feed goes on from there."""
    feed = StoreFeed(builder, source, now_ms - max(builder.plan.windows_ms), latest=latest)
    feed.until(now_ms)
    return feed
