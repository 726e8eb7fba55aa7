"""CloudEvents 1.0 in structured JSON mode, signed: for receivers that are programs.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.actions.notifications.channel import Message
from tocsin.actions.notifications.delivery import SIGNATURE_HEADER, HttpChannel, HttpRequest, sign, to_json
from tocsin.actions.notifications.webhook import CLOUDEVENTS_TYPE, NOTIFIED, cloud_event
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision

SUMMARISED = "io.tocsin.notification.summary"
"""Event type: several notifications, told together."""
RESOLVED = "io.tocsin.notification.resolved"
"""Event type: what an earlier event told of has ended; its id is `resolves`."""
TESTED = "io.tocsin.notification.test"
"""Event type: nothing is wrong, somebody tests the channel."""

_SOURCE = "tocsin"


class CloudEvents(HttpChannel):
    """The body holds nothing but the message, so that every try of a delivery has the same."""

    keyed = True

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        (message,) = messages
        body = to_json(event(message))
        headers = {"content-type": CLOUDEVENTS_TYPE}
        if self.settings.key:
            headers[SIGNATURE_HEADER] = sign(self.settings.key, body, self.clock.now_ms())
        return HttpRequest(body, headers)


def event(message: Message) -> dict[str, Any]:
    """The event; `data` is the decision, or of a summary the list of them in short."""
    made = cloud_event(message.first, TESTED if message.test else NOTIFIED, _SOURCE)
    if message.summary:
        made.pop("card", None)
        made |= {
            "id": message.key,
            "type": SUMMARISED,
            "subject": "fleet:fleet",
            "time": to_iso(message.at_ms),
            "simulated": message.simulated,
            "data": {"count": len(message.decisions), "notifications": [_short(one) for one in message.decisions]},
        }
    if message.resolved:
        made |= {"id": f"{message.key}|resolved", "type": RESOLVED, "time": to_iso(message.at_ms)}
        made["resolves"] = message.key
    return made


def _short(decision: Decision) -> dict[str, str]:
    return {
        "id": decision.id,
        "rule": decision.rule,
        "subject": decision.subject.key,
        "severity": str(decision.severity),
        "sentence": decision.sentence,
    }
