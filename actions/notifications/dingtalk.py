"""Custom robots of DingTalk.

https://open.dingtalk.com/document/robots/custom-robot-access: 20 messages a minute, then none for 10 minutes; an answer
of status 200 may refuse, its `errcode` is 0 only where the message was taken; a message has at most 20,000 bytes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from tocsin.actions.notifications.channel import Delivery, Message, clip_bytes, no_mention
from tocsin.actions.notifications.delivery import HttpAnswer, HttpChannel, HttpRequest, by_code, to_json

TEXT_LIMIT = 8_000
"""Bytes: JSON may double them."""
_BUSY = {-1: 0.0, 130101: 60.0}
"""Codes that ask for patience, in seconds: the system is busy; too many messages, of which it is asked once a minute
whether it takes them again."""


class DingTalk(HttpChannel):
    """Plain text: markup of other types could load pictures, and only `at` calls people."""

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        text = clip_bytes(no_mention(self.text(message).plain()), TEXT_LIMIT)
        body = {"msgtype": "text", "text": {"content": text}, "at": {"isAtAll": False, "atMobiles": []}}
        query = {}
        if self.settings.key:
            now_ms = self.clock.now_ms()
            query = {"timestamp": str(now_ms), "sign": sign(self.settings.key, now_ms)}
        return HttpRequest(to_json(body), query=query)

    def judge(self, answer: HttpAnswer) -> Delivery:
        return by_code(answer, "errcode", _BUSY)


def sign(secret: str, now_ms: int) -> str:
    """The secret is the key, instant and secret are the message; the URL's own encoding comes on top."""
    mac = hmac.new(secret.encode(), f"{now_ms}\n{secret}".encode(), hashlib.sha256)
    return base64.b64encode(mac.digest()).decode()
