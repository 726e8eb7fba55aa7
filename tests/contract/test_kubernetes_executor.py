"""Executor `kubernetes` against an API server: the double of recorded exchanges, or a real one by kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes.api import STRATEGIC
from tocsin.actions.model.executor import ExecutionResult, SeesNodes
from tocsin.actions.model.recovery import inverse_of
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.kube_site import SITES, Site, decide, open_site, with_token

VIEW = World().view()
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_KUBELET = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, request.param) as found:
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def _labels(site: Site, node: str) -> dict[str, str]:
    found: dict[str, str] = site.find_node(node)["metadata"]["labels"]
    return found


def _notes(site: Site, node: str) -> dict[str, str]:
    found: dict[str, str] = site.find_node(node)["metadata"].get("annotations", {})
    return found


def _taints(site: Site, node: str) -> set[tuple[str, str]]:
    """Without those that the node controller of a real cluster puts on nodes that no kubelet answers for."""
    found = site.find_node(node)["spec"].get("taints", [])
    return {(taint["key"], taint["effect"]) for taint in found if taint["key"] not in NO_KUBELET}


def _content(site: Site, node: str) -> dict[str, object]:
    """All of a node that Tocsin writes, and when it wrote it last: heartbeats move the resource version alone."""
    found = site.find_node(node)
    metadata = found["metadata"]
    written = [each for each in metadata.get("managedFields", []) if str(each["manager"]).startswith("tocsin")]
    if site.double is not None and not site.double.state.lively:
        written = metadata["resourceVersion"]
    return {
        "unschedulable": found["spec"].get("unschedulable", False),
        "taints": _taints(site, node),
        "labels": metadata["labels"],
        "annotations": metadata.get("annotations", {}),
        "condition": _condition(site, node, "TocsinGpuHealthy"),
        "written": written,
    }


def _condition(site: Site, node: str, kind: str) -> dict[str, str]:
    conditions = site.find_node(node)["status"]["conditions"]
    return next((each for each in conditions if each["type"] == kind), {})


def _run(executor: Kubernetes, decision: Decision, site: Site, clock: ManualClock, steps: int = 20) -> ExecutionResult:
    """Execute until it ends; pods that are ending do end, and time passes, between two steps."""
    for _ in range(steps):
        result = executor.execute(decision)
        if not result.pending:
            return result
        for title in list(_ending(site)):
            site.finish(title)
        clock.advance(5 * SECOND)
    raise AssertionError(f"still pending: {result}")


def _ending(site: Site) -> Iterator[str]:
    for pod in site.get(f"/api/v1/namespaces/{site.space}/pods")["items"]:
        if pod["metadata"].get("deletionTimestamp"):
            yield f"{site.space}/{pod['metadata']['name']}"


def _exists(site: Site, title: str) -> bool:
    space, _, name = title.partition("/")
    return any(pod["metadata"]["name"] == name for pod in site.get(f"/api/v1/namespaces/{space}/pods")["items"])


def test_a_cordon_leaves_its_mark_and_the_inverse_takes_back_all_of_it(site: Site, clock: ManualClock) -> None:
    node = site.node()
    executor = site.executor(clock, fault_taint="tocsin.io/fault")
    cordon = decide(ActionKind.CORDON, node)
    assert executor.execute(cordon).ok
    found = site.find_node(node)
    assert found["spec"]["unschedulable"] is True
    assert found["metadata"]["labels"]["tocsin.io/cordoned-by"] == "tocsin"
    notes = found["metadata"]["annotations"]
    assert notes["tocsin.io/cordon-key"] == cordon.id
    assert notes["tocsin.io/cordon-reason"] == f"ecc: {cordon.sentence}"
    assert ("tocsin.io/fault", "NoSchedule") in _taints(site, node)
    condition = _condition(site, node, "TocsinGpuHealthy")
    assert (condition["status"], condition["reason"]) == ("False", "TocsinCordon")
    assert _condition(site, node, "Ready")["status"] == "True"
    assert executor.verify(cordon, VIEW) is True
    undo = inverse_of(cordon)
    assert undo is not None
    result = executor.execute(undo)
    assert (result.ok, result.lasting) == (True, True)
    site.until(lambda: not _taints(site, node))
    assert "unschedulable" not in site.find_node(node)["spec"]
    left = {key for key in (*_labels(site, node), *_notes(site, node)) if key.startswith("tocsin.io/")}
    assert left == {"tocsin.io/cordons-ended", "tocsin.io/uncordons-ended"}
    assert _condition(site, node, "TocsinGpuHealthy")["status"] == "True"
    again = site.executor(clock, fault_taint="tocsin.io/fault").execute(cordon)
    assert (again.ok, again.lasting) == (False, False) or "left as is" in again.detail
    assert "unschedulable" not in site.find_node(node)["spec"], "a brain that has forgotten it does not do it again"
    assert (executor.verify(undo, VIEW), executor.verify(cordon, VIEW)) == (True, False)


def test_an_uncordon_that_a_restored_journal_has_forgotten_undoes_no_later_cordon(
    site: Site, clock: ManualClock
) -> None:
    node = site.node()
    executor = site.executor(clock)
    undo = decide(ActionKind.UNCORDON, node)
    executor.execute(decide(ActionKind.CORDON, node))
    assert executor.execute(undo).ok
    again = site.executor(clock).execute(undo)
    assert (again.ok, "already" in again.detail) == (True, True)
    executor.execute(decide(ActionKind.CORDON, node, "later"))
    refused = site.executor(clock).execute(undo)
    assert (refused.ok, "cordoned again" in refused.detail) == (False, True)
    assert site.find_node(node)["spec"]["unschedulable"]


def test_taints_of_others_survive(site: Site, clock: ManualClock) -> None:
    node = site.node()
    theirs = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    site.edit(f"/api/v1/nodes/{node}", spec={"taints": [theirs]})
    executor = site.executor(clock, fault_taint="tocsin.io/fault")
    executor.execute(decide(ActionKind.CORDON, node))
    executor.execute(decide(ActionKind.PLACE_ELSEWHERE, node))
    assert _taints(site, node) >= {
        ("nvidia.com/gpu", "NoSchedule"),
        ("tocsin.io/fault", "NoSchedule"),
        ("tocsin.io/avoid", "PreferNoSchedule"),
    }
    executor.execute(decide(ActionKind.UNCORDON, node))
    site.until(lambda: _taints(site, node) == {("nvidia.com/gpu", "NoSchedule")})


def test_a_cordon_of_somebody_else_is_neither_taken_over_nor_given_back(site: Site, clock: ManualClock) -> None:
    node = site.node()
    site.edit(f"/api/v1/nodes/{node}", spec={"unschedulable": True})
    executor = site.executor(clock)
    result = executor.execute(decide(ActionKind.CORDON, node))
    assert (result.ok, result.lasting) == (True, False)
    assert "tocsin.io/cordoned-by" not in _labels(site, node)
    result = executor.execute(decide(ActionKind.UNCORDON, node))
    assert not result.ok
    assert "someone else" in result.detail
    assert site.find_node(node)["spec"]["unschedulable"] is True


def test_one_key_cordons_once_and_never_again_after_a_person_undid_it(site: Site, clock: ManualClock) -> None:
    node = site.node()
    cordon = decide(ActionKind.CORDON, node)
    assert site.executor(clock).execute(cordon).ok
    if site.double is None:
        site.until(lambda: (UNSCHEDULABLE, "NoSchedule") in _taints(site, node))
    before = _content(site, node)
    again = site.executor(clock).execute(cordon)
    assert again.ok
    assert _content(site, node) == before
    site.edit(f"/api/v1/nodes/{node}", spec={"unschedulable": None})
    for executor in (site.executor(clock), site.executor(clock)):
        result = executor.execute(cordon)
        assert (result.ok, result.certain) == (False, True)
        assert "someone uncordoned" in result.detail
    assert "unschedulable" not in site.find_node(node)["spec"]


def test_nodes_tell_who_took_them_out_and_what_holds_their_gpus(site: Site, clock: ManualClock) -> None:
    ours, theirs, free = site.node("n1"), site.node("n2"), site.node("n3")
    train = site.pod("train-0", free, gpus=4)
    site.pod("web-0", free, gpus=0)
    executor = site.executor(clock)
    executor.execute(decide(ActionKind.CORDON, ours))
    site.edit(f"/api/v1/nodes/{theirs}", spec={"unschedulable": True})
    assert isinstance(executor, SeesNodes)
    nodes = executor.nodes()
    assert (nodes[ours].schedulable, nodes[ours].ours) == (False, True)
    assert nodes[ours].reason.startswith("ecc: ")
    assert (nodes[theirs].schedulable, nodes[theirs].ours) == (False, False)
    assert (nodes[free].schedulable, nodes[free].ready, nodes[free].work) == (True, True, (train,))
    site.edit(f"/api/v1/nodes/{ours}", spec={"unschedulable": None})
    overruled = executor.nodes()[ours]
    assert (overruled.schedulable, overruled.ours) == (True, True)


def test_a_drain_evicts_what_may_go_and_leaves_daemons_and_mirror_pods(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train, free = site.pod("train-0", node, gpus=8), site.pod("free-0", node, gpus=0, app="free")
    daemon, mirror = site.daemon("dcgm-exporter-1", node), site.mirror(f"kube-proxy-{node}", node)
    elsewhere = site.pod("train-1", site.node("n2"))
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    first = executor.execute(drain)
    assert (first.ok, first.pending) == (True, True)
    assert f"{train} is ending" in first.detail
    assert executor.execute(drain).pending
    assert site.find_node(node)["spec"]["unschedulable"] is True
    result = _run(executor, drain, site, clock)
    assert (result.ok, result.lasting) == (True, True)
    assert f"left {daemon} (DaemonSet)" in result.detail
    assert f"left {mirror} (mirror pod)" in result.detail
    assert result.effect["pods_evicted"] == 2
    assert result.effect["drain_seconds"] > 0
    assert [_exists(site, one) for one in (train, free, daemon, mirror, elsewhere)] == [False, False, True, True, True]
    assert executor.verify(drain, VIEW) is True


def test_the_provider_is_asked_to_repair_what_a_rule_has_drained(site: Site, clock: ManualClock) -> None:
    repair = "AcceleratedHardwareReady"
    executor = site.executor(clock, repair_condition=repair)
    nodes = {name: site.node(name) for name in ("broken", "work", "kept", "back")}
    theirs = {"status": {"conditions": [{"type": repair, "status": "True", "reason": "NodeIsReady"}]}}
    site.door.ask("PATCH", f"/api/v1/nodes/{nodes['kept']}/status", body=theirs, content_type=STRATEGIC)
    site.pod("train-0", nodes["broken"])
    rules = {"work": "person"}
    said = {}
    for name, node in nodes.items():
        drain = replace(decide(ActionKind.DRAIN, node, key=name), rule=rules.get(name, "ecc"))
        first = executor.execute(drain)
        assert _repair(site, nodes["broken"]) == "", "not before every pod is gone"
        said[name] = _run(executor, drain, site, clock).detail if first.pending else first.detail
        if name == "broken":
            assert (_repair(site, node), "the provider may replace the node" in said[name]) == ("False", True)
            back = executor.execute(decide(ActionKind.UNCORDON, node))
            assert (back.ok, _repair(site, node)) == (True, "")
    assert _repair(site, nodes["work"]) == "", "a person wants the node back"
    assert (_repair(site, nodes["kept"]), "is kept by others" in said["kept"]) == ("True", True)
    assert _repair(site, nodes["back"]) == "False"
    site.edit(f"/api/v1/nodes/{nodes['back']}", spec={"unschedulable": False})
    assert nodes["back"] in executor.upkeep()
    assert _repair(site, nodes["back"]) == "", "a node that a person gave back is not to be replaced"


def test_where_no_writer_is_told_the_node_is_given_back_without_a_repair_and_another_s_word_stays(
    site: Site, clock: ManualClock
) -> None:
    if site.double is None:
        pytest.skip("a real server tells who writes")
    executor = site.executor(clock, repair_condition="AcceleratedHardwareReady")
    ours, theirs = site.node("ours"), site.node("theirs")
    word = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "XIDErrorFound"}
    path = f"/api/v1/nodes/{theirs}/status"
    site.door.ask("PATCH", path, body={"status": {"conditions": [word]}}, content_type=STRATEGIC)
    for node in (ours, theirs):
        site.double.forget_writers()
        assert executor.execute(decide(ActionKind.DRAIN, node, key=node)).ok
        assert _repair(site, node) == "False"
        site.double.forget_writers()
        assert executor.execute(decide(ActionKind.UNCORDON, node, key=node)).ok
    assert (_repair(site, ours), _repair(site, theirs)) == ("", "False")


def _repair(site: Site, node: str) -> str:
    conditions = site.find_node(node)["status"]["conditions"]
    return next((each["status"] for each in conditions if each["type"] == "AcceleratedHardwareReady"), "")


def test_a_drain_goes_on_in_another_process(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    drain = decide(ActionKind.DRAIN, node)
    assert site.executor(clock).execute(drain).pending
    site.finish(train)
    result = site.executor(clock).execute(drain)
    assert (result.ok, result.pending) == (True, False)


def test_a_used_up_budget_is_waited_for_and_named_when_the_time_is_over(site: Site, clock: ManualClock) -> None:
    node = site.node()
    pods = [site.pod(f"train-{index}", node) for index in range(2)]
    site.budget("train", "train", 2)
    executor = site.executor(clock, drain_seconds=60)
    drain = decide(ActionKind.DRAIN, node)
    first = executor.execute(drain)
    assert first.pending
    assert "disruption budget train needs 2 healthy pods and has 2 currently" in first.detail
    assert first.effect["evictions_blocked"] == 2
    assert executor.execute(drain).effect["evictions_blocked"] == 2, "a pod is not asked for again at once"
    result = _run(executor, drain, site, clock)
    assert (result.ok, result.certain) == (False, True)
    assert "not drained within 60 s" in result.detail
    assert "budget train" in result.detail
    assert [_exists(site, pod) for pod in pods] == [True, True]


def test_a_budget_that_frees_up_lets_the_drain_end(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    site.budget("train", "train", 1)
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    site.pod("train-1", site.node("n2"))
    site.until(lambda: site.get(f"{site.budgets()}/train")["status"]["disruptionsAllowed"] == 1)
    clock.advance(5 * SECOND)
    result = _run(executor, drain, site, clock)
    assert result.ok
    assert result.effect["evictions_blocked"] == 1
    assert not _exists(site, train)


def test_two_budgets_on_one_pod_are_reported_and_the_others_go(site: Site, clock: ManualClock) -> None:
    node = site.node()
    both, free = site.pod("two-pdb-0", node), site.pod("free-0", node, app="free")
    site.budget("one", "train", 0)
    site.budget("two", "train", 0)
    executor = site.executor(clock)
    result = _run(executor, decide(ActionKind.DRAIN, node), site, clock, steps=40)
    assert not result.ok
    assert f"{both}: This pod has more than one PodDisruptionBudget" in result.detail
    assert [_exists(site, both), _exists(site, free)] == [True, False]


def test_blocked_pods_are_deleted_only_where_settings_say_so(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    site.budget("train", "train", 1)
    executor = site.executor(clock, drain_seconds=60, delete_blocked_pods=True)
    result = _run(executor, decide(ActionKind.DRAIN, node), site, clock, steps=40)
    assert result.ok
    assert not _exists(site, train)


def test_pods_with_files_and_pods_without_a_controller_stay_unless_allowed(site: Site, clock: ManualClock) -> None:
    node = site.node()
    files = site.pod("files-0", node, volumes=[{"name": "scratch", "emptyDir": {}}])
    bare = site.pod("bare-0", node, gpus=0)
    executor = site.executor(clock, evict_bare_pods=False)
    result = _run(executor, decide(ActionKind.DRAIN, node), site, clock)
    assert not result.ok
    assert "pods that hold GPUs stay" in result.detail
    assert f"left {files} (local data" in result.detail
    assert [_exists(site, files), _exists(site, bare)] == [True, True]
    allowed = site.executor(clock, evict_local_data=True)
    assert _run(allowed, decide(ActionKind.DRAIN, node, "k2"), site, clock).ok
    assert [_exists(site, files), _exists(site, bare)] == [False, False]


def test_a_checkpoint_is_asked_for_and_waited_for_before_the_eviction(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node, annotations={"tocsin.io/checkpoint": "true"})
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    assert "takes its checkpoint" in executor.execute(drain).detail
    asked = site.find_pod(train)["metadata"]["annotations"]["tocsin.io/checkpoint-requested"]
    assert asked == drain.id
    assert "deletionTimestamp" not in site.find_pod(train)["metadata"]
    site.note(train, checkpoint_done=asked)
    assert f"{train} is ending" in executor.execute(drain).detail
    result = _run(executor, drain, site, clock)
    assert (result.ok, result.effect["checkpoints_taken"]) == (True, 1)


def test_a_checkpoint_that_never_comes_holds_the_drain_only_so_long(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node, annotations={"tocsin.io/checkpoint": "true"})
    executor = site.executor(clock, checkpoint_seconds=60)
    drain = decide(ActionKind.DRAIN, node)
    executor.execute(drain)
    clock.advance(59 * SECOND)
    assert "takes its checkpoint" in executor.execute(drain).detail
    clock.advance(1 * SECOND)
    assert f"{train} is ending" in executor.execute(drain).detail


def test_accident_a_node_that_is_deleted_while_it_is_drained_ends_the_drain(site: Site, clock: ManualClock) -> None:
    node = site.node()
    site.pod("train-0", node)
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    site.door.ask("DELETE", f"/api/v1/nodes/{node}")
    result = executor.execute(drain)
    assert (result.ok, result.pending, result.lasting) == (True, False, False)
    assert "was deleted while it was drained" in result.detail
    assert node not in executor.nodes()


def test_accident_a_person_who_uncordons_stops_the_drain(site: Site, clock: ManualClock) -> None:
    node = site.node()
    site.pod("train-0", node)
    late = site.pod("late-0", node, app="late")
    site.budget("late", "late", 1)
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    site.edit(f"/api/v1/nodes/{node}", spec={"unschedulable": None})
    result = executor.execute(drain)
    assert (result.ok, result.pending) == (False, False)
    assert "someone uncordoned" in result.detail
    assert "unschedulable" not in site.find_node(node)["spec"]
    assert _exists(site, late)


def test_a_node_that_is_not_there_is_a_failure(site: Site, clock: ManualClock) -> None:
    executor = site.executor(clock)
    for action in (ActionKind.CORDON, ActionKind.DRAIN, ActionKind.UNCORDON, ActionKind.PLACE_ELSEWHERE):
        result = executor.execute(decide(action, f"{site.prefix}node-99"))
        assert (result.ok, result.certain) == (False, True)
        assert f'nodes "{site.prefix}node-99" not found' in result.detail


def test_a_migration_moves_the_pods_of_one_gpu_and_no_others(site: Site, clock: ManualClock) -> None:
    node = site.node()
    sick, well = site.pod("train-0", node), site.pod("train-1", node)
    gpu = Subject(SubjectKind.GPU, "GPU-1", node, "default")
    executor = site.executor(clock)
    move = decide(ActionKind.MIGRATE, node, subject=gpu, parameters={"pods": sick})
    assert executor.execute(move).pending
    assert ("tocsin.io/avoid", "PreferNoSchedule") in _taints(site, node)
    assert executor.verify(move, VIEW) is None
    site.finish(sick)
    assert executor.verify(move, VIEW) is True
    again = site.pod("train-0", node)
    result = site.executor(clock).execute(move)
    assert (result.ok, result.pending) == (True, False)
    assert _exists(site, again), "a pod that came later under the same name is another"
    assert "deletionTimestamp" not in site.find_pod(again)["metadata"]
    assert "deletionTimestamp" not in site.find_pod(well)["metadata"]
    assert not [key for key in _notes(site, node) if key.startswith("tocsin.io/migrate-")]
    assert "unschedulable" not in site.find_node(node)["spec"]


def test_a_checkpoint_by_itself_ends_when_every_pod_has_one(site: Site, clock: ManualClock) -> None:
    node = site.node()
    wanted = {"tocsin.io/checkpoint": "true"}
    pods = [site.pod(f"train-{index}", node, annotations=wanted) for index in range(2)]
    site.pod("plain-0", node)
    executor = site.executor(clock)
    save = decide(ActionKind.CHECKPOINT, node)
    assert executor.execute(save).pending
    site.note(pods[0], checkpoint_done=save.id)
    waiting = executor.execute(save)
    assert (waiting.pending, waiting.effect["checkpoints_taken"]) == (True, 1)
    site.note(pods[1], checkpoint_done=save.id)
    result = executor.execute(save)
    assert (result.ok, result.pending, result.effect["checkpoints_taken"]) == (True, False, 2)
    late = decide(ActionKind.CHECKPOINT, node, "k2")
    assert executor.execute(late).pending
    clock.advance(61 * SECOND)
    assert not executor.execute(late).ok


@pytest.mark.parametrize("way", ["taint", "label"])
def test_new_work_is_steered_elsewhere_for_a_time(site: Site, clock: ManualClock, way: str) -> None:
    node = site.node()
    executor = site.executor(clock, avoid_with=way, avoid_seconds=600)
    avoid = decide(ActionKind.PLACE_ELSEWHERE, node)
    assert executor.execute(avoid).ok
    assert (("tocsin.io/avoid", "PreferNoSchedule") in _taints(site, node)) is (way == "taint")
    assert ("tocsin.io/avoid" in _labels(site, node)) is (way == "label")
    assert executor.verify(avoid, VIEW) is True
    clock.advance(599 * SECOND)
    assert executor.upkeep() == []
    clock.advance(1 * SECOND)
    assert executor.upkeep() == [node]
    assert executor.upkeep() == []
    assert executor.verify(avoid, VIEW) is False
    assert not _taints(site, node)
    again = site.executor(clock, avoid_with=way).execute(avoid)
    assert (again.lasting, executor.verify(avoid, VIEW)) == (False, False), "a journal that was restored asks again"


def _pool(action: ActionKind, key: str = "k", **parameters: str) -> Decision:
    return decide(action, "", key, subject=Subject(SubjectKind.POOL, "serve", pool="serve"), parameters=parameters)


def _workloads(target: str, **more: int) -> dict[str, object]:
    return {"workloads": {"serve": {"target": target, **more}}}


def _replicas(site: Site, name: str) -> int:
    path = f"/apis/apps/v1/namespaces/{site.space}/deployments/{name}/scale"
    return int(site.get(path)["spec"]["replicas"])


def test_a_pool_scales_within_its_bounds_once_per_decision(site: Site, clock: ManualClock) -> None:
    bounds = _workloads(site.deployment("infer", 3), min_replicas=2, max_replicas=5)
    executor = site.executor(clock, **bounds)
    out = _pool(ActionKind.SCALE_OUT)
    result = executor.execute(out)
    assert (result.ok, result.effect) == (True, {"replicas_added": 1.0})
    site.until(lambda: executor.verify(out, VIEW) is True)
    for each in (executor, site.executor(clock, **bounds)):
        again = each.execute(out)
        assert (again.ok, again.lasting) == (True, False)
    assert _replicas(site, "infer") == 4
    assert executor.execute(_pool(ActionKind.SCALE_OUT, "k2", replicas="9")).effect["replicas_added"] == 1
    assert _replicas(site, "infer") == 5
    full = executor.execute(_pool(ActionKind.SCALE_OUT, "k3"))
    assert (full.ok, full.lasting) == (True, False)
    assert executor.execute(_pool(ActionKind.SCALE_IN, "k4", replicas="0")).ok
    assert _replicas(site, "infer") == 2
    assert executor.verify(out, VIEW) is False, "somebody has changed it since"


def test_replicas_that_an_autoscaler_owns_are_left_to_it_by_name(site: Site, clock: ManualClock) -> None:
    bounds = _workloads(site.deployment("infer", 3))
    site.autoscaler("infer", 2, 4)
    executor = site.executor(clock, **bounds)
    result = executor.execute(_pool(ActionKind.SCALE_OUT))
    assert (result.ok, result.certain) == (False, True)
    assert "HorizontalPodAutoscaler infer (2 to 4 replicas)" in result.detail
    assert _replicas(site, "infer") == 3
    held = executor.check(_pool(ActionKind.SCALE_OUT, "k2"), VIEW)
    assert "HorizontalPodAutoscaler infer" in held.reason
    assert held.until_ms == T0 + 5 * 60 * SECOND
    clock.advance(5 * 60 * SECOND)
    assert not executor.check(_pool(ActionKind.SCALE_OUT, "k2"), VIEW).reason


def test_the_minimum_of_an_autoscaler_moves_within_its_bounds_where_allowed(site: Site, clock: ManualClock) -> None:
    bounds = _workloads(site.deployment("infer", 3))
    site.autoscaler("infer", 2, 4)
    executor = site.executor(clock, autoscaled="raise_minimum", **bounds)
    path = f"/apis/autoscaling/v2/namespaces/{site.space}/horizontalpodautoscalers/infer"

    def lowest() -> int:
        return int(site.get(path)["spec"]["minReplicas"])

    out = _pool(ActionKind.SCALE_OUT, replicas="9")
    assert executor.execute(out).ok
    assert lowest() == 4
    assert executor.verify(out, VIEW) is True
    assert executor.execute(out).lasting is False
    assert executor.execute(_pool(ActionKind.SCALE_IN, "k2", replicas="1")).ok
    assert lowest() == 2, "never below what it was before"


def test_a_repartition_waits_for_mig_manager(site: Site, clock: ManualClock) -> None:
    was = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "success"}
    node = site.node(labels=was)
    executor = site.executor(clock)
    cut = decide(ActionKind.DEFRAGMENT, node, parameters={"mig_config": "all-3g.40gb"})
    busy = site.pod("train-0", node)
    held = executor.execute(cut)
    assert not held.ok
    assert f"{busy} hold GPUs" in held.detail
    site.finish(busy)
    assert executor.execute(cut).pending
    assert _labels(site, node)["nvidia.com/mig.config"] == "all-3g.40gb"
    assert _labels(site, node)["nvidia.com/mig.config.state"] == "pending"
    assert executor.execute(cut).pending
    assert executor.verify(cut, VIEW) is False
    for state in ("rebooting", "success"):
        site.edit(f"/api/v1/nodes/{node}", metadata={"labels": {"nvidia.com/mig.config.state": state}})
        result = site.executor(clock).execute(cut)
    assert (result.ok, result.pending) == (True, False)
    assert executor.verify(cut, VIEW) is True
    back = decide(ActionKind.DEFRAGMENT, node, "k2", parameters={"mig_config": "previous"})
    assert executor.execute(back).pending
    assert _labels(site, node)["nvidia.com/mig.config"] == "all-1g.10gb"
    site.edit(f"/api/v1/nodes/{node}", metadata={"labels": {"nvidia.com/mig.config.state": "failed"}})
    failed = executor.execute(back)
    assert not failed.ok
    assert "all-3g.40gb before" in failed.detail
    again = site.executor(clock).execute(cut)
    assert (again.ok, _labels(site, node)["nvidia.com/mig.config"]) == (False, "all-1g.10gb")
    assert again.detail == f"{node} has been partitioned otherwise since; left as is"


def test_a_mig_manager_that_never_answers_is_a_failure_in_doubt(site: Site, clock: ManualClock) -> None:
    node = site.node()
    executor = site.executor(clock, mig_seconds=600)
    cut = decide(ActionKind.DEFRAGMENT, node, parameters={"mig_config": "all-3g.40gb"})
    assert executor.execute(cut).pending
    clock.advance(600 * SECOND)
    result = executor.execute(cut)
    assert (result.ok, result.certain) == (False, False)
    assert "still says pending" in result.detail


def test_a_dry_run_changes_nothing_and_says_what_it_would_do(site: Site, clock: ManualClock) -> None:
    node = site.node()
    site.pod("free-0", node, app="free")
    blocked = site.pod("train-0", node)
    daemon = site.daemon("dcgm-exporter-1", node)
    site.budget("train", "train", 1)
    target = site.deployment("infer", 3)
    before = _content(site, node)
    executor = site.executor(clock, dry_run=True, **_workloads(target))
    drain = executor.execute(decide(ActionKind.DRAIN, node))
    assert (drain.ok, drain.pending, drain.lasting) == (True, False, False)
    assert f"would evict {site.space}/free-0" in drain.detail
    assert f"not allowed now {blocked} (The disruption budget train" in drain.detail
    assert f"would leave {daemon} (DaemonSet)" in drain.detail
    for action in (ActionKind.CORDON, ActionKind.UNCORDON, ActionKind.PLACE_ELSEWHERE):
        result = executor.execute(decide(action, node))
        assert (result.ok, result.lasting) == (True, False)
        assert result.detail.startswith("dry run: ")
    assert executor.execute(_pool(ActionKind.SCALE_OUT)).detail.startswith("dry run: ")
    assert _content(site, node) == before
    assert _replicas(site, "infer") == 3
    assert "deletionTimestamp" not in site.find_pod(f"{site.space}/free-0")["metadata"]


def test_every_right_that_the_settings_need_is_granted(site: Site) -> None:
    target = site.deployment("infer", 3)
    lease = f"{site.space}/tocsin-brain"
    executor = site.executor(autoscaled="raise_minimum", delete_blocked_pods=True, lease=lease, **_workloads(target))
    assert executor.missing_rights() == []


def test_a_bad_token_is_refused_in_words(site: Site, tmp_path: Path) -> None:
    executor = site.executor(kubeconfig=with_token(site, tmp_path / "bad", "no-such-token"))
    result = executor.execute(decide(ActionKind.CORDON, "node-1"))
    assert (result.ok, result.certain) == (False, True)
    assert "Kubernetes answered 401: Unauthorized" in result.detail
