"""PagerDuty's Events API v2.

https://developer.pagerduty.com/docs/events-api-v2-overview: 202 is accepted, 429 and 5xx are tried again, 400 is final;
a dedup_key has at most 255 characters, a summary 1,024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.actions.notifications.channel import Message
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest, to_json
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import to_iso
from tocsin.domain.words import clean, clip

SUMMARY_LIMIT = 1_024
_SEVERITIES = {AlertLevel.NOTE: "info", AlertLevel.WARNING: "warning", AlertLevel.PAGE: "critical"}
"""By these a service's urgency is set: only what needs a person now is critical."""


class PagerDuty(HttpChannel):
    """Its deduplication key is made from the message's: a second try opens no second incident."""

    keyed = True

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        event: dict[str, Any] = {
            "routing_key": self.settings.key,
            "event_action": "resolve" if message.resolved else "trigger",
            "dedup_key": f"tocsin-{message.id}",
        }
        if not message.resolved:
            event |= {
                "payload": self._payload(message),
                "client": "Tocsin",
                "links": [{"href": url, "text": label} for label, url in self.text(message).links],
            }
            if self.links.console:
                event["client_url"] = self.links.console
        return HttpRequest(to_json(event))

    def _payload(self, message: Message) -> dict[str, Any]:
        text = self.text(message)
        subject = message.first.subject
        where = "fleet" if message.summary else subject.host or subject.name
        payload = {
            "summary": clip(f"{text.title}: {text.body}".replace("\n", "; "), SUMMARY_LIMIT),
            "source": clip(clean(where), 255) or "tocsin",
            "severity": _SEVERITIES[message.level],
            "timestamp": to_iso(message.at_ms),
            "class": clip(clean(message.first.rule), 255),
            "custom_details": dict(text.facts) | {"sentence": text.body},
        }
        return payload if message.summary else payload | {"group": clip(clean(subject.pool), 255) or "fleet"}
