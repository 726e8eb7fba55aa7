"""What the fake API service says of the future, of fragmentation, plans and cost: made from the fake fleet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.defragment import defragment, repack_mig
from tocsin.actions.planning.layouts import layouts_of
from tocsin.actions.planning.placement import place
from tocsin.actions.planning.power import PowerBudget, power_caps
from tocsin.actions.planning.rehearsal import fleet as made_up
from tocsin.actions.planning.rehearsal import mig as made_up_mig
from tocsin.actions.planning.rehearsal import with_waiting
from tocsin.actions.planning.scaling import ScalingPolicy, scale_in
from tocsin.actions.planning.units import PlanLimits
from tocsin.client.models_capacity import (
    CapacityOut,
    CostOut,
    CourseOut,
    EarlyOut,
    FillingOut,
    ForecastOut,
    FragmentationOut,
    HostRiskOut,
    LostOut,
    Planner,
    PlansOut,
    PoolOutlook,
    RecordOut,
    RiskCalendar,
    RiskOut,
)
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, to_iso
from tocsin.domain.finding import ActionKind
from tocsin.domain.fragmentation import TaskClass
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.usage import Prices, Usage
from tocsin.forecaster.diagnosis.account import Account
from tocsin.queries.cost import cost_out
from tocsin.queries.cost_hours import Hour, Pages
from tocsin.queries.fragmentation import fragmentation_out
from tocsin.queries.plans import plan_out
from tocsin_testing import fake_fleet as fleet

HORIZONS_H = (1, 6, 24, 48)
WARN_FROM = 0.0069
PRICES = Prices("EUR", {"H100": 2.4}, None, 0.21, 1.3)


def _places(hosts: int) -> list[tuple[int, int]]:
    return [(host, index) for host in range(hosts) for index in range(fleet.PER_HOST)]


# ---------------------------------------------------------------------- forecast


def _chance(where: tuple[int, int]) -> float:
    return (
        0.31 if where == fleet.DYING else 0.012 if where == fleet.HOT else 2e-5 * (1 + (5 * where[0] + where[1]) % 17)
    )


def _risk(where: tuple[int, int]) -> RiskOut:
    chance, (host, index) = _chance(where), where
    label = f"{fleet.host_name(host)} GPU {index}"
    warned = chance >= WARN_FROM
    said = "has a probability of" if warned else "is unlikely, with"
    return RiskOut(
        gpu=fleet.uuid(*where),
        host=fleet.host_name(host),
        index=index,
        pool=fleet.pool(host),
        model="NVIDIA H100 80GB HBM3",
        status=PredictionStatus.LIKELY if warned else PredictionStatus.UNLIKELY,
        probability=chance,
        curve=[(3600.0 * hours, chance * hours / HORIZONS_H[-1]) for hours in HORIZONS_H],
        classes=[("memory", 0.7 * chance), ("nvlink", 0.3 * chance)],
        sentence=f"{label}: a hardware fault within 48 h {said} {chance:.2%}.",
    )


def _host(host: int) -> HostRiskOut:
    mine = [(host, index) for index in range(fleet.PER_HOST)]
    survives = [math.prod(1 - _chance(where) * hours / HORIZONS_H[-1] for where in mine) for hours in HORIZONS_H]
    worst = max(mine, key=_chance)
    return HostRiskOut(
        host=fleet.host_name(host),
        pool=fleet.pool(host),
        gpus=len(mine),
        probability=1 - survives[-1],
        curve=[(3600.0 * hours, 1 - share) for hours, share in zip(HORIZONS_H, survives, strict=True)],
        worst=fleet.uuid(*worst),
        worst_index=worst[1],
    )


def _record() -> list[RecordOut]:
    bins = [(0.0, 0.001, 1140.0, 0.0002, 0.0), (0.001, 0.1, 120.0, 0.011, 0.013), (0.1, 1.0, 9.0, 0.28, 0.2)]
    return [
        RecordOut(
            low=low,
            high=high,
            gpu_days=days,
            stated=stated,
            observed=seen,
            observed_low=seen / 2,
            observed_high=min(1.0, 2 * seen + 0.001),
            coverage=0.8,
        )
        for low, high, days, stated, seen in bins
    ]


def _growing() -> Prediction:
    return Prediction(
        subject=fleet.subject(fleet.SPLIT),
        target="fragmentation",
        at_ms=fleet.NOW_MS,
        horizon_ms=30 * MINUTE,
        status=PredictionStatus.CROSSING,
        model="filling",
        model_version="1",
        sentence="gpu-node-04 GPU 3: MIG fragmentation has begun to grow",
        threshold=0.3,
        value=0.2,
        simulated=True,
    )


def forecast(limit: int, hosts: int, *, simulated: bool) -> ForecastOut:
    """The risk of every GPU, and what of the fake predictions is about memory."""
    risks = sorted((_risk(where) for where in _places(hosts) if where != fleet.LOST), key=lambda one: -one.probability)
    by_host = sorted((_host(host) for host in range(hosts)), key=lambda one: -one.probability)
    full = [one for one in fleet.PREDICTIONS if one.metric == "gpu_memory_used_ratio"] if risks else []
    calendar = RiskCalendar(
        model="hazard prior-1",
        at=to_iso(fleet.NOW_MS - MINUTE),
        horizon_s=HORIZONS_H[-1] * HOUR / SECOND,
        warn_from=WARN_FROM,
        statuses={**Counter(one.status for one in risks), PredictionStatus.NOT_ENOUGH_DATA: 1},
        reasons={"2 h of history, 6 h needed": 1},
        expected=[
            (3600.0 * hours, sum(one.curve[place][1] for one in risks)) for place, hours in enumerate(HORIZONS_H)
        ],
        gpus=risks[:limit],
        hosts=by_host[:limit],
        record=_record(),
    )
    return ForecastOut(
        now=to_iso(fleet.NOW_MS),
        simulated=simulated,
        risk=calendar if risks else RiskCalendar(),
        memory=[FillingOut(prediction=one, index=fleet.LEAKING[1], owners=["Slurm job 4711"]) for one in full],
        memory_statuses={PredictionStatus.CROSSING: len(full), PredictionStatus.NOT_ENOUGH_DATA: 2} if risks else {},
        fragmentation=[FillingOut(prediction=_growing(), index=fleet.SPLIT[1])] if risks else [],
        fragmentation_total=1 if risks else 0,
    )


def _course(level: float, swing: float, reason: str = "") -> CourseOut:
    start = fleet.NOW_MS // HOUR * HOUR - 3 * DAY
    ahead = [] if reason else list(range(168))
    at = [start + hour * HOUR for hour in range(72 + len(ahead))]
    waves = (level + swing * np.sin(2 * np.pi * np.arange(len(at)) / 24)).tolist()
    none: list[float | None] = [None] * 72
    return CourseOut(
        at=[to_iso(one) for one in at],
        known=[*waves[:72], *[None] * len(ahead)],
        expected=[*none, *waves[72:]] if ahead else none,
        low=[*none, *(wave - 0.05 * level for wave in waves[72:])] if ahead else none,
        high=[*none, *(wave + 0.05 * level for wave in waves[72:])] if ahead else none,
        coverage=0.8,
        reason=reason,
    )


def capacity(*, simulated: bool) -> CapacityOut:
    """One pool with a forecast, one with too little past."""
    training = 5 * fleet.PER_HOST
    pools = [
        PoolOutlook(
            pool="training",
            gpus=training,
            in_service=training - 1,
            utilisation=_course(0.72, 0.2),
            waiting=_course(4.0, 2.0),
        ),
        PoolOutlook(
            pool="inference",
            gpus=3 * fleet.PER_HOST,
            in_service=3 * fleet.PER_HOST - 1,
            utilisation=_course(0.4, 0.2, "71 hours of history, 72 needed"),
        ),
    ]
    return CapacityOut(
        now=to_iso(fleet.NOW_MS),
        at=to_iso(fleet.NOW_MS - MINUTE),
        simulated=simulated,
        horizon_s=7 * DAY / SECOND,
        pools=pools if fleet.HOSTS else [],
        pools_total=len(pools) if fleet.HOSTS else 0,
        fragmented=_course(6.0, 3.0),
    )


# ---------------------------------------------------------------------- fragmentation


def _reading(where: tuple[int, int], *, simulated: bool) -> Reading:
    host, index = where
    # Holes of one, two and three GPUs; the rest works.
    idle = index < host % 4 and host % 2 == 1
    values = {
        "gpu_utilization_ratio": 0.0 if idle else 0.8,
        "gpu_processes": 0.0 if idle else 1.0,
        "gpu_memory_used_ratio": 0.0 if idle else 0.6,
    }
    if host == fleet.SPLIT[0] and index >= 3:
        values |= _mig_values(index)
    gpu = Gpu(
        fleet.uuid(host, index),
        fleet.host_name(host),
        index,
        "NVIDIA A100-SXM4-80GB",
        pool=fleet.pool(host),
        simulated=simulated,
    )
    return Reading(gpu, fleet.NOW_MS, values)


def _mig_values(index: int) -> dict[str, float]:
    """Two instances, of which the first GPU has them where they hinder, and another tells no more than their number."""
    values = {"gpu_mig_mode": 1.0, 'gpu_mig_instances{profile="1g.10gb"}': 2.0}
    able = {3: (4, 1, 1, 0, 0), 4: (5, 2, 2, 1, 1)}.get(index)
    if able is None:
        return values
    names = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
    able_of = {f'gpu_mig_remaining_capacity{{profile="{name}"}}': float(n) for name, n in zip(names, able, strict=True)}
    return values | able_of | {"gpu_mig_fragmentation_ratio": 0.43 if index == 3 else 0.05}


def fragmentation(limit: int, hosts: int, *, simulated: bool) -> FragmentationOut:
    """The fake fleet with holes, measured by two kinds of jobs."""
    readings = [_reading(where, simulated=simulated) for where in _places(hosts)]
    mix = (TaskClass(1.0, 0.5), TaskClass(8.0, 0.5))
    state = fleet_state_from(readings, [], [], fleet.NOW_MS, Knowledge(layouts=layouts_of(readings), mix=mix))
    return fragmentation_out(readings, state, "settings", limit)


def plan(planner: Planner, *, simulated: bool) -> PlansOut:
    """The plan of a made-up fleet of 64 GPUs."""
    limits = PlanLimits(most_moves=12, effort=500)
    state = made_up_mig(64, 1) if planner == "mig" else with_waiting(made_up(64, 1), 1)
    made = {
        "defragment": lambda: defragment(state, limits),
        "mig": lambda: repack_mig(state, limits),
        "place": lambda: place(state, limits),
        "scale": lambda: scale_in(state, ScalingPolicy(), limits),
        "power": lambda: power_caps(state, PowerBudget(20_000.0, {})),
    }[planner]()
    return PlansOut(
        planner=planner,
        now=to_iso(fleet.NOW_MS),
        at=to_iso(fleet.NOW_MS - 20 * SECOND),
        took_s=1.5,
        plans=[plan_out(made, state, limits).model_copy(update={"simulated": simulated})],
    )


# ---------------------------------------------------------------------- cost


def _hour(at_ms: int) -> Hour:
    busy = 40.0 + 10.0 * math.sin(2 * math.pi * at_ms / DAY)
    usage = {
        ("training", "NVIDIA H100 80GB HBM3"): Usage(busy=busy, held_idle=2.0, free=3.0, kwh=0.5 * busy, idle_kwh=0.4),
        ("inference", "NVIDIA A100-SXM4-80GB"): Usage(
            busy=4.0, stranded=3.0, missing=1.0, dark=1.0, kwh=2.0, idle_kwh=0.2, unmetered=2.0
        ),
    }
    return Hour(at_ms, Account(usage, frozenset({"a"})))


def cost(start_ms: int, end_ms: int, *, simulated: bool, prices: Prices = PRICES) -> CostOut:
    """The same hours again and again; the oldest has no reading."""
    first = start_ms // HOUR * HOUR
    wanted: Sequence[int] = range(first, end_ms, HOUR)
    hours = tuple(_hour(at_ms) for at_ms in wanted[1:]) if fleet.HOSTS else ()
    lost = LostOut(
        faults=3,
        at_work=2,
        at_rest=1,
        looked_at=3,
        hours_each=2.25,
        early=[
            EarlyOut(
                decision="d" * 16,
                action=ActionKind.DRAIN,
                gpu=fleet.uuid(*fleet.LOST),
                host=fleet.host_name(fleet.LOST[0]),
                acted=to_iso(fleet.NOW_MS - 5 * HOUR),
                fault=to_iso(fleet.LOST_MS),
                lead_s=16_200.0,
                idle=True,
                sentence="Drain gpu-node-06: GPU 2 is likely to fail",
                effect={"gpu_temperature_celsius_change": -21.0},
                simulated=simulated,
            )
        ],
        early_total=1,
        simulated=simulated,
    )
    pages = Pages(hours, len(wanted) - len(hours), len(wanted))
    return cost_out(pages, prices, lost if fleet.HOSTS else LostOut(simulated=simulated), (first, end_ms), fleet.NOW_MS)
