"""One GPU is taken out and seven are spared: against the recorded answers of API servers with and without DRA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.devices import GPU_NOTE, DeviceName, Effect, RuleNote, rule_body, rule_name
from tocsin.actions.kubernetes.release import release_all
from tocsin.actions.kubernetes.single_gpu import DeviceVersions, versions_in
from tocsin.actions.model.executor import ExecutionResult
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import Decision, Ruling
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.kube_devices import GROUP, RULES, DeviceDouble
from tocsin_testing.kube_double import Asked
from tocsin_testing.kube_recorded import Answer, exchanges, recorded
from tocsin_testing.kube_site import DirectDoor, Site, decide, double_site

GPUS = [f"GPU-{number}" for number in range(8)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path, DeviceDouble()) as found:
        found.node("n1")
        _double(found).publish("n1", GPUS)
        yield found


def _double(site: Site) -> DeviceDouble:
    assert isinstance(site.double, DeviceDouble)
    return site.double


def _decision(action: ActionKind = ActionKind.CORDON_GPU, gpu: str = "GPU-5", **more: Any) -> Decision:
    return decide(action, "n1", subject=Subject(SubjectKind.GPU, gpu, "n1", "train"), **more)


def _run(executor: Kubernetes, decision: Decision, clock: ManualClock, most: int = 8) -> ExecutionResult:
    result = executor.execute(decision)
    while result.pending and most:
        clock.advance(10 * SECOND)
        result, most = executor.execute(decision), most - 1
    return result


def _rules(site: Site) -> list[dict[str, Any]]:
    return list(_double(site).state.collection(RULES).values())


def _holder(site: Site, name: str, gpu: int) -> None:
    """A pod that holds a device by a claim and asks for no GPU of the device plugin."""
    title = site.pod(name, "n1", gpus=0)
    _double(site).claim(name, "n1", f"gpu-{gpu}", site.find_pod(title))


def _capacity(site: Site, node: str, capacity: dict[str, str]) -> None:
    _double(site).state.collection("/api/v1/nodes")[node]["status"]["capacity"] = capacity


def _taints(site: Site) -> list[str]:
    return [each["key"] for each in site.find_node("n1")["spec"].get("taints", [])]


def test_one_gpu_of_eight_takes_no_new_claims_once_the_cluster_shows_that_it_follows(
    site: Site, clock: ManualClock
) -> None:
    _holder(site, "five", 5)
    _holder(site, "six", 6)
    executor = site.executor(clock, device_rules="NoSchedule")
    first = executor.execute(_decision())
    assert (first.ok, first.pending) == (True, True)
    assert [one["spec"]["taint"]["effect"] for one in _rules(site)] == ["None"]
    result = _run(executor, _decision(), clock)
    assert result.detail == "GPU-5 (n1/gpu-5) takes no new claims; default/five hold it still"
    (rule,) = _rules(site)
    assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-5"}
    assert rule["spec"]["taint"] | {"timeAdded": ""} == {
        "key": "tocsin.io/fault", "value": _decision().id, "effect": "NoSchedule", "timeAdded": "",
    }  # fmt: skip
    assert (site.find_node("n1")["spec"].get("unschedulable"), _taints(site)) == (None, [])
    state = executor.nodes()["n1"]
    assert (state.schedulable, state.closed, state.work) == (True, {"GPU-5"}, ("default/five", "default/six"))
    assert executor.verify(_decision(), World().view()) is True
    writes = [one for one in _double(site).writes() if one.plural == "devicetaintrules"]
    assert all(one.query["fieldValidation"] == "Strict" for one in writes)
    assert not any(one.plural == "resourceslices" for one in _double(site).writes())


def test_it_is_given_back_by_the_inverse_and_by_nothing_else(site: Site, clock: ManualClock) -> None:
    executor = site.executor(clock, device_rules="NoSchedule")
    _run(executor, _decision(), clock)
    _run(executor, _decision(gpu="GPU-6", key="other"), clock)
    undo = executor.inverse(_decision())
    assert undo is not None
    assert undo.action is ActionKind.UNCORDON_GPU
    assert executor.check(undo, World().view()).ruling is Ruling.HOLD, "nothing is known of the GPU"
    assert executor.verify(undo, World().view()) is False
    assert executor.execute(undo).detail == "GPU-5 takes work again"
    assert [one["metadata"]["annotations"][GPU_NOTE] for one in _rules(site)] == ["GPU-6"]
    assert executor.verify(undo, World().view()) is True
    again = executor.execute(undo)
    said = "GPU-5 was given back by this before; what was done since is left as is"
    assert (again.detail, again.lasting) == (said, False)
    assert executor.execute(_decision(key="later")).pending
    assert site.executor(clock, device_rules="NoSchedule").execute(undo).detail == said
    assert len(_rules(site)) == 2, "what a later decision took out stays out"


@pytest.mark.parametrize(
    ("flavor", "why", "made"),
    [
        ("default136", "the cluster serves no DeviceTaintRules", 0),
        ("gateonly136", "nothing in the cluster follows its rule (gate DRADeviceTaintRules)", 1),
    ],
)
def test_where_rules_do_nothing_the_node_is_marked_and_that_is_said(
    site: Site, clock: ManualClock, flavor: str, why: str, made: int
) -> None:
    double = _double(site)
    double.flavor, double.follows = flavor, False
    executor = site.executor(clock, device_rules="NoExecute")
    result = _run(executor, _decision(), clock)
    assert result.ok
    assert result.detail.startswith(f"GPU-5 is not taken out alone: {why}; new work is steered off n1 until 20")
    created = [one for one in double.writes() if one.plural == "devicetaintrules" and one.method == "POST"]
    assert (len(created), _rules(site), _taints(site)) == (made, [], ["tocsin.io/avoid"])
    assert executor.nodes()["n1"].closed is None, "the mark does not tell which GPU it is about"
    undo = executor.inverse(_decision())
    assert undo is not None
    assert executor.execute(undo).detail == "GPU-5 takes work again"
    assert _taints(site) == []


def test_a_gpu_that_no_slice_has_and_a_server_that_refuses_effect_none_fall_back(
    site: Site, clock: ManualClock
) -> None:
    executor = site.executor(clock, device_rules="NoSchedule")
    assert "no ResourceSlice has it" in _run(executor, _decision(gpu="GPU-9"), clock).detail

    def refuse(asked: Asked) -> Answer | None:
        return recorded("dra_rule_create_422_effect") if asked.method == "POST" and "taint" in asked.path else None

    _double(site).before = refuse
    result = _run(executor, _decision(key="k2"), clock)
    assert "the cluster refuses the rule (Kubernetes answered 422" in result.detail
    assert _rules(site) == []


@pytest.mark.parametrize(
    ("flavor", "promoted", "objects", "rules"),
    [
        ("", "", "v1", "v1beta2"),
        ("", "v1", "v1", "v1"),
        ("emulated133", "", "v1beta2", "v1alpha3"),
        ("emulated134", "", "v1", "v1alpha3"),
        ("emulated135", "", "v1", "v1alpha3"),
    ],
)
def test_each_server_is_asked_in_versions_that_it_serves(
    site: Site, clock: ManualClock, flavor: str, promoted: str, objects: str, rules: str
) -> None:
    double = _double(site)
    double.flavor, double.promoted = flavor, frozenset({promoted})
    assert versions_in(Cluster(DirectDoor(double)).device_versions()) == DeviceVersions(objects, rules)
    result = _run(site.executor(clock, device_rules="NoSchedule"), _decision(), clock)
    assert result.detail == "GPU-5 (n1/gpu-5) is out, and no pod holds it"
    paths = {one.path.split("/")[3] + " " + one.plural for one in double.served if one.path.startswith(GROUP + "/v")}
    wanted = {f"{objects} resourceslices", f"{objects} resourceclaims", f"{rules} devicetaintrules"}
    assert {one for one in paths if not one.endswith(" ")} == wanted


def test_a_version_without_what_is_needed_is_passed_over() -> None:
    objects, rules = frozenset({"resourceslices", "resourceclaims"}), frozenset({"devicetaintrules"})
    served = {"v1": objects | rules, "v1beta2": objects | rules, "v1beta1": objects, "v1alpha3": rules}
    assert versions_in(served) == DeviceVersions("v1", "v1")
    assert versions_in(served | {"v1": frozenset({"resourceslices"})}) == DeviceVersions("v1beta2", "v1beta2")
    assert versions_in({"v1beta1": objects, "v1alpha3": rules}) == DeviceVersions("v1beta1", "v1alpha3")
    assert versions_in({"v2": objects | rules}) == DeviceVersions("", "") == versions_in({})


def test_an_eviction_waits_for_budgets_and_then_spares_the_other_seven(site: Site, clock: ManualClock) -> None:
    for number in (5, 6):
        _holder(site, f"rank-{number}", number)
    site.budget("train", "train", 2)
    executor = site.executor(clock, device_rules="NoExecute", drain_seconds=600)
    waits = _run(executor, _decision(), clock, most=3)
    assert waits.pending
    assert waits.detail == "waiting: the disruption budget default/train allows 0 of 1"
    assert [one["spec"]["taint"]["effect"] for one in _rules(site)] == ["NoSchedule"]
    site.edit("/apis/policy/v1/namespaces/default/poddisruptionbudgets/train", spec={"minAvailable": 1})
    _double(site).state.controllers()
    result = _run(executor, _decision(), clock)
    assert result.detail == "GPU-5 (n1/gpu-5) is out, and no pod holds it"
    assert [one["spec"]["taint"]["effect"] for one in _rules(site)] == ["NoExecute"]
    left = site.get("/api/v1/namespaces/default/pods")["items"]
    assert [one["metadata"]["name"] for one in left] == ["rank-6"]


def test_pods_that_may_not_leave_keep_it_to_new_claims_until_time_is_up(site: Site, clock: ManualClock) -> None:
    _holder(site, "bare", 5)
    executor = site.executor(clock, device_rules="NoExecute", evict_bare_pods=False, drain_seconds=20)
    result = _run(executor, _decision(), clock)
    assert (result.ok, result.pending) == (False, False)
    assert "default/bare hold it still: default/bare: no controller makes it anew" in result.detail
    assert [one["spec"]["taint"]["effect"] for one in _rules(site)] == ["NoSchedule"]


def test_a_checkpoint_is_asked_for_before_pods_are_deleted(site: Site, clock: ManualClock) -> None:
    title = site.pod("saves", "n1", gpus=0, annotations={"tocsin.io/checkpoint": "true"})
    _double(site).claim("saves", "n1", "gpu-5", site.find_pod(title))
    executor = site.executor(clock, device_rules="NoExecute")
    waits = _run(executor, _decision(), clock, most=2)
    assert waits.detail == "waiting: default/saves takes its checkpoint"
    site.settle()
    assert _run(executor, _decision(), clock).detail == "GPU-5 (n1/gpu-5) is out, and no pod holds it"


def test_a_rule_that_somebody_took_back_is_not_made_again(site: Site, clock: ManualClock) -> None:
    _double(site).follows = False
    executor = site.executor(clock, device_rules="NoSchedule")
    assert executor.execute(_decision()).pending
    (rule,) = _rules(site)
    _double(site).state.remove(RULES, rule["metadata"]["name"])
    result = executor.execute(_decision())
    assert (result.ok, result.detail) == (False, "someone took back the rule for n1/gpu-5; left as is")
    assert _rules(site) == []


@pytest.mark.parametrize("how", ["given back", "by hand"])
def test_a_brain_that_has_forgotten_what_it_did_takes_no_gpu_out_again(
    site: Site, clock: ManualClock, how: str
) -> None:
    """A journal that was restored asks for the same decision: the node remembers it."""
    executor = site.executor(clock, device_rules="NoSchedule")
    assert _run(executor, _decision(), clock).ok
    undo = executor.inverse(_decision())
    assert undo is not None
    if how == "given back":
        assert executor.execute(undo).ok
    else:
        (rule,) = _rules(site)
        _double(site).state.remove(RULES, rule["metadata"]["name"])
    restored = site.executor(clock, device_rules="NoSchedule")
    result = _run(restored, _decision(), clock)
    assert (result.ok, result.detail) == (False, "someone took back the rule for n1/gpu-5; left as is")
    assert _rules(site) == []
    assert _run(restored, _decision(key="another"), clock).ok


def test_a_mig_instance_goes_alone_and_a_gpu_with_all_of_its_instances(site: Site, clock: ManualClock) -> None:
    double = _double(site)
    parts = exchanges()["dra_slice_partitionable_devices_create"]["request"]["body"]
    counters = exchanges()["dra_slice_partitionable_counters_create"]["request"]["body"]
    for body in (parts, counters):
        double.state.create(f"{GROUP}/v1/resourceslices", body | {"spec": body["spec"] | {"nodeName": "n1"}})
    whole = parts["spec"]["devices"][0]["attributes"]["uuid"]["string"]
    result = _run(site.executor(clock, device_rules="NoSchedule"), _decision(gpu=whole), clock)
    assert result.detail == f"{whole} (gpu-node-3/gpu-0, gpu-node-3/gpu-0-mig-1g10gb-19-0) is out, and no pod holds it"
    assert {one["spec"]["deviceSelector"]["device"] for one in _rules(site)} == {"gpu-0", "gpu-0-mig-1g10gb-19-0"}


def test_a_node_without_a_device_plugin_has_as_many_gpus_as_its_slices_list(site: Site, clock: ManualClock) -> None:
    site.node("n2")
    _double(site).publish("n2", [f"GPU-2-{n}" for n in range(100)])
    site.node("n3")
    for name in ("n1", "n2", "n3"):
        _capacity(site, name, {})
    shown = {name: state.gpus for name, state in site.executor(clock, device_rules="NoSchedule").nodes().items()}
    assert shown == {"n1": len(GPUS), "n2": 64, "n3": None}
    assert site.executor(clock).nodes()["n1"].gpus is None, "asked for with device_rules alone"


def test_what_the_device_plugin_shows_goes_before_slices(site: Site, clock: ManualClock) -> None:
    _capacity(site, "n1", {"nvidia.com/gpu": "4"})
    assert site.executor(clock, device_rules="NoSchedule").nodes()["n1"].gpus == 4


def test_a_rule_follows_its_gpu_when_a_reset_renumbers_the_devices(site: Site, clock: ManualClock) -> None:
    executor = site.executor(clock, device_rules="NoSchedule")
    _run(executor, _decision(), clock)
    _run(executor, _decision(gpu="GPU-6", key="other"), clock)
    assert executor.upkeep() == []
    _double(site).publish("n1", [*GPUS[:5], "GPU-6", "GPU-5", "GPU-7"])
    assert sorted(executor.upkeep()) == ["GPU-5", "GPU-6"]
    now = {one["metadata"]["annotations"][GPU_NOTE]: one["spec"] for one in _rules(site)}
    assert (now["GPU-5"]["deviceSelector"]["device"], now["GPU-6"]["deviceSelector"]["device"]) == ("gpu-6", "gpu-5")
    assert {one["taint"]["effect"] for one in now.values()} == {"NoSchedule"}
    assert executor.upkeep() == []


def test_it_is_off_unless_set_and_a_lacking_right_is_named(site: Site, clock: ManualClock) -> None:
    assert not site.executor(clock).serves(_decision())
    assert not site.executor(clock, device_rules="NoSchedule").serves(decide(ActionKind.CORDON_GPU, "n1"))
    _double(site).withheld = frozenset({"create devicetaintrules"})
    executor = site.executor(clock, device_rules="NoSchedule", patience_seconds=0)
    result = executor.execute(_decision())
    assert not result.ok
    assert "create devicetaintrules.resource.k8s.io, which role tocsin-devices of" in result.detail
    assert [str(need) for need in executor.missing_rights()] == ["create devicetaintrules.resource.k8s.io"]


def test_a_dry_run_stores_no_rule(site: Site, clock: ManualClock) -> None:
    result = _run(site.executor(clock, device_rules="NoSchedule", dry_run=True), _decision(), clock)
    assert result.detail == "dry run: would take GPU-5 (n1/gpu-5) out by a rule"
    assert _rules(site) == []


def test_release_all_takes_back_every_rule_and_leaves_those_of_others(site: Site, clock: ManualClock) -> None:
    executor = site.executor(clock, device_rules="NoSchedule", fault_taint="tocsin.io/fault")
    _run(executor, _decision(), clock)
    executor.execute(decide(ActionKind.CORDON, "n1"))
    theirs = exchanges()["dra_rule_create_201"]["request"]["body"]
    theirs = theirs | {"metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "kubectl"}}}
    _double(site).state.create(RULES, theirs)
    (found,) = release_all(Cluster(DirectDoor(_double(site))))
    assert found.node == "n1"
    assert found.taken[-1].startswith("DeviceTaintRule tocsin-gpu-5-")
    assert [one["metadata"]["name"] for one in _rules(site)] == ["theirs"]
    assert list(release_all(Cluster(DirectDoor(_double(site))))) == []


def test_a_layout_stays_while_a_pod_holds_a_gpu_by_a_claim(site: Site, clock: ManualClock) -> None:
    label = {"metadata": {"labels": {patches.MIG_CONFIG: "all-disabled"}}}
    cluster = Cluster(DirectDoor(_double(site)))
    assert cluster.change_node("n1", lambda _: label)
    assert cluster.change_node("n1", lambda node: patches.repartition(node, "all-1g.10gb", "k"))
    _holder(site, "five", 5)
    (found,) = release_all(cluster)
    assert (found.taken, "default/five hold GPUs" in found.waits[0]) == ((), True)
    site.finish("default/five")
    (found,) = release_all(cluster)
    assert (found.taken, found.waits) == (("label nvidia.com/mig.config, again all-disabled",), ())


def test_rules_that_may_not_be_read_keep_no_node_from_being_released(site: Site, clock: ManualClock) -> None:
    executor = site.executor(clock, device_rules="NoSchedule")
    _run(executor, _decision(), clock)
    executor.execute(decide(ActionKind.CORDON, "n1"))
    _double(site).withheld = frozenset({"list devicetaintrules"})
    node, rest = release_all(Cluster(DirectDoor(_double(site))))
    assert (node.taken[0], node.error, rest.node) == ("cordon", "", "DeviceTaintRules")
    assert "403" in rest.error
    assert site.find_node("n1")["spec"].get("unschedulable") is None


@pytest.mark.parametrize("lacking", ["driver", "pool", "device"])
def test_no_rule_is_written_for_less_than_the_whole_name_of_a_device(lacking: str) -> None:
    name = replace(DeviceName("gpu.nvidia.com", "n1", "gpu-5"), **{lacking: ""})
    with pytest.raises(ValueError, match="driver, pool and device"):
        rule_body("v1beta2", name, RuleNote("GPU-5", "k", "XID 79"), "tocsin.io/fault", Effect.NO_EXECUTE)


def test_one_device_has_one_name_of_a_rule() -> None:
    names = {rule_name(DeviceName("gpu.nvidia.com", pool, "gpu-5")) for pool in ("n1", "n2", "rack/n1")}
    assert len(names) == 3
    assert all(len(one) <= 63 for one in names)
