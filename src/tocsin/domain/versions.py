"""Which versions run on a node and its GPUs: what has one, the label that carries it, and why one is not known.

A version travels as a label of each GPU, ``<component>_version``; what could not be read is in the label
`MISSING_LABEL` with the reason. Both are a stranger's word, so what is read back here is cut and stripped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

LONGEST = 64
"""Characters of a version; those of all components here have fewer than half as many, several network cards aside."""
MISSING_LABEL = "versions_missing"
"""Label with the components that were looked for and not found: ``nccl: no library; gsp_firmware: not reported``."""
ROLE_LABEL = "role"
"""Label, given in ``agent.labels``, that tells nodes of one pool apart that are meant to differ."""
_LONGEST_MISSING = 2_000
_SEPARATOR, _COLON = "; ", ": "


@dataclass(frozen=True, slots=True)
class Component:
    """What has a version: its `key`, its names in English and Chinese, and whether each GPU has its own."""

    key: str
    name: str
    chinese: str
    of_gpu: bool = False

    @property
    def label(self) -> str:
        """The label of a GPU that carries it."""
        return f"{self.key}_version"


COMPONENTS = {
    one.key: one
    for one in (
        Component("driver", "driver", "驱动"),
        Component("cuda_driver", "CUDA of the driver", "驱动的 CUDA"),
        Component("cuda", "CUDA toolkit", "CUDA 工具包"),
        Component("nccl", "NCCL", "NCCL"),
        Component("cudnn", "cuDNN", "cuDNN"),
        Component("vbios", "VBIOS", "VBIOS", of_gpu=True),
        Component("inforom", "InfoROM", "InfoROM", of_gpu=True),
        Component("gsp_firmware", "GSP firmware", "GSP 固件", of_gpu=True),
        Component("firmware", "firmware", "固件", of_gpu=True),
        Component("fabric_manager", "fabric manager", "fabric manager"),
        Component("kernel", "kernel", "内核"),
        Component("container_toolkit", "container toolkit", "容器工具包"),
        Component("nic_firmware", "NIC firmware", "网卡固件"),
    )
}
"""All components by key, in the order of lists shown to people."""


class Standing(StrEnum):
    """How the versions of one component stand in a group."""

    SAME = "same"
    """All hosts have one."""
    DRIFT = "drift"
    """A small part of the hosts differs from the rest."""
    ROLLOUT = "rollout"
    """More hosts take up a version than a day ago: it is on its way."""
    MIXED = "mixed"
    """There are several, and none is a small exception."""
    FEW = "few"
    """Too few hosts to say what is meant."""


WORST_FIRST = (Standing.DRIFT, Standing.ROLLOUT, Standing.MIXED, Standing.SAME, Standing.FEW)
"""The order of lists."""


@dataclass(frozen=True, slots=True)
class VersionBefore:
    """What a host with GPUs of one model had for a component a day ago; an empty `version` where it was not there."""

    host: str
    model: str
    component: str
    version: str


@lru_cache(maxsize=4_096)
def clean(text: str) -> str:
    """`text` as a version: printable, blanks folded, at most LONGEST characters; empty where nothing is left."""
    shown = "".join(one if one.isprintable() else " " for one in text[: 4 * LONGEST])
    return " ".join(shown.split())[:LONGEST].strip()


def versions_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The versions that a GPU's `labels` carry, by component in the order of COMPONENTS."""
    found = {key: clean(labels[one.label]) for key, one in COMPONENTS.items() if one.label in labels}
    return {key: version for key, version in found.items() if version}


def missing_text(reasons: Mapping[str, str]) -> str:
    """The value of `MISSING_LABEL` for reasons by component; what is too long is cut between two of them."""
    text = ""
    for key, reason in reasons.items():
        more = f"{_SEPARATOR if text else ''}{key}{_COLON}{clean(reason.replace(';', ','))}"
        if len(text) + len(more) > _LONGEST_MISSING:
            break
        text += more
    return text


def missing_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Inverse of `missing_text` over a GPU's `labels`; what names no component is left out."""
    parts = labels.get(MISSING_LABEL, "")[:_LONGEST_MISSING].split(_SEPARATOR)
    pairs = (part.partition(_COLON) for part in parts)
    return {key: clean(reason) for key, colon, reason in pairs if colon and key in COMPONENTS}


def by_number(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which versions stand as people count them: 9.10 after 9.9."""
    parts: list[tuple[int, int | str]] = []
    for part in version.replace("-", ".").replace("_", ".").split("."):
        plain = part.isascii() and part.isdigit()
        parts.append((1, int(part)) if plain else (0, part))
    return tuple(parts)
