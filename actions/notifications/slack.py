"""Slack incoming webhooks, and rooms that take the same format (Mattermost, Rocket.Chat).

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and
https://docs.slack.dev/reference/block-kit/blocks: a header takes 150 characters, a section 3,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.actions.notifications.channel import ChannelDependencies, Message, MessageText, no_mention
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest, to_json
from tocsin.actions.notifications.slack_buttons import block_of, buttons_of
from tocsin.domain.words import clip

HEADER_LIMIT = 150
SECTION_LIMIT = 3_000
TEXT_LIMIT = 3_000
"""Of the line that notifications on a phone show; Slack cuts it at 40,000."""


class Slack(HttpChannel):
    """Sentences go as plain text blocks, in which Slack reads no markup; `text` beside them is escaped.

    Where presses of buttons come back (`api.slack`), and the channel asks for them, a message has those that fit it.
    """

    def __init__(self, dependencies: ChannelDependencies) -> None:
        super().__init__(dependencies)
        self._press_key = dependencies.press_key if dependencies.settings.buttons else ""

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        made = payload(self.text(message))
        if self._press_key and (buttons := buttons_of(message)):
            made["blocks"].append(block_of(buttons, self._press_key, self.settings.language))
        return HttpRequest(to_json(made))


def payload(text: MessageText) -> dict[str, Any]:
    """The message's JSON."""
    facts = "\n".join(f"{label}: {value}" for label, value in text.facts)
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(text.title, HEADER_LIMIT)}]
    blocks += [{"type": "section", "text": _plain(part, SECTION_LIMIT)} for part in (text.body, facts) if part]
    if text.links:
        links = " · ".join(f"<{url}|{label}>" for label, url in text.links)
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": links}]})
    line = escape(clip(no_mention(f"{text.title}: {text.body}"), TEXT_LIMIT))
    return {"text": line, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def escape(text: str) -> str:
    """The three characters with a meaning in Slack's text; without them it knows no mention and no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": clip(no_mention(text), limit), "emoji": False}
