"""The whole state that decisions and guards look at, at one instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.policy import Policy
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.foresight import Foresight
from tocsin.domain.decision import Decision
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
    what may be taken out of service. `surplus` is one more than its host has (`tocsin.runtime.brain.counting`): nothing
    is done to it, and it uses up no limit.
    """

    gpu: Gpu
    last_reading_ms: int | None
    healthy: bool = True
    under_action: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    job: str = ""
    job_known: bool = True
    counted: bool = True
    surplus: bool = False

    def is_fresh(self, now_ms: int, fresh_ms: int) -> bool:
        """Whether its newest reading is at most `fresh_ms` old and not dated ahead of the clock's tolerance."""
        return self.last_reading_ms is not None and -MAX_FUTURE_MS <= now_ms - self.last_reading_ms <= fresh_ms

    def has_label(self, label: str) -> bool:
        """Whether the GPU carries `label` with the value ``true``."""
        return self.gpu.labels.get(label, "").strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class PoolMembers:
    """The GPUs of one pool that count and are healthy, by UUID, and the instants of their newest readings, sorted."""

    sound: Mapping[str, GpuView]
    read_ms: tuple[int, ...]

    def fresh(self, now_ms: int, fresh_ms: int) -> int:
        """How many of them are freshly read, as `GpuView.is_fresh` says."""
        first = bisect_left(self.read_ms, now_ms - fresh_ms)
        return bisect_right(self.read_ms, now_ms + MAX_FUTURE_MS) - first

    def changed(self, views: Sequence[GpuView]) -> PoolMembers:
        """The members where some GPUs of the pool are as `views` has them, or new."""
        sound, read_ms = dict(self.sound), list(self.read_ms)
        for view in views:
            before = sound.pop(view.gpu.uuid, None)
            if before is not None and before.last_reading_ms is not None:
                del read_ms[bisect_left(read_ms, before.last_reading_ms)]
            if view.counted and view.healthy:
                sound[view.gpu.uuid] = view
                if view.last_reading_ms is not None:
                    insort(read_ms, view.last_reading_ms)
        return PoolMembers(sound, tuple(read_ms))


@dataclass(frozen=True, slots=True)
class Taken:
    """The GPUs that a decision about a GPU or a host takes out of service, by UUID, and its hosts."""

    decision: Decision
    hosts: frozenset[str]
    gpus: frozenset[str]


MOST_FOLLOWED = 200
"""GPUs up to which members of pools are brought up to date one by one; with more they are looked up when asked for (own
choice: each costs some microseconds in a pool of 10,000)."""

OptedIn = tuple[tuple[str, ...], str]
"""The pools and the label by which GPUs are managed."""


class GpuGroups:
    """GPUs in the groups that guards ask for: worked out once for all views of the same `gpus`."""

    def __init__(self, gpus: Mapping[str, GpuView]) -> None:
        self.gpus = gpus
        self._managed: dict[OptedIn, frozenset[str]] = {}
        self._managed_counted: dict[OptedIn, frozenset[str]] = {}
        self._pools: dict[str, PoolMembers] = {}
        self.taken: dict[str, Taken] = {}
        """By the key of the decision; `scope.taken_out` fills it."""

    @cached_property
    def divided(self) -> frozenset[str]:
        """The GPUs that MIG instances name as their parents, known or not."""
        return frozenset(view.gpu.parent for view in self.gpus.values() if view.gpu.is_mig)

    @cached_property
    def physical(self) -> Mapping[str, GpuView]:
        parts = [uuid for uuid, view in self.gpus.items() if view.gpu.is_mig and view.gpu.parent in self.gpus]
        if not parts:
            return self.gpus
        left_out = set(parts)
        return {uuid: view for uuid, view in self.gpus.items() if uuid not in left_out}

    @cached_property
    def by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        return grouped((view.gpu.host, view) for view in self.physical.values())

    @cached_property
    def parts_by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        if self.physical is self.gpus:
            return self.by_host
        return grouped((view.gpu.host, view) for view in self.gpus.values())

    @cached_property
    def by_pool(self) -> Mapping[str, tuple[GpuView, ...]]:
        return grouped((view.gpu.pool, view) for view in self.physical.values())

    @cached_property
    def flagged(self) -> frozenset[str]:
        return frozenset(uuid for uuid, view in self.physical.items() if view.under_action and not view.surplus)

    @cached_property
    def counted(self) -> frozenset[str]:
        return frozenset(uuid for uuid, view in self.physical.items() if view.counted)

    @cached_property
    def counted_in(self) -> Mapping[str, int]:
        return {pool: sum(member.counted for member in members) for pool, members in self.by_pool.items()}

    def prepared(self) -> GpuGroups:
        """These groups, the larger of them worked out by now."""
        _ = self.divided, self.by_host, self.flagged, self.counted, self.counted_in
        return self

    def changed(self, views: Mapping[str, GpuView]) -> GpuGroups:
        """The groups of the same GPUs where some are as `views` has them, or new: worked out for these alone."""
        made = GpuGroups({**self.gpus, **views})
        if self.physical is not self.gpus or any(self._moves(uuid, view) for uuid, view in views.items()):
            return made
        hosts = grouped((view.gpu.host, view) for view in views.values())
        by_host = {**self.by_host, **{host: _with(self.by_host.get(host, ()), new) for host, new in hosts.items()}}
        counted = _set_with(self.counted, views, lambda view: view.counted)
        counted_in = dict(self.counted_in)
        for uuid, view in views.items():
            more = (uuid in counted) - (uuid in self.counted)
            counted_in[view.gpu.pool] = counted_in.get(view.gpu.pool, 0) + more
        made.__dict__.update(
            divided=self.divided,
            physical=made.gpus,
            by_host=by_host,
            parts_by_host=by_host,
            flagged=_set_with(self.flagged, views, lambda view: view.under_action and not view.surplus),
            counted=counted,
            counted_in=counted_in,
        )
        for (opted, label), known in self._managed.items():
            made._managed[opted, label] = _set_with(known, views, partial(_is_managed, opted, label))
        made.taken = {
            key: one
            for key, one in self.taken.items()
            if one.hosts.isdisjoint(hosts.keys()) and one.decision.subject.name not in views
        }
        for name, members in self._pools.items() if len(views) <= MOST_FOLLOWED else ():
            made._pools[name] = members.changed([view for view in views.values() if view.gpu.pool == name])
        return made

    def _moves(self, uuid: str, view: GpuView) -> bool:
        """Whether a GPU is a part of one, or the whole of known parts, or comes from another host or pool: then the
        groups are made anew."""
        before = self.gpus.get(uuid)
        moved = before is not None and (before.gpu.host, before.gpu.pool) != (view.gpu.host, view.gpu.pool)
        return moved or view.gpu.is_mig or uuid in self.divided

    def managed(self, pools: Iterable[str], label: str) -> frozenset[str]:
        key = tuple(pools), label
        if key not in self._managed:
            self._managed[key] = frozenset(uuid for uuid, view in self.physical.items() if _is_managed(*key, view))
        return self._managed[key]

    def managed_and_counted(self, pools: Iterable[str], label: str) -> frozenset[str]:
        key = tuple(pools), label
        if key not in self._managed_counted:
            self._managed_counted[key] = self.managed(*key) & self.counted
        return self._managed_counted[key]

    def pool(self, name: str) -> PoolMembers:
        if name not in self._pools:
            members = (one for one in self.by_pool.get(name, ()) if one.counted and one.healthy)
            sound = {one.gpu.uuid: one for one in members}
            read = (one.last_reading_ms for one in sound.values())
            self._pools[name] = PoolMembers(sound, tuple(sorted(at_ms for at_ms in read if at_ms is not None)))
        return self._pools[name]


def _is_managed(pools: Collection[str], label: str, view: GpuView) -> bool:
    return view.gpu.pool in pools or view.has_label(label)


def _with(members: tuple[GpuView, ...], views: Iterable[GpuView]) -> tuple[GpuView, ...]:
    """`members` of a host as `views`, of the same host, have them, and what is new there behind them."""
    mine = {view.gpu.uuid: view for view in views}
    kept = tuple(mine.pop(one.gpu.uuid, one) for one in members)
    return (*kept, *mine.values())


def _set_with(
    known: frozenset[str], views: Mapping[str, GpuView], belongs: Callable[[GpuView], bool]
) -> frozenset[str]:
    inside = {uuid for uuid, view in views.items() if belongs(view)}
    outside = views.keys() - inside
    return known if inside <= known and known.isdisjoint(outside) else (known | inside) - outside


@dataclass(frozen=True)
class FleetView:
    """The state at `now_ms`.

    `started_ms` is when this brain began to watch. `gpus` are by UUID, MIG instances among them. `findings` are the
    active ones by id, `incidents` what they collapse to. `confirmations` counts by finding id the consecutive
    evaluations that saw it. `pools` are by name. `nodes` are those of the managers (Kubernetes, Slurm) by host, as they
    were last seen; empty where none is asked. `foresight` is the last look of the planners. `blind` says that a manager
    has not answered lately. `errors` has the instants of errors of the hardware of the last day, by UUID of the GPU,
    `figures` what rules see of pools and the fleet, by ``metric|name``. `active` is False while another brain acts for
    the fleet. `alert_silences` are those of Alertmanager.
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
    groups: GpuGroups = field(default_factory=lambda: GpuGroups({}), compare=False, repr=False)
    """`gpus` in groups; a view that is made of another with the same `gpus` takes them over."""
    derived: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What guards ask for again with each of many decisions, worked out once for this view; `scope` fills it."""

    def __post_init__(self) -> None:
        if self.groups.gpus is not self.gpus:
            object.__setattr__(self, "groups", GpuGroups(self.gpus))

    @property
    def physical(self) -> Mapping[str, GpuView]:
        """Whole GPUs by UUID; a MIG instance counts only where its parent is unknown."""
        return self.groups.physical

    @property
    def by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs by host."""
        return self.groups.by_host

    @property
    def parts_by_host(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs and MIG instances by host."""
        return self.groups.parts_by_host

    @property
    def by_pool(self) -> Mapping[str, tuple[GpuView, ...]]:
        """Whole GPUs by pool."""
        return self.groups.by_pool

    @property
    def flagged(self) -> frozenset[str]:
        """UUIDs of whole GPUs that something has out of service."""
        return self.groups.flagged

    @property
    def managed(self) -> frozenset[str]:
        """UUIDs of whole GPUs that the operator has opted in, by pool or by label."""
        settings = self.policy.settings
        return self.groups.managed(settings.managed_pools, settings.managed_label)

    @property
    def counted(self) -> frozenset[str]:
        """UUIDs of the GPUs that shares are shares of: what somebody makes up must not widen a limit."""
        return self.groups.counted

    @property
    def managed_and_counted(self) -> frozenset[str]:
        """UUIDs of the managed GPUs that count."""
        settings = self.policy.settings
        return self.groups.managed_and_counted(settings.managed_pools, settings.managed_label)

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
