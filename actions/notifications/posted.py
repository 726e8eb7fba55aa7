"""What channels that post over HTTP have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.actions.notifications.post import Answer, Poster, Request, by_status
from tocsin.actions.notifications.protocol import Message
from tocsin.actions.notifications.registry import ChannelDependencies
from tocsin.actions.notifications.sender import Delivery
from tocsin.actions.notifications.text import Text, text_of


class PostedChannel:
    """`encode` makes a request of messages, `judge` a delivery of the answer."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, means: ChannelDependencies, url: str | None = None) -> None:
        self.settings = means.settings
        self.name = means.settings.name
        self.links = means.links
        self.clock = means.clock
        self._poster = Poster(url or means.settings.endpoint, means.settings.timeout_seconds, means.settings.ca_file)

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
        return self._poster.post(self.encode(messages), self.judge)

    def close(self) -> None:
        self._poster.close()
