"""Follows the journal and shows what is worth a mark, at each place once and in order.

How far each place has come is kept in a file beside the journal: a restart goes on from there. At a place that does not
answer, marks wait in the journal; no other place waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tocsin.actions.notifications.delivery import pause_seconds
from tocsin.domain.clock import Clock
from tocsin.journal.chain import Entry
from tocsin.journal.journal import Journal
from tocsin.runtime.annotation_spans import MARKED, DecisionOf, SpanFold, SubjectOf
from tocsin.runtime.annotation_targets import Place
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

AT_ONCE = 100
"""Most entries that one look takes for one place: a stop never waits for a long backlog (own choice)."""
LOOK_SECONDS = 2.0
"""Time between two looks into the journal."""


@dataclass(slots=True)
class _Follower:
    """One place, and how far it has come; `rest_until` is on the monotonic scale."""

    place: Place
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
        places: Sequence[Place],
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

    def _follower(self, place: Place, marker: SpanFold, known: tuple[int, str] | None) -> _Follower:
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
