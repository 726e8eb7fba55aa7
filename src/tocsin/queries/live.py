"""What queries read of a running brain. The runtime's brain has all of it; nothing here is part of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import UsageTable
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.planning.facts import NodeState, WorkloadSeen
from tocsin.client.control import OrderTaken
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.domain.finding import Finding, Incident
from tocsin.domain.order import Order, OrderReport
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.sign_record import SignRecord
from tocsin.domain.versions import VersionBefore
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.live.recalibration import KindFigures
from tocsin.journal.port import LiveJournal
from tocsin.journal.witness import WitnessKeeper
from tocsin.queries.card_life import CardLife
from tocsin.rules.schema import RuleSet
from tocsin.store.port import Store
from tocsin.telemetry.metrics import OwnMetrics


class LiveMemory(Protocol):
    """The newest reading of each GPU."""

    @property
    def count(self) -> int:
        """Readings taken in so far."""

    def latest(self) -> tuple[Reading, ...]:
        """The newest reading of each GPU, by UUID."""

    def reading(self, uuid: str) -> Reading | None:
        """The newest reading of one GPU."""

    def left(self) -> list[Reading]:
        """The newest readings of GPUs that were let go of or are known by another name, until they are forgotten."""

    def is_recalled(self, uuid: str) -> bool:
        """Whether it is of before this start."""


class LiveForecasts(Protocol):
    """The predictions in force."""

    @property
    def made(self) -> int:
        """Predictions made so far."""

    def current(self, now_ms: int) -> list[Prediction]:
        """The newest prediction of each subject and target that is not out of date."""

    def kinds(self, now_ms: int) -> list[KindFigures]:
        """The record of every kind of statement."""


class LiveManagers(Protocol):
    """What Kubernetes and Slurm showed when they were last asked."""

    def nodes(self) -> Mapping[str, NodeState]:
        """Nodes by host."""

    def blind(self) -> bool:
        """Whether one of them has not answered lately."""

    def work(self) -> WorkloadSeen:
        """What runs there; nothing where it was seen too long ago."""


class LiveOrders(Protocol):
    """The brain's end of orders to nodes."""

    def orders(self, host: str) -> list[Order]:
        """What the agent of `host` is asked for now."""

    def report(self, order_id: str, sent: OrderReport) -> OrderTaken:
        """Take in how an order stands. Raises InputError and Conflict."""


class LiveOwners(Protocol):
    """Which host speaks for a GPU."""

    def joined(self, start_ms: int) -> Mapping[str, int]:
        """Hosts that nobody knew before `start_ms`, with the instant of their first GPU."""

    def forget(self, gpus: Iterable[Gpu]) -> None:
        """Who reports one of these next owns it."""


class LiveVersions(Protocol):
    """What hosts had a day ago."""

    @property
    def before(self) -> Sequence[VersionBefore]:
        """Where it was not what they have now; an empty version where the host was not there."""


class LiveUsage(Protocol):
    """The sums of who used what."""

    table: UsageTable
    prices: PriceList

    @property
    def counted_ms(self) -> int:
        """The instant of the last write: what came since is not in the sums yet."""


class LiveBrain(Protocol):
    """The running parts. Attributes are read from several threads; lists are replaced, never changed in place."""

    settings: Settings
    clock: Clock
    store: Store
    journal: LiveJournal
    actions: ActionLoop
    metrics: OwnMetrics

    @property
    def usage(self) -> LiveUsage: ...

    @property
    def witnesses(self) -> Sequence[WitnessKeeper]:
        """What keeps the witnesses of the journal."""

    @property
    def memory(self) -> LiveMemory: ...

    @property
    def owners(self) -> LiveOwners: ...

    @property
    def versions(self) -> LiveVersions: ...

    def owner_against(self, gpu: str, host: str) -> str:
        """The other host that reports a GPU; empty where `host` may."""

    @property
    def forecasts(self) -> LiveForecasts: ...

    @property
    def managers(self) -> LiveManagers: ...

    @property
    def orders(self) -> LiveOrders: ...

    @property
    def active(self) -> list[Finding]:
        """Findings that hold at the last evaluation."""

    @property
    def signs(self) -> Sequence[SignRecord]:
        """Of each rule that foretells how its signs did, as of the last evaluation."""

    @property
    def incidents(self) -> list[Incident]:
        """Open incidents of the last evaluation."""

    @property
    def alert_silences(self) -> AlertSilences:
        """What people have silenced at Alertmanager."""

    @property
    def evaluations(self) -> int:
        """Evaluations that have finished."""

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs of the fleet, by UUID."""

    @property
    def ruleset(self) -> RuleSet:
        """The rules that are evaluated."""

    @property
    def card_life(self) -> CardLife:
        """What the journal has of causes that ended."""

    def statuses(self, *, final: bool = True) -> list[DecisionStatus]:
        """Every decision on record, as it stands; without `final` those that are not over."""

    def pools(self) -> Sequence[PoolState]:
        """The pools as they are known now."""

    def pool_pasts(self) -> Sequence[PoolPast]:
        """The hourly past of every pool, as of the last forecast."""

    def accept_all(self, batches: Sequence[Batch]) -> list[Exception | None]:
        """Keep readings and events together, durable on return; what is wrong with each batch."""
