"""What the GPUs of all cells were used for and what that cost, as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from tocsin.client.models_capacity import CostOut, GroupOut, HourOut, LostOut, MoneyOut
from tocsin.client.whole_money import added, currencies_of, one_currency
from tocsin.client.wire import extended
from tocsin.domain.usage import Money, total

_SUMS = tuple(one.name for one in fields(Money) if one.name != "unpriced")
_EARLY = 20
"""Early actions that are kept, as many as a cell tells."""


def currencies(answers: Mapping[str, CostOut]) -> list[str]:
    """The currencies in which cells have costs; where they are several no money is added up."""
    return currencies_of((one.money.currency, _has_cost(one.money)) for one in answers.values())


def _has_cost(paid: MoneyOut) -> bool:
    return any(getattr(paid, name) is not None for name in _SUMS)


def bare_kwh(answers: Mapping[str, CostOut]) -> float:
    """kWh of cells that have no price for them, which are in no cost of energy."""
    return sum(one.usage.kwh for one in answers.values() if one.money.energy is None)


def whole_cost(answers: Mapping[str, CostOut]) -> CostOut:
    """Usage of all cells, hour by hour; `answers` has at least one, all over the same hours.

    A model in a pool is one group, wherever its GPUs are, but for each price one. Of several currencies every price and
    cost is None. An hour is read where all cells have read it, and empty where none has a reading.
    """
    every = [answers[name] for name in sorted(answers)]
    paid = len(currencies(answers)) < 2
    hours = _hours(hour for one in every for hour in one.hours)
    read = min(one.hours_read for one in every)
    return CostOut(
        now=max(one.now for one in every),
        start=min(one.start for one in every),
        end=max(one.end for one in every),
        simulated=any(one.simulated for one in every),
        hours_wanted=max(one.hours_wanted for one in every),
        hours_read=read,
        hours_empty=max(0, read - len(hours)),
        usage=total(one.usage for one in every),
        money=_money([one.money for one in every], currencies(answers)),
        groups=_groups((group for one in every for group in one.groups), paid=paid),
        hours=hours,
        lost=_lost([one.lost for one in every]),
    )


def _hours(found: Iterable[HourOut]) -> list[HourOut]:
    by_hour: dict[int, list[HourOut]] = {}
    for one in found:
        by_hour.setdefault(one.at_ms, []).append(one)
    return [
        extended(HourOut, total(members), at_ms=at_ms, sampled=any(one.sampled for one in members))
        for at_ms, members in sorted(by_hour.items())
    ]


def _groups(found: Iterable[GroupOut], *, paid: bool) -> list[GroupOut]:
    by_price: dict[tuple[str, str, float | None], list[GroupOut]] = {}
    for one in found:
        by_price.setdefault((one.pool, one.model, one.gpu_hour if paid else None), []).append(one)
    made = [
        extended(
            GroupOut,
            total(members),
            pool=pool,
            model=model,
            gpu_hour=price,
            idle_cost=added(one.idle_cost for one in members) if paid else None,
        )
        for (pool, model, price), members in by_price.items()
    ]
    return sorted(made, key=lambda one: -one.gpu_hours)


def _money(parts: Sequence[MoneyOut], paid: Sequence[str]) -> MoneyOut:
    """The price of a kWh is that of all cells where it is one, else None: no figure must be made with it."""
    prices = {(one.kwh_price, one.pue) for one in parts}
    kwh_price, pue = prices.pop() if len(prices) == 1 and len(paid) < 2 else (None, 1.0)
    sums = {name: added(getattr(one, name) for one in parts) if len(paid) < 2 else None for name in _SUMS}
    return MoneyOut(
        **sums,
        unpriced=sum(one.unpriced for one in parts),
        currency=one_currency([one.currency for one in parts], paid),
        kwh_price=kwh_price,
        pue=pue,
    )


def _lost(parts: Sequence[LostOut]) -> LostOut:
    early = sorted((one for each in parts for one in each.early), key=lambda one: one.fault, reverse=True)
    return LostOut(
        faults=sum(one.faults for one in parts),
        at_work=sum(one.at_work for one in parts),
        at_rest=sum(one.at_rest for one in parts),
        untold=sum(one.untold for one in parts),
        gpus_hit=sum(one.hit for one in parts),
        looked_at=sum(one.looked_at for one in parts),
        hours_each=_hours_each(parts),
        early=early[:_EARLY],
        early_total=sum(one.early_total for one in parts),
        simulated=any(one.simulated for one in parts),
    )


def _hours_each(parts: Sequence[LostOut]) -> float:
    """What is assumed of a GPU that lost work: where cells assume different times, what times `hit` is their sum."""
    assumed = {one.hours_each for one in parts}
    hit = sum(one.hit for one in parts)
    if len(assumed) == 1 or not hit:
        return max(assumed)
    return sum(one.hit * one.hours_each for one in parts) / hit
