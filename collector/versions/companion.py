"""The versions of this node as labels of its GPUs, with the reasons of those that could not be read.

A thread of its own reads them once in a while: package databases are large, and a network card may hang in its
firmware. What a source says itself, or the settings, stands: this fills in what is not there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from tocsin.collector.sysfs import entries, text_of
from tocsin.collector.versions.files import Node
from tocsin.collector.versions.libraries import cuda_toolkit, library
from tocsin.collector.versions.packages import installed
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.versions import COMPONENTS, MISSING_LABEL, clean, missing_text, versions_of
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("versions")

EVERY_SECONDS = 600.0
"""How often it looks: no version of a running node changes in less, but for a library that somebody installs."""
MOST_CARDS = 64
_JOIN_SECONDS = 2.0
_DRIVER = re.compile(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)*)\s")
_OTHERS = ("AMD-", "NPU-")
"""How the UUIDs of GPUs begin that are not NVIDIA's."""
_OF_ALL = ("kernel", "nic_firmware")
_OF_SOURCE = ("driver", "cuda_driver", "vbios", "inforom", "gsp_firmware")
_NOT_TOLD = "not told by the source"


@dataclass(frozen=True, slots=True)
class Facts:
    """What one look gave: versions by component, and the reason for each that there is none of."""

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


class Versions:
    """Adds versions to the labels of every GPU that is not a MIG instance.

    `look` reads all of them once; `start` does so in a thread, every `every_seconds`. A GPU is the same object in each
    reading for as long as nothing about it changes.
    """

    name = "versions"

    def __init__(
        self, root: Path, proc: Path, sys: Path, own: OwnMetrics, every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._node = Node(root)
        self._proc = proc
        self._sys = sys
        self._own = own
        self._every = every_seconds
        self._facts = Facts()
        self._made: dict[str, tuple[Gpu, Facts, Gpu]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="versions", daemon=True)

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that hangs in a card's firmware is left behind."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> None:
        """Read all versions once."""
        facts = self._read()
        if facts != self._facts:
            self._facts = facts
        self._own.set("tocsin_versions_known", float(len(facts.versions)))

    def enrich(self, batch: Batch, now_ms: int) -> Batch:  # noqa: ARG002  # versions have no instant of their own
        """`batch` with the versions of the newest look; the same object where nothing could be read at all."""
        facts = self._facts
        if not facts.versions or not batch.readings:
            return batch
        known, self._made = self._made, {}
        readings = [one if one.gpu.is_mig else self._with(one, facts, known) for one in batch.readings]
        return replace(batch, readings=readings)

    def _with(self, reading: Reading, facts: Facts, known: Mapping[str, tuple[Gpu, Facts, Gpu]]) -> Reading:
        gpu = reading.gpu
        before = known.get(gpu.uuid)
        same = before is not None and before[1] is facts and _alike(before[0], gpu)
        kept = before if before is not None and same else (gpu, facts, _labelled(gpu, facts))
        self._made[gpu.uuid] = kept
        return replace(reading, gpu=kept[2])

    def _read(self) -> Facts:
        node = self._node
        packages, readable = installed(node)
        found = {
            "kernel": (text_of(self._proc / "sys/kernel/osrelease") or "", "no osrelease in /proc"),
            "driver": (self._driver(), _NOT_TOLD),
            "cuda": (cuda_toolkit(node), "no version file in /usr/local/cuda"),
            "nic_firmware": (self._cards(), "no RDMA card that tells it"),
        }
        for key in ("nccl", "cudnn"):
            found[key] = library(node, key) or packages.get(key, ""), "no library"
        for key in ("fabric_manager", "container_toolkit"):
            found[key] = packages.get(key, ""), "no package" if readable else "no package database that can be read"
        known = {key: text for key, (version, _) in found.items() if (text := clean(version))}
        missing = {key: reason for key, (_, reason) in found.items() if key not in known}
        return Facts(known, missing)

    def _driver(self) -> str:
        """The driver in the kernel: NVIDIA's by its own file, open or proprietary, else by its module."""
        text = text_of(self._proc / "driver/nvidia/version") or ""
        if match := _DRIVER.search(text):
            return match[1]
        modules = ("nvidia", "amdgpu")
        return next((said for one in modules if (said := text_of(self._sys / "module" / one / "version"))), "")

    def _cards(self) -> str:
        """Firmware of the RDMA cards: one version where they all have it, else each with the boards that run it."""
        folder = self._sys / "class/infiniband"
        found: dict[str, set[str]] = {}
        for name in entries(folder, MOST_CARDS):
            firmware = clean(text_of(folder / name / "fw_ver") or "")
            if firmware:
                found.setdefault(firmware, set()).add(
                    clean(text_of(folder / name / "board_id") or "") or "unknown board"
                )
        if len(found) == 1:
            return next(iter(found))
        return ", ".join(f"{firmware} ({', '.join(sorted(boards))})" for firmware, boards in sorted(found.items()))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001  # the supervisor of the looking loop
                self._own.count("tocsin_loop_failures_total", loop="versions")
                _log.exception("unexpected error, looking at versions goes on")
            self._closing.wait(self._every)


_GPU_FIELDS = tuple(field.name for field in fields(Gpu))


def _alike(one: Gpu, other: Gpu) -> bool:
    """Whether all that is known of both is the same: some sources make their GPUs anew with each reading."""
    return one is other or all(getattr(one, name) == getattr(other, name) for name in _GPU_FIELDS)


def _labelled(gpu: Gpu, facts: Facts) -> Gpu:
    """`gpu` with the versions that it has not, and with the reasons of those that are not known."""
    other = gpu.uuid.startswith(_OTHERS)
    keys = _OF_ALL if other else (*facts.versions, *facts.missing)
    told = versions_of(gpu.labels)
    added = {COMPONENTS[key].label: facts.versions[key] for key in keys if key in facts.versions and key not in told}
    if other and "driver" in facts.versions and "driver" not in told and gpu.uuid.startswith("AMD-"):
        added[COMPONENTS["driver"].label] = facts.versions["driver"]
    wanted = {} if other else dict.fromkeys(_OF_SOURCE, _NOT_TOLD)
    reasons = {**wanted, **{key: facts.missing[key] for key in keys if key in facts.missing}}
    reasons = {k: why for k, why in reasons.items() if k not in told and COMPONENTS[k].label not in added}
    if reasons:
        added[MISSING_LABEL] = missing_text(reasons)
    return replace(gpu, labels={**added, **gpu.labels})


def open_versions(settings: Settings, own: OwnMetrics) -> Versions:
    """The companion that ``agent.versions`` asks for, looking already."""
    wanted = settings.agent
    made = Versions(wanted.host_root, wanted.proc, wanted.sys, own)
    made.start()
    return made
