"""Channels that are no channels, messages to send, and a loop that tells by several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tocsin.actions.notifications.channel import ChannelDependencies, Delivery, Links, Message, Phase
from tocsin.actions.notifications.fanout import ChannelQueue, FanOut
from tocsin.config.notify import ChannelSettings, NotifySettings
from tocsin.domain.clock import HOUR, MINUTE, Clock, ManualClock
from tocsin.domain.decision import Decision, DecisionContext, Mode, NotifyParameters
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import World, settings
from tocsin_testing.builders import T0
from tocsin_testing.ticket_doubles import JiraCloud

DECISION = Decision(
    rule="temperature_high",
    subject=Subject(SubjectKind.GPU, "GPU-5d1f0b7c", "node-7", "train"),
    action=ActionKind.NOTIFY,
    mode=Mode.PROPOSE,
    severity=Severity.CRITICAL,
    category=Category.THERMAL,
    at_ms=T0,
    expires_ms=T0 + HOUR,
    key=f"temperature_high|gpu:GPU-5d1f0b7c|notify|{T0}",
    sentence="GPU-5d1f0b7c on node-7 is at 93 °C for 10 min, limit 85 °C; intended: cordon, it waits for a person.",
    findings=("0123456789abcdef",),
    incident="0123456789abcdef",
    parameters=NotifyParameters(
        context=DecisionContext(host="node-7", pool="train"),
        intended=ActionKind.CORDON,
        proposes="275eb1a7c0f22cc4",
    ),
)
LINKS = Links("https://docs.example.com/runbooks", "https://tocsin.example.com")


def message(phase: Phase = Phase.FIRING, **more: Any) -> Message:
    """A message about the one decision, with `more` of its fields changed."""
    decision = replace(DECISION, **more)
    at_ms = decision.at_ms + 20 * MINUTE if phase is Phase.RESOLVED else decision.at_ms
    return Message(decision.key, (decision,), at_ms, phase)


def channel_settings(kind: str, **more: Any) -> ChannelSettings:
    """Settings of a channel called like its kind, complete."""
    base: dict[str, Any] = {"name": kind, "kind": kind}
    if kind == "email":
        base["mail"] = {"host": "127.0.0.1", "sender": "tocsin@example.com", "to": ["oncall@example.com"]}
    elif kind != "pagerduty":
        base["url"] = "http://127.0.0.1:1/hook"
    if kind == "pagerduty":
        base["secret"] = "R0UT1NG"
    if kind == "ticket":
        base |= JiraCloud().channel()
    return NotifySettings.model_validate({"channels": [base | more]}).channels[0]


def means(kind: str, clock: Clock | None = None, **more: Any) -> ChannelDependencies:
    """What a channel of `kind` is built from."""
    return ChannelDependencies(channel_settings(kind, **more), LINKS, clock or ManualClock(T0))


class FakeChannel:
    """Takes what it is sent, or answers as it is told to."""

    def __init__(self, name: str, *, batch: int = 1, keyed: bool = False, refresh_seconds: float | None = None) -> None:
        self.name = name
        self.batch = batch
        self.keyed = keyed
        self.refresh_seconds = refresh_seconds
        self.tries: list[list[Message]] = []
        self.taken: list[Message] = []
        self.delivery = Delivery(True, "taken", 1)
        self.raises: Exception | None = None
        self.closed = False

    def send(self, messages: Sequence[Message]) -> Delivery:
        self.tries.append(list(messages))
        if self.raises is not None:
            raise self.raises
        if self.delivery.ok:
            self.taken += messages
        return self.delivery

    def close(self) -> None:
        self.closed = True

    def told(self, phase: Phase = Phase.FIRING) -> list[str]:
        """Keys of the notifications that it took."""
        return [d.key for m in self.taken if m.phase is phase for d in m.decisions]


class NotifyWorld:
    """A small fleet whose loop tells by several channels, each working within the step."""

    def __init__(self, *channels: FakeChannel, **more: Any) -> None:
        self.channels = channels
        self.pages: int | None = more.pop("pages", None)
        self.more = more
        self.metrics = OwnMetrics()
        self.world = World(settings(mode="observe"))
        self.restart()

    def restart(self) -> None:
        """A new brain with new queues over the same journal; the channels' receivers are the same."""
        queues = [ChannelQueue(c, self.world.clock, self._settings(c)) for c in self.channels]
        self.world.notifier = FanOut(queues, self.metrics, threads=False, pages=self.pages)  # type: ignore[assignment]
        self.world.restart()

    def _settings(self, channel: FakeChannel) -> ChannelSettings:
        fields = {"per_minute": 1000} | self.more.get(channel.name, {})
        return channel_settings("slack", **(fields | {"name": channel.name}))

    def outcome(self, channel: str, outcome: str) -> float:
        """How often that was counted."""
        return self.metrics.value("tocsin_channel_deliveries_total", channel=channel, outcome=outcome)
