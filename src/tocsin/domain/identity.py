"""Which GPU. Identity is the UUID; index, node, model and pool are attributes that may change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_PCI = re.compile(r"^(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?$")
MIG_START = "mig_start"
"""Label of a MIG instance: the first memory slice of its GPU instance."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU or one MIG instance, with what is known of it.

    `uuid` is NVML's (``GPU-...``, ``MIG-...``) and alone decides equality and the hash. `parent` is the UUID of the
    physical GPU for a MIG instance, else empty. Empty strings and None mean unknown. `simulated` marks a GPU that a
    simulator made, and travels to every view.
    """

    uuid: str
    host: str = field(compare=False)
    index: int | None = field(default=None, compare=False)
    model: str = field(default="", compare=False)
    serial: str = field(default="", compare=False)
    pci_bus_id: str = field(default="", compare=False)
    parent: str = field(default="", compare=False)
    mig_profile: str = field(default="", compare=False)
    pool: str = field(default="default", compare=False)
    rack: str = field(default="", compare=False)
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    simulated: bool = field(default=False, compare=False)

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance rather than a whole GPU."""
        return bool(self.parent)


def normalise_pci_bus_id(text: str) -> str:
    """`text` as ``dddddddd:bb:dd.f`` in lower case, or an empty string where it is no PCI address.

    NVML writes an 8-digit domain and a function, the kernel log a 4-digit domain and often no function.
    """
    match = _PCI.match(text.strip().removeprefix("PCI:"))
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()
