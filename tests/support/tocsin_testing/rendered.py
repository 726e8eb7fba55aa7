"""The Kubernetes manifests as kubectl and helm render them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tocsin.config.load import load_settings
from tocsin.config.settings import Settings
from tocsin_testing import needs

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "tocsin"
PATH = f"{ROOT / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet")
Json = dict[str, Any]


def kubectl() -> str:
    """A kubectl whose kustomize knows components: of release 1.27 or newer."""
    program = shutil.which("kubectl", path=PATH) or needs.program("kubectl", "kubernetes-client")
    told = subprocess.run([program, "version", "--client"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"Kustomize Version: v(\d+)", told.stdout)
    if found is None or int(found[1]) < 5:
        needs.lack(f"{program} is older than release 1.27; `make setup` brings a newer one")
    return program


def helm() -> str:
    """A helm of release 4 or newer."""
    program = shutil.which("helm", path=PATH) or shutil.which("helm")
    return program or needs.lack("helm is not installed; `make setup` brings it")


def copy(folder: Path) -> Path:
    """The manifests in `folder`, with tokens that `make.sh` wrote."""
    place = folder / "kubernetes"
    # Without what a person may have put beside the manifests.
    shutil.copytree(
        FOLDER, place, ignore=lambda where, names: [n for n in names if Path(where).name == "secrets" and "." not in n]
    )
    subprocess.run(["sh", str(place / "secrets" / "make.sh")], check=True, timeout=60)
    return place


@dataclass(frozen=True)
class Rendered:
    """One rendering: what `kubectl apply -k` would send."""

    documents: tuple[Json, ...]

    def of(self, *kinds: str) -> list[Json]:
        return [one for one in self.documents if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Json:
        return next(one for one in self.of(kind) if one["metadata"]["name"] == name)

    @cached_property
    def pods(self) -> dict[str, Json]:
        """Pod specifications by the name of their workload."""
        return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in self.of(*WORKLOADS)}

    def containers(self) -> Iterator[tuple[Json, Json]]:
        """Each container with its pod."""
        for pod in self.pods.values():
            yield from ((pod, one) for one in (*pod["containers"], *pod.get("initContainers", ())))

    def has(self, kind: str, name: str) -> bool:
        return any(one["metadata"]["name"] == name for one in self.of(kind))


def render(place: Path) -> Rendered:
    """What kubectl makes of the kustomization in `place`; it must have nothing to say about it."""
    command = [kubectl(), "kustomize", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Rendered(tuple(one for one in yaml.safe_load_all(done.stdout) if one))


def template(values: Path, release: str = "tocsin", namespace: str = "tocsin") -> Rendered:
    """What helm makes of the chart with these values; it must have nothing to say but that it follows links."""
    done = run_helm("template", release, str(CHART), "--namespace", namespace, "--values", str(values))
    said = [line for line in done.stderr.splitlines() if "found symbolic link in path" not in line]
    assert (done.returncode, said) == (0, []), done.stderr
    return Rendered(tuple(one for one in yaml.safe_load_all(done.stdout) if one))


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *words], capture_output=True, text=True, timeout=120, check=False)


def granted(rendered: Rendered) -> set[str]:
    """Names of the cluster roles that somebody is bound to."""
    return {one["roleRef"]["name"] for one in rendered.of("ClusterRoleBinding", "RoleBinding")}


def settings_of(rendered: Rendered, kind: str, name: str, place: Path) -> Settings:
    """The settings of a workload as its container would load them, with the tokens in the folder of secrets."""
    pod = rendered.pods[name]
    (container,) = pod["containers"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "config")
    text = rendered.named("ConfigMap", volume["configMap"]["name"])["data"]["tocsin.toml"]
    path = place / f"{kind}.toml"
    path.write_text(text.replace("/run/secrets/tocsin", str(place / "secrets")))
    environ: dict[str, str] = {}
    for one in container.get("env", ()):
        # As the kubelet does: a name in $(NAME) stands for a variable from before; "node-1" is whatever a field says.
        said = re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], one.get("value", "node-1"))
        environ[one["name"]] = said.replace("/run/secrets/tocsin", str(place / "secrets"))
    return load_settings(path, environ=environ)


_KEY = {"type": "object", "required": ["name", "key"], "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "key": {"type": "string"}}}  # fmt: skip
_SERVICE_MONITOR: Json = {
    "type": "object",
    "required": ["selector", "endpoints"],
    "additionalProperties": False,
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"]},
        "endpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "interval": {"type": "string", "pattern": r"^\d+[smh]$"},
                    "honorLabels": {"type": "boolean"},
                    "relabelings": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"targetLabel": {"type": "string"}, "replacement": {"type": "string"}},
                        },
                    },
                    "scheme": {"enum": ["http", "https"]},
                    "authorization": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"type": {"type": "string"}, "credentials": _KEY},
                    },
                    "tlsConfig": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "serverName": {"type": "string"},
                            "ca": {"type": "object", "additionalProperties": False, "properties": {"secret": _KEY}},
                        },
                    },
                },
            },
        },
    },
}
"""The fields of monitoring.coreos.com/v1 that are used here, as its API reference has them."""
_TEXTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_RULE: Json = {
    "type": "object",
    "required": ["expr"],
    "additionalProperties": False,
    "properties": {
        "alert": {"type": "string"},
        "record": {"type": "string"},
        "expr": {"type": "string"},
        "for": {"type": "string"},
        "keep_firing_for": {"type": "string"},
        "labels": _TEXTS,
        "annotations": _TEXTS,
    },
}
_GROUP: Json = {
    "type": "object",
    "required": ["name", "rules"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "interval": {"type": "string"},
        "rules": {"type": "array", "items": _RULE},
    },
}
_PROMETHEUS_RULE: Json = {
    "type": "object",
    "required": ["groups"],
    "additionalProperties": False,
    "properties": {"groups": {"type": "array", "minItems": 1, "items": _GROUP}},
}
OURS = {"ServiceMonitor": _SERVICE_MONITOR, "PrometheusRule": _PROMETHEUS_RULE}
"""Kinds that are none of Kubernetes' own, with the schema of their specification."""


def validate(document: Json, releases: Iterable[str]) -> None:
    """Raise where an object does not fit the schema of one of these releases of Kubernetes."""
    if document["kind"] in OURS:
        jsonschema.validate(document["spec"], OURS[document["kind"]])
        return
    for release in releases:
        kubernetes_validate.validate(document, release, strict=True)
