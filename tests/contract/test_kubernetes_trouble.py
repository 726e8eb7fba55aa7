"""Executor `kubernetes` when the API server refuses, stalls, breaks off or is not there."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tocsin import __version__
from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.model.executor import ManagerUnavailable
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import TOCSIN, Asked, KubeDouble
from tocsin_testing.kube_recorded import Answer, recorded
from tocsin_testing.kube_site import FlakyDoor, Site, decide, double_site, with_token, write_kubeconfig
from tocsin_testing.servers import free_port

VIEW = World().view()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with double_site(tmp_path) as found:
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def _answers(site: Site, answer: Callable[[Asked], Answer | None]) -> None:
    assert site.double is not None
    site.double.before = answer


def _withhold(site: Site, *rights: str) -> None:
    assert site.double is not None
    site.double.withheld = frozenset(rights)


def _flaky(site: Site, clock: ManualClock, **more: object) -> tuple[Kubernetes, FlakyDoor]:
    """An executor, and what lies between it and the server."""
    assert site.double is not None
    door = FlakyDoor(site.double)
    return Kubernetes(Cluster(door), site.settings(**more), clock), door


def _busy(asked: Asked) -> Answer | None:
    return recorded("list_future_rv_504") if asked.plural == "nodes" else None


def test_a_server_that_is_overloaded_is_asked_again_and_then_given_up(site: Site, clock: ManualClock) -> None:
    node = site.node()
    executor = site.executor(clock, patience_seconds=60)
    cordon = decide(ActionKind.CORDON, node)
    _answers(site, _busy)
    first = executor.execute(cordon)
    assert (first.ok, first.pending) == (True, True)
    assert "Kubernetes answered 504" in first.detail
    _answers(site, lambda _: None)
    clock.advance(59 * SECOND)
    done = executor.execute(cordon)
    assert (done.ok, done.pending) == (True, False)
    _answers(site, _busy)
    later = decide(ActionKind.CORDON, node, "k2")
    assert executor.execute(later).pending
    clock.advance(60 * SECOND)
    over = executor.execute(later)
    assert (over.ok, over.pending, over.certain) == (False, False, False)


def _before_122(asked: Asked) -> Answer | None:
    """A server that knows no ``policy/v1``, as 1.20 answered."""
    if asked.sub == "eviction" and asked.body.get("apiVersion") == "policy/v1":
        told = 'no kind "Eviction" is registered for version "policy/v1" in scheme'
        return Answer(400, {"kind": "Status", "message": told, "reason": "BadRequest", "code": 400}, {})
    if asked.path == "/apis/policy/v1/poddisruptionbudgets":
        return Answer(404, "404 page not found\n", {})
    if asked.path == "/apis/policy/v1beta1/poddisruptionbudgets":
        return Answer(200, {"kind": "PodDisruptionBudgetList", "metadata": {}, "items": []}, {})
    return None


def test_a_server_before_1_22_is_drained_too(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    _answers(site, _before_122)
    executor, drain = site.executor(clock), decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    assert site.find_pod(train)["metadata"]["deletionTimestamp"]
    site.finish(train)
    clock.advance(5 * SECOND)
    done = executor.execute(drain)
    assert (done.ok, done.pending) == (True, False)


def test_nobody_there_is_certain_and_a_stalled_server_is_not(site: Site, tmp_path: Path, clock: ManualClock) -> None:
    node = site.node()
    nobody = write_kubeconfig(tmp_path / "nobody", f"http://127.0.0.1:{free_port()}", "t")
    executor = site.executor(clock, kubeconfig=nobody, patience_seconds=0)
    result = executor.execute(decide(ActionKind.CORDON, node))
    assert (result.ok, result.certain) == (False, True)
    assert "cannot connect" in result.detail
    with pytest.raises(ManagerUnavailable, match="cannot connect"):
        executor.nodes()
    assert executor.verify(decide(ActionKind.CORDON, node), VIEW) is None
    released = threading.Event()

    def stall(asked: Asked) -> Answer | None:
        if asked.method == "PATCH":
            released.wait(10)
        return None

    _answers(site, stall)
    slow = site.executor(clock, timeout_seconds=0.2, patience_seconds=0)
    result = slow.execute(decide(ActionKind.CORDON, node))
    released.set()
    assert (result.ok, result.certain) == (False, False)
    assert "no answer" in result.detail


def test_a_missing_right_is_told_with_the_remedy(site: Site, clock: ManualClock) -> None:
    node = site.node()
    _withhold(site, "patch nodes")
    result = site.executor(clock).execute(decide(ActionKind.CORDON, node))
    assert (result.ok, result.certain, result.pending, result.unserved) == (False, True, False, True)
    assert "cannot patch resource" in result.detail
    assert "patch nodes, which role tocsin-nodes of deploy/kubernetes/rbac.yaml grants" in result.detail


def test_a_refusal_of_what_is_granted_is_asked_again_and_then_told_apart(site: Site, clock: ManualClock) -> None:
    node = site.node()
    refusal = "rbac_403_patch_node_serviceaccount"
    _answers(site, lambda asked: recorded(refusal) if asked.method == "PATCH" else None)
    executor = site.executor(clock, patience_seconds=60)
    assert executor.execute(decide(ActionKind.CORDON, node)).pending
    clock.advance(60 * SECOND)
    result = executor.execute(decide(ActionKind.CORDON, node))
    assert (result.ok, result.certain, result.pending) == (False, True, False)
    assert "an admission rule of the cluster refuses this request" in result.detail


@pytest.mark.parametrize("seen", [True, False])
def test_a_server_that_starts_anew_and_refuses_everything_at_first_ends_no_drain(
    site: Site, clock: ManualClock, seen: bool
) -> None:
    """Three of three restarts of a real server answered 403 for up to 30 ms: its roles were not read yet. `seen` says
    whether the executor met the outage before."""
    node = site.node()
    train = site.pod("train-0", node)
    assert site.double is not None
    executor, door = _flaky(site, clock)
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    if seen:
        door.trouble = "away"
        with pytest.raises(ManagerUnavailable):
            executor.nodes()
        door.trouble = ""
    site.double.starting = True
    refused = executor.execute(drain)
    assert (refused.ok, refused.pending) == (True, True), refused.detail
    assert "answered 403" in refused.detail
    site.double.starting = False
    site.finish(train)
    clock.advance(5 * SECOND)
    done = executor.execute(drain)
    assert (done.ok, done.pending) == (True, False)


@pytest.mark.parametrize("answer", ["auth_401", "rbac_403_patch_node_serviceaccount"])
def test_a_refusal_after_a_lost_connection_passes_within_the_patience_and_no_longer(
    site: Site, clock: ManualClock, answer: str
) -> None:
    node = site.node()
    executor, door = _flaky(site, clock, patience_seconds=60)
    cordon = decide(ActionKind.CORDON, node)
    door.trouble = "away"
    assert executor.execute(cordon).pending
    door.trouble = ""

    def half_awake(asked: Asked) -> Answer | None:
        return recorded("selfsubjectaccessreview_denied" if asked.method == "POST" else answer)

    _answers(site, half_awake)
    assert executor.execute(cordon).pending
    clock.advance(60 * SECOND)
    over = executor.execute(cordon)
    assert (over.ok, over.pending, over.unserved) == (False, False, True)
    again = executor.execute(decide(ActionKind.CORDON, node, "k2"))
    assert (again.ok, again.pending) == (False, False), "the connection was lost long ago"


def test_a_right_to_evict_that_is_missing_ends_the_drain(site: Site, clock: ManualClock) -> None:
    node = site.node()
    site.pod("train-0", node)
    _withhold(site, "create pods/eviction")
    result = site.executor(clock).execute(decide(ActionKind.DRAIN, node))
    assert (result.ok, result.pending) == (False, False)
    assert "pods/eviction" in result.detail


def test_rights_are_checked_up_front(site: Site) -> None:
    def deny(asked: Asked) -> Answer | None:
        attributes = asked.body.get("spec", {}).get("resourceAttributes", {}) if asked.method == "POST" else {}
        return recorded("selfsubjectaccessreview_denied") if attributes.get("subresource") == "eviction" else None

    _answers(site, deny)
    missing = site.executor().missing_rights()
    assert [str(need) for need in missing] == ["create pods/eviction"]


def test_a_change_by_somebody_else_in_between_is_read_anew_and_kept(site: Site, clock: ManualClock) -> None:
    node = site.node()
    left = [2]

    def meddle(asked: Asked) -> Answer | None:
        if asked.method == "PATCH" and asked.name == node and left[0]:
            left[0] -= 1
            assert site.double is not None
            found = site.double.state.find("/api/v1/nodes", node)
            found["spec"]["taints"] = [{"key": f"theirs/{left[0]}", "effect": "NoSchedule"}]
            found["metadata"]["resourceVersion"] = site.double.state.next_version()
        return None

    _answers(site, meddle)
    executor = site.executor(clock, fault_taint="tocsin.io/fault", node_condition="")
    assert executor.execute(decide(ActionKind.CORDON, node)).ok
    keys = {taint["key"] for taint in site.find_node(node)["spec"]["taints"]}
    assert keys >= {"theirs/0", "tocsin.io/fault"}


def test_a_node_that_others_change_without_end_is_a_certain_failure(site: Site, clock: ManualClock) -> None:
    node = site.node()
    stale = "node_taint_add_mergepatch_rv_conflict_409"
    _answers(site, lambda asked: recorded(stale) if asked.method == "PATCH" else None)
    result = site.executor(clock).execute(decide(ActionKind.CORDON, node))
    assert (result.ok, result.certain) == (False, True)
    assert "the object has been modified" in result.detail
    assert site.double is not None
    assert len([each for each in site.double.writes() if each.name == node and not each.sub]) == 5


def test_a_taint_that_the_server_finds_invalid_is_told_with_its_words(site: Site, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="prefix/name"):
        site.settings(fault_taint="bad key!")
    node = site.node()
    executor = site.executor(clock, fault_taint="tocsin.io/fault")
    _answers(site, lambda asked: recorded("node_taint_invalid_422") if asked.method == "PATCH" else None)
    result = executor.execute(decide(ActionKind.CORDON, node))
    assert not result.ok
    assert "Kubernetes answered 422" in result.detail
    assert "name part must consist of alphanumeric characters" in result.detail


def test_a_pod_that_was_replaced_under_its_name_is_not_evicted(site: Site, clock: ManualClock) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    site.budget("train", "train", 1)
    stale = next(pod for pod in Cluster(site.door).pods_on(node) if pod.title == train)
    site.finish(train)
    site.pod("train-0", node)
    with pytest.raises(KubeError) as caught:
        Cluster(site.door).evict(stale)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    drain = decide(ActionKind.DRAIN, node)
    executor = site.executor(clock)
    _answers(site, lambda asked: recorded("evict_409_uid_precondition") if asked.sub == "eviction" else None)
    assert executor.execute(drain).pending
    _answers(site, lambda asked: recorded("evict_404_missing_pod") if asked.sub == "eviction" else None)
    assert executor.execute(drain).pending
    assert site.find_pod(train)


def test_the_wait_that_the_server_asks_for_is_kept(site: Site, clock: ManualClock) -> None:
    node = site.node()
    assert site.double is not None
    site.double.state.halted = True
    site.pod("late-0", node, app="late")
    site.budget("late", "late", 0)
    executor = site.executor(clock)
    drain = decide(ActionKind.DRAIN, node)
    assert "still being processed by the server" in executor.execute(drain).detail
    site.double.state.halted = False
    site.double.state.controllers()
    clock.advance(9 * SECOND)
    assert executor.execute(drain).effect["pods_evicted"] == 0, "Retry-After: 10"
    clock.advance(1 * SECOND)
    assert executor.execute(drain).effect["pods_evicted"] == 1


def test_a_list_that_grew_too_old_begins_anew(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.actions.kubernetes.cluster.PAGE", 2)
    node = site.node()
    for index in range(5):
        site.pod(f"train-{index}", node)
    old = [1]

    def expire(asked: Asked) -> Answer | None:
        if "continue" in asked.query and old[0]:
            old[0] -= 1
            return recorded("list_410_continue_expired")
        return None

    _answers(site, expire)
    assert len(Cluster(site.door).pods_on(node)) == 5
    assert old == [0]


def test_a_condition_that_may_not_be_written_does_not_undo_the_cordon(site: Site, clock: ManualClock) -> None:
    node = site.node()
    _answers(site, lambda asked: recorded("rbac_403_patch_node_serviceaccount") if asked.sub == "status" else None)
    result = site.executor(clock).execute(decide(ActionKind.CORDON, node))
    assert result.ok
    assert "condition TocsinGpuHealthy was not written" in result.detail


def test_a_stale_scale_is_read_anew(site: Site, clock: ManualClock) -> None:
    target = site.deployment("infer", 3)
    left = [1]

    def meddle(asked: Asked) -> Answer | None:
        if asked.method == "PATCH" and asked.sub == "scale" and left[0]:
            left[0] -= 1
            return recorded("scale_put_conflict_409")
        return None

    _answers(site, meddle)
    executor = site.executor(clock, workloads={"serve": target})
    pool = Subject(SubjectKind.POOL, "serve", pool="serve")
    assert executor.execute(decide(ActionKind.SCALE_OUT, "", subject=pool)).ok
    assert site.get(f"/apis/apps/v1/namespaces/{site.space}/deployments/infer/scale")["spec"]["replicas"] == 4


def test_keda_is_the_owner_even_of_the_hpa_that_it_made(site: Site, clock: ManualClock) -> None:
    assert site.double is not None
    site.double.keda = True
    target = site.deployment("infer", 3)
    path = f"/apis/keda.sh/v1alpha1/namespaces/{site.space}/scaledobjects"
    spec = {"scaleTargetRef": {"name": "infer"}, "minReplicaCount": 1, "maxReplicaCount": 6}
    site.door.ask("POST", path, body={"metadata": {"name": "infer"}, "spec": spec})
    site.autoscaler("infer", 1, 6)
    pool = Subject(SubjectKind.POOL, "serve", pool="serve")
    left = site.executor(clock, workloads={"serve": target})
    result = left.execute(decide(ActionKind.SCALE_OUT, "", subject=pool))
    assert not result.ok
    assert "ScaledObject infer (1 to 6 replicas)" in result.detail
    moved = site.executor(clock, workloads={"serve": target}, autoscaled="raise_minimum")
    assert moved.execute(decide(ActionKind.SCALE_OUT, "", "k2", subject=pool)).ok
    assert site.get(f"{path}/infer")["spec"]["minReplicaCount"] == 2


def test_credentials_that_cannot_be_read_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kubernetes\.kubeconfig"):
        connect(KubernetesSettings(kubeconfig=tmp_path / "missing"))
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    with pytest.raises(InputError, match="cannot be read"):
        connect(KubernetesSettings(kubeconfig=broken))


def test_a_pod_uses_its_service_account_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    double = KubeDouble(tls=context)
    url = double.start()
    (tmp_path / "token").write_text(TOCSIN)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", url.rpartition(":")[2])
    door = connect(KubernetesSettings())
    assert Cluster(door).nodes() == []
    door.close()
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    stranger = connect(KubernetesSettings())
    with pytest.raises(KubeError, match="no secure connection") as caught:
        Cluster(stranger).nodes()
    assert caught.value.certain
    stranger.close()
    double.stop()
    (tmp_path / "token").unlink()
    with pytest.raises(InputError, match="token file"):
        connect(KubernetesSettings())


def test_a_library_that_is_not_installed_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(InputError, match=r"pip install '\.\[kubernetes\]'"):
        connect(KubernetesSettings())


def test_an_answer_that_is_no_json_is_told(site: Site) -> None:
    _answers(site, lambda _: Answer(502, "bad gateway", {"Content-Type": "text/plain"}))
    with pytest.raises(KubeError, match="answered 502: bad gateway") as caught:
        Cluster(site.door).node("n1")
    assert (caught.value.passing, caught.value.certain) == (True, False)
    _answers(site, lambda _: Answer(200, "[]", {}))
    with pytest.raises(KubeError, match="no object"):
        Cluster(site.door).node("n1")
    _answers(site, lambda _: None)


def _token(**claims: object) -> str:
    parts = ({"alg": "RS256"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (_token(exp=1_700_000_000), "Unauthorized: the token expired at 2023-11-14T22:13:20Z; issue a new one"),
        (_token(exp=99_999_999_999), "Unauthorized"),
        (_token(exp="soon"), "Unauthorized"),
        (_token(exp=1e300), "Unauthorized"),
        (_token(), "Unauthorized"),
        ("a.b.c", "Unauthorized"),
        ("no-such-token", "Unauthorized"),
    ],
)
def test_an_expired_token_is_called_expired_and_no_other(site: Site, tmp_path: Path, token: str, said: str) -> None:
    server = json.loads(site.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    config = write_kubeconfig(tmp_path / "other", server, token)
    result = site.executor(kubeconfig=config).execute(decide(ActionKind.CORDON, "n1"))
    assert (result.ok, result.pending, result.unserved) == (False, False, True)
    assert result.detail.removeprefix("Kubernetes answered 401: ").partition("; the server")[0] == said
    assert "rbac.yaml" not in result.detail, "no role helps a token that is not known"


def test_a_token_for_a_test_takes_the_place_of_all_other_credentials(site: Site, tmp_path: Path) -> None:
    """A cluster's kubeconfig often has a client certificate, which would go on being valid beside a bad token."""
    content = json.loads(site.kubeconfig.read_text())
    content["users"][0]["user"] |= {"client-certificate-data": "Yw==", "client-key-data": "aw=="}
    site.kubeconfig.write_text(json.dumps(content))
    made = json.loads(with_token(site, tmp_path / "bad", "no-such-token").read_text())
    assert [each["user"] for each in made["users"]] == [{"token": "no-such-token"}]
    assert made["clusters"] == content["clusters"]


def test_requests_say_who_asks(site: Site) -> None:
    assert site.double is not None
    site.executor().nodes()
    assert {each.agent for each in site.double.served if each.method == "GET"} == {f"tocsin/{__version__}"}
