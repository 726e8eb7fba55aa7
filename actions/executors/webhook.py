"""The executor that asks a receiver of the operator's to act, by a signed CloudEvents request."""

from __future__ import annotations

from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import ExecutionResult, Executor
from tocsin.actions.notifications.webhook import REQUESTED, WebhookSender
from tocsin.domain.decision import Decision
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind


class Webhook(ExecutorBase):
    """The idempotency key is the event's id: a receiver that has seen it does nothing a second time."""

    name = "webhook"

    def __init__(self, sender: WebhookSender, *, dry_run: bool = False) -> None:
        self._sender = sender
        self._dry_run = dry_run

    def supports(self, action: ActionKind) -> bool:
        return action is not ActionKind.NOTIFY

    def execute(self, decision: Decision) -> ExecutionResult:
        deliver = self._sender.rehearse if self._dry_run else self._sender.send
        delivery = deliver(decision, REQUESTED)
        return ExecutionResult(
            delivery.ok, delivery.detail, delivery.attempts, delivery.certain, lasting=not self._dry_run
        )


def build(dependencies: Dependencies) -> Executor:
    """Executor `webhook` by the settings; raises InputError or Unavailable where it cannot be had."""
    if dependencies.sender is None:
        raise InputError("webhook.url", "", "executor webhook has no receiver", "set webhook.url or another executor")
    if dependencies.sender.settings.format == "slack":
        raise InputError(
            "webhook.format", "slack", "a chat room carries out no action", "use cloudevents, or executor journal_only"
        )
    return Webhook(dependencies.sender, dry_run=dependencies.settings.actions.dry_run)
