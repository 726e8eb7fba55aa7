"""What the API serves. The runtime implements it over store, rules, forecaster and actions; tests over a small fleet.

Methods are synchronous and are called from several threads at once. They raise `NotFound` for an unknown GPU or
decision, `InputError` for a bad argument, `Conflict` where the present state forbids the request and `Unavailable`
(with `StoreUnavailable`) where something that they need does not answer. `actor` is the name of the token's holder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import JsonValue

from tocsin.api.tenancy import Names
from tocsin.client import control, models
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Card, Cards, CardState
from tocsin.client.models_cells import CellAnswer, CellOut
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_pager import PagerReport
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_silences import AcknowledgeRequest, MaintenanceRequest, SilenceOut, SnoozeRequest
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.models_what_if import WhatIfOut, WhatIfRequest
from tocsin.collector.push.fleet import Admits, Taken
from tocsin.collector.push.samples import PushedSeries
from tocsin.domain.decision import DecisionState
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, Verification
from tocsin.domain.order import Order, OrderReport
from tocsin.domain.prediction import Prediction
from tocsin.domain.silence import MatcherKind, SilenceKind
from tocsin.store.line_protocol.decode import Admit

Detail = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class LineBody:
    """Line protocol of one caller: `precision` is `ns`, `us`, `ms` or `s`; `admit` says what the caller may not say,
    None where that is nothing."""

    text: str
    precision: str
    admit: Admit | None = None


class SilenceService(Protocol):
    """Silences, as the API sees them; bad spans and names raise InputError, what cannot be ended Conflict."""

    def acknowledge(
        self, card_id: str, request: AcknowledgeRequest, actor: str, *, personal: bool, request_id: str = ""
    ) -> SilenceOut:
        """A person takes a card on; `personal` where nobody else has that token.

        `request_id` names a request of another system for good: the same again changes nothing, after a restart too.
        """

    def end_acknowledgement(self, card_id: str, actor: str) -> list[SilenceOut]:
        """Raises Conflict where nobody has taken it on."""

    def resolve(self, card_id: str, for_seconds: float, reason: str, actor: str, request_id: str) -> SilenceOut:
        """Another system takes an open card for over: hide it for so long, counted from the first time that `actor`
        said so, and end what it acknowledged. Raises Conflict where that time is up, or the card is resolved."""

    def withdraw(self, card_id: str, actor: str) -> list[SilenceOut]:
        """End what `actor` acknowledged or snoozed of a card; Conflict where the card is resolved."""

    def snooze(self, request: SnoozeRequest, actor: str) -> SilenceOut: ...

    def plan(self, request: MaintenanceRequest, actor: str) -> SilenceOut: ...

    def listed(self, kind: SilenceKind) -> list[SilenceOut]:
        """Those that stand or are planned, the next to end first."""

    def end(self, kind: SilenceKind, name: str, actor: str) -> SilenceOut: ...

    def pools(self, kind: MatcherKind, name: str) -> Sequence[str]:
        """Pools of what a silence would cover; none where that is the fleet."""

    def pools_of(self, kind: SilenceKind, name: str) -> Sequence[str]:
        """Pools of a silence that stands."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the cells `cells`, all where there is none, by whoever sends `credential` as Authorization: the
    other cells decide by it what they answer. `each` has what single cells are asked beside `params`. `body` is sent
    where something is to change. What is asked `aside` has places of its own, so that it holds up nobody else."""

    path: str
    credential: str = ""
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    cells: Sequence[str] = ()
    body: Mapping[str, JsonValue] | None = None
    aside: bool = False
    each: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def params_of(self, cell: str) -> Mapping[str, str | Sequence[str]]:
        """What `cell` is asked."""
        return {**self.params, **self.each.get(cell, {})}


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """What became of a question to each cell, and the answers by cell."""

    cells: list[CellAnswer]
    answers: dict[str, T]

    @property
    def partial(self) -> bool:
        """Whether an answer is missing or old."""
        return any(one.state != "answered" for one in self.cells)


@dataclass(frozen=True, slots=True)
class Passed:
    """What another cell answers to a request that is passed on to it as it came."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class CellService(Protocol):
    """The other cells of the fleet, as the API sees them."""

    @property
    def name(self) -> str:
        """The cell of this brain."""

    def known(self) -> list[CellOut]:
        """The cells that have told of themselves, by name; only this one where it is the whole fleet."""

    def assigned(self) -> bool:
        """Whether any other cell has said which hosts it has."""

    def has(self, host: str) -> bool:
        """Whether `host` is this cell's by a pattern or by hashing, and not only because it asks here."""

    def elsewhere(self, host: str) -> tuple[str, str] | None:
        """Name and URL of the other cell that has `host`; None where it is of this one."""

    def gather(self, asked: Asked, kind: type[T], own: Callable[[], T]) -> Gathered[T]:
        """Ask every cell, and wait for so long at most; `own` is the answer of this one. Raises InputError for a cell
        that is none."""

    def pass_on(self, asked: Asked, found_at: str, kind: type[T]) -> T | None:
        """Send what is to change to the one other cell that knows `found_at`; None where none does. Raises what that
        cell answers."""

    def pass_to(self, cell: str, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Passed:
        """What the other cell `cell` answers to `method` of `target`, a path with its query. Raises InputError for a
        cell that is none, and Unavailable where no answer comes."""


class Service(Protocol):
    """The brain, as the API sees it."""

    @property
    def cells(self) -> CellService:
        """The other cells of the fleet."""

    def for_tenant(self, name: str, namespaces: frozenset[str]) -> Service:
        """The same as a tenant sees it: its own GPUs, jobs and cost; what is about others raises ApiError 403."""

    def names_of_others(self, namespaces: frozenset[str], vocabulary: frozenset[str]) -> Names:
        """Names that a tenant must not read; `vocabulary` are words of the API that nobody's name takes away."""

    def ready(self) -> control.Readiness:
        """Whether the brain can do its work; answers within a second also where it cannot."""

    def now_ms(self) -> int:
        """The brain's clock: default end of a series."""

    def summary(self) -> models.FleetSummary: ...

    def gpus(self) -> list[models.GpuSummary]:
        """Every GPU, by host and index."""

    def fleet_map(self) -> models.FleetMap:
        """Every GPU in columns; the very same object until something in it changes."""

    def attention(self, limit: int) -> models.Attention:
        """What needs a person now, worst first."""

    @property
    def silences(self) -> SilenceService:
        """What people acknowledge, snooze and plan."""

    def cards(self, limit: int, state: CardState | None = None, *, hidden: bool = False) -> Cards:
        """Cards that are open, or those in `state`, the most urgent first; of these what is `hidden`, or the rest."""

    def card(self, card_id: str) -> Card:
        """The card with this id, or of the incident with this id."""

    def peers(
        self, uuid: str, by: models.PeerGroup, metrics: Sequence[str], start_ms: int, end_ms: int, points: int
    ) -> models.PeerBand:
        """How the peers of a GPU did in [`start_ms`, `end_ms`), in `points` equal spans."""

    def gpu(self, uuid: str) -> models.GpuDetail: ...

    def evidence(self, uuid: str, start_ms: int, end_ms: int, with_owners: bool) -> Iterator[bytes]:
        """The sealed archive for the vendor of a GPU over [`start_ms`, `end_ms`); raises at the call, not later."""

    def series(
        self, uuid: str, metrics: Sequence[str], start_ms: int, end_ms: int, max_points: int
    ) -> models.SeriesResponse:
        """Values in [`start_ms`, `end_ms`), thinned to `max_points` at most such that extremes stay visible."""

    def findings(self) -> list[models.FindingOut]:
        """Active findings, worst first."""

    def incidents(self) -> list[models.IncidentOut]:
        """Open incidents, worst first."""

    def predictions(self) -> list[Prediction]:
        """The newest prediction for each subject and target, most urgent first."""

    def decisions(self, limit: int, state: DecisionState | None = None) -> list[models.DecisionOut]:
        """Newest first."""

    def decision(self, decision_id: str) -> models.DecisionOut: ...

    def approve(self, decision_id: str, actor: str) -> models.DecisionOut:
        """Record a person's yes; guards are asked again before it runs. Raises Conflict where it is not held."""

    def alike(self, decision_id: str) -> list[models.DecisionOut]:
        """The others for the same action about the same cause that wait for a yes as this one does."""

    def reject(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> models.DecisionOut:
        """Record a person's no; `right` where the statement was right all the same."""

    def pause(self, actor: str, reason: str) -> control.ControlState:
        """Hold every action until `resume`; repeating it changes nothing but who and why."""

    def resume(self, actor: str) -> control.ControlState: ...

    def reset_breaker(self, actor: str) -> control.ControlState: ...

    def release(
        self, kind: Literal["host", "gpu"], name: str, actor: str, reason: str, *, right: bool = False
    ) -> control.ReleaseOut:
        """A person gave a host or GPU back to service: its incidents are cancelled, it is left alone for the hold-off.

        Raises NotFound where nothing of that name is known.
        """

    def record_manual(self, deed: control.ManualAction, actor: str) -> control.ManualActionOut:
        """Put on record what a person does by hand, past the guards."""

    def journal(self, after: int, limit: int, kinds: Collection[str] | None = None) -> list[Entry]:
        """Entries with `seq` above `after`, in order."""

    def timeline(self, query: models.TimelineQuery, offset: int, limit: int) -> models.Timeline:
        """Decisions that fit `query`, newest first."""

    def story(self, decision_id: str) -> models.DecisionStory: ...

    def undo(self, decision_id: str, actor: str, reason: str, *, right: bool = False) -> models.UndoOut:
        """Send the inverse of what was done through the guards. Raises Conflict where there is none to send."""

    def journal_page(self, query: models.JournalQuery, before: int | None, limit: int) -> models.JournalPage:
        """Entries with `seq` below `before` that fit `query`, newest first."""

    def export_journal(self, form: models.ExportForm, query: models.JournalQuery, after: int) -> Iterator[str]:
        """Lines of the entries above `after` of the kinds and the span of `query`; raises at the call, not later."""

    def verify_journal(self, after: int, previous: str) -> Verification:
        """Whether a slice of the chain holds: what follows entry `after`, which has the hash `previous`."""

    def scoreboard(self) -> models.Scoreboard: ...

    def pager_report(self) -> PagerReport:
        """What the pager said over the last fortnight, against what is known to have come."""

    def morning_report(self, hours: int) -> MorningReport:
        """Five sentences on the last `hours`, and the figures that they are made of."""

    def drift(self, pool: str, components: Sequence[str]) -> DriftOut:
        """Versions by group of like hosts, of one pool and of some components where given. Raises InputError."""

    def changes(self, hours: int, limit: int) -> Changes:
        """The newest `limit` changes of the last `hours`."""

    def what_if(self, asked: WhatIfRequest) -> WhatIfOut:
        """Which held decisions of the last 30 days a change would have let run. Raises InputError."""

    def rule_records(self) -> list[RuleRecord]:
        """How far each rule may go, and the record by which it earns to act alone, by name."""

    def diagnoses(self, host: str = "") -> list[Diagnosis]:
        """What limits each job now, and memory, idle GPUs and requests that are wrong; of `host` alone where given."""

    def planning_state(self) -> dict[str, Any]:
        """The fleet as the planners see it, in the form of a state file."""

    def forecast(self, limit: int) -> ForecastOut:
        """What lies ahead, the most urgent `limit` of each kind."""

    def capacity(self) -> CapacityOut:
        """Pools a week ahead; Unavailable while that is worked out."""

    def fragmentation(self, limit: int) -> FragmentationOut: ...

    def plan(self, planner: Planner) -> PlansOut:
        """What a planner would do now; Unavailable while that is worked out."""

    def cost(self, start_ms: int, end_ms: int) -> CostOut:
        """Whole hours of [`start_ms`, `end_ms`), as far as they have been read."""

    def usage(self, first_day: int, last_day: int, by: Sequence[UsageBy], limit: int) -> UsageOut:
        """Who used what from `first_day` to `last_day`, days since the epoch, by `by`; the largest `limit` groups."""

    def right_size(self, first_day: int, last_day: int, limit: int) -> RightSizeOut:
        """Jobs of those days that less would do for, the most freed first."""

    def ingest(self, bodies: Sequence[LineBody]) -> list[control.IngestResult | Exception]:
        """Keep what several callers sent, durable on return; what became of each. Bad lines are reported, and what is
        wrong with one body costs no other."""

    def pushed(self, series: Sequence[PushedSeries], sender: str, admits: Admits, broken: int) -> Taken:
        """Readings and events of what others push, for `ingest` to keep; what `admits` speaks against is counted.

        `sender` is who sends them; `broken` more samples could not be read, and are counted too.
        """

    def take_alerts(self, alerts: Sequence[JsonValue], admits: Admits) -> None:
        """Keep alerts of an Alertmanager as evidence; those that cannot be used are counted."""

    def inject(self, kind: str, gpu: str, actor: str) -> control.InjectionOut:
        """Start a failure on a simulated GPU; raises Conflict where the GPU is real."""

    def orders(self, host: str) -> list[Order]:
        """What the agent of `host` is asked for now; asking renews the leases of what stands there."""

    def report_order(self, order_id: str, sent: OrderReport) -> control.OrderTaken:
        """Take in how an order stands; Conflict where it is another host's."""

    def same_jobs(self, gpus: Collection[str]) -> set[str]:
        """UUIDs of the GPUs that the jobs on `gpus` hold, `gpus` among them."""

    def owner_against(self, gpu: str, host: str) -> str:
        """The other host that owns a GPU or a MIG instance and keeps it; empty where `host` may report it."""

    def record_access(self, event: Literal["login", "logout", "login_locked"], actor: str, detail: Detail) -> None:
        """Put a log-in, a log-out or a lock after wrong passwords on record; `detail` holds no secret."""

    def must_lead(self) -> None:
        """Raises NotLeading on standby: nothing is put on record here."""

    def record_reads(self, rows: Sequence[Mapping[str, object]], left_out: int) -> None:
        """Put on record who read what, in rows of the journal's form; `left_out` more reads are in none of them.

        Raises Unavailable."""

    def refused(self, reason: str) -> None:
        """Count a request that was turned away, by the code of its answer."""

    def came_back(self, desk: str, outcome: str) -> None:
        """Count what a ticket system or a chat room sent back, by what became of it."""

    def metrics(self) -> bytes:
        """The brain's own metrics (`tocsin_*`) in Prometheus text format."""
