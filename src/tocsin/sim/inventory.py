"""What is in the fleet: GPU models and their limits, hosts, racks, pools, identities and each slot's own thermal path.

A rack holds 4 hosts of 8 GPUs. Hosts follow a pattern of eight (`PATTERN`); in every fourth block of eight hosts stands
one NVLink domain of 64 GPUs instead.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.domain.fragmentation import Placement
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu
from tocsin.domain.versions import COMPONENTS
from tocsin.sim.spec import FleetSpec

# Array types and random streams of the simulation.

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


class Stream(IntEnum):
    """What a random generator is for; each purpose has its own, so that one never shifts another's numbers."""

    INVENTORY = 1
    LOAD = 2
    NOISE = 3
    BACKGROUND = 4
    SCHEDULE = 5
    FAULT = 6
    MIG = 7
    NORMAL = 8


def generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """The generator of `seed` for one purpose and instant; equal arguments give equal numbers.

    Negative numbers in `seed` and `key` count as their two's complement in 64 bits.
    """
    return np.random.default_rng([number % 2**64 for number in (seed, int(stream), *key)])


# Limits of GPU models come from ``gpu_models.csv``: they carry over from public captures and vendor tables; an empty
# cell means that the part does not state the limit. Idle power, PCIe generation, the assumed maximum operating
# temperature and the NVLink domain's size are own choices.

MARGIN_ARCHS = frozenset({"ada", "hopper", "blackwell"})
"""Architectures that report a thermal margin."""

_ALWAYS_MISSING = frozenset({"gpu_memory_limit_bytes", "gpu_fan_speed_ratio"})
"""No control-group limit is set, and every board is passively cooled: fans belong to the host."""

_UTILISATION_WITHOUT_MIG = frozenset(
    {
        "gpu_utilization_ratio",
        "gpu_memory_copy_utilization_ratio",
        "gpu_encoder_utilization_ratio",
        "gpu_decoder_utilization_ratio",
        "gpu_jpeg_utilization_ratio",
        "gpu_ofa_utilization_ratio",
        "gpu_process_sm_utilization_ratio",
    }
)
_ROW_REMAP = frozenset(
    {
        "gpu_row_remap_correctable_total",
        "gpu_row_remap_uncorrectable_total",
        "gpu_row_remap_pending",
        "gpu_row_remap_failure",
        "gpu_row_remap_banks",
    }
)
_RETIRED_PAGES = frozenset(
    {"gpu_retired_pages_corrected_total", "gpu_retired_pages_uncorrected_total", "gpu_retired_pages_pending"}
)
_AMPERE_ON = frozenset(
    {
        "gpu_ecc_sram_corrected_volatile_total",
        "gpu_ecc_sram_uncorrected_volatile_total",
        "gpu_ecc_sram_threshold_exceeded",
        "gpu_repair_pending",
    }
)
_ABSOLUTE_LIMITS = frozenset(
    {"gpu_temperature_slowdown_celsius", "gpu_temperature_shutdown_celsius", "gpu_temperature_max_operating_celsius"}
)
_MARGIN = frozenset(
    {
        "gpu_thermal_margin_celsius",
        "gpu_tlimit_slowdown_celsius",
        "gpu_tlimit_shutdown_celsius",
        "gpu_tlimit_max_operating_celsius",
    }
)
_HBM = frozenset({"gpu_memory_temperature_celsius", "gpu_memory_temperature_max_operating_celsius"})
_NVLINK = frozenset(
    {
        "gpu_nvlink_up",
        "gpu_nvlink_links_max",
        "gpu_nvlink_transmit_bytes_total",
        "gpu_nvlink_receive_bytes_total",
        "gpu_nvlink_bandwidth_bytes_per_second",
    }
)
_NVLINK_OLD = frozenset(
    {
        "gpu_nvlink_crc_flit_errors_total",
        "gpu_nvlink_crc_data_errors_total",
        "gpu_nvlink_replay_errors_total",
        "gpu_nvlink_recovery_errors_total",
    }
)
_NVLINK_5 = frozenset(
    {
        "gpu_nvlink_link_recovery_total",
        "gpu_nvlink_symbol_errors_total",
        "gpu_nvlink_effective_ber_ratio",
        "gpu_nvlink_symbol_ber_ratio",
    }
)
_FABRIC = frozenset({"gpu_fabric_state", "gpu_fabric_health"})
_MIG = frozenset(
    {
        "gpu_mig_instances",
        "gpu_mig_remaining_capacity",
        "gpu_mig_fragmentation_ratio",
        "gpu_mig_instance_memory_used_ratio",
    }
)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of ``gpu_models.csv``. None where the part does not state a limit; watts, degrees Celsius, MHz."""

    name: str
    arch: str
    memory_bytes: float
    default_power_w: float
    min_power_w: float
    max_power_w: float
    max_operating_c: float | None
    slowdown_c: float | None
    shutdown_c: float | None
    tlimit_slowdown: float | None
    tlimit_shutdown: float | None
    memory_max_operating_c: float | None
    sm_clock_mhz: float
    memory_clock_mhz: float
    nvlink_version: int
    nvlink_links: int
    nvlink_gb_s: float
    mig: bool
    pcie_generation: int
    idle_power_w: float
    ceiling_c: float
    domain_hosts: int

    @property
    def slowdown_at_c(self) -> float:
        """Temperature at which hardware halves the clocks, stated or derived from the margin's offset."""
        return self.slowdown_c if self.slowdown_c is not None else self.ceiling_c - (self.tlimit_slowdown or 0.0)

    def unsupported(self, *, mig_on: bool) -> frozenset[str]:
        """Canonical names that this model cannot read; with MIG on, also those that MIG hides."""
        lacking = _ALWAYS_MISSING | self._unsupported_board() | self._unsupported_links()
        return lacking | (_UTILISATION_WITHOUT_MIG | _ROW_REMAP if mig_on else _MIG)

    def _unsupported_board(self) -> frozenset[str]:
        lacking: frozenset[str] = frozenset()
        lacking |= _ABSOLUTE_LIMITS if self.max_operating_c is None else frozenset()
        lacking |= frozenset() if self.arch in MARGIN_ARCHS else _MARGIN
        lacking |= _HBM if self.memory_max_operating_c is None and self.nvlink_version == 0 else frozenset()
        if self.memory_max_operating_c is None:
            lacking |= {"gpu_memory_temperature_max_operating_celsius"}
        lacking |= _ROW_REMAP | _AMPERE_ON if self.arch == "turing" else _RETIRED_PAGES
        if self.arch not in {"turing", "ampere"}:
            lacking |= {"gpu_app_sm_clock_hertz"}
        if self.arch not in {"hopper", "blackwell"}:
            lacking |= {"gpu_memory_unrepairable"}
        if self.nvlink_version:
            lacking |= {"gpu_encoder_utilization_ratio"}
        return lacking if self.mig else lacking | {"gpu_mig_mode"}

    def _unsupported_links(self) -> frozenset[str]:
        c2c = frozenset() if self.domain_hosts > 1 else frozenset({"gpu_c2c_link_errors_total"})
        fabric = frozenset() if self.nvlink_version >= 4 else _FABRIC
        if self.nvlink_version == 0:
            return _NVLINK | _NVLINK_OLD | _NVLINK_5 | fabric | c2c
        return (_NVLINK_OLD if self.nvlink_version >= 5 else _NVLINK_5) | fabric | c2c


def _number(text: str) -> float | None:
    return float(text) if text else None


def _parse(row: dict[str, str]) -> GpuModel:
    return GpuModel(
        name=row["model"],
        arch=row["arch"],
        memory_bytes=float(row["memory_mib"]) * 1024 * 1024,
        default_power_w=float(row["default_power_w"]),
        min_power_w=float(row["min_power_w"]),
        max_power_w=float(row["max_power_w"]),
        max_operating_c=_number(row["max_operating_c"]),
        slowdown_c=_number(row["slowdown_c"]),
        shutdown_c=_number(row["shutdown_c"]),
        tlimit_slowdown=_number(row["tlimit_slowdown"]),
        tlimit_shutdown=_number(row["tlimit_shutdown"]),
        memory_max_operating_c=_number(row["memory_max_operating_c"]),
        sm_clock_mhz=float(row["sm_clock_mhz"]),
        memory_clock_mhz=float(row["memory_clock_mhz"]),
        nvlink_version=int(row["nvlink_version"]),
        nvlink_links=int(row["nvlink_links"]),
        nvlink_gb_s=float(row["nvlink_gb_s"]),
        mig=row["mig"] == "1",
        pcie_generation=int(row["pcie_generation"]),
        idle_power_w=float(row["idle_power_w"]),
        ceiling_c=float(row["assumed_max_operating_c"]),
        domain_hosts=int(row["domain_hosts"]),
    )


@cache
def models() -> dict[str, GpuModel]:
    """Name to model, in the order of the file."""
    text = resources.files("tocsin.sim").joinpath("gpu_models.csv").read_text(encoding="utf-8")
    return {model.name: model for model in map(_parse, csv.DictReader(text.splitlines()))}


GPUS_PER_HOST = 8
HOSTS_PER_RACK = 4
BLOCK = 8
"""Hosts after which the pattern repeats."""
MANAGED_LABEL = "tocsin.io/managed"
INLET_C = 25.0
"""Mean inlet temperature, inside ASHRAE's recommended 18 to 27 C."""
HEADROOM_C = 14.0
"""How far below its maximum operating temperature a healthy GPU settles at full power (own choice)."""
TAU_S = 90.0
"""Time constant of die and heat sink (own choice; liquid is quicker, a passive card slower)."""

PATTERN: tuple[tuple[str, str], ...] = (
    ("NVIDIA H100 80GB HBM3", "training"),
    ("NVIDIA H100 80GB HBM3", "training"),
    ("NVIDIA A100-SXM4-80GB", "training"),
    ("NVIDIA A100-SXM4-80GB", "batch"),
    ("NVIDIA B200", "training"),
    ("NVIDIA H100 80GB HBM3", "inference"),
    ("NVIDIA L40S", "inference"),
    ("NVIDIA L4", "batch"),
)
"""Model and pool of each host of a block; the last alternates with T4."""

LAYOUTS: tuple[tuple[Placement, ...], ...] = (
    (("3g", 4), ("1g", 3)),
    (("2g", 4), ("1g", 6), ("2g", 2)),
    (("1g", 6), ("1g", 5), ("1g", 4)),
)
"""MIG layouts of the GPUs that have it on; none of them hinders a larger instance much."""
MIG_SLOTS = 4
"""How many GPUs of a host with MIG have it on: the last ones."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that does not change. Arrays have one entry per GPU, in the order of `gpus`.

    `gang` is the slot that a GPU's work runs in: GPUs of one training host share it. `resistance` is degrees per watt
    from inlet to die, `inlet_offset` the rack's difference from the mean inlet, `day_c` the day's
    swing to each side.
    """

    gpus: tuple[Gpu, ...]
    model_of: tuple[GpuModel, ...]
    host: Ints
    rack: Ints
    domain: Ints
    gang: Ints
    gangs: int
    training: Bools
    inference: Bools
    batch: Bools
    mig: Bools
    layouts: tuple[tuple[Placement, ...], ...]
    resistance: Floats
    inlet_offset: Floats
    day_c: float
    phase: Floats
    by_uuid: dict[str, int]

    def __len__(self) -> int:
        return len(self.gpus)

    def column(self, name: str) -> Floats:
        """Attribute `name` of each GPU's model; NaN where the model does not state it."""
        stated = [getattr(model, name) for model in self.model_of]
        return np.array([np.nan if value is None else float(value) for value in stated])


def _host_model(host: int) -> tuple[GpuModel, str]:
    block, position = divmod(host, BLOCK)
    if block % 4 == 3:
        return models()["NVIDIA GB200"], "training"
    name, pool = PATTERN[position]
    if position == BLOCK - 1 and block % 2 == 1:
        name = "Tesla T4"
    return models()[name], pool


def _uuid(seed: int, number: int) -> str:
    digest = hashlib.sha256(f"tocsin-sim|{seed}|{number}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


DRIVER = "580.95.05"
"""Of every simulated host: a fleet that nobody touches has one of each."""
_OF_NODE = {
    "driver": DRIVER,
    "cuda_driver": "13.0",
    "cuda": "13.0.1",
    "nccl": "2.28.3",
    "cudnn": "9.13.0",
    "kernel": "6.8.0-79-generic",
    "container_toolkit": "1.17.8",
}
_VBIOS = {
    "turing": ("90.04.A7.00.01", "G183.0200.00.02"),
    "ampere": ("92.00.9E.00.01", "G506.0210.00.04"),
    "ada": ("95.02.18.80.01", "G133.0250.00.03"),
    "hopper": ("96.00.A5.00.01", "G520.0200.00.05"),
    "blackwell": ("97.00.82.00.18", "G525.0225.00.03"),
}
"""VBIOS and InfoROM by architecture, in the forms that NVML gives."""


@cache
def versions(model: GpuModel) -> dict[str, str]:
    """Labels of what runs on a simulated host with this model."""
    vbios, inforom = _VBIOS[model.arch]
    found = _OF_NODE | {"vbios": vbios, "inforom": inforom, "gsp_firmware": DRIVER}
    if model.nvlink_version:
        # The form with NVSwitches, and the network of a host that trains.
        found |= {"fabric_manager": DRIVER, "nic_firmware": "28.43.2026"}
    return {COMPONENTS[key].label: version for key, version in found.items()}


def _gpu(seed: int, number: int) -> Gpu:
    host, index = divmod(number, GPUS_PER_HOST)
    model, pool = _host_model(host)
    labels = {"tocsin.io/simulated": "true"}
    if model.domain_hosts > 1:
        labels[NVLINK_DOMAIN] = f"sim-domain-{host // model.domain_hosts:03d}.0"
    if host % 2 == 0:
        labels[MANAGED_LABEL] = "true"
    labels |= versions(model)
    return Gpu(
        uuid=_uuid(seed, number),
        host=f"sim-node-{host:04d}",
        index=index,
        model=model.name,
        serial=f"SIM{number:010d}",
        pci_bus_id=f"00000000:{0x10 + 0x11 * index:02x}:00.0",
        pool=pool,
        rack=f"sim-rack-{host // HOSTS_PER_RACK:03d}",
        labels=labels,
        simulated=True,
    )


def _has_mig(number: int, model: GpuModel, pool: str) -> bool:
    shared = pool != "training" and model.name in {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"}
    return shared and number % GPUS_PER_HOST >= GPUS_PER_HOST - MIG_SLOTS


def _slots(pools: list[str], host: Ints) -> tuple[Ints, int]:
    """The gang slot of each GPU: its host's first GPU in the training pool, itself elsewhere."""
    first = host * GPUS_PER_HOST
    numbers = np.arange(len(pools), dtype=np.int64)
    return np.where(np.array(pools) == "training", first, numbers), len(pools)


def _domains(host: Ints, domain_hosts: Ints) -> Ints:
    """The first host of each GPU's NVLink domain; domains of several hosts begin at a multiple of their size."""
    return np.asarray(host - host % domain_hosts)


def build(spec: FleetSpec) -> Inventory:
    """The fleet that `spec` describes; equal seeds give equal fleets."""
    gpus = tuple(_gpu(spec.seed, number) for number in range(spec.gpus))
    numbers = np.arange(spec.gpus, dtype=np.int64)
    host = numbers // GPUS_PER_HOST
    rack = host // HOSTS_PER_RACK
    model_of = tuple(models()[gpu.model] for gpu in gpus)
    pools = [gpu.pool for gpu in gpus]
    mig = np.array([_has_mig(n, model_of[n], pools[n]) for n in range(spec.gpus)])
    gang, gangs = _slots(pools, host)
    rng = generator(spec.seed, Stream.INVENTORY)
    nominal = np.array([(m.ceiling_c - HEADROOM_C - INLET_C) / m.default_power_w for m in model_of])
    heat = spec.scenario.normal.heat
    slot_parity = np.where(numbers % 2 == 1, 1.0 + heat.slot_share, 1.0 - heat.slot_share)
    spread = np.exp(rng.normal(0.0, heat.gpu_spread, spec.gpus))
    rack_offsets = rng.normal(0.0, heat.rack_c, int(rack[-1]) + 1).clip(-heat.rack_most_c, heat.rack_most_c)
    return Inventory(
        gpus=gpus,
        model_of=model_of,
        host=host,
        rack=rack,
        domain=_domains(host, np.array([m.domain_hosts for m in model_of], dtype=np.int64)),
        gang=gang,
        gangs=gangs,
        training=np.array([pool == "training" for pool in pools]),
        inference=np.array([pool == "inference" for pool in pools]),
        batch=np.array([pool == "batch" for pool in pools]),
        mig=mig,
        layouts=tuple(LAYOUTS[n % len(LAYOUTS)] if mig[n] else () for n in range(spec.gpus)),
        resistance=nominal * slot_parity * spread.clip(1.0 - 3.0 * heat.gpu_spread, 1.0 + 3.0 * heat.gpu_spread),
        inlet_offset=rack_offsets[rack],
        day_c=heat.day_c,
        phase=rng.uniform(0.0, 1.0, spec.gpus),
        by_uuid={gpu.uuid: number for number, gpu in enumerate(gpus)},
    )
