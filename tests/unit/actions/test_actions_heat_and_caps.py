"""A budget's cap and the throttle of a hot GPU at the brain: neither waits for the other, each is given back alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.executors.node import NodeAgents
from tocsin.actions.executors.simulated import Simulated
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.planning.foresight import Foresight
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import ActionParameters, Decision, DecisionState, ThrottleKind, ThrottleParameters, encode
from tocsin.domain.finding import ActionKind, Category
from tocsin.domain.order import OrderReport, OrderState, RestoreOrderParameters
from tocsin_testing.action_world import World, settings, subject_of

HOT = "GPU-0-0"


class Capped:
    """A fleet in which a plan has one GPU capped."""

    def __init__(self) -> None:
        self.world = World(settings(cooldown_seconds=1800.0, settle_seconds=120.0))
        cap = ThrottleParameters(power_limit_watts=500, was_watts=700)
        self.told = Foresight({("plan_power", subject_of(self.world.gpus[HOT]).key): cap})
        self.world.break_gpu(HOT, rule="plan_power", action=ActionKind.THROTTLE, category=Category.CAPACITY)
        self.steps(4)
        assert [each.rule for each in self.effects] == ["plan_power"]

    @property
    def effects(self) -> list[Decision]:
        return list(self.world.loop.controls().effects.values())

    def steps(self, count: int, advance: int = 15_000) -> None:
        for _ in range(count):
            self.world.clock.advance(advance)
            view = replace(self.world.view(), foresight=self.told)
            self.world.loop.step(view, view.incidents, [])

    def heat(self) -> None:
        self.world.break_gpu(HOT, rule="hot", action=ActionKind.THROTTLE, category=Category.THERMAL)

    def cool(self, rule: str) -> None:
        del self.world.faults[f"{rule}|{HOT}"]


@pytest.fixture
def capped() -> Capped:
    return Capped()


def test_heat_waits_neither_for_a_cap_that_runs_nor_for_its_rest(capped: Capped) -> None:
    controls = capped.world.loop.controls()
    assert (controls.busy, controls.capping) == ({f"gpu:{HOT}": "throttle"}, frozenset({f"gpu:{HOT}"}))
    capped.heat()
    capped.steps(4)
    assert [each.rule for each in capped.effects] == ["plan_power", "hot"]
    assert capped.world.loop.controls().capping == frozenset()


def test_a_second_cap_rests_and_waits_as_ever(capped: Capped) -> None:
    capped.world.break_gpu(HOT, rule="hot", action=ActionKind.THROTTLE, category=Category.THERMAL)
    capped.steps(20)
    capped.cool("hot")
    capped.steps(20)
    assert [each.rule for each in capped.effects] == ["plan_power"]
    capped.heat()
    capped.steps(4)
    held = [s for s in capped.world.loop.statuses() if s.decision.rule == "hot" and s.state is DecisionState.HELD]
    assert any(v.guard == "cooldown" and v.ruling != "allow" for s in held for v in s.verdicts)


def test_the_end_of_the_heat_gives_back_the_heat_alone_also_after_a_restart(capped: Capped) -> None:
    capped.heat()
    capped.steps(20)
    capped.cool("hot")
    capped.steps(30)
    assert [each.rule for each in capped.effects] == ["plan_power"]
    capped.world.restart()
    assert [each.rule for each in capped.effects] == ["plan_power"]
    capped.cool("plan_power")
    capped.steps(40, advance=HOUR // 10)
    assert capped.effects == []


def test_the_end_of_the_cap_leaves_the_heat(capped: Capped) -> None:
    capped.heat()
    capped.steps(20)
    capped.cool("plan_power")
    capped.steps(30)
    assert [each.rule for each in capped.effects] == ["hot"]


def test_what_agents_are_told_to_give_back_is_of_one_kind(capped: Capped) -> None:
    capped.heat()
    capped.steps(20)
    cap, heat = capped.effects
    clock = capped.world.clock
    queue = OrderQueue(clock)
    executor = NodeAgents(queue, clock)
    for decision in (cap, heat):
        executor.execute(replace(decision, expires_ms=clock.now_ms() + HOUR))
    for order in queue.for_host("node-0"):
        queue.report(OrderReport(order, OrderState.APPLIED, "", clock.now_ms()))
    back = inverse_of(heat)
    assert back is not None
    executor.execute(replace(back, at_ms=clock.now_ms(), expires_ms=clock.now_ms() + HOUR))
    restore, left = queue.for_host("node-0")
    assert (restore.action, restore.parameters) == (ActionKind.RESTORE, RestoreOrderParameters(of=ThrottleKind.HEAT))
    assert (left.action, left.parameters.throttle_kind) == (ActionKind.THROTTLE, "cap")


def test_the_simulated_fleet_keeps_the_cap_when_the_heat_is_over(capped: Capped) -> None:
    capped.heat()
    capped.steps(20)

    class Fleet:
        applied: list[tuple[ActionKind, str]] = []  # noqa: RUF012

        def apply(self, action: ActionKind, _target: str, parameters: ActionParameters) -> bool:
            self.applied.append((action, encode(parameters).get("power_limit_watts", "")))
            return True

    fleet = Fleet()
    executor = Simulated(fleet)  # type: ignore[arg-type]
    cap, heat = capped.effects
    for decision in (cap, heat, inverse_of(heat), inverse_of(cap)):
        assert decision is not None
        executor.execute(decision)
    throttle, restore = ActionKind.THROTTLE, ActionKind.RESTORE
    assert fleet.applied == [(throttle, "500"), (throttle, ""), (restore, ""), (throttle, "500"), (restore, "700")]
