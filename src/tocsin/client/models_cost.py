"""Wire models of what the fleet costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tocsin.client.wire import Count, Instant, Wire
from tocsin.domain.finding import ActionKind

Hours = Annotated[float, Field(ge=0)]


class UsageOut(Wire):
    """GPU-hours by what the GPUs did, which add up to `gpu_hours`, and energy; see `tocsin.domain.usage`."""

    gpu_hours: Hours
    busy: Hours
    held_idle: Hours
    stranded: Hours
    free: Hours
    unknown: Hours
    dark: Hours
    missing: Hours
    kwh: Hours
    idle_kwh: Hours
    unmetered: Hours
    """GPU-hours whose energy is not known."""


class HourOut(UsageOut):
    """One hour; `sampled` where only a part of its readings was looked at."""

    at: Instant
    sampled: bool = False


class GroupOut(UsageOut):
    """One model in one pool."""

    pool: str
    model: str
    gpu_hour: float | None = None
    """Price of a GPU-hour; null where none is set."""
    idle_cost: float | None = None
    """Held idle, stranded and free at that price."""


class MoneyOut(Wire):
    """What usage costs at the prices of the settings; null where no price says. Energy is in none of the others."""

    currency: str = ""
    busy: float | None = None
    held_idle: float | None = None
    stranded: float | None = None
    free: float | None = None
    energy: float | None = None
    idle_energy: float | None = None
    unpriced: Hours = 0.0
    """GPU-hours of models without a price."""
    kwh_price: float | None = None
    pue: float = 1.0


class EarlyOut(Wire):
    """A fault that an action had been carried out for before it came."""

    decision: str
    action: ActionKind
    gpu: str
    host: str
    acted: Instant
    fault: Instant
    lead_s: float
    idle: bool | None = None
    """Whether the GPU did no work any more when the fault came; null where no reading tells."""
    sentence: str
    effect: dict[str, float] = Field(default_factory=dict)
    """What was measured of the action."""
    simulated: bool = False


class LostOut(Wire):
    """Faults of the period, what they hit, and what had been done before. Only what events, readings and the journal
    show: no source tells how much work was lost since the last checkpoint."""

    faults: Count = 0
    """Hardware faults; those of one GPU within an hour count as one."""
    at_work: Count = 0
    """Those whose GPU was busy in the 15 minutes before."""
    at_rest: Count = 0
    untold: Count = 0
    """Those of which no reading tells."""
    looked_at: Count = 0
    """Of how many faults the readings were looked at: the newest ones."""
    hours_each: Hours = 0.0
    """What settings `actions.cost` assume that a job loses on each GPU: half of the time between checkpoints, and the
    restart."""
    early: list[EarlyOut] = Field(default_factory=list)
    early_total: Count = 0
    simulated: bool = False


class CostOut(Wire):
    """What the fleet was used for in whole hours from `start` to `end`; hours that are not read yet are in nothing."""

    now: Instant
    start: Instant
    end: Instant
    simulated: bool
    hours_wanted: Count
    hours_read: Count
    hours_empty: Count
    """Hours without a single reading."""
    usage: UsageOut
    money: MoneyOut
    groups: list[GroupOut] = Field(default_factory=list)
    hours: list[HourOut] = Field(default_factory=list)
    lost: LostOut
