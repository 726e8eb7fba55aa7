"""GPUs as Dynamic Resource Allocation (DRA) has them: devices in ResourceSlices, who holds them by ResourceClaims, and
the DeviceTaintRules that keep work off single ones. Pure functions over objects as they were read; no slice is written.

Shapes: resource.k8s.io v1, v1beta2 (alike) and v1beta1, which has what a device is under ``basic``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tocsin.actions.kubernetes.api import Json
from tocsin.actions.kubernetes.patches import LONGEST_REASON, OWNER

DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver for GPUs; what other drivers publish is no GPU of ours."""
MANAGED = "app.kubernetes.io/managed-by"
"""Label of every rule that Tocsin makes; its value is ``tocsin``."""
GPU_NOTE = "tocsin.io/gpu"
"""Annotation of a rule: UUID of the GPU. The device's name may mean another GPU after a reset, the UUID never does."""
KEY_NOTE = "tocsin.io/cordon-key"
"""Annotation of a rule: id of the decision."""
REASON_NOTE = "tocsin.io/cordon-reason"
MOST_DEVICES = 4096
"""Devices of one node that are looked at: 32 slices of the server's own bound of 128 (own choice)."""
MOST_GPUS = 64
"""GPUs of one node that its slices can make count: more than any server has (own choice)."""
_EVICTION = "EvictionInProgress"


class Effect(StrEnum):
    """Effects of a device's taint."""

    NONE = "None"
    """Nothing happens; the controller counts what an eviction would hit, which proves that it follows rules."""
    NO_SCHEDULE = "NoSchedule"
    """New claims keep off; running pods stay."""
    NO_EXECUTE = "NoExecute"
    """Pods that hold it are deleted as well, and no disruption budget is asked."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceName:
    """How rules and claims name a device; never empty in any part, for an empty selector means every device."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice. `uuid` is its own, empty for a MIG instance that is not made yet; `gpu` is that of the GPU
    that it is, or is a part of."""

    name: DeviceName
    uuid: str
    gpu: str


def devices_in(slices: Iterable[Json]) -> list[Device]:
    """The GPUs, and the parts of GPUs, that `slices` publish.

    Of each pool the newest generation counts, and only once all its slices are there: a driver publishes one after the
    other, and scheduler and controllers read it so too. Devices without a UUID are passed over, as is what is no slice.
    """
    specs = [spec for one in slices if isinstance(spec := one.get("spec"), dict) and spec.get("driver") == DRIVER]
    newest: dict[str, int] = {}
    for spec in specs:
        pool, generation, _ = _pool(spec)
        newest[pool] = max(generation, newest.get(pool, 0))
    current = [spec for spec in specs if _pool(spec)[1] == newest[_pool(spec)[0]]]
    there = Counter(_pool(spec)[0] for spec in current)
    whole = [spec for spec in current if there[_pool(spec)[0]] == _pool(spec)[2]]
    found: list[Device] = []
    for spec in whole:
        pool = _pool(spec)[0]
        listed = spec.get("devices")
        for raw in listed[: MOST_DEVICES - len(found)] if isinstance(listed, list) else ():
            device = _device(pool, raw)
            if device is not None:
                found.append(device)
    return found


def gpus_by_node(slices: Iterable[Json]) -> dict[str, int]:
    """Whole GPUs that the slices of each node publish; what is published for no single node is no node's."""
    mine: dict[str, list[Json]] = {}
    for one in slices:
        spec = one.get("spec")
        node = spec.get("nodeName") if isinstance(spec, dict) else None
        if isinstance(node, str) and node:
            mine.setdefault(node, []).append(one)
    counts = {node: len({device.gpu for device in devices_in(found)}) for node, found in mine.items()}
    return {node: min(count, MOST_GPUS) for node, count in counts.items() if count}


def _pool(spec: Mapping[str, Any]) -> tuple[str, int, int]:
    """Name, generation and number of slices."""
    pool = spec.get("pool")
    if not isinstance(pool, dict):
        return "", 0, 0
    generation, count = pool.get("generation"), pool.get("resourceSliceCount")
    return (
        str(pool.get("name") or ""),
        generation if isinstance(generation, int) else 0,
        count if isinstance(count, int) else 0,
    )


def _device(pool: str, raw: object) -> Device | None:
    if not isinstance(raw, dict):
        return None
    basic = raw.get("basic")
    attributes = (basic if isinstance(basic, dict) else raw).get("attributes")
    name = str(raw.get("name") or "")
    if not (pool and name and isinstance(attributes, dict)):
        return None
    uuid = _text(attributes, "uuid")
    gpu = _text(attributes, "parentUUID") or uuid
    return Device(DeviceName(DRIVER, pool, name), uuid, gpu) if gpu else None


def _text(attributes: Mapping[str, Any], name: str) -> str:
    """A text attribute; one without a domain belongs to the driver's, which may be written out."""
    for key in (name, f"{DRIVER}/{name}"):
        value = attributes.get(key)
        if isinstance(value, dict) and isinstance(value.get("string"), str):
            return str(value["string"])
    return ""


def devices_of(devices: Iterable[Device], gpu: str) -> list[DeviceName]:
    """The devices that GPU `gpu` is published as: itself, and its MIG instances; of a MIG instance that alone."""
    return sorted(one.name for one in devices if gpu in {one.gpu, one.uuid})


def holders(claims: Iterable[Json], names: Iterable[DeviceName]) -> frozenset[str]:
    """UIDs of the pods that hold one of `names` by a claim. Access for administration holds nothing."""
    return frozenset(uid for name, uids in holders_by_device(claims).items() if name in set(names) for uid in uids)


def holders_by_device(claims: Iterable[Json]) -> dict[DeviceName, set[str]]:
    """UIDs of the pods that hold each device."""
    found: dict[DeviceName, set[str]] = {}
    for claim in claims:
        status = claim.get("status") or {}
        uids = {
            str(one.get("uid", "")) for one in status.get("reservedFor") or () if one.get("resource", "pods") == "pods"
        } - {""}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        for one in results:
            if not one.get("adminAccess") and uids:
                name = DeviceName(str(one.get("driver")), str(one.get("pool")), str(one.get("device")))
                found.setdefault(name, set()).update(uids)
    return found


class Rule:
    """One DeviceTaintRule as it was read."""

    def __init__(self, raw: Json) -> None:
        self.raw = raw
        metadata: Mapping[str, Any] = raw.get("metadata") or {}
        spec: Mapping[str, Any] = raw.get("spec") or {}
        selector: Mapping[str, Any] = spec.get("deviceSelector") or {}
        notes: Mapping[str, str] = metadata.get("annotations") or {}
        self.name = str(metadata.get("name", ""))
        self.uid = str(metadata.get("uid", ""))
        self.version = str(metadata.get("resourceVersion", ""))
        self.generation = int(metadata.get("generation") or 0)
        self.ours = (metadata.get("labels") or {}).get(MANAGED) == OWNER
        self.gpu = str(notes.get(GPU_NOTE, ""))
        self.key = str(notes.get(KEY_NOTE, ""))
        self.reason = str(notes.get(REASON_NOTE, ""))
        self.device = DeviceName(*(str(selector.get(part) or "") for part in ("driver", "pool", "device")))
        taint: Mapping[str, Any] = spec.get("taint") or {}
        self.taint = str(taint.get("key", ""))
        self.effect = str(taint.get("effect", ""))

    @property
    def _eviction(self) -> Mapping[str, Any]:
        conditions = (self.raw.get("status") or {}).get("conditions") or ()
        return next((one for one in conditions if one.get("type") == _EVICTION), {})

    @property
    def followed(self) -> bool:
        """Whether the controller of device taints has written its condition: rules do something in this cluster."""
        return bool(self._eviction)

    @property
    def foreseen(self) -> str:
        """What the controller says of this very form of the rule; empty until it does."""
        said = self._eviction
        return str(said.get("message", "")) if said.get("observedGeneration") == self.generation else ""

    @property
    def evicted(self) -> bool:
        """Whether the controller says that the eviction of this form of the rule is over."""
        said = self._eviction
        current = said.get("observedGeneration") == self.generation
        return current and said.get("status") == "False" and said.get("reason") == "Completed"


def rule_name(device: DeviceName) -> str:
    """The name of Tocsin's rule for `device`, the same for every decision: one GPU never has two rules of ours."""
    digest = hashlib.sha256("/".join((device.driver, device.pool, device.device)).encode()).hexdigest()[:12]
    return f"tocsin-{device.device}-{digest}"


@dataclass(frozen=True, slots=True)
class RuleNote:
    """What a rule says of itself: the GPU's UUID, the decision's id, and why."""

    gpu: str
    key: str
    reason: str


def rule_body(version: str, device: DeviceName, note: RuleNote, taint: str, effect: Effect) -> Json:
    """A rule for one device. Raises ValueError where a part of the device's name is empty: what is left of the selector
    would match more than the one device."""
    if not (device.driver and device.pool and device.device):
        raise ValueError(f"a rule wants driver, pool and device, not {device!r}")
    notes = {GPU_NOTE: note.gpu, KEY_NOTE: note.key, REASON_NOTE: note.reason[:LONGEST_REASON]}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(device), "labels": {MANAGED: OWNER}, "annotations": notes},
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
            "taint": {"key": taint, "value": note.key, "effect": effect.value},
        },
    }


def astray(rules: Sequence[Rule], devices: Iterable[Device]) -> list[tuple[Rule, list[DeviceName]]]:
    """Rules whose device is another GPU by now, each with the devices that its own GPU is now: names of devices are the
    minor numbers of the driver, which may change with a reset. A device that no slice has says nothing."""
    listed = list(devices)
    now = {one.name: {one.gpu, one.uuid} for one in listed}
    return [
        (rule, devices_of(listed, rule.gpu))
        for rule in rules
        if rule.gpu and rule.gpu not in now.get(rule.device, {rule.gpu})
    ]
