"""Rehearsing the thermal controller: GPUs whose cooling gets worse, with it, without any action, and at a fixed cap.

Controller, marker files and the writing of limits are those of the agent; only the driver is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tocsin.actions.node.limit_writer import LimitWriter
from tocsin.actions.node.markers import MarkerFolder
from tocsin.actions.node.thermal import Phase, ThermalController, ThermalSettings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order
from tocsin.domain.power import MARGIN_BELOW_SLOWDOWN_C, ClockRange, Heat, LimitFailure, Obstacle, PowerLimits
from tocsin.offline.rehearsal_cases import START_MS, Arm, Cases
from tocsin.sim.arrays import Bools, Floats

FIXED_SHARE = 0.60
"""The fixed cap that the controller is compared with, as a share of the default limit."""
ACCOUNT_SECONDS = 10
MOST_TURNS = 2
"""Turns of an episode above which it counts as swinging."""


class SimulatedPower:
    """The power port over the state of one arm."""

    def __init__(self, cases: Cases, arm: Arm) -> None:
        self._cases = cases
        self._arm = arm
        self._place = cases.inventory.by_uuid

    def limits(self, gpu: str) -> PowerLimits:
        place = self._place[gpu]
        now = round(float(self._arm.state.power_limit[place]) * 1000)
        default = round(float(self._cases.limits.max_w[place]) * 1000)
        return PowerLimits(now, now, default, round(float(self._cases.min_w[place]) * 1000), default)

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        self._arm.state.power_limit[self._place[gpu]] = milliwatts / 1000.0

    def heat(self, gpu: str) -> Heat:
        place = self._place[gpu]
        return Heat(float(self._arm.state.temperature[place]), float(self._arm.state.power[place]))

    def clocks(self, gpu: str) -> ClockRange:
        raise _no_clocks(gpu)

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:  # noqa: ARG002  # the port's signature
        raise _no_clocks(gpu)

    def unlock_clocks(self, gpu: str) -> None:
        raise _no_clocks(gpu)

    def release(self) -> None:
        return


def _no_clocks(gpu: str) -> LimitFailure:
    return LimitFailure(Obstacle.UNSUPPORTED, f"{gpu}: simulated GPUs lock no clocks")


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One way of treating the cases. Shares of cases, medians over the capped cases; None where there is none.

    `throughput_lost` is against the same work on a cool GPU, over the time in which the controller had the GPU capped;
    `slowed_minutes` is the mean time per case in which heat held the clocks down.
    """

    name: str
    kept_below_slowdown: float
    throughput_lost_median: float | None
    throughput_lost_p90: float | None
    slowed_minutes: float
    hottest_over_slowdown_c: float


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The outcome. `engaged` counts cases in which a limit was lowered, `exhausted` those that reached the floor and
    were still too hot, `turns` cases by how often their limit changed its direction until the episode was ended,
    `swinging` those with more than two, `restored` those whose limit was afterwards what it had been."""

    cases: int
    seed: int
    hours: float
    engaged: int
    exhausted: int
    restored: int
    swinging: int
    turns: dict[int, int]
    writes: int
    arms: tuple[ArmResult, ...]

    def as_json(self) -> dict[str, object]:
        """For printing."""
        return asdict(self)


class ControlledArm:
    """The arm of the controller: one a GPU, its limits kept by the agent's own keeper of limits."""

    def __init__(self, cases: Cases, settings: ThermalSettings, folder: Path) -> None:
        self.arm = cases.arm()
        self._cases = cases
        self._settings = settings
        self._clock = ManualClock(START_MS)
        port = SimulatedPower(cases, self.arm)
        self.keeper = LimitWriter(port, MarkerFolder(folder), self._clock, "rehearsal")
        self.uuids = [gpu.uuid for gpu in cases.inventory.gpus]
        self._controllers = [ThermalController(port.limits(uuid), settings) for uuid in self.uuids]
        size = len(self.uuids)
        self._zone = np.ones(size, dtype=np.int64)
        self.engaged = np.zeros(size, dtype=np.bool_)
        self.exhausted = np.zeros(size, dtype=np.bool_)
        self.history: list[list[float]] = [[watts] for watts in cases.prior_w.tolist()]
        self.writes = 0

    @property
    def capped(self) -> Bools:
        """Where a lowered limit is in force now."""
        return np.asarray(self.arm.state.power_limit < self._cases.prior_w - 0.5)

    def step(self, second: int) -> None:
        """One second of physics, then a sample of each controller that can have something to say."""
        self._clock.advance(1000)
        self.arm.step(self._cases)
        shown = self._cases.shown_c(self.arm)
        margin = self._cases.slowdown_c - MARGIN_BELOW_SLOWDOWN_C - shown
        zone = np.where(
            margin <= self._settings.engage_margin_c, 2, np.where(margin >= self._settings.release_margin_c, 0, 1)
        )
        # Between the two thresholds a sample only ends what was counted: once is enough.
        due = (zone == 2) | (zone != self._zone) | ((zone == 0) & self.capped)
        self._zone = zone
        for place in np.flatnonzero(due).tolist():
            self._sample(place, second, float(shown[place]))

    def _sample(self, place: int, second: int, shown_c: float) -> None:
        controller = self._controllers[place]
        heat = Heat(shown_c, float(self.arm.state.power[place]), slowdown_c=float(self._cases.slowdown_c[place]))
        before = controller.limit_mw
        wanted = controller.sample(float(second), heat)
        if controller.phase is Phase.EXHAUSTED:
            self.exhausted[place] = True
        if wanted == before:
            return
        uuid = self.uuids[place]
        now_ms = self._clock.now_ms()
        order = Order(f"rehearsal@{uuid}", "", "", uuid, ActionKind.THROTTLE, now_ms, now_ms + HOUR)
        self.keeper.hold(order, wanted)
        self.writes += 1
        self.engaged[place] = True
        self.history[place].append(float(self.arm.state.power_limit[place]))

    def restore(self) -> int:
        """End every episode; how many cases have the limit that they had before."""
        self.keeper.restore_all()
        return int(np.sum(self.arm.state.power_limit == self._cases.prior_w))


def turns(limits: list[float]) -> int:
    """How often a course of limits changes its direction."""
    steps = [b - a for a, b in pairwise(limits) if b != a]
    return sum((a > 0) is not (b > 0) for a, b in pairwise(steps))


class _Loss:
    """Throughput lost per case, as a mean over the seconds in which it counts."""

    def __init__(self, size: int) -> None:
        self.sum: Floats = np.zeros(size)
        self.seconds: Floats = np.zeros(size)

    def add(self, lost: Floats, counts: Bools) -> None:
        self.sum += np.where(counts, lost, 0.0)
        self.seconds += counts

    def quantile(self, q: float) -> float | None:
        known = self.seconds > 0
        return float(np.quantile(self.sum[known] / self.seconds[known], q)) if known.any() else None


def rehearse(
    count: int,
    seed: int,
    hours: float,
    settings: ThermalSettings,
    folder: Path,
    lead_hours: tuple[float, float] | None = None,
    progress: Callable[[float], None] = lambda _share: None,
) -> Rehearsal:
    """Run `count` cases for `hours`; marker files go to `folder`. The same arguments give the same result.

    `lead_hours` are the shortest and the longest drift; those of the scenario where it is None.
    """
    cases = Cases(count, seed, MARGIN_BELOW_SLOWDOWN_C + settings.engage_margin_c, lead_hours)
    controlled = ControlledArm(cases, settings, folder)
    arms = {"controller": controlled.arm, "no action": cases.arm(), "fixed 60 % cap": cases.arm()}
    losses = {name: _Loss(count) for name in arms}
    seconds = round(hours * 3600)
    for second in range(seconds):
        _second(cases, controlled, arms, second)
        if second % ACCOUNT_SECONDS == 0:
            _account(cases, arms, losses, controlled.capped & cases.busy())
            progress(second / seconds)
    made = [turns(history) for history in controlled.history]
    restored = controlled.restore()
    return Rehearsal(
        cases=count,
        seed=seed,
        hours=hours,
        engaged=int(controlled.engaged.sum()),
        exhausted=int(controlled.exhausted.sum()),
        restored=restored,
        swinging=sum(number > MOST_TURNS for number in made),
        turns={number: made.count(number) for number in sorted(set(made))},
        writes=controlled.writes,
        arms=tuple(_result(name, arm, losses[name], cases) for name, arm in arms.items()),
    )


def _second(cases: Cases, controlled: ControlledArm, arms: Mapping[str, Arm], second: int) -> None:
    """One second of all arms; the fixed cap stands from the instant at which the controller engages."""
    cases.second()
    for arm in arms.values():
        arm.state.effects = cases.effects
    controlled.step(second)
    arms["no action"].step(cases)
    fixed_w = np.minimum(np.maximum(cases.min_w, FIXED_SHARE * cases.limits.max_w), cases.prior_w)
    arms["fixed 60 % cap"].state.power_limit = np.where(controlled.engaged, fixed_w, cases.prior_w)
    arms["fixed 60 % cap"].step(cases)


def _account(cases: Cases, arms: Mapping[str, Arm], losses: Mapping[str, _Loss], counts: Bools) -> None:
    free = cases.curve(cases.free_w())
    for name, arm in arms.items():
        losses[name].add(1.0 - np.minimum(arm.throughput(cases) / free, 1.0), counts)


def _result(name: str, arm: Arm, loss: _Loss, cases: Cases) -> ArmResult:
    over = arm.hottest_c - cases.slowdown_c
    return ArmResult(
        name=name,
        kept_below_slowdown=float(np.mean(over < 0)),
        throughput_lost_median=loss.quantile(0.5),
        throughput_lost_p90=loss.quantile(0.9),
        slowed_minutes=float(arm.slowed_seconds.mean() / 60.0),
        hottest_over_slowdown_c=float(over.max()),
    )
