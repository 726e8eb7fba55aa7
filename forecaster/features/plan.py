"""A plan: which channels a builder keeps, what feeds them, over which windows, on which grid of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, spec_of, variant
from tocsin.forecaster.features.arrays import Rows

# The channels that are watched unless a plan says otherwise: which metrics make them, and how. A channel is one
# number per GPU and step of the grid. The choice follows what is known to lead a failure: errors of memory, bus and
# links, clocks held down, heat at equal power, and the load that puts the rest into proportion.

LINKS = 18
"""Most NVLinks of a GPU (Hopper and Blackwell)."""
BUSY = 0.1
"""Utilisation from which a GPU counts as loaded (own choice): below it links sleep and generations fall."""

_PCIE_KINDS = (
    "correctable",
    "receiver",
    "bad_tlp",
    "bad_dllp",
    "lcrc",
    "lane",
    "naks_received",
    "naks_sent",
    "non_fatal",
    "fatal",
)
_BANKS = tuple(variant("gpu_row_remap_banks", "availability", x) for x in ("max", "high", "partial", "low", "none"))


class FeatureKind(StrEnum):
    """How the readings of a step become one number: the growth of a counter, the mean, or the largest."""

    COUNTER = "counter"
    MEAN = "mean"
    PEAK = "peak"


@dataclass(frozen=True, slots=True)
class FeatureChannel:
    """One channel.

    `any_of` are ways to the same number, each a set of metric keys that belong together: of a counter each key's
    growth is added up and the largest of the ways counts; of the other kinds the first way with a value counts, and
    its keys are added up (`mean`: averaged). `over` are keys whose sum the value is divided by. `lost` turns a share
    that should be whole into what is missing from it; `at_least` turns the value into whether it is that high; `loaded`
    looks only where the GPU works; `scale` divides. Values are not negative unless the kind is a mean.
    """

    name: str
    kind: FeatureKind
    any_of: tuple[tuple[str, ...], ...]
    over: tuple[str, ...] = ()
    scale: float = 1.0
    mean: bool = False
    lost: bool = False
    at_least: float | None = None
    loaded: bool = False

    def __post_init__(self) -> None:
        for key in self.keys:
            if spec_of(key) is None:
                raise InputError("channel", self.name, f"{key} is not in the metric table", "use names of the table")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([key for way in self.any_of for key in way] + list(self.over)))


def by_link(name: str) -> tuple[tuple[str, ...], ...]:
    """Ways to a metric that some sources give whole and others link by link."""
    return ((name,), tuple(variant(name, "link", str(link)) for link in range(LINKS)))


def _errors(name: str) -> tuple[str, ...]:
    return tuple(variant(name, "link", str(link)) for link in range(LINKS))


def _counter(name: str, *ways: tuple[str, ...], scale: float = 1.0) -> FeatureChannel:
    return FeatureChannel(name, FeatureKind.COUNTER, ways, scale=scale)


def _ecc(word: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"gpu_ecc_{where}{word}_{life}_total",)
        for where in ("", "dram_", "sram_")
        for life in ("volatile", "aggregate")
        if f"gpu_ecc_{where}{word}_{life}_total" in METRICS
    )


def _mean(name: str, *metrics: str, over: tuple[str, ...] = (), scale: float = 1.0) -> FeatureChannel:
    return FeatureChannel(name, FeatureKind.MEAN, tuple((metric,) for metric in metrics), over, scale)


COUNTERS: tuple[FeatureChannel, ...] = (
    _counter("ecc_corrected", *_ecc("corrected")),
    _counter("ecc_uncorrected", *_ecc("uncorrected")),
    _counter("retired_pages", ("gpu_retired_pages_corrected_total", "gpu_retired_pages_uncorrected_total")),
    _counter("remap_correctable", ("gpu_row_remap_correctable_total",)),
    _counter("remap_uncorrectable", ("gpu_row_remap_uncorrectable_total",)),
    _counter("pcie_replay", ("gpu_pcie_replay_total",)),
    _counter(
        "pcie_errors",
        ("gpu_pcie_errors_total",),
        tuple(variant("gpu_pcie_errors_total", "kind", kind) for kind in _PCIE_KINDS),
    ),
    _counter(
        "nvlink_crc",
        ("gpu_nvlink_crc_flit_errors_total", "gpu_nvlink_crc_data_errors_total"),
        ("gpu_nvlink_crc_errors_total",),
        _errors("gpu_nvlink_crc_errors_total"),
    ),
    _counter("nvlink_replay", *by_link("gpu_nvlink_replay_errors_total")),
    _counter("nvlink_recovery", *by_link("gpu_nvlink_recovery_errors_total")),
    _counter(
        "nvlink_symbol", *by_link("gpu_nvlink_symbol_errors_total"), *by_link("gpu_nvlink_effective_errors_total")
    ),
    _counter(
        "thermal_slowdown",
        ("gpu_sw_thermal_slowdown_seconds_total", "gpu_hw_thermal_slowdown_seconds_total"),
        ("gpu_thermal_violation_seconds_total",),
    ),
    _counter("power_brake", ("gpu_hw_power_brake_seconds_total",)),
    _counter("power_cap", ("gpu_power_cap_seconds_total",)),
    _counter("energy", ("gpu_energy_joules_total",), scale=1e3),
    _counter("pcie_bytes", ("gpu_pcie_transmit_bytes_total", "gpu_pcie_receive_bytes_total"), scale=1e9),
    _counter("nvlink_bytes", ("gpu_nvlink_transmit_bytes_total", "gpu_nvlink_receive_bytes_total"), scale=1e9),
)

MEANS: tuple[FeatureChannel, ...] = (
    _mean("temperature", "gpu_temperature_celsius"),
    _mean("memory_temperature", "gpu_memory_temperature_celsius"),
    _mean("thermal_margin", "gpu_thermal_margin_celsius"),
    _mean("power", "gpu_power_watts", "gpu_power_instant_watts"),
    _mean("power_limit", "gpu_power_limit_enforced_watts", over=("gpu_power_limit_default_watts",)),
    _mean("sm_clock", "gpu_sm_clock_hertz", over=("gpu_sm_clock_max_hertz",)),
    _mean("memory_clock", "gpu_memory_clock_hertz", over=("gpu_memory_clock_max_hertz",)),
    _mean("utilization", "gpu_utilization_ratio"),
    _mean("sm_active", "gpu_sm_active_ratio"),
    _mean("tensor_active", "gpu_tensor_active_ratio"),
    _mean("dram_active", "gpu_dram_active_ratio", "gpu_memory_copy_utilization_ratio"),
    _mean("memory_used", "gpu_memory_used_ratio"),
    _mean("processes", "gpu_processes"),
    _mean("fan_speed", "gpu_fan_speed_ratio"),
)

PEAKS: tuple[FeatureChannel, ...] = (
    FeatureChannel("fragmentation", FeatureKind.PEAK, (("gpu_allocator_external_fragmentation_ratio",),)),
    FeatureChannel("row_remap_pending", FeatureKind.PEAK, (("gpu_row_remap_pending",), ("gpu_retired_pages_pending",))),
    FeatureChannel("memory_failure", FeatureKind.PEAK, (("gpu_row_remap_failure",), ("gpu_memory_unrepairable",))),
    FeatureChannel("ecc_threshold", FeatureKind.PEAK, (("gpu_ecc_sram_threshold_exceeded",),)),
    FeatureChannel("banks_worn", FeatureKind.PEAK, ((_BANKS[0],),), over=_BANKS, lost=True),
    FeatureChannel(
        "repair_pending",
        FeatureKind.PEAK,
        (tuple(variant("gpu_repair_pending", "unit", unit) for unit in ("channel", "tpc")),),
    ),
    FeatureChannel("recovery_action", FeatureKind.PEAK, (("gpu_recovery_action",),)),
    FeatureChannel(
        "pcie_lanes_lost", FeatureKind.PEAK, (("gpu_pcie_link_width",),), over=("gpu_pcie_link_width_max",), lost=True
    ),
    FeatureChannel(
        "pcie_speed_lost",
        FeatureKind.PEAK,
        (("gpu_pcie_link_generation",),),
        over=("gpu_pcie_link_generation_max",),
        lost=True,
        loaded=True,
    ),
    FeatureChannel("links_down", FeatureKind.PEAK, by_link("gpu_nvlink_up"), mean=True, lost=True),
    FeatureChannel("fabric_unhealthy", FeatureKind.PEAK, (("gpu_fabric_health",),), at_least=2.0),
    FeatureChannel("driver_latency", FeatureKind.PEAK, (("gpu_driver_latency_seconds",),)),
)

CHANNELS = COUNTERS + MEANS + PEAKS

HARDWARE_EVENTS, OTHER_EVENTS, REPORTED, FROZEN = "hardware_events", "other_events", "reported", "frozen"
OWN_CHANNELS = (
    (HARDWARE_EVENTS, FeatureKind.COUNTER),
    (OTHER_EVENTS, FeatureKind.COUNTER),
    (REPORTED, FeatureKind.PEAK),
    (FROZEN, FeatureKind.PEAK),
)
"""Made by the builder itself: events of a step, whether anything was read in it, whether that only repeated."""
OWN_NAMES = frozenset(dict(OWN_CHANNELS))

_NOT_IN_SEQUENCES = frozenset(
    {"retired_pages", "power_limit", "memory_clock", "tensor_active", "processes", "repair_pending", "fabric_unhealthy"}
)
SEQUENCE = tuple(channel.name for channel in CHANNELS if channel.name not in _NOT_IN_SEQUENCES) + tuple(
    name for name, _ in OWN_CHANNELS
)
"""The 40 channels of a sequence."""


# Which column of a table of readings feeds which channel; worked out once per set of columns.

LIVELY = (
    "gpu_power_watts",
    "gpu_energy_joules_total",
    "gpu_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_utilization_ratio",
)
"""What moves on a live GPU; power and energy come first."""
FAMILIES = ("utilization", "memory", "thermal", "power", "clocks", "ecc", "pcie", "nvlink", "process")
"""Families of the metric table whose presence is watched."""
LOAD = "gpu_utilization_ratio"


@dataclass(frozen=True, slots=True)
class ChannelFeed:
    """A channel with the rows of the value table (metric, reading) that it reads; `place` is its row among the
    channels."""

    place: int
    channel: FeatureChannel
    any_of: tuple[Rows, ...]
    over: Rows


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """`columns` of a table are used; they fill the rows `keys` of what is remembered of all keys of the plan.

    `counters`, `lively` and `families` are places among `columns`, of lively ones with their number in `LIVELY`.
    """

    columns: Rows
    keys: Rows
    counters: Rows
    lively: tuple[tuple[int, int], ...]
    families: tuple[tuple[int, Rows], ...]
    feeds: tuple[ChannelFeed, ...]
    load: int


def _rows(numbers: list[int]) -> Rows:
    return np.array(numbers, dtype=np.intp)


def layout(plan: FeaturePlan, keys: Mapping[str, int], columns: Mapping[str, int]) -> ColumnLayout:
    """The layout for a table with `columns`, a name to its place; `keys` numbers what is remembered."""
    used = [name for name in keys if name in columns]
    place = {name: number for number, name in enumerate(used)}
    specs = {name: spec_of(name) for name in used}
    kinds = {name: channel.kind for channel in plan.channels for way in channel.any_of for name in way}
    families = []
    for number, family in enumerate(FAMILIES):
        members = [place[name] for name, spec in specs.items() if spec and spec.family == family and not spec.static]
        if members:
            families.append((number, _rows(members)))
    return ColumnLayout(
        _rows([columns[name] for name in used]),
        _rows([keys[name] for name in used]),
        _rows([place[name] for name in used if kinds.get(name) is FeatureKind.COUNTER]),
        tuple((number, place[name]) for number, name in enumerate(LIVELY) if name in place),
        tuple(families),
        tuple(_feeds(plan, keys, place)),
        place.get(LOAD, -1),
    )


def _feeds(plan: FeaturePlan, keys: Mapping[str, int], place: Mapping[str, int]) -> list[ChannelFeed]:
    found = []
    names = plan.names
    for channel in plan.channels:
        ways = tuple(_rows([place[key] for key in way if key in place]) for way in channel.any_of)
        ways = tuple(way for way in ways if way.size)
        # What a value is divided by may come seldom, so it is taken from what is remembered.
        over = _rows([keys[key] for key in channel.over])
        if ways:
            found.append(ChannelFeed(names.index(channel.name), channel, ways, over))
    return found


@dataclass(frozen=True, slots=True)
class FeaturePlan:
    """What a builder keeps and gives.

    `step_ms` is the grid of the newest day and of sequences; older values are kept in steps of `coarse_ms`.
    `windows_ms` are the spans of the features, rising; of the step in which a window begins the part inside counts.
    `sequence` names the channels of the `steps` steps of a sequence. `sequence` and `channels` may be cut down where
    the metrics of a fleet are few. Raises InputError where these do not fit together.
    """

    step_ms: int = 10 * MINUTE
    coarse_ms: int = 6 * HOUR
    windows_ms: tuple[int, ...] = (HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY)
    steps: int = 96
    channels: tuple[FeatureChannel, ...] = CHANNELS
    sequence: tuple[str, ...] = SEQUENCE

    def __post_init__(self) -> None:
        if self.step_ms < 1 or self.coarse_ms % self.step_ms or DAY % self.coarse_ms:
            raise InputError(
                "step_ms", self.step_ms, "steps do not divide the coarse step and the day", "give 600000 or alike"
            )
        if list(self.windows_ms) != sorted(set(self.windows_ms)) or not self.windows_ms:
            raise InputError("windows_ms", self.windows_ms, "not rising", "give each window once, shortest first")
        if any(window % self.step_ms for window in self.windows_ms):
            raise InputError("windows_ms", self.windows_ms, "not made of whole steps", "give multiples of step_ms")
        if not 1 <= self.steps * self.step_ms <= DAY:
            raise InputError("steps", self.steps, "a sequence reaches back a day at most", "give fewer steps")
        if missing := [name for name in self.sequence if name not in self.names]:
            raise InputError("sequence", missing[0], "no such channel", f"there are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Every channel: counters first, then means, then peaks."""
        every = [(channel.name, channel.kind) for channel in self.channels] + list(OWN_CHANNELS)
        return tuple(name for kind in FeatureKind for name, its in every if its is kind)

    def of(self, kind: FeatureKind) -> tuple[FeatureChannel, ...]:
        """The channels of one kind that are made of metrics, in the order of `names`."""
        return tuple(channel for channel in self.channels if channel.kind is kind)

    def count(self, kind: FeatureKind) -> int:
        """How many channels of one kind there are, the builder's own among them."""
        return len(self.of(kind)) + sum(its is kind for _, its in OWN_CHANNELS)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The keys to ask a store for: canonical names and variants."""
        return tuple(dict.fromkeys(key for channel in self.channels for key in channel.keys))
