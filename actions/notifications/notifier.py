"""Who is told: the webhook's receiver, or the journal alone."""

from __future__ import annotations

from typing import Protocol

from tocsin.actions.notifications.messages import NOTIFIED
from tocsin.actions.notifications.sender import Delivery, WebhookSender
from tocsin.domain.decision import Decision


class Notifier(Protocol):
    """Tells people; expected failures come back as a delivery, they are not raised."""

    name: str

    def notify(self, decision: Decision) -> Delivery:
        """One try to deliver `decision`; the loop tries again at a later step."""
        ...


class JournalNotifier:
    """No receiver is set: the journal, and what shows it, is where people read."""

    name = "journal"

    def notify(self, decision: Decision) -> Delivery:
        return Delivery(True, "no webhook.url is set: recorded only", 1)


class WebhookNotifier:
    """Sends to the webhook's receiver, one try a call, so that a dead receiver never holds up the loop for long.

    Notifications of a simulated fleet go out too; they say that they are.
    """

    name = "webhook"

    def __init__(self, sender: WebhookSender) -> None:
        self._sender = sender

    def notify(self, decision: Decision) -> Delivery:
        return self._sender.send(decision, NOTIFIED, attempts=1)


def notifier_for(sender: WebhookSender | None) -> Notifier:
    """The notifier that settings ask for."""
    return JournalNotifier() if sender is None else WebhookNotifier(sender)
