"""Answers to presses in Slack: their words, and the posts that bring them there.

https://docs.slack.dev/interactivity/handling-user-interaction#message_responses: an answer is posted to the address
that came with the press, five times within half an hour.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import JsonValue

from tocsin.actions.notifications.channel import no_mention
from tocsin.actions.notifications.delivery import HttpRequest, Receiver, by_status, to_json
from tocsin.actions.notifications.slack import escape
from tocsin.actions.notifications.slack_buttons import BLOCK, Deed
from tocsin.domain.words import clean, clip
from tocsin.telemetry.log import logger

HOST = "hooks.slack.com"
"""The one host that answers are posted to, whatever a press says."""
MOST_WAITING = 64
"""Answers that are being posted or wait for it; more are dropped, and counted (own choice)."""
ATTEMPTS = 3
TEXT_LIMIT = 1_000
_KEPT = frozenset({"header", "section", "context"})
"""Kinds of blocks of a message that stay as they are; those of `tocsin.actions.notifications.slack` are of these."""

WORDS = {
    "en": {
        Deed.APPROVE: "Approved by {who}. It runs once the guards allow it.",
        Deed.DECLINE: "Declined by {who}.",
        Deed.ACKNOWLEDGE: "Acknowledged by {who} until {until}.",
        "stranger": "Nothing was done: Slack user {user} is none of api.slack.people.",
        "refused": "Nothing was done: {why}.",
    },
    "zh": {
        Deed.APPROVE: "已由 {who} 批准，各项防护条件允许后即执行。",
        Deed.DECLINE: "已由 {who} 拒绝。",
        Deed.ACKNOWLEDGE: "已由 {who} 认领，至 {until}。",
        "stranger": "未执行：Slack 用户 {user} 不在 api.slack.people 中。",
        "refused": "未执行：{why}。",
    },
}

_log = logger("slack")


def words(name: str, language: str, **parts: str) -> str:
    """A sentence of `WORDS`; `parts` are cleaned of everything that is not text."""
    text = WORDS.get(language, WORDS["en"])[name]
    return clip(text.format(**{key: clean(value).rstrip(".") for key, value in parts.items()}), TEXT_LIMIT)


def whispered(text: str) -> dict[str, Any]:
    """An answer that only the person who pressed sees."""
    return {"response_type": "ephemeral", "replace_original": False, "text": escape(no_mention(text))}


def settled(blocks: Sequence[Mapping[str, JsonValue]], deed: Deed, text: str) -> dict[str, Any]:
    """The message whose button was pressed, with what became of it in the place of the buttons that are used up."""
    made: list[dict[str, Any]] = [dict(block) for block in blocks if block.get("type") in _KEPT]
    said = {"type": "plain_text", "text": no_mention(text), "emoji": False}
    made.append({"type": "context", "elements": [said]})
    used = {Deed.ACKNOWLEDGE} if deed is Deed.ACKNOWLEDGE else {Deed.APPROVE, Deed.DECLINE}
    for block in blocks:
        elements = block.get("elements")
        if block.get("type") == "actions" and isinstance(elements, list):
            ids = {f"{BLOCK}_{one}" for one in used}
            left = [one for one in elements if isinstance(one, dict) and one.get("action_id") not in ids]
            made += [{**block, "elements": left}] if left else []
    return {"replace_original": True, "text": escape(no_mention(text)), "blocks": made}


def is_slack(url: str) -> bool:
    """Whether an answer may be posted to `url`: HTTPS, and Slack's host alone, without a user or a port."""
    # Whatever else a URL may hold, another reader of it might see another host in it.
    return re.fullmatch(rf"https://{re.escape(HOST)}/[A-Za-z0-9/_.~-]+", url) is not None


class SlackReplies:
    """Posts answers from threads of its own, so that a Slack that does not answer holds up no press.

    `lost` is called for each that did not get there. No thread is begun before the first answer.
    """

    def __init__(self, timeout_seconds: float, lost: Callable[[], None]) -> None:
        self.receiver: Callable[[str], Receiver] = lambda url: Receiver(url, timeout_seconds, name="the response_url")
        """What makes the way to an address."""
        self._lost = lost
        self._pool: ThreadPoolExecutor | None = None
        self._places = threading.BoundedSemaphore(MOST_WAITING)
        self._open: set[Receiver] = set()
        self._lock = threading.Lock()
        self._closed = False

    def post(self, url: str, answer: Mapping[str, Any]) -> None:
        """Bring `answer` to `url`, later."""
        if not is_slack(url):
            _log.warning("an answer was not sent: its address is none of Slack's")
            self._lost()
            return
        with self._lock:
            if self._closed or not self._places.acquire(blocking=False):
                self._lost()
                return
            self._pool = self._pool or ThreadPoolExecutor(2, thread_name_prefix="slack")
            self._pool.submit(self._send, url, to_json(answer))

    def _send(self, url: str, body: bytes) -> None:
        receiver = self.receiver(url)
        try:
            with self._lock:
                if self._closed:
                    receiver.close()
                self._open.add(receiver)
            delivery = receiver.deliver(partial(HttpRequest, body), ATTEMPTS, by_status)
            if not delivery.ok:
                _log.warning("an answer did not get to Slack", detail=delivery.detail)
                self._lost()
        finally:
            with self._lock:
                self._open.discard(receiver)
            receiver.close()
            self._places.release()

    def close(self) -> None:
        """Post nothing any more and wait for what is under way, a time-out at most; safe to repeat."""
        with self._lock:
            self._closed, pool = True, self._pool
            for receiver in self._open:
                receiver.close()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
