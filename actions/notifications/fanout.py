"""All channels together: a queue for each, with a thread of its own while it sends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from tocsin.actions.notifications.channel import (
    Channel,
    ChannelDependencies,
    Delivery,
    EvidenceMaker,
    Links,
    Message,
    Notifier,
    Phase,
    TicketDesk,
    build_channel,
    message_of,
    urgency,
)
from tocsin.actions.notifications.delivery import pause_seconds
from tocsin.actions.notifications.report import is_report, takes_report
from tocsin.actions.notifications.webhook import WebhookNotifier, WebhookSender
from tocsin.config.notify import ChannelSettings
from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision
from tocsin.domain.finding import SubjectKind
from tocsin.domain.words import clean, clip
from tocsin.telemetry.metrics import OwnMetrics

PATIENCE_SECONDS = 0.5
"""How long a step waits for channels that are sending: longer than a live one takes, and a dead one holds up nothing
for more. Own choice."""
WINDOW_SECONDS = 60.0
"""Span over which `per_minute` of a channel counts."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One message, and the keys of the earlier messages of which it tells the end."""

    message: Message
    ends: tuple[str, ...] = ()
    again: bool = False
    """Whether the receiver knows it and is only reminded."""


def _none_known(_key: str) -> str:
    return ""


@dataclass
class DeliveryJob:
    """What a channel is to send in a step: new notifications, ends, and reminders of what still holds.

    `reference` gives the receiver's name for an open message by its key, as it is known when that is asked for."""

    firing: list[Decision] = field(default_factory=list)
    resolved: list[Message] = field(default_factory=list)
    reminders: list[Message] = field(default_factory=list)
    gathered: Message | None = None
    """What is beyond the receiver's budget of pages, as one."""
    late: list[Decision] = field(default_factory=list)
    """What silences have held back, to be told in one."""
    reference: Callable[[str], str] = _none_known

    def __bool__(self) -> bool:
        return bool(self.firing or self.resolved or self.reminders or self.gathered or self.late)


class DeliveryListener(Protocol):
    """Writes down what became of messages; called from the thread that sends."""

    def ended(self, queue: ChannelQueue, items: Sequence[Item], delivery: Delivery) -> None:
        """Delivered, or refused for good."""

    def put_off(self, queue: ChannelQueue, items: Sequence[Item], delivery: Delivery) -> None:
        """To be tried again."""


class JournalNotifier:
    """No receiver is set: the journal, and what shows it, is where people read."""

    name = "journal"

    def notify(self, decision: Decision) -> Delivery:
        return Delivery(True, "no webhook.url is set: recorded only", 1)


class NotifierChannel:
    """A notifier as a channel."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, notifier: Notifier) -> None:
        self.name = notifier.name
        self._notifier = notifier

    def send(self, messages: Sequence[Message]) -> Delivery:
        (message,) = messages
        delivery = self._notifier.notify(replace(message.first, level=message.level))
        for decision in message.decisions[1:]:
            # One page for all of them: a program that wakes people by the level wakes them once.
            lower = min(decision.alert_level, AlertLevel.WARNING, key=lambda level: level.rank)
            delivery = self._notifier.notify(replace(decision, level=lower)) if delivery.ok else delivery
        return delivery

    def close(self) -> None:
        """Whoever made the notifier closes it."""


def wants(settings: ChannelSettings, decision: Decision) -> bool:
    """Whether `decision` is for the channel, by severity, pool, rule and world.

    What is of no single pool, such as a host with GPUs of several, is for every channel. A page needs a person now,
    whatever the severity of the finding that it began with: `min_severity` does not keep it away. Nor does it keep away
    the morning report, which goes to every channel but those that call people.
    """
    if decision.simulated and not settings.simulated:
        return False
    if is_report(decision):
        return takes_report(settings) and _names_rule(settings, decision)
    if decision.severity.rank < settings.min_severity.rank and decision.alert_level is not AlertLevel.PAGE:
        return False
    if decision.alert_level.rank < settings.min_level.rank:
        return False
    if settings.ticket is not None and not settings.ticket.takes(decision.category):
        return False
    subject = decision.subject
    pool = subject.name if subject.kind is SubjectKind.POOL else subject.pool or decision.parameters.context.pool
    if settings.pools and pool and pool not in settings.pools and subject.kind is not SubjectKind.FLEET:
        return False
    return _names_rule(settings, decision)


def _names_rule(settings: ChannelSettings, decision: Decision) -> bool:
    return not settings.rules or any(fnmatchcase(decision.rule, pattern) for pattern in settings.rules)


class ChannelQueue:
    """Sends to one channel, the gravest first.

    After a failure the rest waits for a later step, and the receiver is left alone for a growing while, or for as long
    as it asks: a dead one costs one try a step. Of what goes beyond the minute's bound the gravest go by themselves and
    the others as one message; tickets beyond it wait. Without `settings` everything goes, unbounded. `desk` is the
    channel where its receiver keeps tickets.
    """

    def __init__(self, channel: Channel, clock: Clock, settings: ChannelSettings | None = None) -> None:
        self.channel = channel
        self.name = channel.name
        self.desk = channel if isinstance(channel, TicketDesk) else None
        self._clock = clock
        self._settings = settings
        resolved = settings.resolved if settings is not None else None
        self.reports_end = channel.keyed if resolved is None else resolved
        self.tries: Counter[str] = Counter()
        self._failures = 0
        self._rest_until = 0.0
        self._sent: deque[float] = deque()
        self._held: dict[str, float] = {}
        self._closed = False

    def wants(self, decision: Decision) -> bool:
        return self._settings is None or wants(self._settings, decision)

    def stale(self, key: str) -> bool:
        """Whether the receiver must be reminded of message `key`."""
        every = self.channel.refresh_seconds
        return every is not None and self._clock.monotonic() >= self._held.get(key, float("-inf")) + every

    def run(self, job: DeliveryJob, listener: DeliveryListener) -> None:
        for items in self._requests(job):
            if self._closed or self._clock.monotonic() < self._rest_until:
                return
            self._sent.append(self._clock.monotonic())
            self.tries.update(decision.key for item in items for decision in item.message.decisions if not item.again)
            delivery = self._send(items)
            if not delivery.ok and delivery.again:
                self._failures += 1
                self._rest_until = self._clock.monotonic() + max(pause_seconds(self._failures), delivery.rest_seconds)
                listener.put_off(self, items, delivery)
                return
            self._failures = 0 if delivery.ok else self._failures
            self._remember(items)
            listener.ended(self, items, delivery)

    def close(self) -> None:
        """Send nothing any more; safe to repeat."""
        self._closed = True
        self.channel.close()

    def _send(self, items: Sequence[Item]) -> Delivery:
        try:
            return self.channel.send([item.message for item in items])
        except Exception as error:  # noqa: BLE001 a mistake in one channel must hold up neither the others nor the loop
            return Delivery(False, f"unexpected {type(error).__name__}: {clip(clean(str(error)), 200)}", 1, again=False)

    def _remember(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.ends:
                for key in item.ends:
                    self._held.pop(key, None)
            elif self.channel.refresh_seconds is not None:
                self._held[item.message.key] = self._clock.monotonic()

    def _left(self) -> int | None:
        """Messages that may go now; None: any number."""
        if self._settings is None:
            return None
        while self._sent and self._sent[0] <= self._clock.monotonic() - WINDOW_SECONDS:
            self._sent.popleft()
        return max(0, self._settings.per_minute - len(self._sent))

    def _requests(self, job: DeliveryJob) -> Iterator[list[Item]]:
        if self.desk is not None:
            yield from self._about_tickets(self.desk, job)
            return
        if self.channel.batch > 1:
            ends = [Item(message, (message.key,)) for message in job.resolved]
            fires = [Item(message_of([decision], Phase.FIRING)) for decision in (*job.firing, *job.late)]
            holds = [Item(message, again=True) for message in job.reminders]
            fires += [Item(job.gathered)] if job.gathered else []
            yield from _chunks([*ends, *fires], self.channel.batch, self._left())
            yield from _chunks(holds, self.channel.batch, None)
            return
        if job.gathered is not None and self._left() != 0:
            yield [Item(job.gathered)]
        if job.late and self._left() != 0:
            yield [Item(message_of(job.late, Phase.FIRING))]
        for group in portions(sorted(job.firing, key=urgency), self._left()):
            yield [Item(message_of(group, Phase.FIRING))]
        left = self._left()
        if self.channel.keyed:
            yield from ([Item(message, (message.key,))] for message in job.resolved[:left])
            return
        for some in portions(job.resolved, left):
            every = [decision for each in some for decision in each.decisions]
            at_ms = max(each.at_ms for each in some)
            message = some[0] if len(some) == 1 else message_of(every, Phase.RESOLVED, at_ms)
            yield [Item(message, tuple(each.key for each in some))]

    def _about_tickets(self, desk: TicketDesk, job: DeliveryJob) -> Iterator[list[Item]]:
        for decision in sorted((*job.firing, *job.late), key=urgency):
            if self._left() == 0:
                return
            key = f"ticket|{desk.ticket_of(decision)}"
            # Asked for only now: the message before may have opened the same ticket.
            message = replace(message_of([decision], Phase.FIRING), key=key, reference=job.reference(key))
            yield [Item(message)]
        yield from ([Item(message, (message.key,))] for message in job.resolved[: self._left()])


def portions(things: Sequence[T], left: int | None) -> Iterator[Sequence[T]]:
    """`things` one by one as far as `left` goes; where they are more, the last portion holds all the rest."""
    if left is None or len(things) <= left:
        yield from ([thing] for thing in things)
    elif left > 0:
        yield from ([thing] for thing in things[: left - 1])
        yield things[left - 1 :]


def _chunks(items: Sequence[Item], size: int, most: int | None) -> Iterator[list[Item]]:
    starts = range(0, len(items), size)
    for start in starts if most is None else starts[:most]:
        yield list(items[start : start + size])


class FanOut:
    """Runs each queue, one job at a time; a queue that is still sending is passed by.

    Without `threads` a queue runs in the thread that asks, as tests and a single notifier want it. `pages` is how many
    pages a receiver may get in 12 hours, None: any number.
    """

    def __init__(
        self,
        queues: Sequence[ChannelQueue],
        metrics: OwnMetrics | None = None,
        *,
        threads: bool = True,
        patience: float | None = None,
        pages: int | None = None,
    ) -> None:
        self.queues = tuple(queues)
        self.pages = pages
        self._metrics = metrics
        self._patience = PATIENCE_SECONDS if patience is None else patience
        self._pool = ThreadPoolExecutor(len(self.queues), thread_name_prefix="notify") if threads and queues else None
        self._running: dict[str, Future[None]] = {}
        self._closed = False

    def idle(self, queue: ChannelQueue) -> bool:
        """Whether `queue` may be given a job; raises what its last job raised, such as a journal that takes nothing."""
        running = self._running.get(queue.name)
        if running is None:
            return True
        if not running.done():
            return False
        del self._running[queue.name]
        running.result()
        return True

    def begin(self, queue: ChannelQueue, job: Callable[[], None]) -> None:
        """Let `queue` do `job`, beside the others where there are threads."""
        if self._pool is None:
            job()
        elif not self._closed:
            self._running[queue.name] = self._pool.submit(job)

    def settle(self) -> None:
        """Wait, for no longer than patience lasts, for what was begun."""
        wait(self._running.values(), timeout=self._patience)

    def count(self, channel: str, outcome: str, amount: int = 1) -> None:
        if self._metrics is not None:
            self._metrics.count("tocsin_channel_deliveries_total", amount, channel=channel, outcome=outcome)

    def close(self) -> None:
        """Send nothing any more and wait for what is under way, a time-out at most; safe to repeat."""
        self._closed = True
        for queue in self.queues:
            queue.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def fan_out_of(notifier: Notifier | FanOut, clock: Clock) -> FanOut:
    """`notifier` as it is, or the one queue that a single notifier makes."""
    if isinstance(notifier, FanOut):
        return notifier
    return FanOut([ChannelQueue(NotifierChannel(notifier), clock)], threads=False)


def build_notifier(
    settings: Settings,
    sender: WebhookSender | None,
    clock: Clock,
    metrics: OwnMetrics | None = None,
    evidence: EvidenceMaker | None = None,
) -> FanOut:
    """The webhook, where `sender` is one, and the channels of the settings; with neither, the journal alone."""
    links = Links(settings.notify.runbooks_url, settings.notify.console_url)
    queues = [ChannelQueue(NotifierChannel(WebhookNotifier(sender)), clock)] if sender is not None else []
    for channel in settings.notify.channels:
        made = build_channel(ChannelDependencies(channel, links, clock, settings.api.slack.key, evidence))
        queues.append(ChannelQueue(made, clock, channel))
    if not queues:
        journal = [ChannelQueue(NotifierChannel(JournalNotifier()), clock)]
        return FanOut(journal, metrics, threads=False, pages=settings.notify.pages_per_12h)
    return FanOut(queues, metrics, pages=settings.notify.pages_per_12h)
