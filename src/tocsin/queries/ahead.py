"""What the pages on the future, on fragmentation and on cost are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tocsin.actions.planning.power import PowerBudget
from tocsin.client.models import HazardScore
from tocsin.client.models_cost import CostOut, LostOut
from tocsin.client.models_forecast import CapacityOut, CourseOut, ForecastOut, PoolOutlook
from tocsin.client.models_fragmentation import FragmentationOut, Planner, PlanOut, PlansOut
from tocsin.domain.clock import DAY, HOUR, SECOND, Clock, SystemClock, to_iso
from tocsin.domain.fragmentation_fleet import Task
from tocsin.domain.subject import SubjectKind
from tocsin.forecaster.capacity.capacity import HORIZON_MS, PENDING, UTILISATION, PoolPast
from tocsin.forecaster.capacity.courses import Course, CourseAsk, Figure, courses
from tocsin.queries.background import BackgroundTasks, Made
from tocsin.queries.convert import prediction_out
from tocsin.queries.cost import cost_out, lost_out
from tocsin.queries.cost_hours import CostHours, Hour
from tocsin.queries.fleet_state import limits_of, live_state, mix_of, policy_of
from tocsin.queries.fragmentation import fragmentation_out
from tocsin.queries.live import LiveBrain
from tocsin.queries.outlook import Remembered, course_out, forecast_out
from tocsin.queries.plans import Ask, make_plans
from tocsin.rules.fleet import fleet_fragmentation

POOLS = 12
"""Pools whose capacity is forecast, the largest ones: each takes seconds."""
BUDGET_S = 3.0
"""How long one request reads the store; the next goes on from there."""
LOST_S = 30.0
"""How long what faults hit is kept."""
FRAGMENTED, FRAGMENTED_MS = "fragmented", 14 * DAY
"""How far back the fleet's fragmentation is looked at for its forecast."""


class Ahead:
    """The part of the API's service that looks ahead: nothing is decided, and nothing is done. Thread-safe."""

    def __init__(
        self, brain: LiveBrain, hazards: Callable[[], Sequence[HazardScore]], wall: Clock | None = None
    ) -> None:
        self._brain = brain
        # A simulated fleet's own clock runs ahead: how long people wait is told by another.
        self._wall = wall or SystemClock()
        self._book = CostHours(brain.store, brain.clock, self._wall)
        self._desk = BackgroundTasks(self._wall, apart=brain.settings.forecast.worker)
        self._remembered = Remembered(self._wall.monotonic, hazards)
        self._lost: dict[tuple[int, int], tuple[float, LostOut]] = {}

    # ------------------------------------------------------------------ forecast

    def forecast(self, limit: int) -> ForecastOut:
        """Risks, memory and fragmentation ahead, the most urgent `limit` of each."""
        brain, now = self._brain, self._brain.clock.now_ms()
        record = self._remembered.record()
        return forecast_out(brain.forecasts.current(now), brain.memory.latest(), record, now, limit)

    def capacity(self) -> CapacityOut:
        """Pools and fragmentation a week ahead. Raises Unavailable while it is worked out."""
        made: Made[tuple[int, list[Course]]] = self._desk.ask("the capacity forecast", _courses, self._course_ask)
        at_ms, found = made.value
        by_name = {one.name: one for one in found}
        sizes, now = self._sizes(), self._brain.clock.now_ms()
        state = live_state(self._brain, now)
        said = [one for one in self._brain.forecasts.current(now) if one.subject.kind is SubjectKind.POOL]
        pools = [
            PoolOutlook(
                pool=name,
                gpus=size,
                in_service=state.ready_gpus(name),
                utilisation=course_out(by_name[f"{UTILISATION} {name}"]),
                waiting=course_out(waiting) if (waiting := by_name.get(f"{PENDING} {name}")) else None,
                statements=[prediction_out(one) for one in said if one.subject.name == name],
            )
            for name, size in sizes.items()
            if f"{UTILISATION} {name}" in by_name
        ]
        return CapacityOut(
            now=to_iso(now),
            at=to_iso(at_ms),
            simulated=any(gpu.simulated for gpu in self._brain.gpus),
            horizon_s=HORIZON_MS / SECOND,
            pools=pools,
            pools_total=len(sizes),
            fragmented=course_out(by_name[FRAGMENTED]) if FRAGMENTED in by_name else CourseOut(),
        )

    def _sizes(self) -> dict[str, int]:
        """Whole GPUs by pool, the largest pool first."""
        sizes: dict[str, int] = {}
        for gpu in self._brain.gpus:
            if not gpu.is_mig:
                sizes[gpu.pool] = sizes.get(gpu.pool, 0) + 1
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    def _course_ask(self) -> CourseAsk:
        now = self._brain.clock.now_ms()
        largest = list(self._sizes())[:POOLS]
        pasts = {one.pool: one for one in self._brain.pool_pasts()}
        figures = [figure for name in largest if name in pasts for figure in _figures(pasts[name])]
        return CourseAsk([*figures, *self._fragmented(now)], now, self._brain.settings.forecast.coverage)

    def _fragmented(self, now: int) -> list[Figure]:
        """F by the hour, as far as the store was read: the jobs that come now are the measure of all hours."""
        pages = self._book.pages(now - FRAGMENTED_MS, now, self._brain.gpus, BUDGET_S)
        if not pages.hours:
            return []
        mix, _ = mix_of(self._brain.settings.fragmentation.task_mix, self._brain.memory.latest())
        start = pages.hours[0].at_ms
        values = np.full((pages.hours[-1].at_ms - start) // HOUR + 1, np.nan)
        for hour in pages.hours:
            values[(hour.at_ms - start) // HOUR] = _mean_f(hour, mix)
        return [Figure(FRAGMENTED, start, values)]

    # ------------------------------------------------------------------ fragmentation

    def fragmentation(self, limit: int) -> FragmentationOut:
        """Free GPUs and MIG layouts now, the worst `limit` of each list."""
        readings = self._brain.memory.latest()
        _, mix_from = mix_of(self._brain.settings.fragmentation.task_mix, readings)
        state = live_state(self._brain, self._brain.clock.now_ms(), readings)
        return fragmentation_out(readings, state, mix_from, limit)

    def plan(self, planner: Planner) -> PlansOut:
        """What a planner would do now. Raises Unavailable while it is worked out."""
        made = self._desk.ask(f"the plan of {planner}", _plans, lambda: self._ask(planner))
        at_ms, plans = made.value
        return PlansOut(
            planner=planner,
            now=to_iso(self._brain.clock.now_ms()),
            at=to_iso(at_ms),
            took_s=made.took_s,
            plans=plans,
        )

    def _ask(self, planner: Planner) -> Ask:
        settings = self._brain.settings.planning
        budget = PowerBudget(settings.facility_watts or float("inf"), settings.rack_watts)
        state = live_state(self._brain, self._brain.clock.now_ms())
        return Ask(planner, state, limits_of(settings), policy_of(settings), budget)

    # ------------------------------------------------------------------ cost

    def cost(self, start_ms: int, end_ms: int) -> CostOut:
        """Whole hours of [`start_ms`, `end_ms`), as far as they have been read. Raises StoreUnavailable."""
        brain, now = self._brain, self._brain.clock.now_ms()
        start_ms, end_ms = start_ms // HOUR * HOUR, -(-end_ms // HOUR) * HOUR
        gpus = brain.gpus
        pages = self._book.pages(start_ms, end_ms, gpus, BUDGET_S)
        simulated = any(gpu.simulated for gpu in gpus)
        lost = self._losses((start_ms, end_ms), simulated=simulated)
        return cost_out(pages, brain.settings.prices.prices(), lost, (start_ms, end_ms), now)

    def _losses(self, span: tuple[int, int], *, simulated: bool) -> LostOut:
        """Looked up again only after a while: it takes a series of each GPU that failed."""
        brain, now_s = self._brain, self._wall.monotonic()
        known = self._lost.get(span)
        if known is None or now_s - known[0] >= LOST_S:
            found = lost_out(brain.store, brain.statuses(), span, brain.settings.actions.cost, simulated=simulated)
            known = (now_s, found)
            # A copy is taken in one go: other requests enter theirs meanwhile.
            fresh = {one: made for one, made in self._lost.copy().items() if now_s - made[0] < LOST_S}
            self._lost = fresh | {span: known}
        return known[1]


def _courses(ask: CourseAsk) -> tuple[int, list[Course]]:
    return ask.now_ms, courses(ask)


def _plans(ask: Ask) -> tuple[int, list[PlanOut]]:
    return ask.state.at_ms, make_plans(ask)


def _figures(past: PoolPast) -> list[Figure]:
    """Utilisation, and GPUs that work waits for where a scheduler tells."""
    start = int(past.at_ms[0])
    found = [Figure(f"{UTILISATION} {past.pool}", start, past.utilisation, most=1.0)]
    if np.isfinite(past.pending).any():
        found.append(Figure(f"{PENDING} {past.pool}", start, past.pending))
    return found


def _mean_f(hour: Hour, mix: Sequence[Task]) -> float:
    """Mean of F over the cells of an hour."""
    values = [
        fleet_fragmentation(
            np.repeat([free for free, _ in spots], list(spots.values())),
            np.repeat([size for _, size in spots], list(spots.values())),
            mix,
        ).fragmented
        for spots in hour.account.spots
    ]
    return float(np.mean(values)) if values else float("nan")
