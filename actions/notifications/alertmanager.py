"""Alertmanager's API v2: grouping, silences, inhibition and routing stay there.

https://prometheus.io/docs/alerting/latest/alerts_api/ and the OpenAPI file that it names. Labels identify an alert;
one that is not told again ends at its `endsAt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.actions.model.alert_labels import LABEL_LIMIT, labels_of
from tocsin.actions.notifications.channel import ChannelDependencies, Message
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest, to_json
from tocsin.domain.clock import SECOND, to_iso
from tocsin.domain.words import clean, clip

PATH = "/api/v2/alerts"
HELD_REFRESHES = 5
"""An alert outlives this many missed refreshes, as Prometheus lets its own outlive four evaluations; own choice."""


class Alertmanager(HttpChannel):
    """Tells of what still is again and again, as Alertmanager's clients are to."""

    batch = 200
    keyed = True

    def __init__(self, dependencies: ChannelDependencies) -> None:
        super().__init__(dependencies, dependencies.settings.endpoint.rstrip("/") + PATH)
        self.refresh_seconds = dependencies.settings.refresh_seconds

    def encode(self, messages: Sequence[Message]) -> HttpRequest:
        alerts: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        # Two with the same labels are one alert to Alertmanager: what fires outweighs the end of one before it.
        for message in sorted(messages, key=lambda each: not each.resolved):
            alert = self._alert(message)
            alerts[tuple(sorted(alert["labels"].items()))] = alert
        headers = {"content-type": "application/json"}
        if self.settings.key:
            headers["authorization"] = f"Bearer {self.settings.key}"
        return HttpRequest(to_json(list(alerts.values())), headers)

    def _alert(self, message: Message) -> dict[str, Any]:
        decision = message.first
        held_ms = self.clock.now_ms() + round(self.settings.refresh_seconds * HELD_REFRESHES * SECOND)
        text = self.text(message)
        alert: dict[str, Any] = {
            "labels": _shared_labels(message, self.settings.labels)
            if message.gathered
            else labels_of(decision, self.settings.labels),
            "annotations": {"summary": text.title, "description": text.body, "decision": decision.id},
            "startsAt": to_iso(decision.at_ms),
            # An alert that ended before it began is refused.
            "endsAt": to_iso(max(message.at_ms, decision.at_ms) if message.resolved else held_ms),
        }
        runbook = self.links.runbook(decision)
        if runbook:
            alert["annotations"]["runbook_url"] = runbook
        if self.links.console:
            alert["generatorURL"] = self.links.console
        return alert


def _shared_labels(message: Message, more: dict[str, str]) -> dict[str, str]:
    """What was beyond the budget of pages at one step is one alert; `notification` tells it from that of another, so
    that the end of one is not the end of both."""
    known = {
        "alertname": "TocsinMorePages",
        "severity": str(message.severity),
        "level": str(message.level),
        "simulated": "true" if message.simulated else "false",
    }
    values = {name: clip(clean(value), LABEL_LIMIT) for name, value in (known | more).items()}
    return {name: value for name, value in values.items() if value} | {"notification": message.id}
