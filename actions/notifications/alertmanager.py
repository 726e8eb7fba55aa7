"""Alertmanager's API v2: grouping, silences, inhibition and routing stay there.

https://prometheus.io/docs/alerting/latest/alerts_api/ and the OpenAPI file that it names. Labels identify an alert;
one that is not told again ends at its `endsAt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.actions.notifications.channel import ChannelDependencies, Message, clean, clip
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest, to_json
from tocsin.domain.clock import SECOND, to_iso
from tocsin.domain.decision import Decision, NotifyParameters
from tocsin.domain.finding import SubjectKind

PATH = "/api/v2/alerts"
HELD_REFRESHES = 5
"""An alert outlives this many missed refreshes, as Prometheus lets its own outlive four evaluations; own choice."""
LABEL_LIMIT = 256
"""Characters of a label's value; own choice, Alertmanager knows no bound but that of the body."""


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


def labels_of(decision: Decision, more: dict[str, str]) -> dict[str, str]:
    """What identifies the alert: the same fault has the same labels for as long as it lasts."""
    subject = decision.subject
    parameters = decision.parameters
    escalated = isinstance(parameters, NotifyParameters) and bool(parameters.escalates)
    known = {
        "alertname": "TocsinActionFailed" if escalated else alertname(decision.rule),
        "severity": str(decision.severity),
        "level": str(decision.alert_level),
        "rule": decision.rule,
        "category": str(decision.category),
        "gpu": subject.name if subject.kind is SubjectKind.GPU else "",
        "host": subject.name if subject.kind is SubjectKind.HOST else subject.host,
        "pool": subject.name if subject.kind is SubjectKind.POOL else subject.pool,
        "part": subject.detail,
        "simulated": "true" if decision.simulated else "false",
    }
    values = {name: clip(clean(value), LABEL_LIMIT) for name, value in (known | more).items()}
    return {name: value for name, value in values.items() if value}


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


def alertname(rule: str) -> str:
    """`gpu_silent` as TocsinGpuSilent."""
    return "Tocsin" + "".join(word[:1].upper() + word[1:] for word in clean(rule).replace("_", " ").split())
