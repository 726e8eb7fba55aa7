"""Shows entries of the journal as annotations above charts, at each target once and in order.

Executed actions, incidents, pauses, the breaker and models that come into service are annotated. A beginning is an
annotation at its instant; its end is one over the whole span. Open spans are a fold of the journal, so that a
restart loses none. How far each target has come is in a file beside the journal: a restart goes on from there. At a
target that does not answer, annotations wait in the journal; no other target waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx2
import structlog

from tocsin.actions.notifications.channel import Delivery
from tocsin.actions.notifications.delivery import pause_seconds
from tocsin.config.grafana import GrafanaSettings
from tocsin.domain.annotation import Annotation
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import Unavailable
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.words import clean, clip
from tocsin.http_client import http_client
from tocsin.journal.port import LiveJournal
from tocsin.store.annotations import KeepsAnnotations
from tocsin.store.port import StoreRejected, StoreUnavailable
from tocsin.telemetry.metrics import OwnMetrics

ANNOTATED = frozenset(
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
"""Kinds of entries that become annotations."""

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
class AnnotationMaker:
    """Turns entries, in the order of the journal, into annotations."""

    decision_of: DecisionOf
    subject_of: SubjectOf
    open: dict[str, _Open] = field(default_factory=dict)

    def annotation_of(self, entry: Entry) -> Annotation | None:
        """The annotation of `entry`; None where there is nothing to show."""
        kind = EntryKind(entry.kind)
        if kind in (EntryKind.EXECUTION_STARTED, EntryKind.OUTCOME):
            return self._of_decision(entry)
        if kind in (EntryKind.INCIDENT_OPENED, EntryKind.PAUSE, EntryKind.BREAKER_TRIPPED):
            return self._begins(entry, kind)
        if kind in (EntryKind.INCIDENT_CLOSED, EntryKind.RESUME, EntryKind.BREAKER_RESET):
            return self._ends(entry, kind)
        return _annotation(entry, f"Model {entry.payload.get('version', '')} came into service.")

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
        return _annotation(entry, text.strip(), None if decision is None else decision.subject, action=action)

    def _begins(self, entry: Entry, kind: EntryKind) -> Annotation:
        name, text, subject = str(kind), _beginning(entry, kind), None
        if kind is EntryKind.INCIDENT_OPENED:
            name = str(entry.payload.get("id", ""))
            subject = self.subject_of(name)
        self.open[name] = _Open(entry.at_ms, text, subject, entry.simulated)
        return _annotation(entry, text, subject)

    def _ends(self, entry: Entry, kind: EntryKind) -> Annotation | None:
        name = {EntryKind.RESUME: str(EntryKind.PAUSE), EntryKind.BREAKER_RESET: str(EntryKind.BREAKER_TRIPPED)}.get(
            kind, str(entry.payload.get("id", ""))
        )
        begun = self.open.pop(name, None)
        if begun is None:
            return None
        text = f"{begun.text} Ended by {entry.actor}."
        return _annotation(entry, text, begun.subject, begun=begun)


def _beginning(entry: Entry, kind: EntryKind) -> str:
    if kind is EntryKind.INCIDENT_OPENED:
        return str(entry.payload.get("sentence", ""))
    what = "Actions paused" if kind is EntryKind.PAUSE else "Breaker tripped"
    return f"{what} by {entry.actor}: {entry.payload.get('reason', '')}".rstrip(".") + "."


def _annotation(
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


PATH = "/api/annotations"
TAG = "tocsin"
"""The tag that the dashboards filter by."""
LONGEST_TEXT = 1_000
"""Characters of one annotation (own choice): a tooltip that is longer is not read."""
_REFUSED = frozenset({400, 413, 422})
"""Answers that the same annotation will get again; a token or an address at fault is another matter."""


class AnnotationTarget(Protocol):
    """One receiver of annotations; expected failures come back as a delivery."""

    name: str

    def put(self, annotation: Annotation, doubtful: bool) -> Delivery:
        """Show `annotation`, one try; `doubtful` says that an earlier try may have arrived."""

    def close(self) -> None:
        """Let go of connections; safe to repeat."""


class GrafanaTarget:
    """Posts annotations of the whole organisation, which every dashboard can show.

    Grafana's API has no key for an annotation: the same one posted twice is two. Where it is not certain whether a post
    arrived, the tag that names the entry is looked for first. API: https://grafana.com/docs/grafana/latest/developers/
    http_api/annotations/ (release 8 to 13).
    """

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

    def put(self, annotation: Annotation, doubtful: bool) -> Delivery:
        if annotation.simulated and not self._settings.simulated:
            return Delivery(True, "simulated", 0)
        try:
            if doubtful and self._has(annotation):
                return Delivery(True, "was there", 1)
            answer = self._client.post(PATH, json=grafana_json(annotation))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Delivery(False, f"cannot connect: {type(error).__name__}", 1)
        except httpx2.HTTPError as error:
            return Delivery(False, f"no answer: {type(error).__name__}", 1, certain=False)
        return _judged(answer)

    def _has(self, annotation: Annotation) -> bool:
        """Whether the annotation is there. Raises HTTPError where that cannot be told."""
        span = {"from": annotation.at_ms, "to": (annotation.end_ms or annotation.at_ms) + 1, "limit": 1}
        answer = self._client.get(PATH, params={**span, "tags": [TAG, _entry_tag(annotation)]})
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


def grafana_json(annotation: Annotation) -> dict[str, object]:
    """`annotation` as the API takes it; times are milliseconds since the epoch."""
    named = {"host": annotation.host, "gpu": annotation.gpu, "pool": annotation.pool, "action": annotation.action}
    tags = [
        TAG,
        annotation.kind,
        *(f"{name}:{value}" for name, value in named.items() if value),
        _entry_tag(annotation),
    ]
    if annotation.simulated:
        tags.append("simulated")
    made: dict[str, object] = {
        "time": annotation.at_ms,
        "tags": tags,
        "text": clip(clean(annotation.text), LONGEST_TEXT),
    }
    return made if annotation.end_ms is None else made | {"timeEnd": annotation.end_ms}


def _entry_tag(annotation: Annotation) -> str:
    return f"entry:{annotation.key}"


class StoreTarget:
    """A store that keeps annotations; the same mark again changes nothing there."""

    name = "store"

    def __init__(self, store: KeepsAnnotations) -> None:
        self._store = store

    def put(self, annotation: Annotation, doubtful: bool) -> Delivery:  # noqa: ARG002  # a second write changes nothing
        try:
            self._store.mark([annotation])
        except StoreUnavailable as error:
            return Delivery(False, str(error), 1, certain=False)
        except StoreRejected as error:
            return Delivery(False, str(error), 1, again=False)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """Nothing: the store is somebody else's."""


log = structlog.get_logger()

_NOTE = "annotations"
"""Name of their state beside the journal."""
AT_ONCE = 100
"""Most entries that one look takes for one target: a stop never waits for a long backlog (own choice)."""
ANNOTATE_SECONDS = 2.0
"""Time between two looks into the journal."""


@dataclass(slots=True)
class _Follower:
    """One target, and how far it has come; `rest_until` is on the monotonic scale."""

    target: AnnotationTarget
    maker: AnnotationMaker
    seq: int
    doubtful: bool = True
    failures: int = 0
    rest_until: float = 0.0


class Annotations:
    """Shows annotations at `targets`. `tick` is called from one thread."""

    def __init__(
        self,
        journal: LiveJournal,
        targets: Sequence[AnnotationTarget],
        clock: Clock,
        metrics: OwnMetrics,
        decision_of: DecisionOf,
        subject_of: SubjectOf,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        known = self._read()
        self._followers = [
            self._follower(target, AnnotationMaker(decision_of, subject_of), known.get(target.name))
            for target in targets
        ]

    def _follower(self, target: AnnotationTarget, maker: AnnotationMaker, known: tuple[int, str] | None) -> _Follower:
        """A target that is new, or whose file is of another journal, begins with what comes from now on."""
        seq = self._journal.head
        if known is not None and any(e.hash == known[1] for e in self._journal.entries(after=known[0] - 1, limit=1)):
            seq = known[0]
        # The spans that were open are taken up again.
        for entry in self._journal.entries(kinds=ANNOTATED):
            if entry.seq <= seq:
                maker.annotation_of(entry)
        return _Follower(target, maker, seq)

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            found = json.loads(self._journal.read_note(_NOTE) or "{}")
            return {str(name): (int(seq), str(digest)) for name, (seq, digest) in found.items()}
        except (OSError, Unavailable, ValueError, TypeError, AttributeError) as error:
            log.warning(
                "state of annotations cannot be read, starting from now",
                journal=self._journal.name,
                error=str(error),
            )
            return {}

    def tick(self) -> None:
        """Show what is new."""
        for follower in self._followers:
            if self._clock.monotonic() >= follower.rest_until:
                self._follow(follower)

    def _follow(self, follower: _Follower) -> None:
        head = self._journal.head
        for entry in self._journal.entries(after=follower.seq, kinds=ANNOTATED, limit=AT_ONCE):
            if not self._show(follower, entry):
                return
            self._done(follower, entry)
        if not any(True for _ in self._journal.entries(after=follower.seq, kinds=ANNOTATED, limit=1)):
            follower.seq = max(follower.seq, head)

    def _show(self, follower: _Follower, entry: Entry) -> bool:
        """Whether `entry` is done with: shown, nothing to show, or refused for good."""
        opened = dict(follower.maker.open)
        annotation = follower.maker.annotation_of(entry)
        if annotation is None:
            return True
        sent = follower.target.put(annotation, follower.doubtful)
        if not sent.ok and sent.again:
            follower.maker.open = opened
            follower.failures += 1
            follower.doubtful = follower.doubtful or not sent.certain
            follower.rest_until = self._clock.monotonic() + pause_seconds(follower.failures)
            self._count(follower, "retried")
            log.warning("annotation not written, will be retried", place=follower.target.name, reason=sent.detail)
            return False
        follower.doubtful, follower.failures = False, 0
        self._count(follower, "written" if sent.ok else "given_up")
        if not sent.ok:
            log.warning("annotation refused", place=follower.target.name, reason=sent.detail)
        return True

    def _done(self, follower: _Follower, entry: Entry) -> None:
        follower.seq = entry.seq
        known = self._read() | {follower.target.name: (entry.seq, entry.hash)}
        self._journal.keep_note(_NOTE, json.dumps(known))

    def _count(self, follower: _Follower, outcome: str) -> None:
        self._metrics.count("tocsin_annotations_total", place=follower.target.name, outcome=outcome)

    def close(self) -> None:
        for follower in self._followers:
            follower.target.close()
