"""A test message by each channel of the settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tocsin.actions.notifications.channel import Delivery, Message, Phase
from tocsin.actions.notifications.fanout import ChannelQueue, NotifierChannel, build_notifier
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR, Clock
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind

WEBHOOK = "webhook"
"""Name and kind of the receiver that section `[webhook]` sets."""


@dataclass(frozen=True, slots=True)
class ChannelTrial:
    """What one channel answered; `ended` is None where it hears of no ends, or where nothing was taken."""

    name: str
    kind: str
    sent: Delivery
    ended: Delivery | None

    @property
    def ok(self) -> bool:
        return self.sent.ok and not self.sent.partial and (self.ended is None or self.ended.ok)

    def as_dict(self) -> dict[str, object]:
        end = None if self.ended is None else self.ended.detail
        return {"channel": self.name, "kind": self.kind, "ok": self.ok, "answer": self.sent.detail, "end": end}


def marked_message(channel: str, now_ms: int) -> Message:
    """Nothing is wrong, and it says so."""
    decision = Decision(
        rule="notify_test",
        subject=Subject(SubjectKind.FLEET, "fleet"),
        action=ActionKind.NOTIFY,
        mode=Mode.OBSERVE,
        severity=Severity.INFO,
        category=Category.TELEMETRY,
        at_ms=now_ms,
        expires_ms=now_ms + HOUR,
        key=f"notify_test|{channel}|{now_ms}",
        sentence=f"Test of channel {channel} by `tocsin notify test`: nothing is wrong and nothing is to be done.",
    )
    return Message(decision.key, (decision,), now_ms, test=True)


def trials(settings: Settings, clock: Clock, names: Collection[str] = ()) -> list[ChannelTrial]:
    """Send to each channel, or to those of `names`; raises InputError where one of these is no channel."""
    kinds = {channel.name: str(channel.kind) for channel in settings.notify.channels}
    if settings.webhook.url.get_secret_value():
        kinds[WEBHOOK] = WEBHOOK
    for name in names:
        if name not in kinds:
            remedy = f"use one of {', '.join(sorted(kinds))}" if kinds else "set one under [[notify.channels]]"
            raise InputError("--channel", name, "no channel has this name", remedy)
    sender = WebhookSender(settings.webhook, clock) if settings.webhook.url.get_secret_value() else None
    fan = build_notifier(settings, sender, clock)
    try:
        chosen = [queue for queue in fan.queues if queue.name in kinds and (not names or queue.name in names)]
        return [_try(queue, kinds[queue.name], clock) for queue in chosen]
    finally:
        fan.close()
        if sender is not None:
            sender.close()


def _try(queue: ChannelQueue, kind: str, clock: Clock) -> ChannelTrial:
    message = marked_message(queue.name, clock.now_ms())
    sent = queue.channel.send([message])
    ended = None
    if sent.ok and queue.reports_end and not isinstance(queue.channel, NotifierChannel):
        ended = queue.channel.send([replace(message, phase=Phase.RESOLVED, reference=sent.reference)])
    return ChannelTrial(queue.name, kind, sent, ended)
