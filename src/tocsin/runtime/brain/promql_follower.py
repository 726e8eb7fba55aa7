"""Readings of GPUs out of a Prometheus-compatible server, handed to the brain as if agents had pushed them.

What must hold: an agent outranks the server, for it sees more and sooner; a server that is slow or away holds up no
evaluation, which is why this has a thread of its own; and an event that was seen is not lost while the store is away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import httpx2
import structlog

from tocsin.collector.prometheus_history.answers import check_installed
from tocsin.collector.prometheus_history.http import (
    AccessRefused,
    HistoryClient,
    QueryRefused,
    TooMuch,
    Wording,
)
from tocsin.collector.promql.fleet import PromqlFleet
from tocsin.collector.promql.series import NothingFound, SeriesReader
from tocsin.config.promql import PromqlSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.event import Event
from tocsin.domain.reading import Reading
from tocsin.http_client import ClientTls
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.follower import Patience
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

BATCH_READINGS = 2_000
"""Most readings of one write."""
MAX_WAITING_EVENTS = 10_000
_WORDING = Wording("promql.url", "set promql.token_file or promql.headers", "check promql.selector")


class PromqlFollower:
    """Implements `tocsin.runtime.brain.follower.Follower`: one round after the other.

    `newest` gives the readings that the brain has, `recalled` says whether one of them is from before its start, and
    `accept` takes what is new.
    """

    name = "promql"
    on_standby = False
    before_start = False

    def __init__(
        self,
        reader: SeriesReader,
        settings: PromqlSettings,
        newest: Callable[[], Collection[Reading]],
        recalled: Callable[[str], bool],
        accept: Callable[[Batch], None],
        clock: Clock,
        fresh_ms: int,
        metrics: OwnMetrics,
        close: Callable[[], None] = lambda: None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._settings = settings
        self._fleet = PromqlFleet(round(settings.lookback_seconds * SECOND), metrics)
        self._newest = newest
        self._recalled = recalled
        self._accept = accept
        self._clock = clock
        self._fresh_ms = fresh_ms
        self._metrics = metrics
        self._close = close
        self._refresh = refresh
        self._mine: dict[str, int] = {}
        self._waiting: list[Event] = []
        self._patience = Patience(settings.every_seconds, clock)
        self.every_seconds = settings.every_seconds

    def look(self) -> None:
        """One round, unless the server rests. What it cannot give is said once, until that changes."""
        if self._patience.rests():
            return
        begun, now = self._clock.monotonic(), self._clock.now_ms()
        outcome, problem = "taken", ""
        try:
            self._refresh()
            batch = self._fleet.batch(self._reader.read(now), now)
            self._take(batch, now)
        except NothingFound as error:
            outcome, problem = "nothing", str(error)
        except Unavailable as error:
            outcome, problem = "unreachable", str(error)
        except TooMuch as error:
            outcome, problem = "too_large", str(error)
        except InputError as error:
            outcome, problem = _outcome_of(error), str(error)
        self._count(outcome, begun)
        self._say(problem)

    def close(self) -> None:
        """Let go of the connection; safe to repeat."""
        self._close()

    def _take(self, batch: Batch, now_ms: int) -> None:
        uuids, hosts = self._agents(now_ms)
        readings = [
            one for one in batch.readings if one.gpu.host not in hosts and not {one.gpu.uuid, one.gpu.parent} & uuids
        ]
        events = [one for one in batch.events if one.host not in hosts and one.gpu not in uuids]
        self._metrics.count("tocsin_promql_readings_total", len(batch.readings) - len(readings), outcome="agent")
        self._waiting += events
        for part in _parts(readings, self._waiting[:MAX_WAITING_EVENTS]):
            if not self._keep(part):
                break

    def _keep(self, part: Batch) -> bool:
        """Hand on one part; whether the store took it. Events wait for the store, readings are followed by newer."""
        try:
            self._accept(part)
        except StoreUnavailable as error:
            reason, text, most = "store_unavailable", str(error), MAX_WAITING_EVENTS
        except StoreRejected as error:
            reason, text, most = "store_rejected", str(error), len(self._waiting) - len(part.events)
        else:
            self._waiting = self._waiting[len(part.events) :]
            self._mine.update({one.gpu.uuid: one.at_ms for one in part.readings})
            self._metrics.count("tocsin_promql_readings_total", len(part.readings), outcome="taken")
            return True
        lost = max(0, len(self._waiting) - most)
        self._waiting = self._waiting[lost:]
        self._metrics.count("tocsin_dropped_total", len(part.readings), what="reading", reason=reason)
        if lost:
            self._metrics.count("tocsin_dropped_total", lost, what="event", reason=reason)
        log.warning("the store does not take what the server showed", readings=len(part.readings), error=text)
        return reason == "store_rejected"

    def _agents(self, now_ms: int) -> tuple[set[str], set[str]]:
        """GPUs and hosts of which something fresh came in another way: from an agent of their node."""
        uuids: set[str] = set()
        hosts: set[str] = set()
        for one in self._newest():
            fresh = now_ms - one.at_ms < self._fresh_ms
            if fresh and one.at_ms != self._mine.get(one.gpu.uuid) and not self._recalled(one.gpu.uuid):
                uuids |= {one.gpu.uuid, one.gpu.parent} - {""}
                hosts.add(one.gpu.host)
        self._mine = {uuid: at_ms for uuid, at_ms in self._mine.items() if now_ms - at_ms < 2 * self._fresh_ms}
        return uuids, hosts

    def _count(self, outcome: str, begun: float) -> None:
        taken, metrics, server = outcome == "taken", self._metrics, self._settings.url
        metrics.count("tocsin_promql_rounds_total", outcome=outcome)
        metrics.set("tocsin_promql_up", float(taken), server=server)
        metrics.set("tocsin_promql_metrics", len(self._reader.names), use="read")
        metrics.set("tocsin_promql_metrics", len(self._reader.unknown), use="unknown")
        for what, number in [*self._reader.outcomes.items(), *(self._fleet.outcomes.items() if taken else ())]:
            metrics.count("tocsin_promql_samples_total", number, outcome=what)
        if taken:
            metrics.set("tocsin_promql_gpus", self._fleet.gpus, server=server)
            metrics.observe("tocsin_promql_round_seconds", self._clock.monotonic() - begun)
            self._patience.answered()
            return
        metrics.count("tocsin_source_failures_total", source=self.name)
        self._patience.failed()

    def _say(self, problem: str) -> None:
        if not self._patience.news(problem):
            return
        if problem:
            log.warning("promql: nothing can be read (said once per problem)", problem=problem)
        else:
            log.info("promql: GPUs are read", server=self._settings.url, gpus=self._fleet.gpus)


def _outcome_of(error: InputError) -> str:
    if isinstance(error, AccessRefused):
        return "access"
    return "query" if isinstance(error, QueryRefused) else "not_prometheus"


def _parts(readings: list[Reading], events: list[Event]) -> Iterator[Batch]:
    """The events come first, and with them the first readings."""
    for start in range(0, max(len(readings), min(1, len(events))), BATCH_READINGS):
        yield Batch(readings[start : start + BATCH_READINGS], events if start == 0 else [])


def open_promql(brain: Brain, transport: httpx2.BaseTransport | None = None) -> PromqlFollower | None:
    """What the settings name; None where they name no server. A server that does not answer is no error: it is asked
    again. Raises InputError for what is wrong in the settings, Unavailable where polars is not installed."""
    wanted = brain.settings.promql
    if not wanted.url:
        return None
    check_installed()
    token = wanted.token.get_secret_value()
    headers = {name: value.get_secret_value() for name, value in wanted.headers.items()}
    tls = ClientTls.of(wanted.ca_file, wanted.certificate, wanted.key)
    client = HistoryClient(
        wanted.url,
        headers | ({"Authorization": f"Bearer {token}"} if token else {}),
        timeout_seconds=wanted.timeout_seconds,
        transport=transport,
        attempts=1,
        max_bytes=wanted.max_answer_bytes,
        clock=brain.clock,
        tls=None if tls is None else tls.context,
        wording=_WORDING,
    )
    return PromqlFollower(
        SeriesReader(wanted, client),
        wanted,
        newest=brain.memory.latest,
        recalled=brain.memory.is_recalled,
        accept=brain.accept,
        clock=brain.clock,
        fresh_ms=round(brain.settings.actions.fresh_seconds * SECOND),
        metrics=brain.metrics,
        close=client.close,
        refresh=(lambda: None) if tls is None else tls.refresh,
    )
