"""The webhook: CloudEvents 1.0 in structured JSON mode, or Slack-compatible text, to one receiver.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md and .../bindings/http-protocol-binding.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.actions.model.decision_json import dump_decision
from tocsin.actions.notifications.channel import Delivery
from tocsin.actions.notifications.delivery import SIGNATURE_HEADER, HttpRequest, Receiver, sign, to_json
from tocsin.config.settings import WebhookSettings
from tocsin.domain.clock import Clock, to_iso
from tocsin.domain.decision import Decision
from tocsin.domain.finding import Severity

REQUESTED = "io.tocsin.action.requested"
"""Event type: carry this out."""
NOTIFIED = "io.tocsin.notification"
"""Event type: people should know this."""

CLOUDEVENTS_TYPE = "application/cloudevents+json; charset=utf-8"
SLACK_TYPE = "application/json; charset=utf-8"

_SIGNS = {Severity.INFO: "INFO", Severity.WARNING: "WARNING", Severity.CRITICAL: "CRITICAL"}


def cloud_event(decision: Decision, kind: str, source: str, epoch: int = 0) -> dict[str, Any]:
    """The event: `id` is the idempotency key. `severity`, `level`, `simulated`, in a brain's request `epoch`, and in
    a notification about an incident `card`, the id by which its card is asked for, are extension attributes.

    It holds nothing but the decision and the brain's epoch, so that every try of a delivery has the same body.
    """
    of_brain = {"epoch": epoch} if epoch and kind == REQUESTED else {}
    card = {"card": decision.incident} if decision.incident and kind != REQUESTED else {}
    return (
        of_brain
        | card
        | {
            "specversion": "1.0",
            "id": decision.key,
            "source": source,
            "type": kind,
            "subject": decision.subject.key,
            "time": to_iso(decision.at_ms),
            "datacontenttype": "application/json",
            "severity": str(decision.severity),
            "level": str(decision.alert_level),
            "simulated": decision.simulated,
            "data": dump_decision(decision),
        }
    )


def slack_text(decision: Decision) -> str:
    """One line for a chat room; `&`, `<` and `>` are escaped as Slack's text format asks."""
    mark = "[simulated] " if decision.simulated else ""
    text = f"{mark}{_SIGNS[decision.severity]}: {decision.sentence} (decision {decision.id})"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def encode(decision: Decision, kind: str, source: str, form: str, epoch: int = 0) -> tuple[bytes, str]:
    """Body and content type of a message in `form` (``cloudevents`` or ``slack``); keys are sorted."""
    if form == "slack":
        return to_json({"text": slack_text(decision)}), SLACK_TYPE
    return to_json(cloud_event(decision, kind, source, epoch)), CLOUDEVENTS_TYPE


class WebhookSender:
    """Posts decisions to one receiver as signed events.

    A timeout, a broken connection, 408, 425, 429 and any 5xx are tried again; another answer outside 2xx is final.
    `name` is what error texts call the URL, `rest` is that of `Receiver`, `epoch` that of the journal of a brain.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        clock: Clock,
        *,
        source: str = "tocsin",
        name: str = "webhook.url",
        rest: Callable[[float], object] | None = None,
        epoch: int = 0,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._source = source
        self._epoch = epoch
        self._receiver = Receiver(settings.url.get_secret_value(), settings.timeout_seconds, name=name, rest=rest)

    def send(self, decision: Decision, kind: str, attempts: int | None = None) -> Delivery:
        """Deliver `decision` as an event of type `kind`; at most `attempts` tries, the settings' number by default."""
        body, content_type = self._encoded(decision, kind)
        return self._receiver.deliver(lambda: self._request(body, content_type), attempts or self.settings.attempts)

    def rehearse(self, decision: Decision, kind: str) -> Delivery:
        """Make, sign and address the event as `send` does, and keep it here."""
        return self._receiver.rehearse(self._request(*self._encoded(decision, kind)))

    def close(self) -> None:
        self._receiver.close()

    def _encoded(self, decision: Decision, kind: str) -> tuple[bytes, str]:
        return encode(decision, kind, self._source, self.settings.format, self._epoch)

    def _request(self, body: bytes, content_type: str) -> HttpRequest:
        headers = {"content-type": content_type}
        secret = self.settings.secret.get_secret_value()
        if secret:
            headers[SIGNATURE_HEADER] = sign(secret, body, self._clock.now_ms())
        return HttpRequest(body, headers)


class WebhookNotifier:
    """Sends to the webhook's receiver, one try a call, so that a dead receiver never holds up the loop for long.

    Notifications of a simulated fleet go out too; they say that they are.
    """

    name = "webhook"

    def __init__(self, sender: WebhookSender) -> None:
        self._sender = sender

    def notify(self, decision: Decision) -> Delivery:
        return self._sender.send(decision, NOTIFIED, attempts=1)
