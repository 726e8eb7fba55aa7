"""What only a real API server shows: its restart, the manifest's roles, whose a token is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tocsin.actions.kubernetes.api import ApiClient, Json
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.api.node_tokens import PodToken
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.finding import ActionKind
from tocsin.runtime.brain.token_reviews import pod_token
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import RBAC
from tocsin_testing.kube_server import AUDIENCE, PROGRAMS, KubeServer, kube_server, programs
from tocsin_testing.kube_site import OthersDoor, Site, decide, with_token

FOLDERS = {"ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles"}
FOLDERS |= {"ClusterRoleBinding": "clusterrolebindings", "RoleBinding": "rolebindings"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    found = programs()
    if found is None:
        pytest.skip(f"{PROGRAMS} names no folder with a real API server")
    with kube_server(tmp_path_factory.mktemp("kubernetes"), found) as made:
        with made.door() as door:
            _apply(door)
        yield made


@pytest.fixture
def site(server: KubeServer) -> Iterator[Site]:
    made = Site(server.kubeconfig, OthersDoor(connect(KubernetesSettings(kubeconfig=server.kubeconfig))), None)
    try:
        yield made
    finally:
        made.close()


def _apply(door: ApiClient) -> None:
    """The shipped manifest, and the binding of the roles for drains that a site adds."""
    door.ask("POST", "/api/v1/namespaces", body={"metadata": {"name": "tocsin"}})
    documents: list[Json] = list(yaml.safe_load_all(RBAC.read_text()))
    for role in ("tocsin-nodes", "tocsin-checkpoints"):
        subject = {"kind": "ServiceAccount", "name": "tocsin-brain", "namespace": "tocsin"}
        known = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        version = "rbac.authorization.k8s.io/v1"
        made = {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": role}}
        documents.append(made | {"roleRef": known, "subjects": [subject]})
    for document in documents:
        version, space = document["apiVersion"], document["metadata"].get("namespace", "")
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        inside = f"/namespaces/{space}" if space else ""
        door.ask("POST", f"{root}{inside}/{FOLDERS[document['kind']]}", body=document)


def _token(site: Site, account: str, audience: str = AUDIENCE, pod: Json | None = None) -> str:
    """What a kubelet asks for and projects into a pod."""
    spec: Json = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        about = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec |= {"boundObjectRef": about}
    space, _, name = account.partition("/")
    path = f"/api/v1/namespaces/{space}/serviceaccounts/{name}/token"
    return str(site.door.ask("POST", path, body={"spec": spec})["status"]["token"])


def _brain(site: Site, folder: Path) -> Path:
    return with_token(site, folder / "brain", _token(site, "tocsin/tocsin-brain"))


def test_the_roles_of_the_manifest_are_enough_and_no_more(site: Site, tmp_path: Path) -> None:
    clock, brain = ManualClock(T0), _brain(site, tmp_path)
    node = site.node("roles")
    train = site.pod("roles-0", node, annotations={"tocsin.io/checkpoint": "true"})
    site.budget("roles", "elsewhere", 0)
    executor = site.executor(clock, kubeconfig=brain, lease="tocsin/brain")
    assert executor.missing_rights() == []
    drain = decide(ActionKind.DRAIN, node)
    assert "takes its checkpoint" in executor.execute(drain).detail
    site.note(train, checkpoint_done=drain.id)
    assert "is ending" in executor.execute(drain).detail
    site.finish(train)
    assert (executor.execute(drain).ok, executor.nodes()[node].ours) == (True, True)
    more = site.executor(clock, kubeconfig=brain, lease="tocsin/brain", delete_blocked_pods=True, show_faults=True)
    assert [str(need) for need in more.missing_rights()] == ["delete pods", "create events.events.k8s.io"]


def test_a_right_that_is_taken_away_ends_the_drain_with_its_role(site: Site, tmp_path: Path) -> None:
    node = site.node("taken")
    site.pod("taken-0", node)
    executor = site.executor(kubeconfig=_brain(site, tmp_path))
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tocsin-nodes"
    rules = site.get(path)["rules"]
    site.edit(path, rules=[rule for rule in rules if rule["resources"] != ["pods/eviction"]])
    try:
        site.until(lambda: bool(executor.missing_rights()))
        result = executor.execute(decide(ActionKind.DRAIN, node))
    finally:
        site.edit(path, rules=rules)
    assert (result.ok, result.pending, result.unserved) == (False, False, True)
    assert "create pods/eviction in default, which role tocsin-nodes" in result.detail


def test_a_restart_of_the_server_ends_no_drain(server: KubeServer, site: Site, tmp_path: Path) -> None:
    clock = ManualClock(T0)
    node = site.node("restart")
    train = site.pod("restart-0", node)
    executor = site.executor(clock, kubeconfig=_brain(site, tmp_path), patience_seconds=60)
    drain = decide(ActionKind.DRAIN, node)
    assert executor.execute(drain).pending
    server.stop_apiserver()
    away = executor.execute(drain)
    assert (away.pending, "cannot connect" in away.detail) == (True, True)
    server.launch_apiserver()
    deadline, never = time.monotonic() + 60.0, threading.Event()
    while "is ending" not in (said := executor.execute(drain)).detail:
        assert said.pending, said.detail
        assert time.monotonic() < deadline, said.detail
        never.wait(0.001)
    server.await_apiserver()
    site.finish(train)
    clock.advance(5 * SECOND)
    done = executor.execute(drain)
    assert (done.ok, done.pending) == (True, False)


def test_whose_a_projected_token_is(site: Site, tmp_path: Path) -> None:
    """Kubernetes names the node of a token's pod since 1.30: before, the account alone is known."""
    door = connect(KubernetesSettings(kubeconfig=_brain(site, tmp_path)))
    site.closing(door)
    cluster, node = Cluster(door), site.node("tokens")
    title = site.pod("agent-0", node, gpus=0)
    pod = site.find_pod(title)

    def review(token: str) -> PodToken | None:
        return pod_token(cluster.review_token(token, "tocsin"), "tocsin")

    account = "system:serviceaccount:default:default"
    token = _token(site, "default/default", "tocsin", pod)
    minor = int(site.get("/version")["minor"].rstrip("+"))
    assert review(token) == PodToken(account, node if minor >= 30 else "")
    assert review(_token(site, "default/default", AUDIENCE, pod)) is None, "it is for others"
    head, claims, _ = token.split(".")
    assert review(f"{head}.{claims}.c2lnbmVk") is None
    site.finish(title)
    site.until(lambda: review(token) is None)
