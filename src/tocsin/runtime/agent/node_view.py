"""`tocsin top` without a brain: this node's own source, or an agent's page, judged by the rules as they stand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tocsin.client.models import GpuSummary
from tocsin.collector.source import Source
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, SECOND, Clock, to_iso
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident, SubjectKind
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Gpu, Reading, sanitise
from tocsin.http_client import http_client
from tocsin.queries import views
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.runtime.agent.scan import at_once, opened, recent
from tocsin.terminal.look import CHARTED, Detail, Look

TIMEOUT_S = 5.0


class AgentPage:
    """A `Source` over one agent's page at `url`.

    Readings are dated now: the page tells no instant, and it leaves out what is too old. Events, owners and reasons why
    a value is missing are not on it. `read` raises Unavailable where there is no answer, or it is no page of an agent.
    """

    name = "agent"

    def __init__(self, url: str, transport: httpx2.BaseTransport | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            remedy = "name its page, for example http://127.0.0.1:9835/metrics"
            raise InputError("--agent", url, "is no http or https URL", remedy)
        self.url = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
        self._http = http_client(TIMEOUT_S, transport=transport)
        self._gpus: list[Gpu] = []

    def gpus(self) -> list[Gpu]:
        return list(self._gpus)

    def read(self, now_ms: int) -> Batch:
        readings = list(read_agent_page(self._page(), now_ms))
        self._gpus = [reading.gpu for reading in readings]
        return Batch(readings=readings)

    def _page(self) -> str:
        try:
            response = self._http.get(self.url)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            hint = "start it with `tocsin agent`, or correct the URL"
            raise Unavailable(f"no agent answers at {self.url} ({error}); {hint}") from error
        if response.status_code != 200:
            raise Unavailable(f"{self.url} answers {response.status_code}; name the /metrics of an agent")
        return response.text

    def close(self) -> None:
        self._http.close()


def read_agent_page(page: str, at_ms: int) -> Iterator[Reading]:
    """A reading of each GPU on `page`, dated `at_ms`. Raises Unavailable where it is no page of an agent."""
    gpus: dict[str, Gpu] = {}
    values: dict[str, dict[str, float]] = {}
    is_agent = False
    try:
        for family in text_string_to_metric_families(page):
            is_agent = is_agent or family.name == "tocsin_gpus"
            for sample in family.samples:
                spec = METRICS.get(sample.name)
                if spec is None or "gpu_uuid" not in sample.labels:
                    continue
                gpu = _gpu(sample.labels)
                gpus.setdefault(gpu.uuid, gpu)
                label = spec.label
                key = variant(spec.name, label, sample.labels[label]) if label in sample.labels else spec.name
                values.setdefault(gpu.uuid, {})[key] = float(sample.value)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser of prometheus-client answers malformed lines with whatever it stumbles over.
        raise Unavailable(f"the page is not that of an agent ({error}); name its /metrics") from None
    if not is_agent:
        raise Unavailable("the page is not that of an agent: tocsin_gpus is missing; name its /metrics")
    for uuid, gpu in gpus.items():
        yield Reading(gpu, at_ms, values[uuid])


def _gpu(labels: Mapping[str, Any]) -> Gpu:
    physical, instance = str(labels["gpu_uuid"]), str(labels.get("mig_uuid", ""))
    index = str(labels.get("gpu_index", ""))
    return Gpu(
        uuid=instance or physical,
        host=str(labels.get("host", "")),
        index=int(index) if index.isdecimal() else None,
        model=str(labels.get("model", "")),
        parent=physical if instance else "",
        mig_profile=str(labels.get("mig_profile", "")),
        pool=str(labels.get("pool", "")),
        simulated=labels.get("simulated") == "true",
    )


REMEMBERED = 360
"""Looks that the charts of a GPU go back."""
EVENTS = 8
"""Events in a GPU's view."""
FRESH_LOOKS = 3
LEAST_FRESH_MS = 30 * SECOND

Enrich = Callable[[Batch, int], Batch]


class NodeFeed:
    """Readings of `source` at each look, judged by `rules` as they hold at once; predicts nothing, decides nothing.

    `enrich` adds what runs beside the source. `close` is called with it. Not for several threads at once but `detail`,
    which only reads what the last look left.
    """

    def __init__(
        self,
        origin: str,
        source: Source,
        rules: RuleSet,
        clock: Clock,
        interval_s: float,
        *,
        enrich: Enrich = lambda batch, _now_ms: batch,
        notes: Sequence[str] = (),
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.origin = origin
        self._source = source
        self._engine = RuleEngine(at_once(rules))
        self._clock = clock
        self._interval_s = interval_s
        self._fresh_ms = max(LEAST_FRESH_MS, round(FRESH_LOOKS * interval_s * SECOND))
        self._enrich = enrich
        self._notes = tuple(notes)
        self._close = close
        self._newest: dict[str, Reading] = {}
        self._findings: list[Finding] = []
        self._events: deque[Event] = deque(maxlen=1000)
        self._past: dict[str, dict[str, deque[float | None]]] = {}

    def look(self) -> Look:
        now_ms = self._clock.now_ms()
        batch = self._enrich(self._source.read(now_ms), now_ms)
        readings = [sanitise(reading)[0] for reading in batch.readings]
        self._findings = self._engine.step(Inputs(now_ms, readings, tuple(batch.events))).active
        # A source may have nothing new at a look; what it no longer enumerates is gone.
        known = {gpu.uuid for gpu in self._source.gpus()} or set(self._newest)
        newest = self._newest | {reading.gpu.uuid: reading for reading in readings}
        self._newest = {uuid: reading for uuid, reading in newest.items() if uuid in known}
        self._events.extend(batch.events)
        self._remember(readings)
        wide = [finding for finding in self._findings if finding.subject.kind is not SubjectKind.GPU]
        return Look(
            origin=self.origin,
            at=to_iso(now_ms),
            gpus=tuple(self._summary(uuid, now_ms) for uuid in self._newest),
            incidents=tuple(
                views.incident_out(Incident(one, (one,), one.started_ms, one.last_ms, one.sentence)) for one in wide
            ),
            notes=self._notes,
        )

    def _summary(self, uuid: str, now_ms: int) -> GpuSummary:
        own = [finding for finding in self._findings if finding.subject.name == uuid]
        return views.gpu_summary(self._newest[uuid], own, (), now_ms, self._fresh_ms)

    def _remember(self, readings: Sequence[Reading]) -> None:
        self._past = {uuid: past for uuid, past in self._past.items() if uuid in self._newest}
        for reading in readings:
            past = self._past.setdefault(reading.gpu.uuid, {name: deque(maxlen=REMEMBERED) for name in CHARTED})
            for name, values in past.items():
                values.append(reading.values.get(name))

    def detail(self, uuid: str) -> Detail:
        reading = self._newest.get(uuid)
        if reading is None:
            raise InputError("gpu", uuid, "is no longer there", "go back to the list")
        past = {name: list(values) for name, values in self._past.get(uuid, {}).items()}
        looks = max(map(len, past.values()), default=0)
        own = [finding for finding in self._findings if finding.subject.name == uuid]
        events = [event for event in self._events if event.gpu == uuid][-EVENTS:]
        sections = {
            "findings": [f"{one.severity}: {one.sentence} [{one.rule}; proposes: {one.action}]" for one in own],
            "events": [f"{to_iso(one.at_ms)[:19]} {one.kind.value} {one.code}: {one.message}" for one in events],
            "processes": [f"{owner.pid} {owner.process}: {owner.label}" for owner in reading.owners],
        }
        shown = {title: lines for title, lines in sections.items() if lines}
        summary = self._summary(uuid, self._clock.now_ms())
        return Detail(summary, past, looks * self._interval_s, reading.values, shown)

    def approve(self, decision_id: str) -> None:
        raise Conflict(f"decision {decision_id}: there is no brain here that could carry it out")

    def reject(self, decision_id: str, reason: str) -> None:  # noqa: ARG002  # the feed's signature
        raise Conflict(f"decision {decision_id}: there is no brain here that could carry it out")

    def close(self) -> None:
        self._close()


def local_feed(settings: Settings, source_name: str, clock: Clock, interval_s: float) -> NodeFeed:
    """This node by source `source_name`, with its kernel log of the last day and the owners of processes.

    Raises InputError for a source that does not exist and Unavailable where it cannot be opened.
    """
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    # Readings are as often as looks: a deadline of a slower agent would hold the view up.
    agent = settings.agent.model_copy(update={"interval_seconds": interval_s})
    settings = settings.model_copy(update={"agent": agent})
    with ExitStack() as stack:
        source, beside, blind = stack.enter_context(opened(settings, source_name, clock))
        return NodeFeed(
            f"this node ({source.name})",
            source,
            rules,
            clock,
            interval_s,
            enrich=recent(beside, DAY),
            notes=["the kernel log cannot be read: no XIDs"] if blind else [],
            close=stack.pop_all().close,
        )


def agent_feed(settings: Settings, page: AgentPage, clock: Clock, interval_s: float) -> NodeFeed:
    """The node whose agent has `page`."""
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    return NodeFeed(f"agent {page.url}", page, rules, clock, interval_s, close=page.close)
