"""The API server double with Dynamic Resource Allocation: slices, claims, device taint rules and who follows them."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace

from tocsin_testing.kube_double import Asked, KubeDouble
from tocsin_testing.kube_recorded import Answer, exchanges, recorded
from tocsin_testing.kube_state import Json

GROUP = "/apis/resource.k8s.io"
RULES = f"{GROUP}/v1/devicetaintrules"
SLICES = f"{GROUP}/v1/resourceslices"
_SERVED = re.compile(rf"^{GROUP}/(v[0-9a-z]+)$")
_SELECTOR = frozenset({"driver", "pool", "device"})


@dataclass
class DeviceDouble(KubeDouble):
    """`flavor` names the recordings of what is served: empty with every version on, ``default136``, ``gateonly136``,
    ``emulated133``, ``emulated134`` or ``emulated135``. `promoted` are versions of the group that serve rules as
    well, as a later release will: of this nothing is recorded. The controller of device taints acts while it
    `follows`."""

    flavor: str = ""
    follows: bool = True
    promoted: frozenset[str] = frozenset()

    def publish(self, node: str, gpus: list[str], first: int = 0) -> None:
        """The slice of `node` as the driver publishes it, in the recorded shape; devices count from `first`."""
        body = copy.deepcopy(exchanges()["dra_slice_create_201"]["request"]["body"])
        spec, template = body["spec"], body["spec"]["devices"][0]
        body["metadata"] = {"name": f"{node}-gpu.nvidia.com-x7k2p"}
        spec["pool"]["name"] = spec["nodeName"] = node
        spec["devices"] = []
        for minor, gpu in enumerate(gpus, first):
            device = copy.deepcopy(template)
            device["name"] = f"gpu-{minor}"
            device["attributes"]["uuid"] = {"string": gpu}
            spec["devices"].append(device)
        self.state.collection(SLICES).pop(body["metadata"]["name"], None)
        self.state.create(SLICES, body)

    def claim(self, name: str, pool: str, device: str, pod: Json) -> None:
        """A claim that the scheduler has allocated to `pod`, in the recorded shape."""
        body = copy.deepcopy(exchanges()["dra_claim_status_allocated"]["response"]["body"])
        body["metadata"] = {"name": name}
        result = body["status"]["allocation"]["devices"]["results"][0]
        result |= {"pool": pool, "device": device}
        body["status"]["reservedFor"][0] |= {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        self.state.create(f"{GROUP}/v1/namespaces/{pod['metadata']['namespace']}/resourceclaims", body)

    def _route(self, asked: Asked) -> Answer:
        if not asked.path.startswith(GROUP):
            return super()._route(asked)
        served = _SERVED.match(asked.path)
        if asked.path == GROUP or served:
            return self._discovery(served.group(1) if served else "group")
        version = asked.path.removeprefix(f"{GROUP}/").partition("/")[0]
        there = [one["name"] for one in self._discovery(version).body.get("resources", [])]
        if asked.plural not in there:
            return recorded("dra_rule_create_v1_404")
        collection = asked.collection.replace(f"{GROUP}/{version}/", f"{GROUP}/v1/", 1)
        asked = replace(asked, collection=collection, body=copy.deepcopy(asked.body))
        if asked.plural == "devicetaintrules":
            return self._rule(asked, version)
        return super()._route(asked)

    def _discovery(self, version: str) -> Answer:
        name = "_".join(filter(None, ("dra", self.flavor, "discovery", version)))
        answer = recorded(name) if name in exchanges() else recorded("path_404_plain")
        if version in self.promoted:
            rules = recorded("dra_discovery_v1beta2").body["resources"]
            answer.body["resources"] += [one for one in rules if one["kind"] == "DeviceTaintRule"]
        return answer

    def _rule(self, asked: Asked, version: str) -> Answer:
        if asked.method in {"POST", "PATCH"}:
            _validate(asked, version)
        if asked.method == "POST" and asked.dry_run:
            return Answer(201, recorded("dra_rule_create_dryrun_201").body | asked.body, {})
        before = copy.deepcopy(self.state.collection(asked.collection).get(asked.name, {}))
        answer = super()._route(asked)
        found = self.state.collection(asked.collection).get(asked.name)
        if asked.method == "PATCH" and found is not None and found["spec"] != before["spec"]:
            found["metadata"]["generation"] += 1
            answer.body["metadata"]["generation"] += 1
        if asked.method != "GET" and self.follows:
            for rule in self.state.every("devicetaintrules"):
                self._follow(rule)
        if asked.method == "GET" and not asked.name:
            key, _, value = asked.query.get("labelSelector", "").partition("=")
            items = [one for one in answer.body["items"] if one["metadata"].get("labels", {}).get(key) == value]
            answer.body["items"] = items
        return answer

    def _follow(self, rule: Json) -> None:
        """What the controller was recorded doing: a status of effect ``None``, an eviction of ``NoExecute``."""
        effect, generation = rule["spec"]["taint"]["effect"], rule["metadata"]["generation"]
        names = {"None": "dra_rule_get_status_none", "NoExecute": "dra_rule_get_status_noexecute"}
        if effect not in names:
            return
        if effect == "NoExecute":
            self._evict_holders(rule["spec"]["deviceSelector"])
        status = recorded(names[effect]).body["status"]
        status["conditions"][0]["observedGeneration"] = generation
        if rule.get("status") != status:
            rule["status"] = status
            rule["metadata"]["resourceVersion"] = self.state.next_version()

    def _evict_holders(self, selector: Json) -> None:
        for claim in self.state.every("resourceclaims"):
            status = claim["status"]
            results = status["allocation"]["devices"]["results"]
            if any({key: one[key] for key in selector} == selector for one in results):
                for pod in status.pop("reservedFor", []):
                    self.state.remove(f"/api/v1/namespaces/{claim['metadata']['namespace']}/pods", pod["name"])


def _validate(asked: Asked, version: str) -> None:
    """The recorded refusals; without strict validation unknown fields of a selector are dropped without an error."""
    name = asked.body.get("metadata", {}).get("name", asked.name)
    spec = asked.body.get("spec", {})
    unknown = set(spec.get("deviceSelector", {})) - _SELECTOR
    if asked.method == "POST" and asked.body.get("apiVersion") != f"resource.k8s.io/{version}":
        raise recorded("dra_rule_create_wrong_version_400")
    if unknown and asked.query.get("fieldValidation") == "Strict":
        raise recorded("dra_rule_create_cel_selector_strict_400")
    for field in unknown:
        del spec["deviceSelector"][field]
    if spec.get("taint", {}).get("effect", "None") not in {"None", "NoSchedule", "NoExecute"}:
        raise recorded("dra_rule_create_422_effect", r3=name)
