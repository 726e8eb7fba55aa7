"""Custom bots of Feishu (Lark).

https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot: 5 messages a second and 100 a minute, 20 KB a
request; an answer of status 200 may refuse, its `code` is 0 only where the message was taken.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from tocsin.actions.notifications.channel import Delivery, Message, MessageText, clip_bytes, no_mention
from tocsin.actions.notifications.delivery import HttpAnswer, HttpChannel, HttpRequest, by_code, to_json
from tocsin.domain.clock import SECOND

BODY_LIMIT = 6_000
"""Bytes of the sentence: JSON may double them, and a request takes 20 KB."""
_BUSY = {11232: 60.0}
"""Codes that ask for patience, in seconds: too many messages."""


class Feishu(HttpChannel):
    """A post of text elements, in which Feishu looks for no mention."""

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        locale = "zh_cn" if self.settings.language == "zh" else "en_us"
        body = {"msg_type": "post", "content": {"post": {locale: content(self.text(message))}}}
        if self.settings.key:
            seconds = self.clock.now_ms() // SECOND
            body |= {"timestamp": str(seconds), "sign": sign(self.settings.key, seconds)}
        return HttpRequest(to_json(body))

    def judge(self, answer: HttpAnswer) -> Delivery:
        return by_code(answer, "code", _BUSY)


def sign(secret: str, seconds: int) -> str:
    """Instant and secret are the key, the message is empty."""
    return base64.b64encode(hmac.new(f"{seconds}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


def content(text: MessageText) -> dict[str, Any]:
    """Title and lines; each line is a list of elements."""
    facts = " · ".join(f"{label}: {value}" for label, value in text.facts)
    lines = [*clip_bytes(text.body, BODY_LIMIT).split("\n"), facts]
    written = [[{"tag": "text", "text": _harmless(line)}] for line in lines if line]
    if text.links:
        written.append([{"tag": "a", "text": f"{label} ", "href": url} for label, url in text.links])
    return {"title": _harmless(text.title), "content": written}


def _harmless(text: str) -> str:
    """Beside `@`, which calls people, also the tag that does in other message types."""
    return no_mention(text).replace("<at", "\uff1cat")
