"""Follows the journal and shows what is worth a mark, at each place once and in order.

How far each place has come is kept in a file beside the journal: a restart goes on from there. At a place that does not
answer, marks wait in the journal; no other place waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx2
import structlog

from tocsin.actions.notifications.delivery import pause_seconds
from tocsin.actions.notifications.protocol import Delivery
from tocsin.actions.notifications.text import clean, clip
from tocsin.config.grafana import GrafanaSettings
from tocsin.domain.annotation import Annotation
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision
from tocsin.domain.subject import Subject, SubjectKind
from tocsin.http_client import http_client
from tocsin.journal.chain import Entry
from tocsin.journal.journal import Journal
from tocsin.journal.kinds import EntryKind
from tocsin.store.annotations import KeepsAnnotations
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

# Entries of the journal as marks: executed actions, incidents, pauses, the breaker, models that come into service. A
# beginning is a mark at its instant; its end is one over the whole span. The spans that are open are a fold of the
# journal, so that a restart loses none.

MARKED = frozenset(
    {
        EntryKind.EXECUTION_STARTED,
        EntryKind.OUTCOME,
        EntryKind.INCIDENT_OPENED,
        EntryKind.INCIDENT_CLOSED,
        EntryKind.PAUSE,
        EntryKind.RESUME,
        EntryKind.BREAKER_TRIPPED,
        EntryKind.BREAKER_RESET,
        EntryKind.MODEL_IN_SERVICE,
    }
)
"""Kinds of entries that become marks."""

DecisionOf = Callable[[str], Decision | None]
"""A decision by its id; None where it is no longer listed."""
SubjectOf = Callable[[str], Subject | None]
"""The subject of an incident's root cause by the incident's id; None where it is not open."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A span that has begun."""

    at_ms: int
    text: str
    subject: Subject | None = None
    simulated: bool = False


@dataclass(slots=True)
class SpanFold:
    """Turns entries, in the order of the journal, into marks."""

    decision_of: DecisionOf
    subject_of: SubjectOf
    open: dict[str, _Open] = field(default_factory=dict)

    def recall(self, entries: Iterable[Entry]) -> None:
        """Take up the spans that were open: `entries` are the ones that were made into marks before."""
        for entry in entries:
            self.mark(entry)

    def mark(self, entry: Entry) -> Annotation | None:
        """The mark of `entry`; None where there is nothing to show."""
        kind = EntryKind(entry.kind)
        if kind in (EntryKind.EXECUTION_STARTED, EntryKind.OUTCOME):
            return self._of_decision(entry)
        if kind in (EntryKind.INCIDENT_OPENED, EntryKind.PAUSE, EntryKind.BREAKER_TRIPPED):
            return self._begins(entry, kind)
        if kind in (EntryKind.INCIDENT_CLOSED, EntryKind.RESUME, EntryKind.BREAKER_RESET):
            return self._ends(entry, kind)
        return _mark(entry, f"Model {entry.payload.get('version', '')} came into service.")

    def _of_decision(self, entry: Entry) -> Annotation | None:
        decision = self.decision_of(str(entry.payload.get("decision", "")))
        sentence = "" if decision is None else decision.sentence
        action = str(entry.payload.get("action", "")) or ("" if decision is None else str(decision.action))
        outcome = entry.payload.get("outcome")
        text = f"Begun: {action}. {sentence}"
        if isinstance(outcome, dict):
            text = (
                f"{str(outcome.get('status', '')).capitalize()}: {action} by {outcome.get('executor', '')}. {sentence}"
            )
        return _mark(entry, text.strip(), None if decision is None else decision.subject, action=action)

    def _begins(self, entry: Entry, kind: EntryKind) -> Annotation:
        name, text, subject = str(kind), _told(entry, kind), None
        if kind is EntryKind.INCIDENT_OPENED:
            name = str(entry.payload.get("id", ""))
            subject = self.subject_of(name)
        self.open[name] = _Open(entry.at_ms, text, subject, entry.simulated)
        return _mark(entry, text, subject)

    def _ends(self, entry: Entry, kind: EntryKind) -> Annotation | None:
        name = {EntryKind.RESUME: str(EntryKind.PAUSE), EntryKind.BREAKER_RESET: str(EntryKind.BREAKER_TRIPPED)}.get(
            kind, str(entry.payload.get("id", ""))
        )
        begun = self.open.pop(name, None)
        if begun is None:
            return None
        text = f"{begun.text} Ended by {entry.actor}."
        return _mark(entry, text, begun.subject, begun=begun)


def _told(entry: Entry, kind: EntryKind) -> str:
    if kind is EntryKind.INCIDENT_OPENED:
        return str(entry.payload.get("sentence", ""))
    what = "Actions paused" if kind is EntryKind.PAUSE else "Breaker tripped"
    return f"{what} by {entry.actor}: {entry.payload.get('reason', '')}".rstrip(".") + "."


def _mark(
    entry: Entry, text: str, subject: Subject | None = None, *, action: str = "", begun: _Open | None = None
) -> Annotation:
    host = gpu = pool = ""
    if subject is not None:
        gpu = subject.name if subject.kind is SubjectKind.GPU else ""
        host = subject.name if subject.kind is SubjectKind.HOST else subject.host
        pool = subject.name if subject.kind is SubjectKind.POOL else subject.pool
    return Annotation(
        key=entry.hash[:16],
        kind=entry.kind,
        at_ms=entry.at_ms if begun is None else begun.at_ms,
        text=text,
        actor=entry.actor,
        end_ms=None if begun is None else entry.at_ms,
        host=host,
        gpu=gpu,
        pool=pool,
        action=action,
        simulated=entry.simulated or (begun is not None and begun.simulated),
    )


# Where marks go: Grafana's own store of annotations, and a store that keeps marks beside its readings. Grafana's API
# has no key for an annotation: the same one posted twice is two. Where it is not certain whether a post arrived, the
# tag that names the entry is looked for first. API: https://grafana.com/docs/grafana/latest/developers/
# http_api/annotations/ (release 8 to 13).

PATH = "/api/annotations"
TAG = "tocsin"
"""The tag that the dashboards filter by."""
LONGEST_TEXT = 1_000
"""Characters of one annotation (own choice): a tooltip that is longer is not read."""
_REFUSED = frozenset({400, 413, 422})
"""Answers that the same annotation will get again; a token or an address at fault is another matter."""


class AnnotationTarget(Protocol):
    """One receiver of marks; expected failures come back as a delivery."""

    name: str

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:
        """Show `mark`, one try; `doubtful` says that an earlier try may have arrived."""
        ...

    def close(self) -> None:
        """Let go of connections; safe to repeat."""
        ...


class GrafanaTarget:
    """Posts annotations of the whole organisation, which every dashboard can show."""

    name = "grafana"

    def __init__(self, settings: GrafanaSettings) -> None:
        self._settings = settings
        self._client = http_client(
            settings.timeout_seconds,
            base_url=settings.url,
            token=settings.token.get_secret_value(),
            ca=settings.ca_file,
            proxies=True,
        )

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:
        if mark.simulated and not self._settings.simulated:
            return Delivery(True, "simulated", 0)
        try:
            if doubtful and self._has(mark):
                return Delivery(True, "was there", 1)
            answer = self._client.post(PATH, json=annotation(mark))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {type(error).__name__}", 1)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {type(error).__name__}", 1, certain=False)
        return _judged(answer)

    def _has(self, mark: Annotation) -> bool:
        """Whether the annotation is there. Raises HTTPError where that cannot be told."""
        span = {"from": mark.at_ms, "to": (mark.end_ms or mark.at_ms) + 1, "limit": 1}
        answer = self._client.get(PATH, params={**span, "tags": [TAG, _entry_tag(mark)]})
        answer.raise_for_status()
        return bool(answer.json())

    def close(self) -> None:
        self._client.close()


def _judged(answer: httpx2.Response) -> Delivery:
    if answer.is_success:
        return Delivery(True, f"answered {answer.status_code}", 1)
    said = clip(clean(answer.text), 200)
    certain = answer.status_code < 500
    return Delivery(
        False, f"answered {answer.status_code}: {said}", 1, certain=certain, again=answer.status_code not in _REFUSED
    )


def annotation(mark: Annotation) -> dict[str, object]:
    """`mark` as the API takes it; times are milliseconds since the epoch."""
    named = {"host": mark.host, "gpu": mark.gpu, "pool": mark.pool, "action": mark.action}
    tags = [TAG, mark.kind, *(f"{name}:{value}" for name, value in named.items() if value), _entry_tag(mark)]
    if mark.simulated:
        tags.append("simulated")
    made: dict[str, object] = {"time": mark.at_ms, "tags": tags, "text": clip(clean(mark.text), LONGEST_TEXT)}
    return made if mark.end_ms is None else made | {"timeEnd": mark.end_ms}


def _entry_tag(mark: Annotation) -> str:
    return f"entry:{mark.key}"


class StoreTarget:
    """A store that keeps marks; the same mark again changes nothing there."""

    name = "store"

    def __init__(self, store: KeepsAnnotations) -> None:
        self._store = store

    def put(self, mark: Annotation, doubtful: bool) -> Delivery:  # noqa: ARG002  # a second write changes nothing
        try:
            self._store.mark([mark])
        except StoreUnavailable as error:
            return Delivery(False, str(error), 1, certain=False)
        except StoreRejected as error:
            return Delivery(False, str(error), 1, again=False)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """Nothing: the store is somebody else's."""


log = structlog.get_logger()

AT_ONCE = 100
"""Most entries that one look takes for one place: a stop never waits for a long backlog (own choice)."""
LOOK_SECONDS = 2.0
"""Time between two looks into the journal."""


@dataclass(slots=True)
class _Follower:
    """One place, and how far it has come; `rest_until` is on the monotonic scale."""

    place: AnnotationTarget
    marker: SpanFold
    seq: int
    doubtful: bool = True
    failures: int = 0
    rest_until: float = 0.0


class Annotations:
    """Shows marks at `places`. `tick` is called from one thread."""

    def __init__(
        self,
        journal: Journal,
        places: Sequence[AnnotationTarget],
        clock: Clock,
        metrics: OwnMetrics,
        decision_of: DecisionOf,
        subject_of: SubjectOf,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._path = journal.path.with_name(f"{journal.path.name}.annotations")
        known = self._read()
        self._followers = [
            self._follower(place, SpanFold(decision_of, subject_of), known.get(place.name)) for place in places
        ]

    def _follower(self, place: AnnotationTarget, marker: SpanFold, known: tuple[int, str] | None) -> _Follower:
        """A place that is new, or whose file is of another journal, begins with what comes from now on."""
        seq = self._journal.head
        if known is not None and any(e.hash == known[1] for e in self._journal.entries(after=known[0] - 1, limit=1)):
            seq = known[0]
        marker.recall(entry for entry in self._journal.entries(kinds=MARKED) if entry.seq <= seq)
        return _Follower(place, marker, seq)

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): (int(seq), str(digest)) for name, (seq, digest) in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("annotations go on from now: their file cannot be read", path=str(self._path), error=str(error))
            return {}

    def tick(self) -> None:
        """Show what is new."""
        for follower in self._followers:
            if self._clock.monotonic() >= follower.rest_until:
                self._follow(follower)

    def _follow(self, follower: _Follower) -> None:
        head = self._journal.head
        for entry in self._journal.entries(after=follower.seq, kinds=MARKED, limit=AT_ONCE):
            if not self._show(follower, entry):
                return
            self._done(follower, entry)
        if not any(True for _ in self._journal.entries(after=follower.seq, kinds=MARKED, limit=1)):
            follower.seq = max(follower.seq, head)

    def _show(self, follower: _Follower, entry: Entry) -> bool:
        """Whether `entry` is done with: shown, nothing to show, or refused for good."""
        opened = dict(follower.marker.open)
        mark = follower.marker.mark(entry)
        if mark is None:
            return True
        sent = follower.place.put(mark, follower.doubtful)
        if not sent.ok and sent.again:
            follower.marker.open = opened
            follower.failures += 1
            follower.doubtful = follower.doubtful or not sent.certain
            follower.rest_until = self._clock.monotonic() + pause_seconds(follower.failures)
            self._count(follower, "retried")
            log.warning("an annotation waits", place=follower.place.name, reason=sent.detail)
            return False
        follower.doubtful, follower.failures = False, 0
        self._count(follower, "written" if sent.ok else "given_up")
        if not sent.ok:
            log.warning("an annotation was refused", place=follower.place.name, reason=sent.detail)
        return True

    def _done(self, follower: _Follower, entry: Entry) -> None:
        follower.seq = entry.seq
        known = self._read() | {follower.place.name: (entry.seq, entry.hash)}
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.write_text(json.dumps(known), encoding="utf-8")
        fresh.replace(self._path)

    def _count(self, follower: _Follower, outcome: str) -> None:
        self._metrics.count("tocsin_annotations_total", place=follower.place.name, outcome=outcome)

    def close(self) -> None:
        """Let go of connections."""
        for follower in self._followers:
            follower.place.close()
