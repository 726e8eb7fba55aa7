"""A driver that hangs on one GPU: its calls fail as hung, those of the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.domain.order import OrderState
from tocsin.domain.power import Heat, LimitFailure, Obstacle
from tocsin.runtime.agent.order_worker import BoundedPower
from tocsin_testing.node_world import FakePower, Node


class Hanging(FakePower):
    """`stuck` names methods of GPU-a that do not come back before `free` is set."""

    def __init__(self) -> None:
        super().__init__(("GPU-a", "GPU-b"))
        self.stuck: set[str] = set()
        self.free = threading.Event()
        self.opened = 0

    def _hang(self, name: str, gpu: str) -> None:
        if name in self.stuck and gpu == "GPU-a":
            assert self.free.wait(30.0)

    def heat(self, gpu: str) -> Heat:
        self._hang("heat", gpu)
        return super().heat(gpu)

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        self._hang("set_limit", gpu)
        super().set_limit(gpu, milliwatts)

    def open(self) -> Any:
        """One opening; all look at the same GPUs."""
        self.opened += 1
        return self


@pytest.fixture
def driver() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.free.set()


@pytest.fixture
def power(driver: Hanging) -> Iterator[BoundedPower]:
    made = BoundedPower(driver.open, seconds=0.1)
    yield made
    driver.free.set()
    made.close()


def test_a_call_that_hangs_fails_and_the_next_one_at_once(driver: Hanging, power: BoundedPower) -> None:
    driver.stuck = {"heat"}
    for _ in range(2):
        with pytest.raises(LimitFailure, match="has not come back within") as hung:
            power.heat("GPU-a")
        assert (hung.value.obstacle, hung.value.obstacle.passes) == (Obstacle.HUNG, True)
    with pytest.raises(LimitFailure, match="has not come back"):
        power.limits("GPU-a")
    assert power.heat("GPU-b").temperature_c == 60.0
    assert driver.opened == 2


def test_failures_of_the_driver_come_through_as_they_are(driver: Hanging, power: BoundedPower) -> None:
    driver.fail("limits", Obstacle.PERMISSION)
    with pytest.raises(LimitFailure) as refused:
        power.limits("GPU-b")
    assert refused.value.obstacle is Obstacle.PERMISSION


def test_what_is_stuck_keeps_its_opening_until_it_comes_back(driver: Hanging, power: BoundedPower) -> None:
    driver.stuck = {"heat"}
    with pytest.raises(LimitFailure):
        power.heat("GPU-a")
    power.heat("GPU-b")
    power.release()
    assert driver.releases == 1
    driver.free.set()
    driver.stuck = set()
    while power._workers.stuck:
        threading.Event().wait(0.01)
    power.release()
    assert driver.releases == 2


def test_orders_of_other_gpus_go_on_and_what_hung_is_given_back(
    driver: Hanging, power: BoundedPower, tmp_path: Path
) -> None:
    node = Node(tmp_path / "limits", power=power)  # type: ignore[arg-type]
    driver.stuck = {"set_limit"}
    stuck, other = (node.order(gpu=gpu, power_limit_watts="500") for gpu in ("GPU-a", "GPU-b"))
    node.worker.receive([stuck, other])
    node.seconds(2)
    assert node.state(stuck) is OrderState.FAILED
    assert "tried again" in node.report(stuck).detail
    assert (node.state(other), driver.limit_mw["GPU-b"]) == (OrderState.APPLIED, 500_000)
    assert node.markers == ["GPU-a.limit.json", "GPU-b.limit.json"]
    # The call comes back after all, with the limit set: the marker tells what it was before.
    driver.free.set()
    while power._workers.stuck:
        threading.Event().wait(0.01)
    assert driver.limit_mw["GPU-a"] == 500_000
    node.seconds(10)
    assert driver.limit_mw["GPU-a"] == 700_000
    assert node.markers == ["GPU-b.limit.json"]
