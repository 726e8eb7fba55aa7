"""What goes over the wire: CloudEvents 1.0 in structured JSON mode, and Slack-compatible text.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md and .../bindings/http-protocol-binding.md
"""

from __future__ import annotations

import json
from typing import Any

from tocsin.actions.model.codec import dump_decision
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision
from tocsin.domain.finding import Severity

REQUESTED = "io.tocsin.action.requested"
"""Event type: carry this out."""
NOTIFIED = "io.tocsin.notification"
"""Event type: people should know this."""

CLOUDEVENTS_TYPE = "application/cloudevents+json; charset=utf-8"
SLACK_TYPE = "application/json; charset=utf-8"

_SIGNS = {Severity.INFO: "INFO", Severity.WARNING: "WARNING", Severity.CRITICAL: "CRITICAL"}


def cloud_event(decision: Decision, kind: str, source: str) -> dict[str, Any]:
    """The event: `id` is the idempotency key, `severity` and `simulated` are extension attributes.

    It holds nothing but the decision, so that every try of a delivery has the same body.
    """
    return {
        "specversion": "1.0",
        "id": decision.key,
        "source": source,
        "type": kind,
        "subject": decision.subject.key,
        "time": to_iso(decision.at_ms),
        "datacontenttype": "application/json",
        "severity": str(decision.severity),
        "simulated": decision.simulated,
        "data": dump_decision(decision),
    }


def slack_text(decision: Decision) -> str:
    """One line for a chat room; `&`, `<` and `>` are escaped as Slack's text format asks."""
    mark = "[simulated] " if decision.simulated else ""
    text = f"{mark}{_SIGNS[decision.severity]}: {decision.sentence} (decision {decision.id})"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def encode(decision: Decision, kind: str, source: str, form: str) -> tuple[bytes, str]:
    """Body and content type of a message in `form` (``cloudevents`` or ``slack``); keys are sorted."""
    if form == "slack":
        return _json({"text": slack_text(decision)}), SLACK_TYPE
    return _json(cloud_event(decision, kind, source)), CLOUDEVENTS_TYPE


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
