"""Who is in the fleet: hosts, racks, pools, models, identities and each slot's own thermal path.

A rack holds 4 hosts of 8 GPUs. Hosts follow a pattern of eight (`PATTERN`); in every fourth block of eight hosts stands
one NVLink domain of 64 GPUs instead.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tocsin.domain.fragmentation import Placement
from tocsin.domain.identity import Gpu
from tocsin.sim.arrays import Bools, Floats, Ints, Stream, generator
from tocsin.sim.models import GpuModel, models
from tocsin.sim.spec import FleetSpec

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


def _gpu(seed: int, number: int) -> Gpu:
    host, index = divmod(number, GPUS_PER_HOST)
    model, pool = _host_model(host)
    labels = {"tocsin.io/simulated": "true"}
    if host % 2 == 0:
        labels[MANAGED_LABEL] = "true"
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
    gang = np.where(np.array(pools) == "training", first, numbers)
    return gang, len(pools)


def _domains(host: Ints, domain_hosts: Ints) -> Ints:
    """The first host of each GPU's NVLink domain; domains of several hosts begin at a multiple of their size."""
    domains: Ints = host - host % domain_hosts
    return domains


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
