"""Microsoft Teams: an Adaptive Card for the URL of a flow of the Workflows app (Power Automate).

https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using: Office 365
connectors are retired, workflows take Adaptive Cards alone, a message has 28 KB. The flow answers 202 before it posts.
https://adaptivecards.io/explorer/TextRun.html: text of a TextRun is shown as it is; that of a TextBlock is Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tocsin.actions.notifications.channel import Message, MessageText, no_mention
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest, to_json

CARD_TYPE = "application/vnd.microsoft.card.adaptive"
SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
VERSION = "1.4"
MOST_BYTES = 28 * 1024
"""Of a message with every letter beyond ASCII as `\\uXXXX`: how the flow spells it when it passes it on is not told,
and no other way is longer."""
CLOSE = {"spacing": "Small"}
_LEFT_OUT = {"en": "... ({} more characters)", "zh": "...（另有 {} 个字符）"}


class Teams(HttpChannel):
    """Strangers' words go as text runs, in which nothing is Markdown; a mention would need a table beside the card."""

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        return HttpRequest(to_json(fitted(self.text(message), self.settings.language)))


def payload(text: MessageText) -> dict[str, Any]:
    """The message's JSON, whatever its size."""
    body = [_runs(_run(text.title, size="Large", weight="Bolder"))]
    # A line end within a run is shown as a space.
    body += [_runs(_run(line)) for line in text.body.split("\n") if line]
    body += [_runs(_run(f"{label}: ", isSubtle=True), _run(value)) | CLOSE for label, value in text.facts if value]
    card = {
        "$schema": SCHEMA,
        "type": "AdaptiveCard",
        "version": VERSION,
        "body": body,
        "actions": [{"type": "Action.OpenUrl", "title": label, "url": url} for label, url in text.links],
        "msteams": {"width": "Full"},
    }
    return {"type": "message", "attachments": [{"contentType": CARD_TYPE, "contentUrl": None, "content": card}]}


def fitted(text: MessageText, language: str) -> dict[str, Any]:
    """The JSON in at most `MOST_BYTES`: of what is too long the end of the body is left out, and how much is said."""
    made = payload(text)
    if _size(made) <= MOST_BYTES:
        return made
    low, high = 0, len(text.body)
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if _size(payload(_cut(text, kept, language))) <= MOST_BYTES else (low, kept - 1)
    return payload(_cut(text, low, language))


def _cut(text: MessageText, kept: int, language: str) -> MessageText:
    left_out = _LEFT_OUT[language].format(len(text.body) - kept)
    return replace(text, body=text.body[:kept].rstrip() + left_out)


def _size(made: dict[str, Any]) -> int:
    return len(json.dumps(made, separators=(",", ":")))


def _runs(*inlines: dict[str, Any]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": list(inlines)}


def _run(text: str, **style: Any) -> dict[str, Any]:
    return {"type": "TextRun", "text": no_mention(text), **style}
