"""Pods that come back to a node while it is drained: few evictions, and the controllers that bring them are named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes.api import Json, Pod
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.drain import MOST_RETURNS
from tocsin.actions.model.executor import ExecutionResult
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.finding import ActionKind
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import ADMIN, TOCSIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor, Site, decide, owner_of

NODE = "n1"
FOR_EVER = 1000
ROUNDS = 400


@dataclass(frozen=True)
class Maker:
    """A controller with `pods` on the node, which brings them back `times` times."""

    name: str
    pods: int
    times: int

    @property
    def owner(self) -> Json:
        return owner_of("apps/v1", "ReplicaSet", self.name)

    @property
    def stubborn(self) -> bool:
        return self.times >= MOST_RETURNS


class Node:
    """One node that is drained at 1 s a round, and the controllers of its pods."""

    def __init__(self, makers: list[Maker]) -> None:
        self.double = KubeDouble()
        self.site = Site(Path("unused"), DirectDoor(self.double, ADMIN), self.double)
        self.site.node(NODE)
        self.makers = makers
        self.turn = dict.fromkeys((maker.name for maker in makers), 0)
        for maker in makers:
            self._bring(maker)

    def _bring(self, maker: Maker) -> None:
        for index in range(maker.pods):
            self.site.pod(f"{maker.name}-{self.turn[maker.name]}-{index}", NODE, owner=maker.owner)

    def drain(self) -> ExecutionResult:
        clock = ManualClock(T0)
        config = KubernetesSettings(drain_seconds=3600)
        executor = Kubernetes(Cluster(DirectDoor(self.double, TOCSIN)), config, clock)
        for _ in range(ROUNDS):
            result = executor.execute(decide(ActionKind.DRAIN, NODE))
            if not result.pending:
                return result
            self._pods_end()
            clock.advance(1 * SECOND)
        raise AssertionError(f"{self.evictions()} evictions, and it goes on: {result}")

    def _pods_end(self) -> None:
        every = [pod["metadata"] for pod in self.double.state.every("pods")]
        ending = [meta for meta in every if meta.get("deletionTimestamp")]
        for meta in ending:
            self.site.finish(f"default/{meta['name']}")
        for maker in self.makers:
            gone = any(meta["ownerReferences"][0]["name"] == maker.name for meta in ending)
            if gone and self.turn[maker.name] < maker.times:
                self.turn[maker.name] += 1
                self._bring(maker)

    def evictions(self, name: str = "") -> int:
        return sum(one.sub == "eviction" and one.name.startswith(name) for one in self.double.writes())


def test_a_controller_that_returns_its_pod_for_ever_is_named_after_a_few_evictions() -> None:
    """A real cluster took 45 evictions in 45 s, and the drain would have gone on for half an hour."""
    node = Node([Maker("infer", 1, FOR_EVER)])
    result = node.drain()
    assert (result.ok, result.certain) == (False, True)
    assert "ReplicaSet default/infer has brought pods back 3 times" in result.detail
    assert "they are put on this node by name" in result.detail
    assert node.evictions() == MOST_RETURNS


makers = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 1, MOST_RETURNS - 1, MOST_RETURNS, FOR_EVER])),
    min_size=1,
    max_size=4,
)


@given(makers)
@settings(max_examples=40)
def test_each_controller_costs_few_evictions_and_the_others_pods_leave(chosen: list[tuple[int, int]]) -> None:
    node = Node([Maker(f"rs{index}", pods, times) for index, (pods, times) in enumerate(chosen)])
    result = node.drain()
    stubborn = {maker.name for maker in node.makers if maker.stubborn}
    assert result.ok is not bool(stubborn)
    for maker in node.makers:
        assert node.evictions(maker.name) == maker.pods * min(maker.times + 1, MOST_RETURNS)
        assert (f"ReplicaSet default/{maker.name} has" in result.detail) is maker.stubborn
    left = {pod["metadata"]["ownerReferences"][0]["name"] for pod in node.double.state.every("pods")}
    assert left == stubborn


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_the_reason_is_in_the_tolerations(toleration: Json, tolerates: bool) -> None:
    assert Pod({"metadata": {"name": "p"}, "spec": {"tolerations": [toleration]}}).tolerates_cordon is tolerates
