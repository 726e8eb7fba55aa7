"""A typed, synchronous client of the HTTP API: one method an endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from tocsin.client import control, models
from tocsin.client.control import ManualAction, ManualActionOut
from tocsin.client.errors import BadRequest, Busy, Denied, NotFound, ServerFault
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cards import Card, Cards, CardState
from tocsin.client.models_cells import (
    CellOut,
    Whereabouts,
    WholeCapacity,
    WholeCards,
    WholeChanges,
    WholeControl,
    WholeCost,
    WholeDecisions,
    WholeDrift,
    WholeForecast,
    WholeFragmentation,
    WholeGpus,
    WholeIncidents,
    WholeJournal,
    WholePlans,
    WholePredictions,
    WholeRecords,
    WholeReport,
    WholeRightSize,
    WholeScoreboard,
    WholeSummary,
    WholeTimeline,
    WholeUsage,
    WholeWhere,
)
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_pager import PagerReport
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_silences import SilenceOut
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.models_what_if import WhatIfOut, WhatIfRequest
from tocsin.client.wire import adapter, to_json
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, Verification
from tocsin.domain.errors import Conflict, TocsinError, Unavailable
from tocsin.domain.prediction import Prediction
from tocsin.domain.progress import work
from tocsin.domain.silence import MatcherKind, SilenceKind
from tocsin.http_client import http_client

T = TypeVar("T")

Params = Mapping[str, str | int | Sequence[str]]


def _journal_params(query: models.JournalQuery) -> Params:
    found = {"actor": query.actor, "text": query.text, "people": str(query.people).lower()}
    return _span(query.start_ms, query.end_ms, kind=list(query.kinds), **found)


def _span(start_ms: int | None, end_ms: int | None, **more: str | int | Sequence[str]) -> Params:
    ends = {"start": start_ms, "end": end_ms}
    return {name: to_iso(at_ms) for name, at_ms in ends.items() if at_ms is not None} | more


def _overruling(reason: str, right: bool) -> dict[str, Any]:
    """The body of what overrules a decision; a brain of the version before knows no `right`."""
    return {"reason": reason, "right": True} if right else {"reason": reason}


def _error_of(response: httpx2.Response) -> TocsinError:
    try:
        error = control.ErrorOut.model_validate_json(response.content, extra="ignore").error
    except ValidationError:
        return ServerFault(f"{response.request.url} answers {response.status_code}, which is not of this API")
    status, message = response.status_code, error.message
    if status in {401, 403}:
        return Denied(message, error.code)
    if status == 404:
        return NotFound(message)
    if status == 409:
        return Conflict(message)
    if status in {429, 503}:
        return Busy(message)
    if status >= 500:
        return ServerFault(message)
    return BadRequest(message, error.code, dict(error.details))


def _timeline_params(asked: models.TimelineQuery) -> dict[str, str | int | Sequence[str]]:
    return {
        "state": [state.value for state in asked.states],
        "action": [one.value for one in asked.actions],
        "rule": asked.rule,
        "pool": asked.pool,
        "text": asked.text,
        **({} if asked.waiting is None else {"waiting": str(asked.waiting).lower()}),
    }


def _period(start: str | None, end: str | None) -> dict[str, Any]:
    return {name: day for name, day in (("start", start), ("end", end)) if day is not None}


class Client:
    """Speaks to one brain.

    `timeout` is seconds, for each step of a request. Every method raises `Unavailable` where no brain answers, `Busy`
    (which is one) where a brain runs but took too long or answers 429 or 503, `Denied`, `NotFound`, `Conflict`,
    `BadRequest` or `ServerFault` with the server's message. Safe to share between threads. Environment proxies are not
    used: the API is reached directly. `ca` is a PEM file that takes the place of the system's CAs. `cell` is the cell
    that answers, by way of that brain; empty: the brain's own. Raises InputError where `ca` cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        token: str = "",
        timeout: float = 10.0,
        transport: httpx2.BaseTransport | None = None,
        *,
        ca: Path | None = None,
        cell: str = "",
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.cell = cell
        self._http = http_client(
            timeout, base_url=self.base_url, token=token, ca=ca, transport=transport, most_bytes=None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def at(self, cell: str) -> Self:
        """The same client for another cell, by way of the same brain; it is closed with this one."""
        other = copy(self)
        other.cell = cell
        return other

    def close(self) -> None:
        """Close connections; safe to repeat."""
        self._http.close()

    def healthy(self) -> bool:
        """Whether a brain's process answers at all; never raises."""
        try:
            return self._send("GET", "/healthz").status_code == 200
        except TocsinError:
            return False

    def ready(self) -> control.Readiness:
        """Whether the brain can do its work."""
        response = self._send("GET", "/readyz")
        if response.status_code not in {200, 503}:
            raise _error_of(response)
        return self._parse(control.Readiness, response)

    def me(self) -> control.Whoami:
        """Name and role of this client's token."""
        return self._get(control.Whoami, "/v1/me")

    def summary(self) -> models.FleetSummary:
        return self._get(models.FleetSummary, "/v1/fleet")

    def gpus(self) -> list[models.GpuSummary]:
        """Every GPU by host and index."""
        return self._get(list[models.GpuSummary], "/v1/gpus")

    def fleet_map(self, tag: str = "") -> tuple[models.FleetMap | None, str]:
        """The fleet in columns and its tag; None where the one that `tag` names has not changed."""
        response = self._ask("GET", "/v1/map", headers={"If-None-Match": tag} if tag else {})
        if response.status_code == 304:
            return None, tag
        return self._parse(models.FleetMap, response), response.headers.get("etag", "")

    def where(self, gpu: str = "", host: str = "") -> Whereabouts:
        """What is known of a GPU and a host there, and the GPU in the worst state."""
        return self._get(Whereabouts, "/v1/where", {"gpu": gpu, "host": host})

    def cells(self) -> list[CellOut]:
        """The cells of the fleet, as each last told of itself."""
        return self._get(list[CellOut], "/v1/cells")

    def cells_summary(self, cells: Sequence[str] = ()) -> WholeSummary:
        """`summary` of each of `cells`, all where there is none; as everything named so."""
        return self._get(WholeSummary, "/v1/cells/fleet", {"cell": list(cells)})

    def cells_gpus(self, cells: Sequence[str] = ()) -> WholeGpus:
        return self._get(WholeGpus, "/v1/cells/gpus", {"cell": list(cells)})

    def cells_cards(self, limit: int = 50, cells: Sequence[str] = (), state: CardState | None = None) -> WholeCards:
        """The cards in `state`, the open ones by default, the most urgent `limit` of each cell."""
        chosen: Params = {"state": state.value} if state else {}
        return self._get(WholeCards, "/v1/cells/cards", {**chosen, "limit": limit, "cell": list(cells)})

    def cells_changes(self, hours: int = 1, limit: int = 12, cells: Sequence[str] = ()) -> WholeChanges:
        return self._get(WholeChanges, "/v1/cells/changes", {"hours": hours, "limit": limit, "cell": list(cells)})

    def cells_timeline(
        self, query: models.TimelineQuery | None = None, limit: int = 50, cells: Sequence[str] = ()
    ) -> WholeTimeline:
        """The newest `limit` decisions of each cell that fit `query`."""
        asked = _timeline_params(query or models.TimelineQuery())
        return self._get(WholeTimeline, "/v1/cells/timeline", asked | {"limit": limit, "cell": list(cells)})

    def cells_incidents(self, cells: Sequence[str] = ()) -> WholeIncidents:
        return self._get(WholeIncidents, "/v1/cells/incidents", {"cell": list(cells)})

    def cells_predictions(self, cells: Sequence[str] = ()) -> WholePredictions:
        return self._get(WholePredictions, "/v1/cells/predictions", {"cell": list(cells)})

    def cells_decisions(
        self, limit: int = 100, cells: Sequence[str] = (), state: DecisionState | None = None
    ) -> WholeDecisions:
        """At most `limit` decisions of each cell, in the order of `decisions`."""
        chosen: Params = {"state": state.value} if state else {}
        return self._get(WholeDecisions, "/v1/cells/decisions", {**chosen, "limit": limit, "cell": list(cells)})

    def cells_forecast(self, limit: int = 20, cells: Sequence[str] = ()) -> WholeForecast:
        """What lies ahead in each cell, the most urgent `limit` of each list."""
        return self._get(WholeForecast, "/v1/cells/forecast", {"limit": limit, "cell": list(cells)})

    def cells_capacity(self, cells: Sequence[str] = ()) -> WholeCapacity:
        """The pools of each cell a week ahead; a cell that is still working it out has not answered."""
        return self._get(WholeCapacity, "/v1/cells/forecast/capacity", {"cell": list(cells)})

    def cells_scoreboard(self, cells: Sequence[str] = ()) -> WholeScoreboard:
        return self._get(WholeScoreboard, "/v1/cells/scoreboard", {"cell": list(cells)})

    def cells_report(self, hours: int = 24, cells: Sequence[str] = ()) -> WholeReport:
        return self._get(WholeReport, "/v1/cells/report", {"hours": hours, "cell": list(cells)})

    def cells_rules(self, cells: Sequence[str] = ()) -> WholeRecords:
        return self._get(WholeRecords, "/v1/cells/rules", {"cell": list(cells)})

    def cells_usage(
        self,
        start: str | None = None,
        end: str | None = None,
        by: Sequence[UsageBy] = (),
        limit: int = 50,
        cells: Sequence[str] = (),
    ) -> WholeUsage:
        """`usage` of each cell over the same days; a tenant may ask it too."""
        chosen = {"by": list(by), "limit": limit, "cell": list(cells)}
        return self._get(WholeUsage, "/v1/cells/usage", _period(start, end) | chosen)

    def cells_right_size(
        self, start: str | None = None, end: str | None = None, limit: int = 50, cells: Sequence[str] = ()
    ) -> WholeRightSize:
        """`right_size` of each cell; a tenant may ask it too."""
        chosen = {"limit": limit, "cell": list(cells)}
        return self._get(WholeRightSize, "/v1/cells/usage/right-size", _period(start, end) | chosen)

    def cells_cost(
        self, start_ms: int | None = None, end_ms: int | None = None, cells: Sequence[str] = ()
    ) -> WholeCost:
        """`cost` of each cell over the same whole hours."""
        return self._get(WholeCost, "/v1/cells/cost", _span(start_ms, end_ms, cell=list(cells)))

    def cells_fragmentation(self, limit: int = 20, cells: Sequence[str] = ()) -> WholeFragmentation:
        """`fragmentation` of each cell, the worst `limit` of each list."""
        return self._get(WholeFragmentation, "/v1/cells/fragmentation", {"limit": limit, "cell": list(cells)})

    def cells_plan(self, planner: Planner, cells: Sequence[str] = ()) -> WholePlans:
        """What a planner would do in each cell; one that is still working it out has not answered."""
        return self._get(WholePlans, f"/v1/cells/plan/{planner}", {"cell": list(cells)})

    def cells_journal(
        self,
        query: models.JournalQuery | None = None,
        before: Mapping[str, int] | None = None,
        limit: int = 50,
        cells: Sequence[str] = (),
    ) -> WholeJournal:
        """Journal entries of each cell below its number in `before`, newest first, at most `limit` of each."""
        older = [f"{name}:{number}" for name, number in sorted((before or {}).items())]
        asked = _journal_params(query or models.JournalQuery())
        params = {**asked, "limit": limit, "before": older, "cell": list(cells)}
        return self._get(WholeJournal, "/v1/cells/journal/page", params)

    def cells_drift(self, pool: str = "", components: Sequence[str] = (), cells: Sequence[str] = ()) -> WholeDrift:
        chosen: Params = {"pool": pool} if pool else {}
        return self._get(WholeDrift, "/v1/cells/drift", {**chosen, "component": list(components), "cell": list(cells)})

    def cells_where(self, gpu: str = "", host: str = "", cells: Sequence[str] = ()) -> WholeWhere:
        """Which cells know a GPU or a host, and the GPU in the worst state of each."""
        return self._get(WholeWhere, "/v1/cells/where", {"gpu": gpu, "host": host, "cell": list(cells)})

    def pause_cells(self, reason: str = "", cells: Sequence[str] = ()) -> WholeControl:
        """Hold every action of each cell; the answer says which were not reached."""
        return self._post(WholeControl, "/v1/cells/pause", {"reason": reason}, {"cell": list(cells)})

    def resume_cells(self, cells: Sequence[str] = ()) -> WholeControl:
        return self._post(WholeControl, "/v1/cells/resume", {}, {"cell": list(cells)})

    def reset_breakers(self, cells: Sequence[str] = ()) -> WholeControl:
        return self._post(WholeControl, "/v1/cells/breaker/reset", {}, {"cell": list(cells)})

    def attention(self, limit: int = 20) -> models.Attention:
        """What needs a person now, worst first."""
        return self._get(models.Attention, "/v1/attention", {"limit": limit})

    def cards(self, limit: int = 50, state: CardState | None = None, *, hidden: bool = False) -> Cards:
        """Cards that are open, or those in `state`, the most urgent first; of these what is `hidden`, or the rest."""
        params: dict[str, str | int] = {"limit": limit} | ({"state": state.value} if state else {})
        # A brain of the version before knows no `hidden`.
        params |= {"hidden": "true"} if hidden else {}
        return self._get(Cards, "/v1/cards", params)

    def card(self, card_id: str) -> Card:
        return self._get(Card, f"/v1/cards/{quote(card_id, safe='')}")

    def acknowledge(self, card_id: str, for_seconds: float = 3600.0, reason: str = "") -> SilenceOut:
        """Take a card on until the end."""
        body = {"for_seconds": for_seconds, "reason": reason}
        return self._post(SilenceOut, f"/v1/cards/{quote(card_id, safe='')}/acknowledge", body)

    def end_acknowledgement(self, card_id: str) -> list[SilenceOut]:
        """Let a card be open again."""
        path = f"/v1/cards/{quote(card_id, safe='')}/acknowledge"
        return self._parse(list[SilenceOut], self._ask("DELETE", path))

    def snooze(self, kind: MatcherKind, name: str, for_seconds: float, reason: str = "") -> SilenceOut:
        """Hide a card, or what lies in a place, until the end or until it gets worse."""
        body = {"kind": kind.value, "name": name, "for_seconds": for_seconds, "reason": reason}
        return self._post(SilenceOut, "/v1/snoozes", body)

    def plan_maintenance(
        self, kind: MatcherKind, name: str, for_seconds: float, start: str | None = None, reason: str = ""
    ) -> SilenceOut:
        """Plan maintenance of a place from `start`, RFC 3339 in UTC; now where it is None."""
        body = {"kind": kind.value, "name": name, "for_seconds": for_seconds, "reason": reason, "start": start}
        return self._post(SilenceOut, "/v1/maintenance", body)

    def silences(self, kind: SilenceKind) -> list[SilenceOut]:
        """Snoozes, or planned maintenance, that stand or are planned."""
        return self._get(list[SilenceOut], "/v1/snoozes" if kind is SilenceKind.SNOOZE else "/v1/maintenance")

    def end_silence(self, kind: SilenceKind, silence_id: str) -> SilenceOut:
        """End a snooze or maintenance before its time."""
        path = "/v1/snoozes/" if kind is SilenceKind.SNOOZE else "/v1/maintenance/"
        return self._parse(SilenceOut, self._ask("DELETE", path + quote(silence_id, safe="")))

    def peers(
        self,
        uuid: str,
        metrics: Sequence[str],
        by: models.PeerGroup = models.PeerGroup.NODE,
        start_ms: int | None = None,
        end_ms: int | None = None,
        points: int = 120,
    ) -> models.PeerBand:
        """How the peers of one GPU did in [`start_ms`, `end_ms`); by default the last six hours."""
        params = _span(start_ms, end_ms, metric=list(metrics), by=by.value, points=points)
        return self._get(models.PeerBand, f"/v1/gpus/{quote(uuid, safe='')}/peers", params)

    def gpu(self, uuid: str) -> models.GpuDetail:
        return self._get(models.GpuDetail, f"/v1/gpus/{quote(uuid, safe='')}")

    def series(
        self,
        uuid: str,
        metrics: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        max_points: int = 600,
    ) -> models.SeriesResponse:
        """Values of `metrics` of one GPU in [`start_ms`, `end_ms`); by default the last six hours."""
        params = _span(start_ms, end_ms, metric=list(metrics), max_points=max_points)
        return self._get(models.SeriesResponse, f"/v1/gpus/{quote(uuid, safe='')}/series", params)

    def findings(self) -> list[models.FindingOut]:
        """Active findings, worst first."""
        return self._get(list[models.FindingOut], "/v1/findings")

    def incidents(self) -> list[models.IncidentOut]:
        """Open incidents, worst first."""
        return self._get(list[models.IncidentOut], "/v1/incidents")

    def predictions(self) -> list[Prediction]:
        """The newest prediction for each subject and target, most urgent first."""
        return self._get(list[Prediction], "/v1/predictions")

    def decisions(self, limit: int = 100, state: DecisionState | None = None) -> list[models.DecisionOut]:
        """At most `limit`: those that wait for a person first, then newest first."""
        params: dict[str, str | int] = {"limit": limit} | ({"state": state.value} if state else {})
        return self._get(list[models.DecisionOut], "/v1/decisions", params)

    def decision(self, decision_id: str) -> models.DecisionOut:
        return self._get(models.DecisionOut, f"/v1/decisions/{quote(decision_id, safe='')}")

    def approve(self, decision_id: str) -> models.DecisionOut:
        return self._post(models.DecisionOut, f"/v1/decisions/{quote(decision_id, safe='')}/approve", {})

    def approve_alike(self, decision_id: str) -> list[models.DecisionOut]:
        """Say yes to it and to all others for the same action about the same cause: those that were approved."""
        path = f"/v1/decisions/{quote(decision_id, safe='')}/approve-alike"
        return self._post(list[models.DecisionOut], path, {})

    def reject(self, decision_id: str, reason: str = "", *, right: bool = False) -> models.DecisionOut:
        """Say no; with `right` its statement was right all the same, and does not count against its rule."""
        path = f"/v1/decisions/{quote(decision_id, safe='')}/reject"
        return self._post(models.DecisionOut, path, _overruling(reason, right))

    def release(
        self, kind: Literal["host", "gpu"], name: str, reason: str = "", *, right: bool = False
    ) -> control.ReleaseOut:
        """Give a host or GPU back to service; `right` as in `reject`, of what was done there lately."""
        asked = {"kind": kind, "name": name, **_overruling(reason, right)}
        return self._post(control.ReleaseOut, "/v1/release?counts=true", asked)

    def record_manual(self, deed: ManualAction) -> ManualActionOut:
        """Put on record what a person does by hand."""
        return self._post(ManualActionOut, "/v1/manual", to_json(deed))

    def login_methods(self) -> control.LoginMethods:
        return self._get(control.LoginMethods, "/v1/login/methods")

    def login(self, user: str, password: str) -> control.LoginOut:
        """Log in by password; the answer's token is for a new client."""
        return self._post(control.LoginOut, "/v1/login", {"user": user, "password": password})

    def logout(self) -> None:
        """End the log-in whose token this client sends."""
        self._ask("POST", "/v1/logout", json={})

    def pause(self, reason: str = "") -> control.ControlState:
        """Hold every action."""
        return self._post(control.ControlState, "/v1/pause", {"reason": reason})

    def resume(self) -> control.ControlState:
        """Allow actions again."""
        return self._post(control.ControlState, "/v1/resume", {})

    def reset_breaker(self) -> control.ControlState:
        return self._post(control.ControlState, "/v1/breaker/reset", {})

    def inject(self, kind: str, gpu: str) -> control.InjectionOut:
        """Start a failure on a simulated GPU."""
        return self._post(control.InjectionOut, "/v1/inject", {"kind": kind, "gpu": gpu})

    def scoreboard(self) -> models.Scoreboard:
        """What would have been done."""
        return self._get(models.Scoreboard, "/v1/scoreboard")

    def rule_records(self) -> list[RuleRecord]:
        """How far each rule may go, and the record by which it earns to act alone."""
        return self._get(list[RuleRecord], "/v1/rules")

    def morning_report(self, hours: int = 24) -> MorningReport:
        """Five sentences on the last `hours`, 1 to 168."""
        return self._get(MorningReport, "/v1/report", {"hours": hours})

    def changes(self, hours: int = 1, limit: int = 12) -> Changes:
        """The newest `limit` changes of the last `hours`, 1 to 24."""
        return self._get(Changes, "/v1/changes", {"hours": hours, "limit": limit})

    def drift(self, pool: str = "", components: Sequence[str] = ()) -> DriftOut:
        """Versions of like hosts and which of them differ; of one pool and of some components where given."""
        chosen: Params = {"pool": pool} if pool else {}
        return self._get(DriftOut, "/v1/drift", {**chosen, "component": list(components)})

    def what_if(self, asked: WhatIfRequest) -> WhatIfOut:
        """Which held decisions of the last 30 days a change would have let run; it changes nothing."""
        return self._post(WhatIfOut, "/v1/what-if", asked.model_dump(mode="json", exclude_none=True))

    def pager_report(self) -> PagerReport:
        """What the pager said, against what is known to have come."""
        return self._get(PagerReport, "/v1/scoreboard/report")

    def diagnoses(self, host: str = "") -> list[Diagnosis]:
        """What limits each job now, and what is wrong with memory, idle GPUs and requests."""
        return self._get(list[Diagnosis], "/v1/diagnoses", {"host": host} if host else {})

    def planning_state(self) -> dict[str, Any]:
        """The fleet as the planners see it, in the form of a state file."""
        return self._get(dict[str, Any], "/v1/plan/state", {})

    def journal(self, after: int = 0, limit: int = 100, kinds: Sequence[str] = ()) -> list[Entry]:
        """Journal entries with `seq` above `after`, in order."""
        return self._get(list[Entry], "/v1/journal", {"after": after, "limit": limit, "kind": list(kinds)})

    def verify_journal(self) -> Verification:
        """Whether the journal's hash chain holds, asked for slice by slice. For admins; a bar shows how far it is.

        Raises ServerFault where an answer gets no further than the one before.
        """
        slices = self.journal_slices()
        last = next(slices)
        with work("journal", float(last.head)) as bar:
            bar.advance(last.events)
            for found in slices:
                bar.advance(found.events - last.events)
                last = found
        return last

    def journal_slices(self) -> Iterator[Verification]:
        """What `verify_journal` finds up to the end of each slice; the last is `done`, or has the problem."""
        after, previous = 0, ""
        while True:
            found = self._get(Verification, "/v1/journal/verify", {"after": after, "previous": previous})
            yield found
            if found.done or not found.ok:
                return
            if found.events <= after:
                raise ServerFault(f"the brain at {self.base_url} checks no journal entry after {after}, nor is it done")
            after, previous = found.events, found.hash

    def metrics(self) -> str:
        """The brain's own metrics in Prometheus text format."""
        return self._ask("GET", "/metrics").text

    def write(self, lines: str, precision: str = "ms") -> None:
        """Send line protocol; durable on return. Raises BadRequest where lines are refused: `details["rejected"]`."""
        self._ask("POST", "/api/v2/write", {"precision": precision}, content=lines.encode())

    def forecast(self, limit: int = 20) -> ForecastOut:
        """Risks of faults, memory that runs full and fragmentation that grows: the most urgent `limit` of each."""
        return self._get(ForecastOut, "/v1/forecast", {"limit": limit})

    def capacity(self) -> CapacityOut:
        """Pools and the fleet's fragmentation a week ahead. Raises Unavailable while it is worked out."""
        return self._get(CapacityOut, "/v1/forecast/capacity")

    def fragmentation(self, limit: int = 20) -> FragmentationOut:
        """Free GPUs and MIG layouts now, the worst `limit` of each list."""
        return self._get(FragmentationOut, "/v1/fragmentation", {"limit": limit})

    def plan(self, planner: Planner) -> PlansOut:
        """What a planner would do now, without doing it. Raises Unavailable while it is worked out."""
        return self._get(PlansOut, f"/v1/plan/{planner}")

    def usage(
        self, start: str | None = None, end: str | None = None, by: Sequence[UsageBy] = (), limit: int = 50
    ) -> UsageOut:
        """Who used what in the UTC days of [`start`, `end`), the last seven where none is given."""
        return self._get(UsageOut, "/v1/usage", _period(start, end) | {"by": list(by), "limit": limit})

    def usage_csv(self, start: str | None = None, end: str | None = None, by: Sequence[UsageBy] = ()) -> str:
        """The same as CSV, up to 10,000 groups."""
        return self._ask("GET", "/v1/usage/csv", _period(start, end) | {"by": list(by)}).text

    def right_size(self, start: str | None = None, end: str | None = None, limit: int = 50) -> RightSizeOut:
        """Jobs of those days that less would do for."""
        return self._get(RightSizeOut, "/v1/usage/right-size", _period(start, end) | {"limit": limit})

    def cost(self, start_ms: int | None = None, end_ms: int | None = None) -> CostOut:
        """Usage and cost in whole hours of [`start_ms`, `end_ms`); by default the last 24 hours."""
        return self._get(CostOut, "/v1/cost", _span(start_ms, end_ms))

    def timeline(self, query: models.TimelineQuery | None = None, offset: int = 0, limit: int = 50) -> models.Timeline:
        """Decisions that fit `query`, newest first, in pages."""
        params = _timeline_params(query or models.TimelineQuery()) | {"offset": offset, "limit": limit}
        return self._get(models.Timeline, "/v1/timeline", params)

    def story(self, decision_id: str) -> models.DecisionStory:
        """One decision with its alternatives and its entries of the journal."""
        return self._get(models.DecisionStory, f"/v1/decisions/{quote(decision_id, safe='')}/story")

    def undo(self, decision_id: str, reason: str = "", *, right: bool = False) -> models.UndoOut:
        """Undo what a decision did, through the guards; `right` as in `reject`."""
        return self._post(
            models.UndoOut, f"/v1/decisions/{quote(decision_id, safe='')}/undo", _overruling(reason, right)
        )

    def journal_page(
        self, query: models.JournalQuery | None = None, before: int | None = None, limit: int = 100
    ) -> models.JournalPage:
        """Journal entries below `before`, newest first."""
        older = {} if before is None else {"before": before}
        params = {**_journal_params(query or models.JournalQuery()), "limit": limit, **older}
        return self._get(models.JournalPage, "/v1/journal/page", params)

    def export_journal(self, form: models.ExportForm, query: models.JournalQuery | None = None) -> Iterator[bytes]:
        """The journal as lines, in pieces as they come; of `query` the kinds and the span count."""
        asked = query or models.JournalQuery()
        yield from self._pieces(
            "/v1/journal/export", _span(asked.start_ms, asked.end_ms, kind=list(asked.kinds), form=form)
        )

    def evidence(self, uuid: str, start_ms: int | None = None, with_owners: bool = False) -> Iterator[bytes]:
        """The sealed archive for the vendor of a GPU, from `start_ms` (default: seven days ago), as it comes."""
        params = _span(start_ms, None, owners=str(with_owners).lower())
        yield from self._pieces(f"/v1/gpus/{quote(uuid, safe='')}/evidence", params)

    def _pieces(self, path: str, params: Params) -> Iterator[bytes]:
        try:
            with self._http.stream("GET", self._at(path), params=params) as response:
                if response.status_code != 200:
                    response.read()
                    raise _error_of(response)
                yield from response.iter_bytes()
        except httpx2.RequestError as error:
            raise Unavailable(f"the brain at {self.base_url} broke off: {error}") from error

    def _get(self, kind: type[T], path: str, params: Params | None = None) -> T:
        return self._parse(kind, self._ask("GET", path, params))

    def _post(self, kind: type[T], path: str, body: Mapping[str, object], params: Params | None = None) -> T:
        return self._parse(kind, self._ask("POST", path, params, json=body))

    def _ask(self, method: str, path: str, params: Params | None = None, **more: Any) -> httpx2.Response:
        response = self._send(method, path, params, **more)
        if response.is_success or response.status_code == httpx2.codes.NOT_MODIFIED:
            return response
        raise _error_of(response)

    def _send(self, method: str, path: str, params: Params | None = None, **more: Any) -> httpx2.Response:
        try:
            return self._http.request(method, self._at(path), params=params, **more)
        except httpx2.ConnectTimeout as error:
            raise Unavailable(f"nothing answers at {self.base_url} in time; is the address right?") from error
        except httpx2.TimeoutException as error:
            raise Busy(f"the brain at {self.base_url} did not answer in time; is it overloaded?") from error
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            message = f"no brain answers at {self.base_url} ({error}); start it with `tocsin brain`, or correct the URL"
            raise Unavailable(message) from error

    def _at(self, path: str) -> str:
        """Where the cell answers `path`; what is over all cells, and log-ins, are of the brain that is asked."""
        if not self.cell or not path.startswith("/v1/") or path.startswith(("/v1/cells", "/v1/log")):
            return path
        return f"/v1/cells/at/{quote(self.cell, safe='')}{path}"

    def _parse(self, kind: type[T], response: httpx2.Response) -> T:
        try:
            return adapter(kind).validate_json(response.content, extra="ignore")
        except ValidationError as error:
            if not response.content.lstrip().startswith((b"{", b"[")):
                message = f"what answers at {self.base_url} is no brain, or stands before one; correct the URL"
                raise ServerFault(message) from error
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"{response.request.url.path}: {where}: {first['msg']}; are client and brain of one version?"
            raise ServerFault(message) from error
