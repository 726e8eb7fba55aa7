"""The whole state that decisions and guards look at, at one instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.policy import Policy
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.foresight import Foresight
from tocsin.domain.finding import Finding, Incident
from tocsin.domain.fleet_share import RestOfFleet
from tocsin.domain.grouping import grouped
from tocsin.domain.pool import PoolState
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as the brain knows it.

    `last_reading_ms` is None where no reading has arrived since the brain's start. `healthy` is False while a
    hardware finding is active or the GPU is lost. `under_action` is True where the world shows it out of service, a
    scheduler for example, whoever did that. It must not be derived from decisions: the loop counts its own, and looks
    here for their effect. `values` are those of the newest reading. `job` names the work on it, alike on all GPUs of
    one job; empty where none is known. `job_known` is False where the manager of that work has not shown yet what
    else belongs to its job. `counted` is False while the GPU is new and no manager knows its host: it adds nothing to
    what may be taken out of service.
    """

    gpu: Gpu
    last_reading_ms: int | None
    healthy: bool = True
    under_action: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    job: str = ""
    job_known: bool = True
    counted: bool = True

    def is_fresh(self, now_ms: int, fresh_ms: int) -> bool:
        """Whether its newest reading is at most `fresh_ms` old and not dated ahead of the clock's tolerance."""
        return self.last_reading_ms is not None and -MAX_FUTURE_MS <= now_ms - self.last_reading_ms <= fresh_ms

    def has_label(self, label: str) -> bool:
        """Whether the GPU carries `label` with the value ``true``."""
        return self.gpu.labels.get(label, "").strip().lower() == "true"


@dataclass(frozen=True)
class FleetView:
    """The state at `now_ms`.

    `started_ms` is the start of this brain. `gpus` are by UUID, MIG instances among them. `findings` are the active
    ones by id, `incidents` what they collapse to. `confirmations` counts by finding id the consecutive evaluations that
    saw it. `pools` are by name. `nodes` are those of the managers (Kubernetes, Slurm) by host, as they were last
    seen; empty where none is asked. `foresight` is the last look of the planners. `blind` says that a manager has not
    answered lately. `errors` has the instants of errors of the hardware of the last day, by UUID of the GPU, `figures`
    what rules see of pools and the fleet, by ``metric|name``. `active` is False while another brain acts for the fleet.
    `alert_silences` are those of Alertmanager.
    `controls`, `policy` and `rest`, what the other cells of the fleet have, are filled in by the loop.
    """

    now_ms: int
    started_ms: int
    gpus: Mapping[str, GpuView] = field(default_factory=dict)
    findings: Mapping[str, Finding] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()
    confirmations: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, PoolState] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    blind: bool = False
    errors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    active: bool = True
    foresight: Foresight = field(default_factory=Foresight)
    alert_silences: AlertSilences = field(default_factory=AlertSilences)
    controls: Controls = field(default_factory=Controls)
    policy: Policy = field(default_factory=Policy)
    rest: RestOfFleet = field(default_factory=RestOfFleet)
    derived: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What guards ask for again with each of many decisions, worked out once for this view; `scope` fills it."""

    @cached_property
    def physical(self) -> Mapping[str, GpuView]:
        """Whole GPUs by UUID; a MIG instance counts only where its parent is unknown."""
        return {
            uuid: view for uuid, view in self.gpus.items() if not view.gpu.is_mig or view.gpu.parent not in self.gpus
        }

    @cached_property
    def by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs by host."""
        return grouped((view.gpu.host, view) for view in self.physical.values())

    @cached_property
    def parts_by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs and MIG instances by host."""
        return grouped((view.gpu.host, view) for view in self.gpus.values())

    @cached_property
    def by_pool(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs by pool."""
        return grouped((view.gpu.pool, view) for view in self.physical.values())

    @cached_property
    def flagged(self) -> frozenset[str]:
        """UUIDs of whole GPUs that something has out of service."""
        return frozenset(uuid for uuid, view in self.physical.items() if view.under_action)

    @cached_property
    def managed(self) -> frozenset[str]:
        """UUIDs of whole GPUs that the operator has opted in, by pool or by label."""
        settings = self.policy.settings
        return frozenset(
            uuid
            for uuid, view in self.physical.items()
            if view.gpu.pool in settings.managed_pools or view.has_label(settings.managed_label)
        )

    @cached_property
    def counted(self) -> frozenset[str]:
        """UUIDs of the GPUs that shares are shares of: what somebody makes up must not widen a limit."""
        return frozenset(uuid for uuid, view in self.physical.items() if view.counted)

    @cached_property
    def incident_of(self) -> Mapping[str, Incident]:
        """Incidents by id."""
        return {incident.id: incident for incident in self.incidents}

    def whole(self, uuid: str) -> GpuView | None:
        """The physical GPU that `uuid` is, or is a part of; None where it is unknown."""
        view = self.gpus.get(uuid)
        return view if view is None or uuid in self.physical else self.gpus[view.gpu.parent]


class Confirmations:
    """Counts for how many consecutive evaluations each finding has been active.

    Evaluations that are less than `least_ms` apart count as one: they look at the same readings.
    """

    def __init__(self, least_ms: int = 1) -> None:
        self._least_ms = least_ms
        self._counts: dict[str, int] = {}
        self._last_ms: int | None = None

    def update(self, findings: Iterable[Finding], now_ms: int) -> Mapping[str, int]:
        """The counts after the evaluation at `now_ms`; an evaluation that comes twice counts once."""
        repeated = self._last_ms is not None and 0 <= now_ms - self._last_ms < self._least_ms
        if not repeated:
            self._last_ms = now_ms
        self._counts = {f.id: max(1, self._counts.get(f.id, 0) + (0 if repeated else 1)) for f in findings}
        return dict(self._counts)
