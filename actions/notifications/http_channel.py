"""What channels that post over HTTP have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.actions.notifications.delivery import Answer, Receiver, Request, by_status
from tocsin.actions.notifications.protocol import Delivery, Message
from tocsin.actions.notifications.registry import ChannelDependencies
from tocsin.actions.notifications.text import Text, text_of


class HttpChannel:
    """`encode` makes a request of messages, `judge` a delivery of the answer."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, means: ChannelDependencies, url: str | None = None) -> None:
        settings = means.settings
        self.settings = settings
        self.name = settings.name
        self.links = means.links
        self.clock = means.clock
        self._receiver = Receiver(url or settings.endpoint, settings.timeout_seconds, settings.ca_file)

    def encode(self, messages: Sequence[Message]) -> Request:
        """What is posted for `messages`."""
        raise NotImplementedError

    def judge(self, answer: Answer) -> Delivery:
        """What the receiver's answer means."""
        return by_status(answer)

    def text(self, message: Message) -> Text:
        """`message` in the channel's language."""
        return text_of(message, self.links, self.settings.language)

    def send(self, messages: Sequence[Message]) -> Delivery:
        return self._receiver.post(self.encode(messages), self.judge)

    def close(self) -> None:
        self._receiver.close()
