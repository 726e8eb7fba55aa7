"""A GPU and what was read of it at one instant: who it is, its values, why others are missing, who runs on it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

from tocsin.domain.clock import MINUTE, to_iso
from tocsin.domain.metrics import spec_of

# Which GPU. Identity is the UUID; index, node, model and pool are attributes that may change.

_PCI = re.compile(r"^(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?$")
MIG_START = "mig_start"
"""Label of a MIG instance: the first memory slice of its GPU instance."""
NVLINK_DOMAIN = "nvlink_domain"
"""Label of a GPU that is registered with an NVLink fabric of several hosts: NVML's ``clusterUuid.cliqueId``."""


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
        return bool(self.parent)


UNKNOWN_GPU = "GPU-unknown-"
"""Begins the name of a GPU that could not be opened yet, so that nobody knows its UUID; the host follows."""


def normalise_pci_bus_id(text: str) -> str:
    """`text` as ``dddddddd:bb:dd.f`` in lower case, or an empty string where it is no PCI address.

    NVML writes an 8-digit domain and a function, the kernel log a 4-digit domain and often no function.
    """
    match = _PCI.match(text.strip().removeprefix("PCI:"))
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


# Why a value is not there. Missing is a reason, never a zero and never a bare NaN.


class Missing(IntEnum):
    """The reason; the integer is what travels in measurement ``gpu_missing``."""

    UNSUPPORTED = 1
    """This GPU, driver or source does not have the metric."""
    DENIED = 2
    """The reader lacks the privilege."""
    LOST = 3
    """The GPU does not answer: fallen off the bus, or the driver lost it."""
    TIMED_OUT = 4
    """The call did not come back before its deadline."""
    BLANK = 5
    """The source answered with a blank sentinel, a NaN, an infinity or a value outside the metric's bounds."""
    FROZEN = 6
    """The source repeats old values; this one is not trusted."""
    NOT_DUE = 7
    """The metric has a slower cadence and was not read at this instant."""
    RESET_REQUIRED = 8
    """The driver answers that the GPU must be reset first."""

    @property
    def label(self) -> str:
        """The reason in lower case, as printed in JSON and in metric labels."""
        return self.name.lower()


# Who uses a GPU: the process, and the container, pod or batch job around it.


MOST_LETTERS = 253
"""Letters of one name of an owner: the longest that Kubernetes gives; a longer one is cut."""
MOST_OWNERS = 1_024
"""Owners of one GPU (own choice): each context takes some 300 MB, so that the largest GPUs hold fewer."""


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One process on a GPU and what runs it; empty text means unknown or none.

    `pid` is in the host's namespace. `container` is the runtime's identifier, `pod_uid` Kubernetes' own; `pod` and
    `namespace` are names, known only where something maps the UID to them. `slurm_job` is a job's number, with the
    step behind a dot where it is known.
    """

    pid: int
    process: str = ""
    container: str = ""
    pod: str = ""
    namespace: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        # Whichever way they came: who reads goes through the names of all owners.
        texts = (self.process, self.container, self.pod, self.namespace, self.pod_uid, self.slurm_job, self.user)
        if sum(map(len, texts)) <= MOST_LETTERS:
            return
        for name in _OWNER_TEXTS:
            if len(text := getattr(self, name)) > MOST_LETTERS:
                object.__setattr__(self, name, text[:MOST_LETTERS])

    def as_json(self) -> dict[str, Any]:
        """The wire form: the fields that are known."""
        return {name: value for name, value in asdict(self).items() if value != ""}

    @property
    def label(self) -> str:
        """The owner in a few words: namespace/pod, else the Slurm job, else the container, else process and pid."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.slurm_job:
            return f"Slurm job {self.slurm_job}"
        if self.pod_uid:
            return f"pod {self.pod_uid}"
        if self.container:
            return f"container {self.container[:12]}"
        return f"{self.process or 'process'} {self.pid}"


_OWNER_TEXTS = tuple(one.name for one in fields(Owner) if one.name != "pid")


def owner_of_json(document: Mapping[str, Any]) -> Owner:
    """The owner of a wire form; what is not known of it is left out. Raises ValueError where it is none."""
    try:
        pid = int(document["pid"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{str(document)[:80]} is no owner: it has no pid") from None
    known = {f.name for f in fields(Owner)} - {"pid"}
    return Owner(pid, **{name: str(value) for name, value in document.items() if name in known})


def owners_text(owners: Sequence[Owner]) -> str:
    """JSON list of the wire forms."""
    documents = [owner.as_json() for owner in owners]
    return json.dumps(documents, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_owners(text: str) -> tuple[Owner, ...]:
    """Inverse of `owners_text`; no text is nobody. Raises ValueError."""
    try:
        documents = json.loads(text or "[]")
    except RecursionError:
        raise ValueError(f"{text[:80]!r} is nested too deeply") from None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise ValueError(f"{text[:80]!r} is no list of owners")
    return tuple(owner_of_json(document) for document in documents)


MAX_FUTURE_MS = 5 * MINUTE
"""How far ahead of the receiver's clock a reading may be dated: skew is tolerated, a wrong clock is not."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One wide row.

    `values` maps a canonical metric name, or a variant ``name{label="v"}``, to a finite float in the metric's unit.
    `missing` maps names to the reason for which there is no value. A name is in one of the two at most.
    `owners` are the processes on the GPU; empty where there is none and where nobody looked.
    """

    gpu: Gpu
    at_ms: int
    values: Mapping[str, float]
    missing: Mapping[str, Missing] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the GPU answered nothing at all: it has fallen off the bus."""
        return not self.values and Missing.LOST in self.missing.values()

    def as_json(self) -> dict[str, object]:
        """The wire form of `tocsin agent --once --json`."""
        return {
            "gpu": self.gpu.uuid,
            "host": self.gpu.host,
            "at": to_iso(self.at_ms),
            "simulated": self.gpu.simulated,
            "values": dict(self.values),
            "missing": {name: reason.label for name, reason in self.missing.items()},
            "owners": [owner.as_json() for owner in self.owners],
        }


def sanitise(reading: Reading) -> tuple[Reading, list[str]]:
    """`reading` without what cannot be used, and one sentence for each value taken out.

    A NaN, an infinity, an unknown metric and a value outside the bounds of the metric table become `Missing.BLANK`
    (an unknown metric is dropped); the other values stay.
    """
    for key, value in reading.values.items():
        low, high = _bounds(key)
        if not low <= value <= high:  # also a NaN
            return _sorted_out(reading)
    return reading, []


@lru_cache(maxsize=16_384)
def _bounds(key: str) -> tuple[float, float]:
    """Bounds of plausible values; nothing lies within those of an unknown metric."""
    spec = spec_of(key)
    return (math.inf, -math.inf) if spec is None else (spec.minimum, min(spec.maximum, sys.float_info.max))


def _sorted_out(reading: Reading) -> tuple[Reading, list[str]]:
    problems: list[str] = []
    values: dict[str, float] = {}
    missing = dict(reading.missing)
    for key, value in reading.values.items():
        spec = spec_of(key)
        if spec is None:
            problems.append(f"{key}: not in the metric table, dropped")
        elif not math.isfinite(value):
            problems.append(f"{key} = {value}: not finite, kept as blank")
            missing[key] = Missing.BLANK
        elif not spec.minimum <= value <= spec.maximum:
            problems.append(f"{key} = {value}: outside {spec.minimum} to {spec.maximum} {spec.unit}, kept as blank")
            missing[key] = Missing.BLANK
        else:
            values[key] = value
    return replace(reading, values=values, missing=missing), problems
