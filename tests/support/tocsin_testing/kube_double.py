"""An API server double: recorded answers of a real one, over a state that remembers what was asked.

`tests/contract/test_kubernetes_double.py` puts the recorded requests to it and compares the answers.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl

import yaml
from werkzeug import Request, Response

from tocsin_testing.kube_recorded import Answer, recorded
from tocsin_testing.kube_state import KINDS, Json, State, conflict, merge, merge_strategic, wrong_uid
from tocsin_testing.quick_server import QuickHttpServer

ADMIN = "admin-token-of-the-double"
TOCSIN = "tocsin-token-of-the-double"
"""May do what ``deploy/kubernetes/rbac.yaml`` grants, and nothing else."""
RBAC = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"
_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<space>[^/]+)(?=/))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?$"
)
_REVIEWS = {"selfsubjectaccessreviews", "tokenreviews"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Asked:
    """One request, taken apart."""

    method: str
    path: str
    query: dict[str, str]
    body: Json
    content_type: str
    collection: str = ""
    group: str = ""
    plural: str = ""
    name: str = ""
    sub: str = ""
    agent: str = ""

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.sub}" if self.sub else self.plural

    @property
    def verb(self) -> str:
        return _VERBS.get(self.method, "get" if self.name else "list")

    @property
    def writer(self) -> str:
        """Field manager: a server takes the name of the program where the request states none."""
        return self.query.get("fieldManager") or self.agent.partition("/")[0] or "unknown"

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"


@dataclass
class KubeDouble:
    """The server. `before` is asked first: an answer of its own goes out in place of the server's.

    `withheld` are rights that the manifest grants and this cluster does not, such as ``patch nodes``. While it is
    `starting` the server has not read its roles: it refuses everybody everything, reviews of rights too. `tokens` are
    the tokens of pods, each with what a TokenReview says of it.
    """

    state: State = field(default_factory=State)
    served: list[Asked] = field(default_factory=list)
    before: Callable[[Asked], Answer | None] = lambda _: None
    keda: bool = False
    tls: ssl.SSLContext | None = None
    withheld: frozenset[str] = frozenset()
    starting: bool = False
    tokens: dict[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = QuickHttpServer(host="127.0.0.1", port=0, threaded=True, ssl_context=self.tls)
        self.server.expect_request(re.compile(".*")).respond_with_handler(self._handle)

    def start(self) -> str:
        self.server.start()
        return str(self.server.url_for("")).rstrip("/")

    def stop(self) -> None:
        self.server.clear()
        self.server.stop()

    def writes(self) -> list[Asked]:
        """What was asked to be changed, in order."""
        return [each for each in self.served if each.method != "GET" and each.plural not in _REVIEWS]

    def forget_writers(self) -> None:
        """As if a server in between told no writers of what is on the nodes by now."""
        for node in self.state.every("nodes"):
            node["metadata"].pop("managedFields", None)

    def _handle(self, request: Request) -> Response:
        raw = request.get_data(as_text=True)
        try:
            answer = self._answer(request, raw)
        except Answer as early:
            answer = early
        kind = answer.headers.get("Content-Type", "application/json")
        headers = {key: value for key, value in answer.headers.items() if key != "Content-Type"}
        return Response(answer.text(), answer.status, headers, content_type=kind)

    def _answer(self, request: Request, raw: str) -> Answer:
        query = dict(parse_qsl(request.query_string.decode()))
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            raise recorded("node_patch_malformed_400") from None
        asked = taken_apart(request.method, request.path, query, body, request.content_type or "")
        asked = replace(asked, agent=request.headers.get("User-Agent", ""))
        return self.answer(asked, request.headers.get("Authorization"))

    def answer(self, asked: Asked, header: str | None) -> Answer:
        """The answer to one request; some are raised."""
        self.served.append(asked)
        instead = self.before(asked)
        if instead is not None:
            return instead
        self._authorize(header, asked)
        if asked.method == "GET":
            self._live()
        return self._route(asked)

    def _live(self) -> None:
        for garbage in self.state.live():
            path, _, name = garbage.rpartition("/")
            pod = self.state.find(path, name)
            if not pod["metadata"].get("deletionTimestamp"):
                self._end(pod, path, _grace(pod))

    def _authorize(self, header: str | None, asked: Asked) -> None:
        if header is None:
            raise recorded("auth_anonymous_403")
        token = header.split()[-1]
        if token not in {ADMIN, TOCSIN}:
            raise recorded("auth_401")
        if token == TOCSIN and asked.plural and not self._grants(asked.group, asked.resource, asked.verb):
            raise forbidden(asked)

    def _grants(self, group: str, resource: str, verb: str) -> bool:
        return not self.starting and f"{verb} {resource}" not in self.withheld and granted(group, resource, verb)

    def _route(self, asked: Asked) -> Answer:
        if asked.path == "/version":
            return recorded("version")
        if asked.plural not in {*KINDS, *_REVIEWS} or (asked.group == "keda.sh" and not self.keda):
            return recorded("path_404_plain")
        if asked.plural == "selfsubjectaccessreviews":
            return self._review(asked)
        if asked.plural == "tokenreviews":
            return self._review_token(asked)
        if asked.sub == "eviction":
            return self._evict(asked)
        if asked.sub == "scale":
            return self._scale(asked)
        ways = {"POST": self._create, "PATCH": self._patch, "PUT": self._put, "DELETE": self._delete}
        if asked.method == "POST" and asked.name:
            return recorded("method_405")
        if asked.method != "GET":
            return ways[asked.method](asked)
        return _ok(self.state.find(asked.collection, asked.name)) if asked.name else self._list(asked)

    def _create(self, asked: Asked) -> Answer:
        return Answer(201, copy.deepcopy(self.state.create(asked.collection, asked.body)), {})

    def _patch(self, asked: Asked) -> Answer:
        before = self.state.find(asked.collection, asked.name)
        if asked.content_type == "application/merge-patch+json":
            changed = merge(before, asked.body)
        elif asked.content_type == "application/strategic-merge-patch+json":
            changed = merge_strategic(before, asked.body)
        else:
            return recorded("node_patch_wrong_content_type_415")
        part = "status" if asked.sub == "status" else ""
        kept = before | {"status": changed.get("status", {})} if part else _without_status(changed, before)
        if asked.plural == "nodes" and _closed(kept) != _closed(before):
            kept = kept | {"metadata": kept["metadata"] | {"managedFields": _writers_of_cordon(kept, asked)}}
        if asked.plural == "nodes" and part:
            kept = kept | {"metadata": kept["metadata"] | {"managedFields": _writers_of_conditions(kept, asked)}}
        return _ok(self.state.change(asked.collection, asked.name, copy.deepcopy(kept), dry_run=asked.dry_run))

    def _put(self, asked: Asked) -> Answer:
        before = self.state.find(asked.collection, asked.name)
        metadata = {**before["metadata"], **asked.body["metadata"]}
        changed = before | {"spec": asked.body["spec"], "metadata": metadata}
        return _ok(self.state.change(asked.collection, asked.name, changed, dry_run=asked.dry_run))

    def _delete(self, asked: Asked) -> Answer:
        found = self.state.find(asked.collection, asked.name)
        _same_uid(found, asked.body)
        grace = asked.body.get("gracePeriodSeconds", _grace(found))
        if not asked.dry_run:
            self._end(found, asked.collection, grace)
        return _ok(found)

    def _end(self, found: Json, collection: str, grace: int) -> None:
        """A pod on a node ends when its kubelet says so, unless no grace is left; anything else goes at once."""
        if collection.endswith("/pods") and grace:
            found["metadata"] |= {"deletionTimestamp": "2026-11-21T03:09:10Z", "deletionGracePeriodSeconds": grace}
            found["metadata"]["resourceVersion"] = self.state.next_version()
            self.state.controllers()
            return
        self.state.remove(collection, found["metadata"]["name"])

    def _evict(self, asked: Asked) -> Answer:
        pod = self.state.find(asked.collection, asked.name)
        options = asked.body.get("deleteOptions", {})
        if asked.body["metadata"]["name"] != asked.name:
            return recorded("evict_400_name_mismatch")
        _same_uid(pod, options)
        if pod["metadata"].get("deletionTimestamp"):
            return recorded("evict_201_repeat_terminating")
        budgets = self.state.budgets_of(pod)
        if len(budgets) > 1:
            return recorded("evict_500_two_pdbs")
        if budgets and pod["status"]["phase"] == "Running":
            _spend(budgets[0])
        if not asked.dry_run:
            self._end(pod, asked.collection, options.get("gracePeriodSeconds", _grace(pod)))
        return recorded("evict_201")

    def _scale(self, asked: Asked) -> Answer:
        found = self.state.find(asked.collection, asked.name)
        if asked.method == "GET":
            return _ok(_scale_of(found))
        if asked.method == "PATCH" and asked.content_type != "application/merge-patch+json":
            return recorded("node_patch_wrong_content_type_415")
        wanted = merge(_scale_of(found), asked.body)
        if wanted["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise conflict(asked.collection, asked.name)
        changed = copy.deepcopy(found)
        if wanted["spec"]["replicas"] != changed["spec"]["replicas"]:
            writer = {"manager": asked.writer, "subresource": "scale"}
            changed["metadata"]["managedFields"] = [{**_writer_of_scale(), **writer}]
        changed["spec"]["replicas"] = wanted["spec"]["replicas"]
        return _ok(_scale_of(self.state.change(asked.collection, asked.name, changed, dry_run=asked.dry_run)))

    def _list(self, asked: Asked) -> Answer:
        if asked.query.get("resourceVersionMatch") == "Exact":
            return recorded("list_410_exact_old_rv")
        if int(asked.query.get("resourceVersion", "0")) > self.state.version:
            return recorded("list_future_rv_504")
        parts = _parts(asked.query.get("fieldSelector", ""))
        spaced = "/namespaces/" in asked.collection
        items = list(self.state.collection(asked.collection).values() if spaced else self.state.every(asked.plural))
        items = sorted(
            (item for item in items if _chosen(item, parts)),
            key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]),
        )
        metadata: Json = {"resourceVersion": str(self.state.version)}
        if "limit" in asked.query and "resourceVersion" not in asked.query:
            start, version = _place(asked.query.get("continue", ""), self.state)
            end = start + int(asked.query["limit"])
            if end < len(items):
                metadata |= {"continue": f"{version}:{end}", "remainingItemCount": len(items) - end}
            items = items[start:end]
        return _ok({"kind": "List", "metadata": metadata, "items": items})

    def _review_token(self, asked: Asked) -> Answer:
        """In the shape of authentication.k8s.io/v1, from its reference: no exchange of it is recorded."""
        spec = asked.body["spec"]
        found = self.tokens.get(spec["token"])
        audiences = [one for one in spec.get("audiences", ()) if found and one in found["audiences"]]
        status: Json = {"user": {}, "error": "[invalid bearer token, unknown]"}
        if found is not None and audiences:
            status = {"authenticated": True, "user": copy.deepcopy(found["user"]), "audiences": audiences}
        return Answer(201, {**asked.body, "metadata": {}, "status": status}, {})

    def _review(self, asked: Asked) -> Answer:
        attributes = asked.body["spec"]["resourceAttributes"]
        sub = attributes.get("subresource", "")
        resource = attributes["resource"] + (f"/{sub}" if sub else "")
        allowed = self._grants(attributes.get("group", ""), resource, attributes["verb"])
        answer = recorded(f"selfsubjectaccessreview_{'allowed' if allowed else 'denied'}")
        answer.body["spec"] = asked.body["spec"]
        return answer


def granted(group: str, resource: str, verb: str) -> bool:
    """Whether one of the roles of the manifest allows it."""
    if resource == "selfsubjectaccessreviews":
        return True
    return any(
        group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
        for document in yaml.safe_load_all(RBAC.read_text())
        for rule in document.get("rules", [])
    )


def forbidden(asked: Asked) -> Answer:
    """The recorded 403, about this request."""
    if asked.sub == "eviction":
        return recorded("rbac_403_eviction", **{"train-0": asked.name})
    words = {"patch": asked.verb, "node-1": asked.name, "nodes": asked.resource}
    return recorded("rbac_403_patch_node_serviceaccount", **words)


def taken_apart(method: str, path: str, query: dict[str, str], body: Json, content_type: str) -> Asked:
    """A request as the double sees it."""
    found = _PATH.match(path)
    if found is None:
        return Asked(method, path, query, body, content_type)
    part = found.groupdict()
    root = "/api/v1" if part["core"] else f"/apis/{part['group']}/{part['version']}"
    space = f"/namespaces/{part['space']}" if part["space"] else ""
    return Asked(
        method,
        path,
        query,
        body,
        content_type.partition(";")[0],
        f"{root}{space}/{part['plural']}",
        part["group"] or "",
        part["plural"],
        part["name"] or "",
        part["sub"] or "",
    )


def _ok(body: Json) -> Answer:
    return Answer(200, copy.deepcopy(body), {})


def _without_status(changed: Json, before: Json) -> Json:
    kept = {key: value for key, value in changed.items() if key != "status"}
    return kept | ({"status": before["status"]} if "status" in before else {})


def _closed(node: Json) -> bool:
    return bool(node["spec"].get("unschedulable"))


def _writers_of_cordon(node: Json, asked: Asked) -> list[Json]:
    """A server gives a field to whoever changed it last, and to nobody once it is gone."""
    writer = asked.writer
    fields = {"f:spec": {"f:unschedulable": {}}}
    others = [each for each in node["metadata"].get("managedFields", []) if each.get("fieldsV1") != fields]
    own = {"manager": writer, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    return [*others, own] if _closed(node) else others


def _writers_of_conditions(node: Json, asked: Asked) -> list[Json]:
    """A writer of status has the conditions that it wrote last, as `node_condition_of_tocsin` was recorded."""
    writer = asked.writer
    written = {f'k:{{"type":"{each["type"]}"}}' for each in asked.body.get("status", {}).get("conditions", [])}
    there = {f'k:{{"type":"{each["type"]}"}}' for each in node.get("status", {}).get("conditions", [])}
    owned: dict[str, set[str]] = {}
    others = []
    for each in node["metadata"].get("managedFields", []):
        if each.get("subresource") == "status":
            owned[each["manager"]] = set(each["fieldsV1"]["f:status"]["f:conditions"]) - written
        else:
            others.append(each)
    owned[writer] = owned.get(writer, set()) | written
    return others + [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:conditions": {key: {".": {}} for key in sorted(keys & there)}}},
            "subresource": "status",
        }
        for manager, keys in owned.items()
        if keys & there
    ]


def _same_uid(found: Json, options: Json) -> None:
    uid = options.get("preconditions", {}).get("uid")
    if uid is not None and uid != found["metadata"]["uid"]:
        raise wrong_uid(found["metadata"]["name"], uid, found["metadata"]["uid"])


def _grace(found: Json) -> int:
    return int(found["spec"].get("terminationGracePeriodSeconds", 0))


def _spend(budget: Json) -> None:
    status, name = budget["status"], budget["metadata"]["name"]
    if "observedGeneration" not in status:
        raise recorded("evict_429_pdb_not_yet_observed", **{"budget late": f"budget {name}"})
    if not status["disruptionsAllowed"]:
        words = f"budget {name} needs {status['desiredHealthy']} healthy pods and has {status['currentHealthy']}"
        raise recorded("evict_429_pdb", **{"budget train needs 2 healthy pods and has 2": words})


def _scale_of(found: Json) -> Json:
    scale: Json = recorded("scale_get").body
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale["metadata"] = {key: found["metadata"][key] for key in kept}
    scale["spec"] = {"replicas": found["spec"]["replicas"]}
    labels = found["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    scale["status"] = {"replicas": found["status"]["replicas"], "selector": selector}
    return scale


def _writer_of_scale() -> Json:
    fields = recorded("deployment_get").body["metadata"]["managedFields"]
    return next(dict(each) for each in fields if each.get("subresource") == "scale")


def _chosen(item: Json, parts: list[tuple[str, str, str]]) -> bool:
    known = {
        "spec.nodeName": item.get("spec", {}).get("nodeName", ""),
        "status.phase": item.get("status", {}).get("phase", ""),
        "metadata.name": item["metadata"]["name"],
    }
    return all((known[key] == wanted) is not (sign == "!=") for key, sign, wanted in parts)


def _parts(selector: str) -> list[tuple[str, str, str]]:
    found = []
    for part in filter(None, selector.split(",")):
        key, sign, wanted = re.split(r"(!=|==?)", part, maxsplit=1)
        if key not in {"spec.nodeName", "status.phase", "metadata.name"}:
            raise recorded("pods_bad_fieldselector_400", **{"spec.foo": key})
        found.append((key, sign, wanted))
    return found


def _place(token: str, state: State) -> tuple[int, str]:
    if not token:
        return 0, str(state.version)
    version, _, start = token.partition(":")
    if int(version) <= state.compacted:
        raise recorded("list_410_continue_expired")
    return int(start), version
