"""What of a GPU is due when, and what stands meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tocsin.collector.nvml.answers import Answers
from tocsin.collector.nvml.asker import Part, Tiered
from tocsin.collector.nvml.decode import metric_of
from tocsin.collector.nvml.library import Nvml, attempt
from tocsin.collector.nvml.links import (
    BYTE_FIELDS,
    LINK_FIELDS,
    LINK_METRICS,
    calls_of,
    fields_of,
    link_calls,
    link_fields,
)
from tocsin.collector.nvml.mig import Layout, Vgpus
from tocsin.collector.nvml.probes import Tier
from tocsin.collector.nvml.processes import Processes
from tocsin.domain.missing import Missing

_STAGGER = 8
"""GPUs of one node take turns with their slow questions, so that no reading has them all."""
_MOST_LINKS = 36
_LINKS_MAX = "gpu_nvlink_links_max"


class Without(Part):
    """Metrics that a GPU cannot have."""

    def __init__(self, metrics: Iterable[str]) -> None:
        self._metrics = tuple(metrics)

    def read(self, answers: Answers) -> None:
        """Add the reason for each."""
        answers.blame(self._metrics, Missing.UNSUPPORTED)


class Standing:
    """What of one handle is not read every time: each tier at its period, with the last values in between.

    `values` and `reasons` are those of all tiers, static ones among them. `turn` spreads the second reading over the
    period; after that a tier is due one period after it was read, or at once where the clock went back.
    """

    def __init__(self, static: Tiered | None, tiers: Sequence[tuple[Tier, Tiered]], turn: int) -> None:
        self._static = static
        self._tiers = tiers
        self._turn = (turn % _STAGGER + 1) / _STAGGER
        self._due: dict[Tier, int] = {}
        self._read_ms: int | None = None
        self.values: dict[str, float] = {}
        self.reasons: dict[str, Missing] = {}

    def hurry(self) -> None:
        """Make every tier due."""
        self._due = dict.fromkeys(self._due, 0)

    def refresh(self, at_ms: int) -> frozenset[Tier]:
        """Read what is due; which tiers were. Raises GpuLost and NvmlFailure."""
        went_back = self._read_ms is not None and at_ms < self._read_ms
        self._read_ms = at_ms
        fresh: set[Tier] = set()
        for tier, asked in self._tiers:
            due = self._due.get(tier)
            if due is None or at_ms >= due or went_back:
                asked.read()
                fresh.add(tier)
                self._due[tier] = at_ms + int(tier.value * (self._turn if due is None else 1.0))
        if fresh:
            held = [asked for _, asked in self._tiers]
            if self._static is not None:
                held.insert(0, self._static)
            self.values = {key: value for asked in held for key, value in asked.values.items()}
            self.reasons = {key: reason for asked in held for key, reason in asked.missing.items()}
        return frozenset(fresh)


class Plan:
    """How one GPU is read: `standing`, `fast`, which was just read to see what the GPU has, and keys of bytes by link.

    Raises GpuLost, and NvmlFailure where the library is gone.
    """

    def __init__(self, library: Nvml, handle: Any, turn: int, instances: Sequence[int]) -> None:
        mode = attempt(library, "nvmlDeviceGetMigMode", handle)
        mig = bool(mode) and mode[0] == 1
        static = Tiered(library, handle, fields_of(Tier.STATIC), calls_of(Tier.STATIC))
        static.read()
        links = _links(library, handle, static)
        parts: list[Part] = [Vgpus(library, handle)]
        if mig:
            parts.append(Layout(library, handle, instances))
        if not links:
            parts.append(Without(LINK_METRICS))
        slow = Tiered(
            library,
            handle,
            (*fields_of(Tier.SLOW), *link_fields(LINK_FIELDS, links)),
            (*calls_of(Tier.SLOW), *link_calls(links)),
            parts,
        )
        processes = Tiered(library, handle, parts=[Processes(library, handle, utilization=not mig)])
        self.standing = Standing(static, [(Tier.SLOW, slow), (Tier.PROCESSES, processes)], turn)
        by_link = link_fields(BYTE_FIELDS, links)
        self.by_link = tuple(probe.key for probe in by_link)
        self.fast = Tiered(library, handle, (*fields_of(Tier.FAST), *by_link), calls_of(Tier.FAST))
        self.fast.read()
        # Where the driver has a sum over all links, bytes by link are not asked for.
        idle = [key for key in self.by_link if metric_of(key) in self.fast.values]
        self.fast.fields.leave_out(idle)
        self.fast.values = {key: value for key, value in self.fast.values.items() if key not in idle}


def _links(library: Nvml, handle: Any, static: Tiered) -> int:
    links = int(static.values.get(_LINKS_MAX, 0))
    if not links:
        while links < _MOST_LINKS and attempt(library, "nvmlDeviceGetNvLinkState", handle, links) is not None:
            links += 1
        if links:
            static.values[_LINKS_MAX] = float(links)
            static.missing.pop(_LINKS_MAX, None)
    return links
