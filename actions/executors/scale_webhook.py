"""The executor that tells an outside autoscaler how many GPUs a pool should have (docs/cloud.md)."""

from __future__ import annotations

from dataclasses import replace

from tocsin.actions.executors.base import ExecutorBase
from tocsin.actions.executors.registry import Dependencies
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, hold, went
from tocsin.actions.model.scope import gpus_wanted, pool_of, scale_parameters
from tocsin.actions.model.view import FleetView
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.cloud import ScaleBounds, ScaleWebhookSettings
from tocsin.config.settings import WebhookSettings
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.finding import ActionKind
from tocsin.domain.phrase import say
from tocsin.telemetry.metrics import OwnMetrics

REQUESTED = "io.tocsin.scale.requested"
"""Event type: make the pool this large."""
METRIC = "tocsin_pool_gpus_wanted"


class ScaleWebhook(ExecutorBase):
    """Posts a CloudEvent with the pool, the wanted number of GPUs and the key, and publishes the number as a metric.

    What is wanted is absolute, so that a receiver that gets it twice does nothing a second time. It is counted from the
    GPUs that the last pre-check saw. Without a `sender` the metric alone is set.
    """

    name = "scale_webhook"

    def __init__(
        self, settings: ScaleWebhookSettings, sender: WebhookSender | None, own: OwnMetrics, *, dry_run: bool = False
    ) -> None:
        self._pools = settings.pools
        self._sender = sender
        self._own = own
        self._dry_run = dry_run
        self._sizes: dict[str, int] = {}

    def supports(self, action: ActionKind) -> bool:
        return action in (ActionKind.SCALE_OUT, ActionKind.SCALE_IN)

    def serves(self, decision: Decision) -> bool:
        return pool_of(decision) in self._pools

    def check_real(self, decision: Decision, view: FleetView) -> Verdict:
        pool = pool_of(decision)
        self._sizes[pool] = len(view.by_pool.get(pool, ()))
        wanted, now = self._wanted(decision), self._sizes[pool]
        if (wanted <= now) if decision.action is ActionKind.SCALE_OUT else (wanted >= now):
            bounds = self._pools[pool]
            template = "pool {pool} has {n} GPUs; between {least} and {most} are allowed"
            return hold(say(template, pool=pool, n=now, least=bounds.min_gpus, most=bounds.max_gpus))
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        pool = pool_of(decision)
        if pool not in self._sizes:
            return went(False, say("how many GPUs pool {pool} has is not known here", pool=pool), lasting=False)
        wanted = self._wanted(decision)
        if self._dry_run:
            return self._rehearse(decision, pool, wanted)
        self._own.set(METRIC, wanted, pool=pool)
        effect = {"gpus_wanted": float(wanted), "gpus_before": float(self._sizes[pool])}
        if self._sender is None:
            return went(
                True, say("{metric} of pool {pool} is {wanted}", metric=METRIC, pool=pool, wanted=wanted), effect=effect
            )
        delivery = self._sender.send(self._with_sizes(decision, pool, wanted), REQUESTED)
        return went(
            delivery.ok,
            say("asked for {wanted} GPUs in pool {pool}: {detail}", wanted=wanted, pool=pool, detail=delivery.detail),
            attempts=delivery.attempts,
            certain=delivery.certain,
            effect=effect,
        )

    def _rehearse(self, decision: Decision, pool: str, wanted: int) -> ExecutionResult:
        if self._sender is None:
            return went(
                True,
                say("dry run: {metric} of pool {pool} would be {wanted}", metric=METRIC, pool=pool, wanted=wanted),
                lasting=False,
            )
        delivery = self._sender.rehearse(self._with_sizes(decision, pool, wanted), REQUESTED)
        return went(
            delivery.ok,
            say("{detail}, for {wanted} GPUs in pool {pool}", detail=delivery.detail, wanted=wanted, pool=pool),
            lasting=False,
        )

    def _with_sizes(self, decision: Decision, pool: str, wanted: int) -> Decision:
        asked = scale_parameters(decision)
        context = replace(asked.context, pool=pool)
        return replace(
            decision, parameters=replace(asked, context=context, gpus_now=self._sizes[pool], gpus_wanted=wanted)
        )

    def _wanted(self, decision: Decision) -> int:
        """GPUs that the pool should have."""
        bounds = self._pools.get(pool_of(decision), ScaleBounds())
        change = gpus_wanted(scale_parameters(decision), bounds.step_gpus)
        sign = 1 if decision.action is ActionKind.SCALE_OUT else -1
        return min(max(self._sizes[pool_of(decision)] + sign * change, bounds.min_gpus), bounds.max_gpus)


def build(dependencies: Dependencies) -> Executor:
    """Executor `scale_webhook` by the settings; raises InputError or Unavailable where it cannot be had."""
    settings = dependencies.settings.scale_webhook
    receiver = WebhookSettings(
        url=settings.url,
        secret=settings.secret,
        timeout_seconds=settings.timeout_seconds,
        attempts=settings.attempts,
    )
    wanted = bool(settings.url.get_secret_value())
    clock, epoch = dependencies.clock, dependencies.epoch
    sender = WebhookSender(receiver, clock, name="scale_webhook.url", epoch=epoch) if wanted else None
    return ScaleWebhook(
        settings, sender, dependencies.own or OwnMetrics(), dry_run=dependencies.settings.actions.dry_run
    )
