"""The way to one channel: its order, its rests, and how much goes in a minute."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from tocsin.actions.notifications.notifier import Notifier
from tocsin.actions.notifications.protocol import Channel, Message, Phase, message_of, urgency
from tocsin.actions.notifications.sender import Delivery, pause_seconds
from tocsin.actions.notifications.text import clean, clip
from tocsin.config.notify import ChannelSettings
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision
from tocsin.domain.subject import SubjectKind

WINDOW_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One message, and the keys of the earlier messages of which it tells the end."""

    message: Message
    ends: tuple[str, ...] = ()
    again: bool = False
    """Whether the receiver knows it and is only reminded."""


@dataclass
class DeliveryJob:
    """What a channel is to be told in a step: new notifications, ends, and reminders of what still is."""

    fires: list[Decision] = field(default_factory=list)
    ends: list[Message] = field(default_factory=list)
    holds: list[Message] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.fires or self.ends or self.holds)


class Clerk(Protocol):
    """Writes down what became of messages; called from the thread that sends."""

    def ended(self, line: Line, items: Sequence[Item], delivery: Delivery) -> None:
        """Delivered, or refused for good."""
        ...

    def put_off(self, line: Line, items: Sequence[Item], delivery: Delivery) -> None:
        """To be tried again."""
        ...


class PlainChannel:
    """A notifier as a channel."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, notifier: Notifier) -> None:
        self.name = notifier.name
        self._notifier = notifier

    def send(self, messages: Sequence[Message]) -> Delivery:
        (message,) = messages
        return self._notifier.notify(message.first)

    def close(self) -> None:
        """Whoever made the notifier closes it."""


def wants(settings: ChannelSettings, decision: Decision) -> bool:
    """Whether `decision` is for the channel, by severity, pool, rule and world.

    What is of no single pool, such as a host with GPUs of several, is for every channel.
    """
    if decision.severity.rank < settings.min_severity.rank or (decision.simulated and not settings.simulated):
        return False
    subject = decision.subject
    pool = subject.name if subject.kind is SubjectKind.POOL else subject.pool or decision.parameters.get("pool", "")
    if settings.pools and pool and pool not in settings.pools and subject.kind is not SubjectKind.FLEET:
        return False
    return not settings.rules or any(fnmatchcase(decision.rule, pattern) for pattern in settings.rules)


class Line:
    """Sends to one channel, the gravest first.

    After a failure the rest waits for a later step, and the receiver is left alone for a growing while, or for as long
    as it asks: a dead one costs one try a step. Of what goes beyond the minute's bound the gravest go by themselves and
    the others as one message. Without `settings` everything goes, unbounded.
    """

    def __init__(self, channel: Channel, clock: Clock, settings: ChannelSettings | None = None) -> None:
        self.channel = channel
        self.name = channel.name
        self._clock = clock
        self._settings = settings
        told = settings.resolved if settings is not None else None
        self.tells_end = channel.keyed if told is None else told
        self.tries: Counter[str] = Counter()
        self._failures = 0
        self._rest_until = 0.0
        self._sent: deque[float] = deque()
        self._held: dict[str, float] = {}
        self._closed = False

    def wants(self, decision: Decision) -> bool:
        """Whether `decision` goes by it."""
        return self._settings is None or wants(self._settings, decision)

    def stale(self, key: str) -> bool:
        """Whether the receiver must be reminded of message `key`."""
        every = self.channel.refresh_seconds
        return every is not None and self._clock.monotonic() >= self._held.get(key, float("-inf")) + every

    def run(self, work: DeliveryJob, clerk: Clerk) -> None:
        """Send what can be sent now."""
        for items in self._requests(work):
            if self._closed or self._clock.monotonic() < self._rest_until:
                return
            self._sent.append(self._clock.monotonic())
            self.tries.update(decision.key for item in items for decision in item.message.decisions if not item.again)
            delivery = self._send(items)
            if not delivery.ok and delivery.again:
                self._failures += 1
                self._rest_until = self._clock.monotonic() + max(pause_seconds(self._failures), delivery.rest_seconds)
                clerk.put_off(self, items, delivery)
                return
            self._failures = 0 if delivery.ok else self._failures
            self._remember(items)
            clerk.ended(self, items, delivery)

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

    def _requests(self, work: DeliveryJob) -> Iterator[list[Item]]:
        if self.channel.batch > 1:
            ends = [Item(message, (message.key,)) for message in work.ends]
            fires = [Item(message_of([decision], Phase.FIRING)) for decision in work.fires]
            holds = [Item(message, again=True) for message in work.holds]
            yield from _chunks([*ends, *fires], self.channel.batch, self._left())
            yield from _chunks(holds, self.channel.batch, None)
            return
        for group in portions(sorted(work.fires, key=urgency), self._left()):
            yield [Item(message_of(group, Phase.FIRING))]
        left = self._left()
        if self.channel.keyed:
            yield from ([Item(message, (message.key,))] for message in work.ends[:left])
            return
        for some in portions(work.ends, left):
            every = [decision for message in some for decision in message.decisions]
            at_ms = max(message.at_ms for message in some)
            told = some[0] if len(some) == 1 else message_of(every, Phase.RESOLVED, at_ms)
            yield [Item(told, tuple(message.key for message in some))]


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
