"""A cluster to test against: the double, or the real one that ``TOCSIN_TEST_KUBECONFIG`` names.

Nodes, pods and budgets are made through the API in either, so that the same tests run against both. There is no
kubelet: pods get their status by hand, and `Site.finish` ends one as a kubelet would.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.executors.registry import Dependencies, build_executor
from tocsin.actions.kubernetes.api import MERGE, PLAIN, STRATEGIC, ApiClient, Json, KubeError
from tocsin.actions.kubernetes.client import connect, judge
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.model.executor import Executor
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock, ManualClock
from tocsin.domain.decision import Decision, Mode, parameters_of
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.kube_devices import DeviceDouble
from tocsin_testing.kube_double import ADMIN, TOCSIN, KubeDouble, taken_apart
from tocsin_testing.kube_recorded import Answer, exchanges

REAL = "TOCSIN_TEST_KUBECONFIG"


SOMEBODY = "somebody"
"""Field manager of all that tests write: a server takes the name of a program that states none, here Tocsin's."""


class Closes(Protocol):
    """What lets go of its connections."""

    def close(self) -> None:
        """Once is enough."""
        ...


class DirectDoor:
    """The double without a network between: for tests that make very many requests."""

    def __init__(self, double: KubeDouble, token: str = TOCSIN) -> None:
        self._double = double
        self._token = token

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = PLAIN,
    ) -> Json:
        copied: Any = json.loads(json.dumps(body)) if body is not None else {}
        try:
            answer = self._double.answer(
                taken_apart(method, path, dict(query or {}), copied, content_type), f"Bearer {self._token}"
            )
        except Answer as early:
            answer = early
        return judge(answer.status, answer.headers, answer.text().encode())

    def close(self) -> None:
        """Nothing is open."""


class OthersDoor:
    """The way in of whoever is not Tocsin."""

    def __init__(self, door: ApiClient) -> None:
        self._door = door

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = PLAIN,
    ) -> Json:
        mine = {"fieldManager": SOMEBODY} if method in {"POST", "PUT", "PATCH"} else {}
        return self._door.ask(method, path, query=mine | dict(query or {}), body=body, content_type=content_type)

    def close(self) -> None:
        self._door.close()


class FlakyDoor(DirectDoor):
    """Loses requests, or the answers to requests that took effect."""

    trouble = ""

    def ask(self, method: str, path: str, **more: object) -> Json:  # type: ignore[override]
        if self.trouble == "away":
            raise KubeError(0, "cannot connect")
        answer = super().ask(method, path, **more)  # type: ignore[arg-type]
        if self.trouble == "mute" and method != "GET":
            raise KubeError(0, "no answer", certain=False)
        return answer


@dataclass
class Site:
    """One cluster, and what tests make there."""

    kubeconfig: Path
    door: ApiClient
    double: KubeDouble | None
    space: str = "default"
    prefix: str = ""
    _nodes: list[str] = field(default_factory=list)
    _daemons: list[str] = field(default_factory=list)
    _closing: list[Closes] = field(default_factory=list)

    def closing(self, one: Closes) -> None:
        """Close `one` with the cluster."""
        self._closing.append(one)

    def settings(self, **more: Any) -> KubernetesSettings:
        """Settings of an executor here; bare pods may be evicted."""
        base = {"kubeconfig": self.kubeconfig, "evict_bare_pods": True, "checkpoint_seconds": 60}
        return KubernetesSettings.model_validate(base | more)

    def executor(self, clock: Clock | None = None, **more: Any) -> Kubernetes:
        """An executor over the official client, with the rights of the shipped manifest on the double."""
        settings = self.settings(**more)
        door = connect(settings)
        self._closing.append(door)
        return Kubernetes(Cluster(door, dry_run=settings.dry_run), settings, clock or ManualClock(T0))

    def node(self, name: str = "n1", labels: Mapping[str, str] | None = None) -> str:
        """A GPU node that is ready, in the recorded shape; its name."""
        body = json.loads(json.dumps(exchanges()["node_create"]["request"]["body"]))
        name = self.prefix + name
        body["metadata"] |= {"name": name, "labels": body["metadata"]["labels"] | dict(labels or {})}
        body["spec"] = {"providerID": f"bare://{name}"}
        self.door.ask("POST", "/api/v1/nodes", body=body)
        self._nodes.append(name)
        status = exchanges()["node_status_patch"]["request"]["body"]
        self.door.ask("PATCH", f"/api/v1/nodes/{name}/status", body=status, content_type=STRATEGIC)
        if self.double is None:
            # Kubernetes 1.20's node controller writes all taints as it knew them: what comes meanwhile is lost.
            self.until(lambda: not self.find_node(name)["spec"].get("taints"))
        return name

    def pod(
        self,
        name: str,
        node: str,
        *,
        gpus: int = 1,
        app: str = "train",
        grace: int = 30,
        owner: Json | None = None,
        annotations: Mapping[str, str] | None = None,
        volumes: list[Json] | None = None,
        space: str = "",
    ) -> str:
        """A running pod on `node`; ``namespace/name``."""
        space = space or self.space
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        spec: Json = {
            "nodeName": node,
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "registry.example/train:1", "resources": {"limits": limits}}],
        }
        spec |= {"volumes": volumes} if volumes else {}
        metadata: Json = {"name": name, "labels": {"app": app}, "annotations": dict(annotations or {})}
        metadata |= {"ownerReferences": [owner]} if owner else {}
        path = f"/api/v1/namespaces/{space}/pods"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.door.ask("POST", path, body=body)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.door.ask("PATCH", f"{path}/{name}/status", body={"status": status}, content_type=STRATEGIC)
        return f"{space}/{name}"

    def daemon(self, name: str, node: str) -> str:
        """A pod of a DaemonSet, which is there: a cluster collects pods whose owner is not.

        A real server's controller makes the pod itself, and gives it a name.
        """
        mark = {f"tocsin.test/{name}": "true"}
        container = {"name": "main", "image": "registry.example/daemon:1"}
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"nodeSelector": mark, "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        body = {
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
        }
        path = f"/apis/apps/v1/namespaces/{self.space}/daemonsets"
        self.edit(f"/api/v1/nodes/{node}", metadata={"labels": mark})
        made = self.door.ask("POST", path, body=body)
        self._daemons.append(f"{path}/{name}")
        if self.double is not None:
            owner = owner_of("apps/v1", "DaemonSet", name, made["metadata"]["uid"])
            return self.pod(name, node, gpus=0, app=name, owner=owner)
        found: list[str] = []
        self.until(lambda: bool(found.extend(self._running(name, node)) or found))
        self._started(found[0])
        return f"{self.space}/{found[0]}"

    def _running(self, app: str, node: str) -> list[str]:
        pods = self.get(f"/api/v1/namespaces/{self.space}/pods").get("items", [])
        return [
            pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"].get("labels", {}).get("app") == app and pod["spec"].get("nodeName") == node
        ]

    def _started(self, name: str) -> None:
        """What its kubelet would say of a pod."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        path = f"/api/v1/namespaces/{self.space}/pods/{name}/status"
        self.door.ask("PATCH", path, body={"status": status}, content_type=STRATEGIC)

    def mirror(self, name: str, node: str) -> str:
        """A pod that a kubelet made of a file, in the recorded shape."""
        uid = self.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        notes = exchanges()["pod_mirror_create"]["request"]["body"]["metadata"]["annotations"]
        return self.pod(name, node, gpus=0, annotations=notes, owner=owner_of("v1", "Node", node, uid))

    def budget(self, name: str, app: str, at_least: int) -> None:
        """A disruption budget that has been counted."""
        body = {
            "metadata": {"name": name},
            "spec": {"minAvailable": at_least, "selector": {"matchLabels": {"app": app}}},
        }
        path = self.budgets()
        self.door.ask("POST", path, body=body)
        if self.double is None or not self.double.state.halted:
            self.until(lambda: "observedGeneration" in self.get(f"{path}/{name}").get("status", {}))

    def deployment(self, name: str, replicas: int) -> str:
        """A deployment to scale whose pods nobody can start; its target as settings name it."""
        self.needs(23, "autoscaling/v2, which is asked before anything is scaled")
        body = json.loads(json.dumps(exchanges()["deployment_create"]["request"]["body"]))
        body["metadata"]["name"] = name
        body["spec"]["replicas"] = replicas
        self.door.ask("POST", f"/apis/apps/v1/namespaces/{self.space}/deployments", body=body)
        return f"{self.space}/deployment/{name}"

    def autoscaler(self, name: str, lowest: int, highest: int, owner: Json | None = None) -> None:
        """An HPA of deployment `name`."""
        body = json.loads(json.dumps(exchanges()["hpa_create"]["request"]["body"]))
        body["metadata"] = {"name": name} | ({"ownerReferences": [owner]} if owner else {})
        body["spec"] |= {"minReplicas": lowest, "maxReplicas": highest}
        body["spec"]["scaleTargetRef"]["name"] = name
        self.door.ask("POST", f"/apis/autoscaling/v2/namespaces/{self.space}/horizontalpodautoscalers", body=body)

    def budgets(self) -> str:
        """Where the budgets of this namespace are, in the newest version that the server serves."""
        served = {one["version"] for one in self.get("/apis/policy")["versions"]} if self.double is None else {"v1"}
        return f"/apis/policy/{'v1' if 'v1' in served else 'v1beta1'}/namespaces/{self.space}/poddisruptionbudgets"

    def needs(self, minor: int, what: str) -> None:
        """Skip the test on a server before Kubernetes 1.`minor`, where there is no `what`."""
        if self.double is None and int(self.get("/version")["minor"].rstrip("+")) < minor:
            pytest.skip(f"before Kubernetes 1.{minor} there is no {what}")

    def finish(self, title: str) -> None:
        """End a pod as its kubelet would."""
        space, _, name = title.partition("/")
        with suppress(KubeError):
            self.door.ask("DELETE", f"/api/v1/namespaces/{space}/pods/{name}", body={"gracePeriodSeconds": 0})

    def get(self, path: str) -> Json:
        """Any object, read as an administrator."""
        return self.door.ask("GET", path)

    def find_node(self, name: str) -> Json:
        """A node."""
        return self.get(f"/api/v1/nodes/{name}")

    def find_pod(self, title: str) -> Json:
        """A pod."""
        space, _, name = title.partition("/")
        return self.get(f"/api/v1/namespaces/{space}/pods/{name}")

    def edit(self, path: str, **body: Any) -> None:
        """Merge into any object, as somebody else would."""
        self.door.ask("PATCH", path, body=body, content_type=MERGE)

    def note(self, title: str, **annotations: str) -> None:
        """Annotate a pod, as the program in it would; underscores stand for hyphens."""
        space, _, name = title.partition("/")
        notes = {f"tocsin.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.edit(f"/api/v1/namespaces/{space}/pods/{name}", metadata={"annotations": notes})

    def settle(self) -> None:
        """Let programs, kubelets and mig-manager do their part: checkpoints are taken, pods end, nodes are cut."""
        for pod in self.get(f"/api/v1/namespaces/{self.space}/pods").get("items", []):
            meta = pod["metadata"]
            asked = meta.get("annotations", {}).get("tocsin.io/checkpoint-requested")
            if meta.get("deletionTimestamp"):
                self.finish(f"{self.space}/{meta['name']}")
            elif asked:
                self.note(f"{self.space}/{meta['name']}", checkpoint_done=asked)
        for name in self._nodes:
            labels = self.find_node(name)["metadata"]["labels"]
            if labels.get("nvidia.com/mig.config.state") == "pending":
                self.edit(f"/api/v1/nodes/{name}", metadata={"labels": {"nvidia.com/mig.config.state": "success"}})

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for what controllers do by themselves."""
        if self.double is not None:
            self.double.state.autoscale()
            assert true()
            return
        deadline, never = time.monotonic() + 60.0, threading.Event()
        while not true():
            assert time.monotonic() < deadline, "the cluster's controllers did not do it within 60 s"
            never.wait(0.2)

    def close(self) -> None:
        """Take away what was made, and let go of connections."""
        for path in self._daemons:
            with suppress(KubeError):
                self.door.ask("DELETE", path, body={})
        with suppress(KubeError):
            if self.space != "default":
                for pod in self.get(f"/api/v1/namespaces/{self.space}/pods").get("items", []):
                    self.finish(f"{self.space}/{pod['metadata']['name']}")
                self.door.ask("DELETE", f"/api/v1/namespaces/{self.space}")
        for name in self._nodes:
            with suppress(KubeError):
                self.door.ask("DELETE", f"/api/v1/nodes/{name}")
        for one in (*self._closing, self.door):
            one.close()


SITES = ("server",) if os.environ.get(REAL) else ("recorded", "lively")
"""What `open_site` can open here: the cluster that the environment names, else two doubles, one that does what it was
recorded with and one whose controllers also do what those of a real cluster do by themselves."""


@contextmanager
def open_site(folder: Path, kind: str = SITES[0]) -> Iterator[Site]:
    """One of `SITES`."""
    real = os.environ.get(REAL)
    if not real:
        with double_site(folder) as site:
            assert site.double is not None
            site.double.state.lively = kind == "lively"
            yield site
        return
    mark = f"tocsin-test-{secrets.token_hex(3)}"
    door = OthersDoor(connect(KubernetesSettings(kubeconfig=Path(real))))
    door.ask("POST", "/api/v1/namespaces", body={"metadata": {"name": mark}})
    site = Site(Path(real), door, None, mark, f"{mark}-")
    try:
        yield site
    finally:
        site.close()


@contextmanager
def double_site(folder: Path, double: KubeDouble | None = None) -> Iterator[Site]:
    """A fresh double, with kubeconfigs for Tocsin (rights of the manifest) and for an administrator."""
    double = double or KubeDouble()
    url = double.start()
    own = write_kubeconfig(folder / "kubeconfig", url, TOCSIN)
    door = OthersDoor(connect(KubernetesSettings(kubeconfig=write_kubeconfig(folder / "admin", url, ADMIN))))
    site = Site(own, door, double)
    try:
        yield site
    finally:
        site.close()
        double.stop()


def with_token(site: Site, path: Path, token: str) -> Path:
    """A kubeconfig for the server of `site`, with `token` and no other credentials."""
    content = yaml.safe_load(site.kubeconfig.read_text())
    content["users"] = [{"name": each["name"], "user": {"token": token}} for each in content["users"]]
    path.write_text(json.dumps(content))
    return path


def write_kubeconfig(path: Path, url: str, token: str) -> Path:
    """A kubeconfig for one server and one token; JSON is YAML too."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path.write_text(json.dumps(content))
    return path


def law_executor(site: Site, clock: Clock, *, dry_run: bool = False) -> Executor:
    """The executor as the registry builds it, over a cluster where everything that it supports can be done."""
    node = site.node("node-0")
    site.pod("train-0", node, gpus=0, annotations={"tocsin.io/checkpoint": "true"})
    workloads = {"default": site.deployment("infer", 3)}
    if isinstance(site.double, DeviceDouble):
        site.double.publish(node, ["GPU-0-0", "GPU-0-1"])
    settings = Settings.model_validate({"kubernetes": site.settings(workloads=workloads, device_rules="NoSchedule")})
    settings.actions.dry_run = dry_run
    made = build_executor("kubernetes", Dependencies(settings=settings, clock=clock))
    assert isinstance(made, Kubernetes)
    site.closing(made)
    return made


def owner_of(version: str, kind: str, name: str, uid: str = "") -> Json:
    """A reference to the controller of a pod."""
    uid = uid or "fd180003-80e0-4844-997a-3629224853bd"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


def decide(action: ActionKind, host: str, key: str = "k", **more: Any) -> Decision:
    """A decision about a node, a GPU on it, or a pool."""
    parameters = {name: str(value) for name, value in more.pop("parameters", {}).items()}
    subject = more.pop("subject", Subject(SubjectKind.HOST, host, host))
    return Decision(
        rule="ecc",
        subject=subject,
        action=action,
        mode=Mode.ACT,
        severity=Severity.CRITICAL,
        category=Category.HARDWARE,
        at_ms=T0,
        expires_ms=T0 + 3_600_000,
        key=f"{key}|{action}",
        sentence=f"GPU-1 on {host} has uncorrectable errors.",
        findings=("f1",),
        parameters=parameters_of(action, parameters),
        **more,
    )
