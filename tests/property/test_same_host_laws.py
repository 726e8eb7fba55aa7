"""Guards and executors judge the same host: whatever is said of where a GPU or a MIG instance is, nothing is done to a
host that the guards have not looked at."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.kubernetes.actions import host_of
from tocsin.actions.model.executor import PRE_CHECK
from tocsin.domain.decision import Decision, DecisionState, Ruling
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import World, finding

HOSTS = ("node-a", "node-b")
ON_HOSTS = (ActionKind.CORDON, ActionKind.DRAIN, ActionKind.MIGRATE)
_hosts = st.sampled_from(HOSTS)


def _world(parent_host: str, child_host: str) -> World:
    """Two nodes; a GPU, and a MIG instance that says it is a part of it."""
    gpus = {
        "GPU-1": Gpu("GPU-1", parent_host, index=0),
        "MIG-1": Gpu("MIG-1", child_host, parent="GPU-1"),
        **{f"GPU-of-{host}": Gpu(f"GPU-of-{host}", host, index=1) for host in HOSTS},
    }
    return World(gpus=gpus)


def _executed(world: World) -> list[Decision]:
    return [status.decision for status in world.loop.statuses() if status.decision.key in world.executor.done]


def _break(world: World, name: str, host: str, action: ActionKind) -> None:
    world.faults["f"] = finding(Subject(SubjectKind.GPU, name, host, "default"), world.clock.now_ms(), action=action)


@given(_hosts, _hosts, _hosts, st.sampled_from(["GPU-1", "MIG-1"]), st.sampled_from(ON_HOSTS))
@settings(max_examples=60)
def test_an_action_runs_on_the_host_of_the_whole_gpu_or_not_at_all(
    parent_host: str, child_host: str, said_host: str, name: str, action: ActionKind
) -> None:
    world = _world(parent_host, child_host)
    _break(world, name, said_host, action)
    for _ in range(4):
        world.step()
    done = _executed(world)
    assert {host_of(decision) for decision in done} <= {parent_host}
    agree = said_host == parent_host and (name == "GPU-1" or child_host == parent_host)
    assert bool(done) is agree


@pytest.mark.parametrize(
    ("name", "child_host", "said"),
    [
        ("MIG-1", "node-b", "MIG-1 is said to be on node-b, and its GPU GPU-1 is on node-a"),
        ("GPU-1", "node-a", "GPU-1 is on node-a by its readings, and the action is for node-b"),
    ],
)
def test_what_does_not_agree_is_held_with_both_hosts_named(name: str, child_host: str, said: str) -> None:
    world = _world("node-a", child_host)
    _break(world, name, "node-b", ActionKind.DRAIN)
    world.step()
    verdict = world.verdict(PRE_CHECK, ActionKind.DRAIN)
    assert (verdict.ruling, verdict.reason) == (Ruling.HOLD, said)
    assert world.only(ActionKind.DRAIN).state is not DecisionState.DONE
    assert world.executor.done == []
