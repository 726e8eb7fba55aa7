"""Scopes: who may decide what, and in which pools."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr, ValidationError

from tocsin.api.app import create_app
from tocsin.api.principal import Grant, Principal, grants_of, simple
from tocsin.api.routes_decisions import pools_of
from tocsin.client.models import DecisionOut
from tocsin.config.access import AccessScope, ApiSettings, GroupRole, Role, Token
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.fake_service import FakeService

SECRET = "a-scoped-secret-0123456789"
OPERATES = (Role.OPERATOR, Role.ADMIN)


def scope(pools: list[str] | None = None, actions: list[str] | None = None) -> AccessScope:
    return AccessScope.model_validate({k: v for k, v in {"pools": pools, "actions": actions}.items() if v is not None})


def http_for(service: FakeService, *scopes: AccessScope, role: Role = Role.OPERATOR) -> TestClient:
    token = Token(name="olga", role=role, secret=SecretStr(SECRET), scopes=list(scopes))
    app = create_app(service, ApiSettings(tokens=[token]))
    return TestClient(
        app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), headers={"Authorization": f"Bearer {SECRET}"}
    )


def waiting(service: FakeService) -> DecisionOut:
    return next(d for d in service.decisions(100) if d.approvable and d.subject.pool)


@pytest.mark.parametrize(
    ("pools", "actions", "action", "pool", "granted"),
    [
        (["train-*"], ["throttle", "cordon"], "throttle", "train-a", True),
        (["train-*"], ["throttle", "cordon"], "drain", "train-a", False),
        (["train-*"], ["throttle", "cordon"], "throttle", "infer-a", False),
        (["train-*"], None, "drain", "train-b", True),
        (["train-*"], None, "drain", "", False),
        (["t*", "*"], ["drain"], "drain", "", True),
        (["train-[ab]"], ["*"], "drain", "train-c", False),
        (["TRAIN-*"], ["*"], "drain", "train-a", False),
    ],
)
def test_a_scope_covers_its_actions_in_its_pools(
    pools: list[str], actions: list[str] | None, action: str, pool: str, granted: bool
) -> None:
    assert Grant(Role.OPERATOR, (scope(pools, actions),)).covers(action, pool) is granted


def test_grants_add_up_but_do_not_mix() -> None:
    who = Principal(
        "x", (Grant(Role.VIEWER), Grant(Role.OPERATOR, (scope(["a"]),)), Grant(Role.ADMIN, (scope(["b"], ["drain"]),)))
    )
    assert who.role is Role.ADMIN
    assert who.may(OPERATES, "cordon", ["a"])
    assert who.may(OPERATES, "drain", ["a", "b"])
    assert not who.may(OPERATES, "cordon", ["a", "b"])
    assert not who.may((Role.ADMIN,), "drain", ["a"])
    # The viewer's grant has no limit, and still decides nothing.
    assert not who.may(OPERATES, "drain", [])


def test_groups_are_matched_without_regard_to_capitals() -> None:
    mapping = [GroupRole(group="GPU Admins", role=Role.ADMIN), GroupRole(group="staff", role=Role.VIEWER)]
    assert [g.role for g in grants_of(["gpu admins", "other"], mapping)] == [Role.ADMIN]
    assert [g.role for g in grants_of(["STAFF", "GPU ADMINS"], mapping)] == [Role.ADMIN, Role.VIEWER]
    assert grants_of(["gpu admins "], mapping) == ()


def test_approval_within_the_scope_and_refusal_outside_it() -> None:
    service = FakeService()
    decision = waiting(service)
    pool, action = decision.subject.pool, decision.action.value
    for beside in (scope(["other-*"], [action]), scope([pool], ["notify"])):
        for verb in ("approve", "reject"):
            answer = http_for(service, beside).post(f"/v1/decisions/{decision.id}/{verb}", json={})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (403, "scope_lacking")
            assert error["message"].startswith(f"token olga may not {action} in pool {pool}; its scopes: ")
            assert error["details"] == {"action": action, "pools": [pool]}
    assert service.journal(0, 10)[1:] == []
    assert service.refusals == {"scope_lacking": 4}
    assert http_for(service, scope([pool], [action])).post(f"/v1/decisions/{decision.id}/approve", json={}).is_success
    assert service.journal(0, 10)[-1].actor == "olga"


def test_a_scope_limits_an_admin_as_well() -> None:
    service = FakeService()
    decision = waiting(service)
    http = http_for(service, scope(["other-*"]), role=Role.ADMIN)
    assert http.post(f"/v1/decisions/{decision.id}/approve", json={}).status_code == 403
    assert http.post("/v1/breaker/reset", json={}).status_code == 403


def test_reading_has_no_scope() -> None:
    http = http_for(FakeService(), scope(["nowhere"], ["throttle"]))
    assert {http.get(path).status_code for path in ("/v1/fleet", "/v1/gpus", "/v1/decisions", "/v1/journal")} == {200}
    assert http.get("/v1/me").json()["scopes"] == ["nowhere: throttle"]


def test_what_holds_for_the_fleet_needs_a_scope_for_the_fleet() -> None:
    verbs = [("/v1/pause", "pause"), ("/v1/resume", "resume")]
    for path, action in verbs:
        http = http_for(FakeService(), scope(["train-*"]))
        answer = http.post(path, json={})
        assert answer.json()["error"]["message"].startswith(f"token olga may not {action} for the whole fleet")
        assert http_for(FakeService(), scope(["train-*"]), scope(actions=[action])).post(path, json={}).is_success


def test_release_and_injection_ask_for_the_pools_they_touch() -> None:
    service = FakeService()
    gpu = service.gpus()[0]
    host = {"kind": "host", "name": gpu.host, "reason": "repaired"}
    fault = {"kind": "gsp_timeout", "gpu": gpu.uuid}
    for path, body, action in (("/v1/release", host, "release"), ("/v1/inject", fault, "inject")):
        assert http_for(service, scope(["other"], [action])).post(path, json=body).status_code == 403
        assert http_for(service, scope([gpu.pool], [action])).post(path, json=body).status_code == 200
    released = http_for(service, scope([gpu.pool])).post("/v1/release", json={"kind": "gpu", "name": gpu.uuid})
    assert released.json()["subject"] == {
        "kind": "gpu", "name": gpu.uuid, "host": gpu.host, "pool": gpu.pool, "detail": ""
    }  # fmt: skip
    unknown = http_for(service).post("/v1/release", json={"kind": "host", "name": "no-such-host"})
    assert unknown.status_code == 404


def test_pools_of_each_kind_of_subject() -> None:
    service = FakeService()
    gpu = service.gpus()[0]
    everywhere = sorted({one.pool for one in service.gpus() if one.host == gpu.host})

    def of(kind: SubjectKind, name: str, pool: str = "") -> list[str]:
        return list(pools_of(service, Subject(kind=kind, name=name, pool=pool)))

    assert of(SubjectKind.FLEET, "fleet") == []
    assert of(SubjectKind.POOL, "train-a") == ["train-a"]
    assert of(SubjectKind.GPU, gpu.uuid) == [gpu.pool]
    assert of(SubjectKind.GPU, "GPU-gone", "a") == ["a"]
    assert of(SubjectKind.GPU, "GPU-gone") == [""]
    # What the GPUs say outranks what a decision says of its host.
    assert of(SubjectKind.HOST, gpu.host, "another") == everywhere
    assert of(SubjectKind.HOST, "gone", "a") == ["a"]


def test_a_host_in_two_pools_needs_both() -> None:
    service = FakeService()
    first = service.gpus()[0]
    mixed = [one.model_copy(update={"pool": "a" if one.index else "b"}) for one in service.gpus()]
    service.gpus = lambda: mixed  # type: ignore[method-assign]
    body = {"kind": "host", "name": first.host}
    assert http_for(service, scope(["a"])).post("/v1/release", json=body).status_code == 403
    assert http_for(service, scope(["a"]), scope(["b"])).post("/v1/release", json=body).status_code == 200


@pytest.mark.parametrize(
    ("action", "parameters", "pools"),
    [
        (ActionKind.THROTTLE, {}, ["a"]),
        (ActionKind.NOTIFY, {}, ["a"]),
        # The whole node is kept from new work, partitioned anew, asked or reset with its peers.
        (ActionKind.MIGRATE, {}, ["a", "b"]),
        (ActionKind.PLACE_ELSEWHERE, {}, ["a", "b"]),
        (ActionKind.DEFRAGMENT, {"mig_config": "all-1g.10gb"}, ["a", "b"]),
        (ActionKind.CHECKPOINT, {}, ["a", "b"]),
        (ActionKind.RESET_GPU, {}, ["a", "b"]),
        (ActionKind.DRAIN, {}, ["a", "b"]),
        # Where the work goes to, and all ranks of its job.
        (ActionKind.MIGRATE, {"to": "GPU-c@4"}, ["a", "b", "c"]),
        (ActionKind.MIGRATE, {"to_host": "node-c"}, ["a", "b", "c"]),
        (ActionKind.MIGRATE, {"to_host": "node-a,node-b node-c"}, ["a", "b", "c"]),
        (ActionKind.THROTTLE, {"ranks": '[["node-a","GPU-a"],["node-c","GPU-c"]]'}, ["a", "c"]),
        (ActionKind.THROTTLE, {"ranks": '[["node-x","GPU-gone"]]'}, ["", "a"]),
        (ActionKind.THROTTLE, {"ranks": "nonsense"}, ["a"]),
    ],
)
def test_every_pool_that_an_action_reaches_counts(
    action: ActionKind, parameters: dict[str, str], pools: list[str]
) -> None:
    service = three_pools()
    subject = Subject(kind=SubjectKind.GPU, name="GPU-a", host="node-a", pool="a")
    assert list(pools_of(service, subject, action, parameters)) == pools


@pytest.mark.parametrize(
    ("action", "pools"),
    [(ActionKind.THROTTLE, ["a", "c"]), (ActionKind.MIGRATE, ["a", "b", "c"]), (ActionKind.CORDON, ["a", "b"])],
)
def test_the_pools_of_the_rest_of_a_job_count_where_it_is_slowed_or_stopped(
    action: ActionKind, pools: list[str]
) -> None:
    service = three_pools()
    service.same_jobs = lambda gpus: {*gpus, "GPU-c"} if "GPU-a" in gpus else set(gpus)  # type: ignore[method-assign]
    subject = Subject(kind=SubjectKind.GPU, name="GPU-a", host="node-a", pool="a")
    assert list(pools_of(service, subject, action)) == pools


def test_a_pool_and_the_node_that_leaves_it() -> None:
    pool = Subject(kind=SubjectKind.POOL, name="a", pool="a")
    assert list(pools_of(three_pools(), pool, ActionKind.SCALE_IN, {"node": "node-a"})) == ["a", "b"]
    assert list(pools_of(three_pools(), pool, ActionKind.SCALE_OUT, {"gpus": "8"})) == ["a"]


def three_pools() -> FakeService:
    """GPU-a and GPU-b on one node, GPU-c on another, each in a pool of its own."""
    service = FakeService()
    one = service.gpus()[0]
    gpus = [
        one.model_copy(update={"uuid": f"GPU-{name}", "pool": name, "host": "node-c" if name == "c" else "node-a"})
        for name in "abc"
    ]
    service.gpus = lambda: gpus  # type: ignore[method-assign]
    return service


def test_a_misspelt_action_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="there is no action 'cordn'; known are \\*, notify, throttle"):
        scope(actions=["cordn"])


def test_an_agent_s_token_may_be_bound_to_its_node() -> None:
    service = FakeService()
    other = next(one for one in service.gpus() if one.host != "node-1")
    token = Token(name="node-1", role=Role.AGENT, secret=SecretStr(SECRET), host="Node-1")
    http = TestClient(create_app(service, ApiSettings(tokens=[token])), base_url="http://127.0.0.1")
    lines = [
        "gpu,gpu_uuid=GPU-new,host=node-1 power_watts=1 1",
        "gpu,gpu_uuid=GPU-new,host=node-2 power_watts=1 1",
        "# a comment",
        "gpu,gpu_uuid=GPU-new power_watts=1 1",
        f"gpu_event,kind=xid,gpu_uuid={other.uuid},host=node-1,code=79 x=1 1",
        "gpu_finding,host=node-1,rule=x id=1 1",
        "gpu,gpu_uuid=GPU-new,ho\\st=node-2,host=NODE-1 power_watts=2 1",
    ]
    answer = http.post("/api/v2/write", content="\n".join(lines), headers={"Authorization": f"Bearer {SECRET}"}).json()[
        "error"
    ]
    assert [line["number"] for line in answer["details"]["rejected"]] == [2, 3, 4, 5, 6]
    problems = [line["problem"] for line in answer["details"]["rejected"]]
    assert problems[0] == "node-1 may not write for host 'node-2'"
    assert problems[3] == f"node-1 may not write for a GPU that host '{other.host}' reports"
    assert problems[4] == "node-1 may write readings and events alone"
    assert service.lines == [lines[0], lines[6]]
    assert http.get("/v1/me", headers={"Authorization": f"Bearer {SECRET}"}).json()["hosts"] == ["node-1"]


def test_an_unbound_principal_speaks_for_every_host() -> None:
    assert simple("x", Role.AGENT).speaks_for("anything")


@pytest.mark.parametrize(
    ("action", "status"),
    [
        (ActionKind.DRAIN, 403),
        (ActionKind.CORDON, 403),
        (ActionKind.UNCORDON, 403),
        (ActionKind.REBOOT_NODE, 403),
        (ActionKind.THROTTLE, 200),
        (ActionKind.RESET_GPU, 403),
    ],
)
def test_an_action_on_the_whole_host_needs_all_its_pools_though_one_gpu_is_its_subject(
    action: ActionKind, status: int
) -> None:
    for verb in ("approve", "reject"):
        service = FakeService()
        held = waiting(service)
        gpu = next(one for one in service.gpus() if one.uuid == held.subject.name)
        mixed = [
            one.model_copy(update={"pool": "train-a" if one.uuid == gpu.uuid else "serving", "host": gpu.host})
            for one in service.gpus()
        ]
        service.gpus = lambda mixed=mixed: mixed  # type: ignore[method-assign]
        subject = replace(held.subject, pool="train-a", host=gpu.host)
        about = replace(held, action=action, subject=subject)
        service.decision = lambda _, about=about: about  # type: ignore[method-assign]
        path = f"/v1/decisions/{held.id}/{verb}"
        assert http_for(service, scope(["train-*"])).post(path, json={}).status_code == status
        assert http_for(service, scope(["train-*", "serving"])).post(path, json={}).status_code == 200


def test_the_host_of_a_gpu_is_looked_up_where_the_decision_does_not_name_it() -> None:
    service = FakeService()
    gpu = service.gpus()[0]
    subject = Subject(kind=SubjectKind.GPU, name=gpu.uuid)
    everywhere = sorted({one.pool for one in service.gpus() if one.host == gpu.host})
    assert list(pools_of(service, subject, ActionKind.DRAIN)) == everywhere
    gone = Subject(kind=SubjectKind.GPU, name="GPU-gone", pool="a")
    assert list(pools_of(service, gone, ActionKind.DRAIN)) == ["a"]
