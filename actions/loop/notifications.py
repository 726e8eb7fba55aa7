"""Notifications: they go out in every mode, until delivered, by each channel once as far as this side can know."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tocsin.actions.model.decision_json import dump_outcome
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.deliveries import Done
from tocsin.actions.model.ledger_entry import LedgerEntry
from tocsin.actions.notifications.channel import Delivery, Message, Notifier, Phase, message_of, urgency
from tocsin.actions.notifications.fanout import ChannelQueue, DeliveryJob, FanOut, Item, fan_out_of
from tocsin.actions.notifications.report import is_report
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, Outcome, OutcomeStatus, Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.phrase import word_in_chinese

UNWANTED = "no channel asks for it: recorded only"
OVER_WHILE_WITHHELD = "withheld, and its cause ended before it was told: recorded only"


class Notifications:
    """Hands waiting notifications to the channels that want them, and tells their ends.

    Each channel has its own order, rests and failures: a dead one delays the others by nothing but the patience of a
    step. What was told to whom is in the journal, so that a channel hears nothing twice while another is away. A
    notification that no channel took within the time box ends as failed, and is counted.
    """

    def __init__(self, decision_log: DecisionLog, notifier: Notifier | FanOut, clock: Clock) -> None:
        self._decision_log = decision_log
        self._fan = fan_out_of(notifier, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._delivered: list[str] = []
        self._ended_ms: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def deliver(self, now_ms: int, live: Collection[str] | None = None) -> tuple[str, ...]:
        """Ids of the notifications that are done with since the last step, delivered to one channel at least.

        `live` are the ids of the findings that hold and of the incidents that are open now; without it nothing is taken
        for ended.
        """
        self._close_over(now_ms, live)
        for queue in self._fan.queues:
            if self._fan.idle(queue):
                job = self._job(queue, now_ms, live)
                if job:
                    self._fan.begin(queue, partial(queue.run, job, self))
        self._fan.settle()
        self._close_unwanted()
        with self._lock:
            delivered, self._delivered = tuple(self._delivered), []
        return delivered

    def close(self) -> None:
        """Send nothing any more; what waits goes out after the next start."""
        self._fan.close()

    def _due(self) -> list[LedgerEntry]:
        waiting = [r for r in self._decision_log.records() if r.notice and r.waiting]
        told = (r for r in waiting if r.overall is not Ruling.DENY and not r.silenced)
        return sorted(told, key=lambda r: urgency(r.decision))

    def _job(self, queue: ChannelQueue, now_ms: int, live: Collection[str] | None) -> DeliveryJob:
        deliveries = self._decision_log.ledger.deliveries
        job = DeliveryJob(reference=partial(self._reference, queue.name))
        with self._decision_log.lock:
            for record in self._due():
                decision = record.decision
                if queue.wants(decision) and queue.name not in deliveries.done(decision.key):
                    job.firing.append(decision)
            if queue.desk is None:
                self._keep_to_budget(queue, job, now_ms)
                self._sum_up(job)
            if queue.reports_end:
                opened = {key: tuple(about.values()) for key, about in deliveries.open.get(queue.name, {}).items()}
                self._follow(queue, opened, job, now_ms, live)
        return job

    def _reference(self, channel: str, message: str) -> str:
        with self._decision_log.lock:
            return self._decision_log.ledger.deliveries.reference(channel, message)

    def _keep_to_budget(self, queue: ChannelQueue, job: DeliveryJob, now_ms: int) -> None:
        """Gather what would page beyond the receiver's budget; hard faults page always, and use it up first."""
        if self._fan.pages is None:
            return
        paged = self._decision_log.ledger.deliveries.paged(queue.name, now_ms)
        hard = sum(one.hard_fault and one.alert_level is AlertLevel.PAGE for one in job.firing)
        left = max(0, self._fan.pages - len(paged.pages) - hard)
        others = [one for one in job.firing if one.alert_level is AlertLevel.PAGE and not one.hard_fault]
        beyond = others[left:]
        if beyond:
            keys = {one.key for one in beyond}
            job.firing = [one for one in job.firing if one.key not in keys]
            job.gathered = replace(message_of(beyond, Phase.FIRING), gathered=True, lowered=bool(paged.summaries))

    def _sum_up(self, job: DeliveryJob) -> None:
        """What silences have held back, and still stands when they end, is one message."""
        records = self._decision_log.ledger.records
        late = [one for one in job.firing if one.key in records and records[one.key].withheld]
        if len(late) > 1:
            keys = {one.key for one in late}
            job.firing = [one for one in job.firing if one.key not in keys]
            job.late = late

    def _follow(
        self,
        queue: ChannelQueue,
        opened: Mapping[str, tuple[Decision, ...]],
        job: DeliveryJob,
        now_ms: int,
        live: Collection[str] | None,
    ) -> None:
        """Sort what the receiver of `queue` was told into what has ended and what it must be reminded of."""
        for key, decisions in opened.items():
            if live is not None and all(self._over(decision, live, now_ms) for decision in decisions):
                ended_ms = self._ended_ms.setdefault(f"{queue.name}|{key}", now_ms)
                job.resolved.append(self._as_sent(queue, key, decisions, Phase.RESOLVED, ended_ms))
            else:
                self._ended_ms.pop(f"{queue.name}|{key}", None)
                if queue.stale(key):
                    job.reminders.append(self._as_sent(queue, key, decisions, Phase.FIRING))

    def _as_sent(
        self, queue: ChannelQueue, key: str, decisions: Sequence[Decision], phase: Phase, at_ms: int | None = None
    ) -> Message:
        """The message as it was told, under the key and with the level that it had then."""
        deliveries = self._decision_log.ledger.deliveries
        return replace(
            message_of(decisions, phase, at_ms),
            key=key,
            gathered=deliveries.is_gathered(queue.name, key),
            lowered=deliveries.is_lowered(queue.name, key),
            reference=deliveries.reference(queue.name, key),
        )

    def _over(self, decision: Decision, live: Collection[str], now_ms: int) -> bool:
        """Whether what the notification is about has ended: its root cause, the breaker's trip, else its time box."""
        if decision.findings:
            return decision.findings[0] not in live
        breaker = self._decision_log.ledger.controls().breaker
        if decision.rule == "breaker":
            return breaker is None or not decision.key.endswith(f"|{breaker.at_ms}")
        return now_ms >= self._decision_log.controls().expiry_ms(decision)

    def _close_over(self, now_ms: int, live: Collection[str] | None) -> None:
        """Conclude what silences held back and what is over before anybody was told."""
        if live is None:
            return
        with self._decision_log.lock:
            withheld = [r for r in self._decision_log.records() if r.notice and r.waiting and r.withheld]
            for record in withheld:
                if self._over(record.decision, live, now_ms):
                    told = {"journal": Done(True, OVER_WHILE_WITHHELD, 0)}
                    self._conclude(record.decision, told, channel="journal", ok=True)

    def _close_unwanted(self) -> None:
        with self._decision_log.lock:
            for record in self._due():
                if not any(queue.wants(record.decision) for queue in self._fan.queues):
                    done = Done(True, UNWANTED, 1)
                    self._conclude(record.decision, {"journal": done}, channel="journal", ok=True)

    def ended(self, queue: ChannelQueue, items: Sequence[Item], delivery: Delivery) -> None:
        """A queue is done with messages, well or for good without success."""
        for item in items:
            if item.ends:
                self._count_item(queue, item, "resolved" if delivery.ok else "unresolved")
                self._end(queue, item, delivery)
            elif not item.again:
                several = "summarised" if item.message.summary else "delivered"
                self._count_item(queue, item, several if delivery.ok else "failed")
                if delivery.partial:
                    self._count_item(queue, item, "partial")
                for decision in item.message.decisions:
                    self._note(queue, decision, item.message, delivery)

    def put_off(self, queue: ChannelQueue, items: Sequence[Item], delivery: Delivery) -> None:
        """A try failed; what is past its time box is given up."""
        self._fan.count(queue.name, "retried")
        with self._lock:
            self.counts["notification_tries_failed"] += 1
        now_ms = self._clock.now_ms()
        for item in items:
            over = [d for d in item.message.decisions if now_ms >= self._limit_ms(d) and not item.again]
            if item.ends:
                limit_ms = max(d.expires_ms - d.at_ms for d in item.message.decisions)
                if now_ms >= item.message.at_ms + limit_ms:
                    self._count_item(queue, item, "unresolved")
                    self._end(queue, item, delivery)
                continue
            for decision in over:
                self._fan.count(queue.name, "failed")
                self._note(queue, decision, item.message, delivery)

    def _limit_ms(self, decision: Decision) -> int:
        """When telling is given up: its time box, counted from the end of the silence that held it back."""
        record = self._decision_log.ledger.records.get(decision.key)
        late_ms = record.updated_ms - decision.at_ms if record is not None and record.withheld else 0
        return decision.expires_ms + late_ms

    def _count_item(self, queue: ChannelQueue, item: Item, outcome: str) -> None:
        self._fan.count(queue.name, outcome, len(item.message.decisions))

    def _end(self, queue: ChannelQueue, item: Item, delivery: Delivery) -> None:
        first = item.message.first
        with self._decision_log.lock:
            self._decision_log.note(
                EntryKind.NOTIFICATION,
                {"channel": queue.name, "ended": list(item.ends), "ok": delivery.ok, "detail": delivery.detail}
                | {"decision": first.id, "key": first.key},
                simulated=item.message.simulated,
            )
            for key in item.ends:
                self._ended_ms.pop(f"{queue.name}|{key}", None)

    def _note(self, queue: ChannelQueue, decision: Decision, message: Message, delivery: Delivery) -> None:
        """Write down that `queue` is done with `decision`; the last queue that wants it concludes it."""
        with self._decision_log.lock:
            attempts = queue.tries.pop(decision.key, delivery.attempts)
            payload: dict[str, Any] = {"channel": queue.name, "ok": delivery.ok, "level": message.level}
            if queue.desk is not None:
                payload["ticket"] = True
            elif delivery.ok and message.level is AlertLevel.PAGE:
                payload["page"] = "summary" if message.gathered else "own"
                payload["page_key"] = message.key
            if delivery.ok and queue.reports_end and not is_report(decision):
                payload["message"] = message.key
                if delivery.reference:
                    payload["reference"] = delivery.reference
                if delivery.called:
                    payload["called"] = delivery.called
                if message.gathered:
                    payload["gathered"] = True
            done = {**self._decision_log.ledger.deliveries.done(decision.key)}
            done[queue.name] = Done(delivery.ok, delivery.detail, attempts)
            record = self._decision_log.ledger.records.get(decision.key)
            waiting = record is not None and record.waiting
            if waiting and all(each.name in done for each in self._fan.queues if each.wants(decision)):
                self._conclude(decision, done, **payload)
            else:
                details: dict[str, Any] = {"detail": delivery.detail, "attempts": attempts}
                self._decision_log.about(EntryKind.NOTIFICATION, decision, **payload, **details)

    def _conclude(self, decision: Decision, done: Mapping[str, Done], **payload: Any) -> None:
        good = any(each.ok for each in done.values())
        status = OutcomeStatus.SUCCEEDED if good else OutcomeStatus.FAILED
        detail = next(iter(done.values())).detail
        if len(done) > 1:
            detail = "; ".join(f"{name}: {each.detail}" for name, each in sorted(done.items()))
        attempts = sum(each.attempts for each in done.values())
        outcome = Outcome(decision.id, status, ",".join(sorted(done)), self._clock.now_ms(), detail, attempts)
        if (chinese := word_in_chinese(detail)) != detail:
            outcome = replace(outcome, detail_zh=chinese)
        self._decision_log.about(EntryKind.NOTIFICATION, decision, outcome=dump_outcome(outcome), **payload)
        with self._lock:
            if good:
                self._delivered.append(decision.id)
            else:
                self.counts["notifications_lost"] += 1
