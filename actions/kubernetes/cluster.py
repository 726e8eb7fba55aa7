"""The calls that Tocsin makes to an API server, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from tocsin.actions.kubernetes.api import MERGE, STRATEGIC, ApiClient, Json, KubeError, KubeNode, Pod
from tocsin.actions.kubernetes.devices import MANAGED
from tocsin.actions.kubernetes.rights import Need, Right, need_of, role_of

PAGE = 500
"""Objects in one answer, as kubectl asks for."""
TRIES = 5
"""Fresh reads for one change that others keep changing under it."""
_MANAGER = "tocsin"
HORIZONTAL, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
"""Kinds of autoscalers: Kubernetes' own and KEDA's."""
_AUTOSCALERS = {
    HORIZONTAL: "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    SCALED_OBJECT: "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects",
}
_BUDGETS, _OLD_BUDGETS = (f"/apis/policy/{version}/poddisruptionbudgets" for version in ("v1", "v1beta1"))
"""Of Kubernetes 1.21 and of what is older."""
_RESOURCE = "/apis/resource.k8s.io"
_STRICT = {"fieldValidation": "Strict"}
"""Without it the server drops fields of a selector that it does not know: what is left matches more devices."""
MOST_VERSIONS = 8
"""Versions of one API group that are looked into; there are four."""
T = TypeVar("T")


class Cluster:
    """One API server.

    With `dry_run` every write carries ``dryRun=All``: the server checks it and stores nothing. All methods raise
    KubeError.
    """

    def __init__(self, client: ApiClient, *, dry_run: bool = False) -> None:
        self._client = client
        self.dry_run = dry_run

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, **more: Any) -> Json:
        try:
            return self._client.ask(method, path, **more)
        except KubeError as error:
            need = need_of(method, path) if error.status == 403 else None
            if need is not None:
                self._review(error, need)
            raise

    def _review(self, error: KubeError, need: Need) -> None:
        """Write on a 403 what the server itself says of the right; nothing where it does not answer that either."""
        try:
            error.granted = self.may(need.right, need.namespace)
        except KubeError:
            return
        if not error.granted:
            role = role_of(need.right)
            error.lacking = f"{need}" + (f", which role {role} of deploy/kubernetes/rbac.yaml grants" if role else "")

    def node(self, name: str) -> KubeNode:
        """The node; 404 where there is none."""
        return KubeNode(self._ask("GET", f"/api/v1/nodes/{_in_path(name)}"))

    def nodes(self) -> list[KubeNode]:
        """All nodes, from the server's cache."""
        return [KubeNode(item) for item in self._all("/api/v1/nodes", {"resourceVersion": "0"})]

    def pods_on(self, node: str) -> list[Pod]:
        """The pods that are bound to `node`, finished ones too."""
        return [Pod(item) for item in self._all("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})]

    def placed_pods(self) -> list[Pod]:
        """The pods of all nodes that have not finished, from the server's cache."""
        chosen = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        return [Pod(item) for item in self._all("/api/v1/pods", {"fieldSelector": chosen, "resourceVersion": "0"})]

    def budgets(self) -> list[Json]:
        """The PodDisruptionBudgets of all namespaces."""
        query = {"resourceVersion": "0"}
        try:
            return self._all(_BUDGETS, query)
        except KubeError as error:
            if error.status != 404:
                raise
        return self._all(_OLD_BUDGETS, query)

    def change_node(self, name: str, change: Callable[[KubeNode], Json | None]) -> bool:
        """Apply the merge patch that `change` makes of the node as it is now; False where that is None.

        A change by somebody else in between is seen as 409, and `change` is asked again with a fresh read.
        """
        return again_on(409, lambda: self._change_node(name, change))

    def _change_node(self, name: str, change: Callable[[KubeNode], Json | None]) -> bool:
        node = self.node(name)
        patch = change(node)
        if patch is None:
            return False
        patch = patch | {"metadata": patch.get("metadata", {}) | {"resourceVersion": node.version}}
        self._write("PATCH", f"/api/v1/nodes/{_in_path(name)}", patch, MERGE)
        return True

    def set_condition(self, name: str, condition: Json) -> None:
        """Write one condition of a node; others stay."""
        self._conditions(name, [condition])

    def remove_conditions(self, name: str, kinds: Iterable[str]) -> None:
        """Take conditions of a node away by type; others stay, and one that is gone already is no error."""
        self._conditions(name, [{"type": kind, "$patch": "delete"} for kind in kinds])

    def _conditions(self, name: str, conditions: list[Json]) -> None:
        body = {"status": {"conditions": conditions}}
        self._write("PATCH", f"/api/v1/nodes/{_in_path(name)}/status", body, STRATEGIC)

    def create_event(self, namespace: str, body: Json) -> None:
        """Create an Event; 409 where one of its name is there."""
        self._write("POST", f"/apis/events.k8s.io/v1/namespaces/{_in_path(namespace)}/events", body)

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Merge `annotations` into the pod's; 409 where another pod has its name by now."""
        self._write("PATCH", _pod_path(pod), {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}, MERGE)

    def label_pod(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        """Merge `labels` into those of a pod."""
        path = f"/api/v1/namespaces/{_in_path(namespace)}/pods/{_in_path(name)}"
        self._write("PATCH", path, {"metadata": {"labels": dict(labels)}}, MERGE)

    def evict(self, pod: Pod, grace_seconds: int | None = None) -> None:
        """Ask for the eviction of this very pod: 429 where a budget forbids it, 409 where another has its name."""
        options: Json = {"preconditions": {"uid": pod.uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = {"metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options}
        path = f"{_pod_path(pod)}/eviction"
        try:
            self._write("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction"} | body)
        except KubeError as error:
            if error.status != 400:
                raise
            # Before Kubernetes 1.22 there is no such version: a body that names none is taken for the server's own.
            self._write("POST", path, body)

    def delete_pod(self, pod: Pod) -> None:
        """Delete this very pod, whatever budget protects it."""
        self._write("DELETE", _pod_path(pod), {"preconditions": {"uid": pod.uid}})

    def workload(self, path: str) -> Json:
        return self._ask("GET", path)

    def scale(self, path: str) -> Json:
        return self._ask("GET", f"{path}/scale")

    def set_replicas(self, path: str, replicas: int, version: str, manager: str) -> None:
        """Ask for `replicas`, as field manager `manager`; 409 where the workload is not of `version` any more."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        self._write("PATCH", f"{path}/scale", body, MERGE, {"fieldManager": manager})

    def autoscalers(self, kind: str, namespace: str) -> list[Json]:
        """The autoscalers of a kind in `namespace`; no ScaledObjects where KEDA is not installed."""
        try:
            return self._all(_AUTOSCALERS[kind].format(_in_path(namespace)), {})
        except KubeError as error:
            if kind == SCALED_OBJECT and error.status == 404:
                return []
            raise

    def patch_autoscaler(self, kind: str, namespace: str, name: str, body: Json) -> None:
        self._write("PATCH", f"{_AUTOSCALERS[kind].format(_in_path(namespace))}/{_in_path(name)}", body, MERGE)

    def device_versions(self) -> dict[str, frozenset[str]]:
        """Versions of ``resource.k8s.io`` that are served, with the resources of each; empty without DRA."""
        try:
            group = self._ask("GET", _RESOURCE)
        except KubeError as error:
            if error.status == 404:
                return {}
            raise
        names = [str(one.get("version", "")) for one in group.get("versions") or ()]
        found = {}
        for name in names[:MOST_VERSIONS]:
            listed = self._ask("GET", f"{_RESOURCE}/{_in_path(name)}").get("resources") or ()
            found[name] = frozenset(str(one.get("name", "")) for one in listed)
        return found

    def slices(self, version: str, node: str = "") -> list[Json]:
        """The ResourceSlices, of one node where it is named."""
        chosen = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
        return self._all(f"{_RESOURCE}/{version}/resourceslices", chosen)

    def claims(self, version: str) -> list[Json]:
        """The ResourceClaims of all namespaces."""
        return self._all(f"{_RESOURCE}/{version}/resourceclaims", {})

    def rules(self, version: str) -> list[Json]:
        """The DeviceTaintRules that Tocsin made."""
        return self._all(f"{_RESOURCE}/{version}/devicetaintrules", {"labelSelector": f"{MANAGED}={_MANAGER}"})

    def create_rule(self, version: str, body: Json) -> Json:
        """Create a rule; 409 where one of its name is there."""
        query = {"fieldManager": _MANAGER} | _STRICT
        return self._write("POST", f"{_RESOURCE}/{version}/devicetaintrules", body, query=query)

    def patch_rule(self, version: str, name: str, body: Json) -> Json:
        """Change a rule; 409 where it is not of the resource version in `body` any more."""
        query = {"fieldManager": _MANAGER} | _STRICT
        return self._write("PATCH", f"{_RESOURCE}/{version}/devicetaintrules/{_in_path(name)}", body, MERGE, query)

    def delete_rule(self, version: str, name: str, uid: str) -> None:
        """Delete this very rule; one that is gone already, or was made anew by another, is no error."""
        body = {"preconditions": {"uid": uid}}
        try:
            self._write("DELETE", f"{_RESOURCE}/{version}/devicetaintrules/{_in_path(name)}", body)
        except KubeError as error:
            if error.status not in {404, 409}:
                raise

    def lease(self, namespace: str, name: str) -> Json:
        """The lease; 404 where there is none."""
        return self._ask("GET", f"{_lease_path(namespace)}/{_in_path(name)}")

    def create_lease(self, namespace: str, name: str, spec: Json) -> Json:
        """Create the lease; 409 where another was first."""
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        return self._write("POST", _lease_path(namespace), body)

    def update_lease(self, namespace: str, lease: Json, spec: Json) -> Json:
        """Replace the spec of `lease` as it was read; 409 where it has changed since."""
        body = lease | {"spec": spec}
        return self._write("PUT", f"{_lease_path(namespace)}/{_in_path(lease['metadata']['name'])}", body)

    def may(self, right: Right, namespace: str = "") -> bool:
        """Whether the server would allow `right`, in all namespaces where none is named."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "subresource": subresource, "verb": right.verb}
        attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        answer = self._client.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
        return bool(answer.get("status", {}).get("allowed"))

    def review_token(self, token: str, audience: str) -> Json:
        """The status of a TokenReview of `token`: whose it is, by the server's word, if it is for `audience`."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = self._ask("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body).get("status")
        return status if isinstance(status, dict) else {}

    def _write(
        self, method: str, path: str, body: Json, content_type: str = "", query: Mapping[str, str] | None = None
    ) -> Json:
        asked = dict(query or ({"fieldManager": _MANAGER} if method == "PATCH" else {}))
        asked |= {"dryRun": "All"} if self.dry_run else {}
        more: dict[str, Any] = {"content_type": content_type} if content_type else {}
        return self._ask(method, path, query=asked, body=body, **more)

    def _all(self, path: str, query: Mapping[str, str]) -> list[Json]:
        """Every item of a list, page by page; a list that grew too old on the way (410) begins anew."""
        return again_on(410, lambda: self._pages(path, query))

    def _pages(self, path: str, query: Mapping[str, str]) -> list[Json]:
        items: list[Json] = []
        asked = dict(query) | {"limit": str(PAGE)}
        while True:
            answer = self._ask("GET", path, query=asked)
            items += answer.get("items") or []
            token = answer.get("metadata", {}).get("continue")
            if not token:
                return items
            asked = {key: value for key, value in query.items() if key != "resourceVersion"}
            asked |= {"limit": str(PAGE), "continue": token}


def again_on(status: int, work: Callable[[], T]) -> T:
    """What `work` returns; it is done again while the server answers `status`, `TRIES` times in all."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except KubeError as error:
            if error.status != status:
                raise
    return work()


def _in_path(name: str) -> str:
    return quote(name, safe="")


def _pod_path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{_in_path(pod.namespace)}/pods/{_in_path(pod.name)}"


def _lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{_in_path(namespace)}/leases"
