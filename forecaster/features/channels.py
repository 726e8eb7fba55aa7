"""The channels that are watched unless a plan says otherwise: which metrics make them, and how.

A channel is one number per GPU and step of the grid. The choice follows what is known to lead a failure: errors of
memory, bus and links, clocks held down, heat at equal power, and the load that puts the rest into proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, spec_of, variant

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


class Kind(StrEnum):
    """How the readings of a step become one number: the growth of a counter, the mean, or the largest."""

    COUNTER = "counter"
    MEAN = "mean"
    PEAK = "peak"


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel.

    `any_of` are ways to the same number, each a set of metric keys that belong together: of a counter each key's
    growth is added up and the largest of the ways counts; of the other kinds the first way with a value counts, and
    its keys are added up (`mean`: averaged). `over` are keys whose sum the value is divided by. `lost` turns a share
    that should be whole into what is missing from it; `at_least` turns the value into whether it is that high; `loaded`
    looks only where the GPU works; `scale` divides. Values are not negative unless the kind is a mean.
    """

    name: str
    kind: Kind
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
        """Every key that it reads."""
        return tuple(dict.fromkeys([key for way in self.any_of for key in way] + list(self.over)))


def by_link(name: str) -> tuple[tuple[str, ...], ...]:
    """Ways to a metric that some sources give whole and others link by link."""
    return ((name,), tuple(variant(name, "link", str(link)) for link in range(LINKS)))


def _errors(name: str) -> tuple[str, ...]:
    return tuple(variant(name, "link", str(link)) for link in range(LINKS))


def _counter(name: str, *ways: tuple[str, ...], scale: float = 1.0) -> Channel:
    return Channel(name, Kind.COUNTER, ways, scale=scale)


def _ecc(word: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"gpu_ecc_{where}{word}_{life}_total",)
        for where in ("", "dram_", "sram_")
        for life in ("volatile", "aggregate")
        if f"gpu_ecc_{where}{word}_{life}_total" in METRICS
    )


def _mean(name: str, *metrics: str, over: tuple[str, ...] = (), scale: float = 1.0) -> Channel:
    return Channel(name, Kind.MEAN, tuple((metric,) for metric in metrics), over, scale)


COUNTERS: tuple[Channel, ...] = (
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

MEANS: tuple[Channel, ...] = (
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

PEAKS: tuple[Channel, ...] = (
    Channel("fragmentation", Kind.PEAK, (("gpu_allocator_external_fragmentation_ratio",),)),
    Channel("row_remap_pending", Kind.PEAK, (("gpu_row_remap_pending",), ("gpu_retired_pages_pending",))),
    Channel("memory_failure", Kind.PEAK, (("gpu_row_remap_failure",), ("gpu_memory_unrepairable",))),
    Channel("ecc_threshold", Kind.PEAK, (("gpu_ecc_sram_threshold_exceeded",),)),
    Channel("banks_worn", Kind.PEAK, ((_BANKS[0],),), over=_BANKS, lost=True),
    Channel(
        "repair_pending",
        Kind.PEAK,
        (tuple(variant("gpu_repair_pending", "unit", unit) for unit in ("channel", "tpc")),),
    ),
    Channel("recovery_action", Kind.PEAK, (("gpu_recovery_action",),)),
    Channel("pcie_lanes_lost", Kind.PEAK, (("gpu_pcie_link_width",),), over=("gpu_pcie_link_width_max",), lost=True),
    Channel(
        "pcie_speed_lost",
        Kind.PEAK,
        (("gpu_pcie_link_generation",),),
        over=("gpu_pcie_link_generation_max",),
        lost=True,
        loaded=True,
    ),
    Channel("links_down", Kind.PEAK, by_link("gpu_nvlink_up"), mean=True, lost=True),
    Channel("fabric_unhealthy", Kind.PEAK, (("gpu_fabric_health",),), at_least=2.0),
    Channel("driver_latency", Kind.PEAK, (("gpu_driver_latency_seconds",),)),
)

CHANNELS = COUNTERS + MEANS + PEAKS

HARDWARE_EVENTS, OTHER_EVENTS, REPORTED, FROZEN = "hardware_events", "other_events", "reported", "frozen"
OWN_CHANNELS = (
    (HARDWARE_EVENTS, Kind.COUNTER),
    (OTHER_EVENTS, Kind.COUNTER),
    (REPORTED, Kind.PEAK),
    (FROZEN, Kind.PEAK),
)
"""Made by the builder itself: events of a step, whether anything was read in it, whether that only repeated."""

_NOT_IN_SEQUENCES = frozenset(
    {"retired_pages", "power_limit", "memory_clock", "tensor_active", "processes", "repair_pending", "fabric_unhealthy"}
)
SEQUENCE = tuple(channel.name for channel in CHANNELS if channel.name not in _NOT_IN_SEQUENCES) + tuple(
    name for name, _ in OWN_CHANNELS
)
"""The 40 channels of a sequence."""
