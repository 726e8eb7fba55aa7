"""The API server double gives the answers that a real API server 1.36 gave to the same requests."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import ANY
from urllib.parse import unquote

import pytest

from tocsin.actions.kubernetes.api import KubeNode
from tocsin_testing.kube_devices import RULES, DeviceDouble
from tocsin_testing.kube_double import ADMIN, KubeDouble, taken_apart
from tocsin_testing.kube_recorded import Answer, exchanges

VOLATILE = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "timeAdded", "continue"}
VOLATILE |= {"lastTransitionTime", "lastHeartbeatTime", "deletionTimestamp", "lastProbeTime"}


def _ask(double: KubeDouble, name: str, **changed: Any) -> Answer:
    """Put the recorded request `name`; `changed` replaces parts of its body."""
    request = exchanges()[name]["request"]
    path, _, text = request["path"].partition("?")
    query = dict(part.split("=", 1) for part in text.split("&") if part)
    query = {key: unquote(value) for key, value in query.items()}
    body = json.loads(json.dumps(request.get("body") or {})) | changed
    asked = taken_apart(request["method"], path, query, body, request["headers"].get("Content-Type", ""))
    try:
        return double.answer(asked, f"Bearer {ADMIN}")
    except Answer as early:
        return early


def _same(answer: Answer, name: str) -> None:
    response = exchanges()[name]["response"]
    assert answer.status == response["status"]
    assert answer.headers.get("Retry-After") == response["headers"].get("Retry-After")
    wanted = response.get("body", response.get("body_text"))
    if isinstance(wanted, dict) and wanted.get("kind") == "Status":
        assert answer.body == wanted
    else:
        assert _stable(answer.body) == _stable(wanted)


def _stable(body: Any) -> Any:
    """Without what differs from run to run, and without labels that an operator's admission webhook adds."""
    if isinstance(body, dict):
        return {key: _stable(value) for key, value in body.items() if key not in VOLATILE}
    return [_stable(each) for each in body] if isinstance(body, list) else body


@pytest.fixture
def double() -> KubeDouble:
    made = KubeDouble()
    _ask(made, "node_create")
    _ask(made, "node_status_patch")
    return made


def _pod(double: KubeDouble, name: str, app: str, grace: int = 30) -> None:
    request = exchanges()["pod_create_bare_gpu"]["request"]["body"]
    spec = request["spec"] | {"terminationGracePeriodSeconds": grace}
    _ask(double, "pod_create_bare_gpu", metadata={"name": name, "labels": {"app": app}}, spec=spec)
    pod = double.state.find("/api/v1/namespaces/default/pods", name)
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    double.state.controllers()


def test_a_node_is_cordoned_tainted_labelled_and_given_back(double: KubeDouble) -> None:
    _same(_ask(double, "node_get_404"), "node_get_404")
    _same(_ask(double, "node_patch_404"), "node_patch_404")
    cordoned = _ask(double, "node_cordon_strategic")
    assert cordoned.body["spec"]["unschedulable"] is True
    found = _ask(double, "node_get_after_cordon")
    assert found.body["spec"] == {
        "providerID": "bare://node-1",
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    assert _stable(exchanges()["node_get_after_cordon"]["response"]["body"]["spec"]) == found.body["spec"]
    again = _ask(double, "node_cordon_again_noop")
    assert again.body["metadata"]["resourceVersion"] == found.body["metadata"]["resourceVersion"]
    _ask(double, "node_uncordon_null_merge")
    after = _ask(double, "node_get_after_uncordon")
    assert after.body["spec"] == exchanges()["node_get_after_uncordon"]["response"]["body"]["spec"]
    for name in ("node_taint_add_strategic", "node_taint_second_strategic"):
        answer = _ask(double, name)
        assert _stable(answer.body["spec"]) == _stable(exchanges()[name]["response"]["body"]["spec"])


def test_a_stale_write_of_a_node_is_a_conflict_and_a_fresh_one_is_not(double: KubeDouble) -> None:
    stale = "node_taint_add_mergepatch_rv_conflict_409"
    _same(_ask(double, stale), stale)
    fresh = double.state.find("/api/v1/nodes", "node-1")["metadata"]["resourceVersion"]
    assert _ask(double, stale, metadata={"resourceVersion": fresh}).status == 200


def test_conditions_merge_by_type(double: KubeDouble) -> None:
    wanted = exchanges()["node_condition_patch"]["response"]["body"]["status"]["conditions"]
    answer = _ask(double, "node_condition_patch")
    assert [each["type"] for each in answer.body["status"]["conditions"]] == [each["type"] for each in wanted]


def test_a_condition_goes_by_its_type_and_its_writer_with_it(double: KubeDouble) -> None:
    _ask(double, "node_create", metadata={"name": "gpu-node-1"})
    _ask(double, "node_condition_of_tocsin", status={"conditions": [{"type": "GpuPredicted", "status": "True"}]})
    before = KubeNode(_ask(double, "node_condition_of_tocsin").body)
    assert before.condition_writers == {"GpuHealthy": {"tocsin"}, "GpuPredicted": {"tocsin"}}
    heartbeat = KubeNode(_ask(double, "node_condition_heartbeat").body).condition("GpuHealthy")
    wanted = KubeNode(exchanges()["node_condition_heartbeat"]["response"]["body"])
    assert heartbeat == wanted.condition("GpuHealthy")
    after = KubeNode(_ask(double, "node_condition_delete").body)
    wanted = KubeNode(exchanges()["node_condition_delete"]["response"]["body"])
    assert not after.condition("GpuPredicted")
    assert after.condition_writers == {"GpuHealthy": wanted.condition_writers["GpuHealthy"]}
    assert "GpuPredicted" not in wanted.condition_writers


@pytest.mark.parametrize(
    "name",
    [
        "event_create_201",
        "event_create_409",
        "event_create_422_missing",
        "event_create_422_note",
        "event_create_422_reportinginstance",
    ],
)
def test_an_event_is_created_once_and_checked(double: KubeDouble, name: str) -> None:
    if name == "event_create_409":
        _ask(double, "event_create_201")
    answer, response = _ask(double, name), exchanges()[name]["response"]
    assert answer.status == response["status"]
    if answer.status == 201:
        assert answer.body == {**exchanges()[name]["request"]["body"], "metadata": ANY}
    else:
        assert answer.body == response["body"]


@pytest.mark.parametrize(
    "name",
    [
        "node_taint_invalid_422",
        "node_patch_wrong_content_type_415",
        "method_405",
        "path_404_plain",
        "pods_bad_fieldselector_400",
        "list_410_exact_old_rv",
        "evict_404_missing_pod",
        "pod_delete_404",
        "lease_get_404",
        "scale_404",
        "version",
        "selfsubjectaccessreview_allowed",
    ],
)
def test_what_is_refused_or_read_without_any_state(double: KubeDouble, name: str) -> None:
    if name == "node_taint_invalid_422":
        _ask(double, "node_create", metadata={"name": "node-2"})
    if name == "pod_delete_404":
        answer = _ask(double, name)
        assert answer.body == json.loads(json.dumps(exchanges()[name]["response"]["body"]))
        return
    _same(_ask(double, name), name)


def test_evictions_under_a_budget(double: KubeDouble) -> None:
    for index in range(3):
        _pod(double, f"train-{index}", "train")
    _ask(double, "pdb_create")
    dry = _ask(double, "evict_201")
    _same(dry, "evict_201")
    ending = _ask(double, "evict_201_pod_after").body["metadata"]
    assert ending["deletionGracePeriodSeconds"] == 30
    _same(_ask(double, "evict_201_repeat_terminating"), "evict_201_repeat_terminating")
    _same(_ask(double, "evict_429_pdb"), "evict_429_pdb")
    _same(_ask(double, "evict_429_dryrun"), "evict_429_dryrun")
    status = _ask(double, "pdb_get").body["status"]
    recorded = exchanges()["pdb_get"]["response"]["body"]["status"]
    assert status == {key: recorded[key] for key in status}
    _same(_ask(double, "pod_create_conflict_409"), "pod_create_conflict_409")


def test_evictions_without_and_with_too_many_budgets(double: KubeDouble) -> None:
    _pod(double, "free-0", "free")
    _same(_ask(double, "evict_400_name_mismatch"), "evict_400_name_mismatch")
    wrong = _ask(double, "evict_409_uid_precondition")
    there = double.state.find("/api/v1/namespaces/default/pods", "free-0")["metadata"]["uid"]
    recorded = exchanges()["evict_409_uid_precondition"]["response"]["body"]
    text = json.dumps(recorded).replace("8e8eb129-8952-4034-a362-3034156fdce6", there)
    assert (wrong.status, wrong.body) == (409, json.loads(text))
    options = {"preconditions": {"uid": there}, "gracePeriodSeconds": 0}
    _same(_ask(double, "evict_201_no_pdb_uid", deleteOptions=options), "evict_201_no_pdb_uid")
    _same(_ask(double, "evict_pod_get_404_after"), "evict_pod_get_404_after")
    _pod(double, "two-pdb-0", "two")
    for name in ("one", "two"):
        spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "two"}}}
        _ask(double, "pdb_create", metadata={"name": name}, spec=spec)
    _same(_ask(double, "evict_500_two_pdbs"), "evict_500_two_pdbs")


def test_a_budget_that_nobody_has_counted_yet(double: KubeDouble) -> None:
    double.state.halted = True
    _pod(double, "late-0", "late")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "late"}}}
    _ask(double, "pdb_create", metadata={"name": "late"}, spec=spec)
    _same(_ask(double, "pdb_get_not_observed"), "pdb_get_not_observed")
    _same(_ask(double, "evict_429_pdb_not_yet_observed"), "evict_429_pdb_not_yet_observed")
    double.state.halted = False
    _pod(double, "late-1", "late")
    _same(_ask(double, "evict_dryrun_201"), "evict_dryrun_201")
    assert "deletionTimestamp" not in double.state.find("/api/v1/namespaces/default/pods", "late-0")["metadata"]


def test_the_scale_of_a_deployment_and_who_undoes_it(double: KubeDouble) -> None:
    _ask(double, "deployment_create")
    _same(_ask(double, "scale_get"), "scale_get")
    _same(_ask(double, "scale_patch"), "scale_patch")
    writers = double.state.find("/apis/apps/v1/namespaces/default/deployments", "infer")["metadata"]["managedFields"]
    recorded = exchanges()["deployment_get"]["response"]["body"]["metadata"]["managedFields"]
    assert writers == [each for each in recorded if each.get("subresource") == "scale"]
    double.state.autoscale()
    _same(_ask(double, "scale_get_after"), "scale_get_after")
    _same(_ask(double, "scale_put_conflict_409"), "scale_put_conflict_409")
    _same(_ask(double, "scale_patch_negative_422"), "scale_patch_negative_422")
    _ask(double, "hpa_create")
    listed = _ask(double, "hpa_list").body["items"][0]["spec"]
    assert listed == exchanges()["hpa_list"]["response"]["body"]["items"][0]["spec"]
    assert _ask(double, "scale_patch_with_hpa").body["spec"] == {"replicas": 6}
    double.state.autoscale()
    _same(_ask(double, "scale_get_with_hpa_after"), "scale_get_with_hpa_after")


def test_a_lease_is_created_renewed_and_fought_for(double: KubeDouble) -> None:
    _same(_ask(double, "lease_create_201"), "lease_create_201")
    _same(_ask(double, "lease_create_409_exists"), "lease_create_409_exists")
    place = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

    def fresh() -> dict[str, str]:
        version = double.state.find(place, "gpu-monitor-leader")["metadata"]["resourceVersion"]
        return {"name": "gpu-monitor-leader", "resourceVersion": version}

    stale = fresh()
    _same(_ask(double, "lease_renew_put", metadata=stale), "lease_renew_put")
    _same(_ask(double, "lease_takeover_409_conflict", metadata=stale), "lease_takeover_409_conflict")
    _same(_ask(double, "lease_takeover_ok", metadata=fresh()), "lease_takeover_ok")
    _same(_ask(double, "lease_get"), "lease_get")
    assert _ask(double, "lease_time_without_micros").status == 422
    _same(_ask(double, "lease_release"), "lease_release")


def test_a_list_comes_in_pages_and_grows_too_old(double: KubeDouble) -> None:
    for index in range(2, 5):
        _ask(double, "node_create", metadata={"name": f"node-{index}"})
    first = _ask(double, "node_list_limit1").body
    assert [item["metadata"]["name"] for item in first["items"]] == ["node-1"]
    recorded = exchanges()["node_list_limit1"]["response"]["body"]["metadata"]
    assert first["metadata"]["remainingItemCount"] == recorded["remainingItemCount"] == 3
    token = first["metadata"]["continue"]

    def page() -> Answer:
        asked = taken_apart("GET", "/api/v1/nodes", {"limit": "1", "continue": token}, {}, "")
        try:
            return double.answer(asked, f"Bearer {ADMIN}")
        except Answer as early:
            return early

    assert [item["metadata"]["name"] for item in page().body["items"]] == ["node-2"]
    double.state.compacted = double.state.version
    _same(page(), "list_410_continue_expired")


def test_who_asks_without_a_token_or_with_a_bad_one_or_without_the_right(double: KubeDouble) -> None:
    from tocsin_testing.kube_double import TOCSIN

    asked = taken_apart("GET", "/api/v1/nodes", {}, {}, "")
    answers = {}
    for name, header in (("auth_anonymous_403", None), ("auth_401", "Bearer nobody")):
        with pytest.raises(Answer) as caught:
            double.answer(asked, header)
        answers[name] = caught.value
    for name, answer in answers.items():
        _same(answer, name)
    _pod(double, "train-0", "train")
    create = taken_apart("POST", "/api/v1/namespaces/default/pods", {}, {}, "")
    with pytest.raises(Answer) as denied:
        double.answer(create, f"Bearer {TOCSIN}")
    assert denied.value.status == 403


@pytest.fixture
def devices() -> DeviceDouble:
    return DeviceDouble()


@pytest.mark.parametrize("flavor", ["", "default136", "gateonly136", "emulated133", "emulated134", "emulated135"])
def test_each_kind_of_server_serves_what_it_was_recorded_with(devices: DeviceDouble, flavor: str) -> None:
    devices.flavor = flavor
    prefix = "_".join(filter(None, ("dra", flavor, "discovery_")))
    names = [name for name in exchanges() if name.startswith(prefix)]
    assert len(names) >= 2
    for name in names:
        _same(_ask(devices, name), name)


def test_a_server_of_1_34_takes_rules_in_the_version_that_lists_them_alone(devices: DeviceDouble) -> None:
    devices.flavor = "emulated134"
    taken = _ask(devices, "dra_emulated134_rule_create_v1alpha3")
    wanted = exchanges()["dra_emulated134_rule_create_v1alpha3"]["response"]
    assert (taken.status, taken.body["apiVersion"]) == (wanted["status"], wanted["body"]["apiVersion"])
    _same(_ask(devices, "dra_emulated134_rule_create_v1beta2"), "dra_emulated134_rule_create_v1beta2")


@pytest.mark.parametrize(
    "name",
    [
        "dra_rule_create_422_effect",
        "dra_rule_create_cel_selector_strict_400",
        "dra_rule_create_v1_404",
        "dra_rule_create_wrong_version_400",
        "dra_rule_patch_404",
    ],
)
def test_a_rule_is_checked(devices: DeviceDouble, name: str) -> None:
    _same(_ask(devices, name), name)


def test_a_rule_lives_as_it_was_recorded(devices: DeviceDouble) -> None:
    _ask(devices, "dra_rule_create_dryrun_201")
    assert devices.state.collection(RULES) == {}
    created = _ask(devices, "dra_rule_create_201")
    wanted = exchanges()["dra_rule_create_201"]["response"]["body"]
    assert (created.status, _stable(created.body)) == (201, _stable(wanted))
    _same(_ask(devices, "dra_rule_create_409_exists"), "dra_rule_create_409_exists")
    stale = "dra_rule_patch_409_rv"
    _same(_ask(devices, stale), stale)
    rule = _ask(devices, "dra_rule_get_status_none").body
    said = exchanges()["dra_rule_get_status_none"]["response"]["body"]["status"]["conditions"][0]
    assert rule["status"]["conditions"][0] == said | {"observedGeneration": rule["metadata"]["generation"]}
    closed = _ask(devices, "dra_rule_patch_effect_noschedule").body
    assert (closed["metadata"]["generation"], closed["spec"]["taint"]["effect"]) == (2, "NoSchedule")
    first, again = (_ask(devices, "dra_rule_patch_same_noop").body["metadata"] for _ in range(2))
    assert (again["generation"], again["resourceVersion"]) == (first["generation"], first["resourceVersion"])
    assert [one["metadata"]["name"] for one in _ask(devices, "dra_rule_list").body["items"]] == [
        rule["metadata"]["name"]
    ]
    _ask(devices, "dra_rule_create_201", metadata={"name": "tocsin-gpu-node-1-gpu-6"})
    assert _ask(devices, "dra_rule_delete_200").status == 200
    _same(_ask(devices, "dra_rule_delete_404"), "dra_rule_delete_404")


def test_the_selector_that_is_dropped_without_strict_validation_would_match_more(devices: DeviceDouble) -> None:
    answer = _ask(devices, "dra_rule_create_cel_selector_warning")
    assert answer.status == 201
    kept = exchanges()["dra_rule_create_cel_selector_warning"]["response"]["body"]["spec"]["deviceSelector"]
    assert answer.body["spec"]["deviceSelector"] == kept
