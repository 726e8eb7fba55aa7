"""Notifications: they go out in every mode, until delivered, once as far as this side can know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tocsin.actions.book import Book
from tocsin.actions.codec import dump_outcome
from tocsin.actions.notifier import Notifier
from tocsin.actions.record import Record
from tocsin.actions.sender import Delivery, pause_seconds
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Outcome, OutcomeStatus, Ruling
from tocsin.journal.kinds import EntryKind


class Notices:
    """Delivers waiting notifications, the gravest first.

    After a failure the rest of them wait for the next step, and the receiver is left alone for a growing while: a dead
    receiver costs one try a step. One that is never reached within the time box ends as failed, and is counted.
    """

    def __init__(self, book: Book, notifier: Notifier, clock: Clock) -> None:
        self._book = book
        self._notifier = notifier
        self._clock = clock
        self._failures = 0
        self._rest_until = 0.0
        self._tries: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def deliver(self, now_ms: int) -> tuple[str, ...]:
        """Ids of what was delivered in this step."""
        delivered: list[str] = []
        for record in self._due():
            if self._clock.monotonic() < self._rest_until:
                break
            delivery = self._try(record)
            if delivery.ok:
                delivered.append(record.decision.id)
            elif delivery.again:
                self._later(record, delivery, now_ms)
        return tuple(delivered)

    def _due(self) -> list[Record]:
        waiting = [r for r in self._book.records() if r.notice and r.waiting]
        due = [r for r in waiting if r.overall is not Ruling.DENY]
        return sorted(due, key=lambda r: (-r.decision.severity.rank, r.decision.at_ms, r.decision.key))

    def _try(self, record: Record) -> Delivery:
        key = record.decision.key
        delivery = self._notifier.notify(record.decision)
        self._tries[key] += delivery.attempts
        delivery = replace(delivery, attempts=self._tries[key])
        if delivery.ok:
            self._failures = 0
            self._close(record, delivery, OutcomeStatus.SUCCEEDED)
        elif not delivery.again:
            self._close(record, delivery, OutcomeStatus.FAILED)
        return delivery

    def _later(self, record: Record, delivery: Delivery, now_ms: int) -> None:
        self._failures += 1
        self._rest_until = self._clock.monotonic() + pause_seconds(self._failures)
        self.counts["notification_tries_failed"] += 1
        if now_ms >= record.decision.expires_ms:
            self._close(record, delivery, OutcomeStatus.FAILED)

    def _close(self, record: Record, delivery: Delivery, status: OutcomeStatus) -> None:
        decision = record.decision
        self._tries.pop(decision.key, None)
        if status is OutcomeStatus.FAILED:
            self.counts["notifications_lost"] += 1
        now_ms = self._clock.now_ms()
        outcome = Outcome(decision.id, status, self._notifier.name, now_ms, delivery.detail, delivery.attempts)
        self._book.about(
            EntryKind.NOTIFICATION, decision, channel=self._notifier.name, outcome=dump_outcome(outcome), ok=delivery.ok
        )
