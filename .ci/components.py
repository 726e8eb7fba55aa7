"""Components of kustomize that patch the base: what values of the chart change in its workloads, as patches.

Settings that change come as environment variables, since two components may change the same file of settings.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from tocsin.config.settings import Settings

Json = dict[str, Any]
PATCHED = {
    "attribution": ["agent.attribution=true"],
    "hook": ["agent.hook=true"],
    "kernel-log": ["agent.kernelLog=true"],
    "mig": ["agent.mig=true"],
    "throttle": ["agent.throttle=true"],
    "tls": ["tls.secret=tocsin-tls"],
    "shared-token": ["tokens.shared=true"],
}
"""Each such component, and the values of the chart that it stands for."""
ALWAYS = ["serviceMonitor.enabled=true"]
"""Values of both renderings: objects that other components add, and a patch finds where they stand before it."""
WORKLOADS = frozenset({"StatefulSet", "DaemonSet", "Deployment"})
NAMED_BY = {
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that a strategic merge patch merges, and what tells their entries apart."""


def component(comment: str, before: str, after: str) -> str:
    """A component's kustomization.yaml, from what the chart renders without its values and with them."""
    first, second = objects(before), objects(after)
    if added := second.keys() - first.keys():
        raise SystemExit(f"components.py: a patch adds no object: {sorted(added)}")
    settings = dict(changed_settings(first, second))
    patches = []
    for key, one in first.items():
        if one["kind"] == "ConfigMap":
            continue
        head = {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": {"name": one["metadata"]["name"]}}
        if key not in second:
            patch: Json = {"$patch": "delete"}
        else:
            patch = changes(one, with_environment(second[key], settings)) or {}
        if patch:
            target = {"kind": head["kind"], "name": head["metadata"]["name"]}
            patches.append({"target": target, "patch": Text(written(merged(head, patch)))})
    kind = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "patches": patches}
    return comment + written(kind)


def objects(text: str) -> dict[tuple[str, str], Json]:
    """Objects by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def changed_settings(first: dict[tuple[str, str], Json], second: dict[tuple[str, str], Json]) -> Iterator[Any]:
    """Of each part whose settings change, its name and the environment variables that say so."""
    for key, one in first.items():
        if one["kind"] != "ConfigMap" or "tocsin.toml" not in one["data"]:
            continue
        before, after = (leaves(tomllib.loads(each[key]["data"]["tocsin.toml"])) for each in (first, second))
        told = {path: after.get(path, default(path)) for path in before | after if before.get(path) != after.get(path)}
        if told:
            part = one["metadata"]["labels"]["app.kubernetes.io/component"]
            yield part, [{"name": "TOCSIN_" + "__".join(path).upper(), "value": told[path]} for path in told]


def leaves(table: Json, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Each setting of a file by its path, as an environment variable holds it."""
    found: dict[tuple[str, ...], str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= leaves(value, (*path, name))
        else:
            found[*path, name] = value if isinstance(value, str) else json.dumps(value)
    return found


def default(path: tuple[str, ...]) -> str:
    """What a setting is that no file names."""
    found: Any = Settings()
    for name in path:
        found = getattr(found, name)
    return found if isinstance(found, str) else json.dumps(found)


def with_environment(one: Json, settings: dict[str, list[Json]]) -> Json:
    """A workload whose part gets its changed settings by environment; any other object as it is."""
    if one["kind"] not in WORKLOADS:
        return one
    for container in one["spec"]["template"]["spec"]["containers"]:
        if told := settings.get(container["name"]):
            container["env"] = [*container.get("env", ()), *told]
    return one


def changes(before: Any, after: Any, name: str = "") -> Any:
    """The strategic merge patch that makes `after` of `before`; None where there is nothing to change."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        told = {key: changes(before.get(key), after.get(key), key) for key in after if before.get(key) != after[key]}
        return {**{key: None for key in before if key not in after}, **told} or None
    if isinstance(after, list) and name in NAMED_BY:
        return listed(before or [], after, NAMED_BY[name])
    return after


def listed(before: list[Json], after: list[Json], key: str) -> list[Json]:
    """The entries of a merged list that are new, changed or gone."""
    known = {one[key]: one for one in before}
    gone = [{key: name, "$patch": "delete"} for name in known if name not in {one[key] for one in after}]
    told = [
        {key: one[key], **(changes(known[one[key]], one) or {})} if one[key] in known else one
        for one in after
        if known.get(one[key]) != one
    ]
    return [*told, *gone]


def merged(head: Json, patch: Json) -> Json:
    """`patch` under `head`; a directive stands first."""
    directive = {key: value for key, value in patch.items() if key == "$patch"}
    rest = {key: value for key, value in patch.items() if key not in ("$patch", "metadata", "apiVersion", "kind")}
    return directive | head | rest


class Text(str):
    """A text that YAML is to write as a block."""


class Writer(yaml.SafeDumper):
    """YAML as people write it: texts in blocks, entries of a list indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


Writer.add_representer(Text, lambda writer, text: writer.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def written(one: Any) -> str:
    """`one` as YAML."""
    return yaml.dump(one, Dumper=Writer, sort_keys=False, width=118, allow_unicode=True)
