"""What the fleet costs, as the API shows it: usage, money, and what faults hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.client.models_capacity import CostOut, EarlyOut, GroupOut, HourOut, LostOut, MoneyOut
from tocsin.client.wire import extended
from tocsin.config.settings import CostSettings
from tocsin.domain.clock import HOUR, SECOND, to_iso
from tocsin.domain.decision import OutcomeStatus
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, SubjectKind
from tocsin.domain.usage import Group, Prices, Usage, money, total
from tocsin.forecaster.diagnosis.window import IDLE_UTILIZATION
from tocsin.queries.cache import Cache
from tocsin.queries.cost_hours import BUDGET_S, CostHours, Pages
from tocsin.queries.fault_jobs import BEFORE_MS, FaultJobs
from tocsin.queries.hardware_faults import fabrics_of, hardware_faults
from tocsin.queries.live import LiveBrain
from tocsin.queries.scoreboard import HORIZON_MS
from tocsin.store.port import Store

SAME_MS = HOUR
"""Events of one GPU so close to each other are one fault."""
LOOKED_AT, SHOWN = 100, 20
"""Faults whose readings are looked at, the newest ones, and early actions that are shown."""
LOST_S = 30.0
"""How long what faults hit is kept."""
EARLY = frozenset(
    {
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.CHECKPOINT,
        ActionKind.MIGRATE,
        ActionKind.CORDON_GPU,
        ActionKind.CORDON,
        ActionKind.DRAIN,
    }
)
"""Actions that save work where they come before a fault."""
_WORKED = frozenset({OutcomeStatus.SUCCEEDED, OutcomeStatus.RESTORED})


class CostQueries:
    """What the fleet of a running brain costs. Safe to use from several threads."""

    def __init__(self, brain: LiveBrain, hours: CostHours, monotonic: Callable[[], float]) -> None:
        self._brain = brain
        self._hours = hours
        self._jobs = FaultJobs(brain.store, monotonic)
        # It takes a series of each GPU that failed.
        self._lost = Cache[tuple[int, int], LostOut](monotonic, lambda _took_s: LOST_S)

    def cost(self, start_ms: int, end_ms: int) -> CostOut:
        """Whole hours of [`start_ms`, `end_ms`), as far as they have been read. Raises StoreUnavailable."""
        brain, now = self._brain, self._brain.clock.now_ms()
        span = start_ms // HOUR * HOUR, -(-end_ms // HOUR) * HOUR
        gpus = brain.gpus
        pages = self._hours.pages(*span, gpus, BUDGET_S)
        simulated = any(gpu.simulated for gpu in gpus)
        assumed = brain.settings.actions.cost

        def lost_now() -> LostOut:
            return lost_out(brain.store, brain.statuses(), span, assumed, self._jobs.look(), simulated=simulated)

        lost = self._lost.get(span, lost_now)
        return cost_out(pages, brain.settings.prices.prices(), lost, span, now)


def cost_out(pages: Pages, prices: Prices, lost: LostOut, span: tuple[int, int], now_ms: int) -> CostOut:
    """Usage of `pages` with its price; `span` is the period that was asked for, whole hours."""
    groups = _groups(pages)
    return CostOut(
        now=to_iso(now_ms),
        start=to_iso(span[0]),
        end=to_iso(span[1]),
        simulated=lost.simulated,
        hours_wanted=pages.wanted,
        hours_read=pages.read,
        hours_empty=pages.empty,
        usage=total(groups.values()),
        money=extended(MoneyOut, money(groups, prices), currency=prices.currency, kwh_price=prices.kwh, pue=prices.pue),
        groups=sorted((_group(name, one, prices) for name, one in groups.items()), key=lambda one: -one.gpu_hours),
        hours=[extended(HourOut, one.usage, at_ms=one.at_ms, sampled=one.sampled) for one in pages.hours],
        lost=lost,
    )


def _groups(pages: Pages) -> dict[Group, Usage]:
    groups: dict[Group, Usage] = {}
    for hour in pages.hours:
        for name, usage in hour.account.groups.items():
            groups[name] = groups.get(name, Usage()) + usage
    return groups


def _group(name: Group, usage: Usage, prices: Prices) -> GroupOut:
    price = prices.of_model(name[1])
    idle_cost = None if price is None else price * usage.idle
    return extended(GroupOut, usage, pool=name[0], model=name[1], gpu_hour=price, idle_cost=idle_cost)


# ---------------------------------------------------------------------- faults


def lost_out(
    store: Store,
    statuses: Sequence[DecisionStatus],
    span: tuple[int, int],
    assumed: CostSettings,
    gpus_of: Callable[[Event], int],
    *,
    simulated: bool,
) -> LostOut:
    """Faults in [`span`), what their GPUs did before, and what had been done about them. Raises StoreUnavailable.

    `gpus_of` tells how many GPUs the job had on the GPU of a fault.
    """
    faults = [one.first for one in hardware_faults(store.events(*span), SAME_MS, fabrics_of(store.gpus()))[::-1]]
    looked = {fault.id: _was_busy(store, fault) for fault in faults[:LOOKED_AT]}
    early = [one for fault in faults if (one := _early(fault, statuses, looked.get(fault.id))) is not None]
    return LostOut(
        faults=len(faults),
        at_work=sum(busy is True for busy in looked.values()),
        at_rest=sum(busy is False for busy in looked.values()),
        untold=sum(busy is None for busy in looked.values()),
        looked_at=len(looked),
        gpus_hit=sum(gpus_of(fault) for fault in faults[:LOOKED_AT] if looked[fault.id]),
        hours_each=assumed.checkpoint_interval_hours / 2 + assumed.restart_hours,
        early=early[:SHOWN],
        early_total=len(early),
        simulated=simulated,
    )


def _was_busy(store: Store, fault: Event) -> bool | None:
    """Whether the GPU was busy on average before its fault; None where no reading tells."""
    series = store.series(fault.gpu, ["gpu_utilization_ratio"], fault.at_ms - BEFORE_MS, fault.at_ms)
    known = series.values[np.isfinite(series.values)]
    return bool(known.mean() >= IDLE_UTILIZATION) if known.size else None


def _early(fault: Event, statuses: Sequence[DecisionStatus], busy: bool | None) -> EarlyOut | None:
    """The last action on the GPU or its host that had worked before the fault came, within the horizon."""
    acted = [one for one in statuses if _met(one, fault)]
    if not acted:
        return None
    status = max(acted, key=lambda one: one.outcome.at_ms if one.outcome else 0)
    decision, outcome = status.decision, status.outcome
    assert outcome is not None
    return EarlyOut(
        decision=decision.id,
        action=decision.action,
        gpu=fault.gpu,
        host=fault.host,
        acted=to_iso(outcome.at_ms),
        fault=to_iso(fault.at_ms),
        lead_s=(fault.at_ms - outcome.at_ms) / SECOND,
        idle=None if busy is None else not busy,
        sentence=decision.sentence,
        cause_zh=decision.parameters.context.cause_zh,
        effect=dict(outcome.effect),
        simulated=decision.simulated or fault.simulated,
    )


def _met(status: DecisionStatus, fault: Event) -> bool:
    outcome, subject = status.outcome, status.decision.subject
    if outcome is None or outcome.status not in _WORKED or status.decision.action not in EARLY:
        return False
    if not fault.at_ms - HORIZON_MS <= outcome.at_ms < fault.at_ms:
        return False
    return subject.name == (fault.host if subject.kind is SubjectKind.HOST else fault.gpu)
