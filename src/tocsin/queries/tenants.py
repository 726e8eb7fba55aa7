"""What the API serves to a tenant: whoever reads the work of some namespaces and accounts alone, and what holds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from tocsin import __version__
from tocsin.accounting.holders import Holder, holders_of
from tocsin.api import tenancy
from tocsin.api.service import Asked, CellService, Gathered
from tocsin.client import control, models
from tocsin.client.errors import NotFound
from tocsin.client.models_cards import Card, Cards, CardState, CardTouches
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.domain.clock import DAY, SECOND, optional_iso, to_iso
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.metrics import METRICS, split_variant
from tocsin.domain.prediction import Prediction, soonest_each
from tocsin.domain.reading import Owner, Reading
from tocsin.queries import views
from tocsin.queries.fleet_map import snapshot_of
from tocsin.queries.heard import heard, least_heard
from tocsin.queries.live import LiveBrain

if TYPE_CHECKING:
    from tocsin.queries.service import BrainService

T = TypeVar("T")

PAST_MS = DAY
"""How far back of what was asked for a tenant sees a GPU: whose it was at each instant is read from the store."""
_SHOWN_EVIDENCE = frozenset({"finding", "forecast", "earlier"})
"""What a card rests on; what people and guards said of it is not a tenant's."""
_CONTAINER = 12
"""Letters of a container's id in texts."""


_PARTS = re.compile(r"[ /]")
_KINDS = frozenset({"slurm", "Slurm", "job", "pod", "container", "process", "user"})
"""Words in the ids of work that are nobody's name."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose work is a tenant's own: that of `namespaces`, which name Kubernetes namespaces and Slurm accounts alike.

    `accounts` has the account of a piece of work by its id, as its manager names it.
    """

    namespaces: frozenset[str]
    accounts: Mapping[str, str]

    @classmethod
    def of(cls, brain: LiveBrain, namespaces: frozenset[str]) -> Tenant:
        """By what the managers of a brain show now."""
        return cls(namespaces, {key: one.account for key, one in brain.managers.work().facts.items() if one.account})

    def owns(self, holder: Holder) -> bool:
        """Whether a piece of work is this tenant's."""
        account = holder.account or self.accounts.get(holder.key, "")
        return holder.namespace in self.namespaces or account in self.namespaces

    def own(self, owners: tuple[Owner, ...]) -> tuple[Owner, ...]:
        """The processes of this tenant among `owners`."""
        return tuple(one for one in owners if self.owns(holders_of((one,))[0]))

    def readings(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings of GPUs that its work holds, without the processes of others that share them."""
        found = ((one, self.own(one.owners)) for one in readings if one.owners)
        return [replace(one, owners=own, values=_own_values(one.values, own)) for one, own in found if own]


def _own_values(values: Mapping[str, float], own: Sequence[Owner]) -> dict[str, float]:
    """Values without those of the processes of others."""
    pids = {str(one.pid) for one in own}
    return {name: value for name, value in values.items() if _is_own(name, pids)}


def _is_own(name: str, pids: Collection[str]) -> bool:
    _, label, value = split_variant(name)
    return label != "pid" or value in pids


# ---------------------------------------------------------------------- names of others


@dataclass(frozen=True, slots=True)
class FleetNames:
    """All names of hosts, GPUs and work, of now and as far back as the sums of usage go, made once for all tenants;
    `own` has those of each namespace and account."""

    names: tenancy.Names
    own: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, brain: LiveBrain, vocabulary: frozenset[str]) -> FleetNames:
        """As a brain knows them now; words of `vocabulary`, metrics and rules are nobody's."""
        accounts, said = Tenant.of(brain, frozenset()).accounts, _Said({}, set())
        for reading in brain.memory.latest():
            gpu, whose = reading.gpu, set[str]()
            for owner in reading.owners:
                payers = _payers(holders_of((owner,))[0], accounts)
                said.put(_names_of(owner), payers)
                whose |= payers
            said.put((gpu.uuid, gpu.host, gpu.serial, gpu.parent), whose)
        for gpu in brain.gpus:
            said.names.update((gpu.uuid, gpu.host, gpu.serial))
        for host, node in brain.managers.nodes().items():
            said.names.update((host, *(part for one in (*node.work, *node.held_by) for part in _PARTS.split(one))))
        for holder in brain.usage.table.holders():
            said.put(_names_of_holder(holder), _payers(holder, accounts))
        rules = {rule.name for rule in brain.ruleset}
        return cls(tenancy.Names.of(said.names - _KINDS, (), vocabulary | METRICS.keys() | rules), said.own)

    def others(self, namespaces: frozenset[str]) -> tenancy.Names:
        """Names that are not those of a tenant of these namespaces and accounts."""
        return self.names.without(namespaces.union(*(self.own.get(one, ()) for one in namespaces)))


@dataclass(frozen=True, slots=True)
class _Said:
    """Names by who pays, and all of them."""

    own: dict[str, set[str]]
    names: set[str]

    def put(self, names: Iterable[str], payers: Iterable[str]) -> None:
        found = set(names)
        self.names.update(found)
        for one in payers:
            self.own.setdefault(one, set()).update(found)


def _payers(holder: Holder, accounts: Mapping[str, str]) -> set[str]:
    """The namespace and account whose a piece of work is: `Tenant.owns` it who has one of them."""
    return {holder.namespace, holder.account or accounts.get(holder.key, "")} - {""}


def _names_of(owner: Owner) -> Iterator[str]:
    job = owner.slurm_job.partition(".")[0]
    yield from (owner.pod, owner.namespace, owner.pod_uid, owner.user, owner.process, owner.slurm_job, job)
    yield from (owner.container, owner.container[:_CONTAINER], str(owner.pid) if owner.pid else "")


def _names_of_holder(holder: Holder) -> Iterator[str]:
    yield from (holder.namespace, holder.user, holder.team, holder.account, *holder.key.split("/")[1:])
    yield from _PARTS.split(holder.job)


# ---------------------------------------------------------------------- the service


class TenantService:
    """The parts of `tocsin.api.service.Service` that a tenant may ask, over its own GPUs; every other is refused."""

    def __init__(self, service: BrainService, brain: LiveBrain, name: str, namespaces: frozenset[str]) -> None:
        self._service, self._brain, self._name = service, brain, name
        self._tenant = Tenant.of(brain, namespaces)
        self._fresh_ms = int(brain.settings.actions.fresh_seconds * SECOND)
        self._readings = {one.gpu.uuid: one for one in self._tenant.readings(brain.memory.latest())}
        self._hosts = {one.gpu.host for one in self._readings.values()}

    def __getattr__(self, asked: str) -> NoReturn:
        # Whatever the service learns to tell is about the fleet until it is written here.
        raise tenancy.refused(self._name)

    def ready(self) -> control.Readiness:
        """As of everybody."""
        return self._service.ready()

    def now_ms(self) -> int:
        """As of everybody."""
        return self._service.now_ms()

    @property
    def cells(self) -> TenantCells:
        """The other cells, each of which shows the tenant its own."""
        return TenantCells(self._service.cells, self._name)

    def _is_own(self, subject: Subject) -> bool:
        if subject.kind is SubjectKind.HOST:
            return subject.name in self._hosts
        return subject.kind is SubjectKind.GPU and subject.name in self._readings

    # ------------------------------------------------------------------ GPUs

    def summary(self) -> models.FleetSummary:
        """The tenant's GPUs as if they were the fleet; nothing of what people and guards hold."""
        gpus, now = self.gpus(), self.now_ms()
        newest = max((one.at_ms for one in self._readings.values()), default=None)
        findings, predictions = self.findings(), self.predictions()
        power = [one.power_watts for one in gpus if one.power_watts is not None]
        return models.FleetSummary(
            version=__version__,
            now=to_iso(now),
            simulated=any(one.simulated for one in gpus),
            mode=self._brain.settings.actions.mode,
            breaker=control.BreakerOut(tripped=False),
            gpus=len(gpus),
            hosts=len(self._hosts),
            pools=len({one.pool for one in gpus}),
            states=dict(Counter(one.state for one in gpus)),
            last_reading=optional_iso(newest),
            last_reading_age_s=None if newest is None else max(0.0, (now - newest) / SECOND),
            utilization_ratio=views.mean([one.utilization_ratio for one in gpus]),
            memory_used_ratio=views.mean([one.memory_used_ratio for one in gpus]),
            power_watts=sum(power) if power else None,
            findings=dict(Counter(one.severity for one in findings)),
            predictions=len(soonest_each(one for one in predictions if one.is_ahead and not one.muted)),
        )

    def gpus(self) -> list[models.GpuSummary]:
        """The GPUs that its work holds now."""
        return [one for one in self._service.gpus() if one.uuid in self._readings]

    def fleet_map(self) -> models.FleetMap:
        """The same in columns, without labels of hosts."""
        findings = [one for one in self._brain.active if self._is_own(one.subject)]
        told = heard(self.predictions(), least_heard(self._brain.ruleset))
        made = snapshot_of(list(self._readings.values()), findings, told, self.now_ms(), self._fresh_ms)
        shown: models.FleetMap = made.map.model_copy(update={"labels": {}})
        return shown

    def gpu(self, uuid: str) -> models.GpuDetail:
        """One of them, with what happened on it while it was the tenant's; decisions about it are the operators'."""
        mine = self._readings.get(uuid)
        if mine is None:
            raise _not_own()
        found, now = self._service.gpu(uuid), self.now_ms()
        whose = self._past(uuid, now - PAST_MS, now + 1)
        findings = [one for one in found.findings if one.active or self._tenant.own(one.owners)]
        return found.model_copy(
            update={
                "values": dict(mine.values),
                "labels": {},
                "owners": list(mine.owners),
                "events": [one for one in found.events if whose.own_at(one.at_ms)],
                "findings": [replace(one, owners=self._tenant.own(one.owners)) for one in findings],
                "decisions": [],
            }
        )

    def series(
        self, uuid: str, metrics: Sequence[str], start_ms: int, end_ms: int, max_points: int
    ) -> models.SeriesResponse:
        """Values at the instants at which its work held the GPU, of the last day of what is asked."""
        whose = self._past(uuid, max(start_ms, end_ms - PAST_MS), end_ms)
        if not whose.own.any() and uuid not in self._readings:
            raise _not_own()
        wanted = [name for name in metrics if _is_own(name, whose.pids)]
        found = self._brain.store.series(uuid, wanted, max(start_ms, end_ms - PAST_MS), end_ms)
        kept = np.isin(found.at_ms, whose.at_ms[whose.own])
        cut = replace(found, at_ms=found.at_ms[kept], values=found.values[kept])
        return views.series_out(cut, start_ms, end_ms, max_points)

    def _past(self, uuid: str, start_ms: int, end_ms: int) -> _Past:
        at_ms, own, pids = list[int](), list[bool](), set[str]()
        for reading in self._brain.store.readings(start_ms, end_ms, [uuid]):
            mine = self._tenant.own(reading.owners)
            at_ms.append(reading.at_ms)
            own.append(bool(mine))
            pids.update(str(one.pid) for one in mine)
        return _Past(np.array(at_ms, np.int64), np.array(own, np.bool_), frozenset(pids))

    # ------------------------------------------------------------------ what is said of them

    def findings(self) -> list[models.FindingOut]:
        """Those about its GPUs and their hosts."""
        found = [one for one in self._service.findings() if self._is_own(one.subject)]
        return [replace(one, owners=self._tenant.own(one.owners)) for one in found]

    def predictions(self) -> list[Prediction]:
        """Those about its GPUs and their hosts."""
        return [one for one in self._service.predictions() if self._is_own(one.subject)]

    def diagnoses(self, host: str = "") -> list[Diagnosis]:
        """What limits its jobs, judged by their own GPUs alone."""
        return self._service.diagnosed(list(self._readings.values()), host)

    def cards(self, limit: int, state: CardState | None = None, *, hidden: bool = False) -> Cards:
        """Cards that touch its GPUs, without what people do about them."""
        if hidden:
            return Cards()
        causes = {one.id: one for one in self._brain.incidents}
        found = []
        for made in self._service.made_cards():
            members = [member.subject for name in made.ids if name in causes for member in causes[name].members]
            wanted = made.card.state is not CardState.RESOLVED if state is None else made.card.state is state
            subjects = (made.card.subject, *members)
            if wanted and any(map(self._is_own, subjects)):
                found.append(self._shown(made.card, {one.name for one in subjects}))
        return Cards(total=len(found), items=found[:limit])

    def card(self, card_id: str) -> Card:
        """One of them, open or resolved."""
        resolved = self.cards(1_000, CardState.RESOLVED).items
        for one in (*self.cards(1_000).items, *resolved):
            if one.id == card_id:
                return one
        raise NotFound("no such card about your own GPUs")

    def _shown(self, card: Card, names: Collection[str]) -> Card:
        """A card about the GPUs and hosts of these names, as far as they are the tenant's."""
        touched = [one for one in self._readings.values() if one.gpu.uuid in names or one.gpu.host in names]
        hosts = sorted({one.gpu.host for one in touched})
        jobs = sorted({owner.label for one in touched for owner in one.owners})
        return card.model_copy(
            update={
                "touches": CardTouches(
                    gpus=len(touched), hosts=len(hosts), jobs=len(jobs), host_names=hosts[:3], job_names=jobs[:3]
                ),
                "place": "",
                "action": None,
                "obstacle": "",
                "obstacle_zh": "",
                "obstacle_guard": "",
                "waiting_gpu_hours": None,
                "waiting_money": None,
                "acknowledged_by": "",
                "hidden": None,
                "evidence": [one for one in card.evidence if one.kind in _SHOWN_EVIDENCE],
            }
        )

    # ------------------------------------------------------------------ usage and cost

    def usage(self, first_day: int, last_day: int, by: Sequence[UsageBy], limit: int) -> UsageOut:
        """Of its own work alone, cost among it."""
        return self._service.usage_of(first_day, last_day, by, limit, self._tenant.namespaces)

    def right_size(self, first_day: int, last_day: int, limit: int) -> RightSizeOut:
        """Of its own jobs alone."""
        return self._service.right_size_of(first_day, last_day, limit, self._tenant.namespaces)


class TenantCells:
    """The part of `tocsin.api.service.CellService` that a tenant may ask."""

    def __init__(self, cells: CellService, name: str) -> None:
        self._cells, self._name = cells, name

    def __getattr__(self, asked: str) -> NoReturn:
        raise tenancy.refused(self._name)

    def gather(self, asked: Asked, kind: type[T], own: Callable[[], T]) -> Gathered[T]:
        """What each cell answers the tenant, without where it is and how many GPUs it has in all."""
        found = self._cells.gather(replace(asked, aside=True), kind, own)
        hidden = {"gpus": None, "url": "", "detail": ""}
        return Gathered([one.model_copy(update=hidden) for one in found.cells], found.answers)


@dataclass(frozen=True, slots=True)
class _Past:
    """Whose one GPU was: bool[n] `own` at the instants `at_ms`, int64[n] and rising; `pids` are the tenant's then."""

    at_ms: npt.NDArray[np.int64]
    own: npt.NDArray[np.bool_]
    pids: frozenset[str]

    def own_at(self, at_ms: int) -> bool:
        """Whether the newest reading before an instant was the tenant's; False where there is none."""
        place = int(np.searchsorted(self.at_ms, at_ms, side="right")) - 1
        return place >= 0 and bool(self.own[place])


def _not_own() -> NotFound:
    # The same for a GPU of others and for one that is not there.
    return NotFound("no such GPU holds your work; GET /v1/gpus lists those that do")
