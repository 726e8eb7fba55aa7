"""What is made of the Helm chart and for it. chart.py HELM [ROOT]

For it, from the model of the settings: `config` at the end of values.yaml, and `config` in values.schema.json.
Of it, the table of docs/helm.md, and with its defaults: the objects and settings of the kustomize base, and of its
components.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml
from components import ALWAYS, PATCHED, component
from pydantic import BaseModel, SecretStr
from pydantic_core import to_jsonable_python

from tocsin.config.load import section_of
from tocsin.config.settings import Settings

Json = dict[str, Any]
HEAD = "# Tocsin's own settings"
MADE = "# Made by `make chart` from deploy/helm/tocsin; change the chart.\n"
BASE = "deploy/kubernetes/base"
COMPONENTS = "deploy/kubernetes/components"
RENDERINGS: list[tuple[list[str], dict[str, str]]] = [
    (
        ["namespace.create=true"],
        {
            "namespace": f"{BASE}/namespace.yaml",
            "rbac": f"{BASE}/rbac.yaml",
            "agent": f"{BASE}/agent.yaml",
            "brain": f"{BASE}/brain.yaml",
            "dashboard": f"{BASE}/dashboard.yaml",
            "disruption": f"{BASE}/disruption.yaml",
        },
    ),
    (
        ["networkPolicy.enabled=true", "networkPolicy.denyNamespace=true"],
        {"networkpolicy": f"{COMPONENTS}/network-policy/policies.yaml"},
    ),
    (["serviceMonitor.enabled=true"], {"servicemonitor": f"{COMPONENTS}/service-monitor/monitors.yaml"}),
    (
        ["config.actions.executors={kubernetes}"],
        {
            "rbac ClusterRoleBinding tocsin-nodes": f"{COMPONENTS}/actions/binding.yaml",
            "rbac ClusterRoleBinding tocsin-checkpoints": f"{COMPONENTS}/checkpoints/binding.yaml",
        },
    ),
    (
        ["config.actions.executors={kubernetes}", "config.kubernetes.device_rules=NoSchedule"],
        {"rbac ClusterRoleBinding tocsin-devices": f"{COMPONENTS}/devices/binding.yaml"},
    ),
    (
        ["config.kubernetes.read_conditions=true"],
        {"rbac ClusterRoleBinding tocsin-conditions": f"{COMPONENTS}/conditions/binding.yaml"},
    ),
    (
        ["config.kubernetes.show_faults=true"],
        {"rbac ClusterRoleBinding tocsin-signs": f"{COMPONENTS}/signs/binding.yaml"},
    ),
]
"""Values that differ from the chart's, and the file of each template, or object of it, that they are rendered for."""


def comment(text: str, indent: str) -> Iterator[str]:
    """Lines of a comment."""
    yield from textwrap.wrap(" ".join(text.split()), 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def keys(model: type[BaseModel], indent: str) -> Iterator[str]:
    """Each setting of a section as a comment: what it means, then the key with its default."""
    for name, field in model.model_fields.items():
        yield from comment(field.description or "", indent)
        inner = section_of(field.annotation)
        if inner is not None:
            yield f"{indent}# {name}:"
            yield from keys(inner, f"{indent}#   ")
        elif field.annotation is SecretStr:
            if f"{name}_file" not in model.model_fields:
                yield f"{indent}# {name}_file: path of a file in the pod"
        elif SecretStr in get_args(field.annotation):
            yield f"{indent}# {name}: holds secrets; by environment variable, see brain.envFrom"
        elif field.is_required():
            yield f"{indent}# {name}: required"
        else:
            default = to_jsonable_python(field.get_default(call_default_factory=True))
            yield f"{indent}# {name}: {'unset' if default is None else json.dumps(default, ensure_ascii=False)}"


def values(before: str) -> str:
    """values.yaml with its end made anew."""
    lines = [
        f"{HEAD} (docs/settings.md), made by `make chart`. Each part gets its sections: agents `agent`,",
        "# `node`, `simulation` and `log`, the dashboard `dashboard` and `log`, the brain all others and `log`.",
        "# A comment shows the default of Tocsin; what the pods want otherwise is set by the chart, and a value",
        "# here wins over both. Secrets are named by their files: values end up in ConfigMaps.",
        "config:",
    ]
    for name, field in Settings.model_fields.items():
        section = section_of(field.annotation)
        assert section is not None, name
        lines += [*comment(section.__doc__ or "", "  "), f"  {name}:", *keys(section, "    ")]
    return before.split(HEAD, maxsplit=1)[0] + "\n".join(lines) + "\n"


def table(written: str) -> str:
    """The table of docs/helm.md: each deployment value with its default and the comment above it."""
    lines, path, said = ["| value | default | meaning |", "|---|---|---|"], [""] * 9, []
    for line in written.partition(HEAD)[0].splitlines():
        found = re.fullmatch(r"( *)([\w./-]+):(?: (.*))?", line)
        if line.lstrip().startswith("#"):
            said.append(line.strip(" #"))
        elif found:
            depth = len(found[1]) // 2
            path[depth] = found[2]
            if found[3] or said:
                name = ".".join(path[: depth + 1])
                lines.append(f"| `{name}` | {f'`{found[3]}`' if found[3] else ''} | {' '.join(said)} |")
            said = []
    return "\n".join(lines)


def page(before: str, written: str) -> str:
    """docs/helm.md with its table made anew."""
    first, second = "<!-- values -->\n", "<!-- /values -->"
    head, tail = before.partition(first)[0], before.partition(second)[2]
    return f"{head}{first}\n{table(written)}\n\n{second}{tail}"


def by_file(one: Any) -> Any:
    """A schema in which every secret is named by its file, and without tables of secrets, which have none."""
    if isinstance(one, list):
        return [by_file(each) for each in one]
    if not isinstance(one, dict):
        return one
    found = {key: by_file(value) for key, value in one.items() if key not in ("title", "description", "default")}
    fields = one.get("properties")
    if isinstance(fields, dict):
        secret = {name for name, field in fields.items() if field.get("writeOnly")}
        found["properties"] = {
            f"{name}_file" if name in secret else name: {"type": "string"} if name in secret else by_file(field)
            for name, field in fields.items()
            if not (isinstance(further := field.get("additionalProperties"), dict) and further.get("writeOnly"))
        }
        if "required" in one:
            found["required"] = [f"{name}_file" if name in secret else name for name in one["required"]]
    return found


def schema(before: str) -> str:
    """values.schema.json with the settings made anew."""
    told: Json = json.loads(before)
    made = by_file(Settings.model_json_schema(mode="validation"))
    definitions = {f"Tocsin{name}": one for name, one in made["$defs"].items()}
    told["$defs"] = {name: one for name, one in told["$defs"].items() if not name.startswith("Tocsin")} | definitions
    sections = {name: {"anyOf": [one, {"type": "null"}]} for name, one in made["properties"].items()}
    told["properties"]["config"] = {"type": "object", "additionalProperties": False, "properties": sections}
    text = json.dumps(told, indent=1, ensure_ascii=False)
    return re.sub(r'"#/\$defs/(?!Tocsin|PartImage|Port)', '"#/$defs/Tocsin', text) + "\n"


def render(helm: str, chart: Path, changes: list[str]) -> dict[str, str]:
    """What each template renders to."""
    options = [word for change in changes for word in ("--set", change)]
    command = [helm, "template", "tocsin", str(chart), "--namespace", "tocsin", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"chart.py: {done.stderr}")
    found: dict[str, str] = {}
    for document in re.split(r"(?m)^---\n", done.stdout):
        named = re.match(r"# Source: tocsin/templates/(.*)\.yaml\n", document)
        if named:
            text = document[named.end() :].strip("\n") + "\n"
            found[named[1]] = found[named[1]] + "---\n" + text if named[1] in found else text
    return found


def kustomized(text: str) -> str:
    """Objects as kustomize applies them: it tells by a ConfigMap's name that its content has changed."""
    text = re.sub(r" *annotations:\n *checksum/config: .*\n", "", text)
    return text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kustomize")


def whole(rendered: dict[str, str]) -> str:
    """All objects that are rendered."""
    return "---\n".join(map(kustomized, rendered.values()))


def chosen(rendered: dict[str, str], template: str, kind: str = "", name: str = "") -> str:
    """A template's objects, or one of them."""
    if not kind:
        return rendered[template]
    head = f"kind: {kind}\nmetadata:\n  name: {name}\n"
    return next(one for one in re.split(r"(?m)^---\n", rendered[template]) if head in one)


def write(helm: str, root: Path) -> None:
    """Make every file anew."""
    chart = root / "deploy" / "helm" / "tocsin"
    for name, make in (("values.yaml", values), ("values.schema.json", schema)):
        path = chart / name
        path.write_text(make(path.read_text()))
    document = root / "docs" / "helm.md"
    document.write_text(page(document.read_text(), (chart / "values.yaml").read_text()))
    for changes, files in RENDERINGS:
        rendered = render(helm, chart, changes)
        for source, name in files.items():
            (root / name).write_text(MADE + kustomized(chosen(rendered, *source.split())))
    before = whole(render(helm, chart, ALWAYS))
    for name, changes in PATCHED.items():
        path = root / COMPONENTS / name / "kustomization.yaml"
        said = [line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")]
        comment = MADE + "".join(line for line in said if line != MADE)
        path.write_text(component(comment, before, whole(render(helm, chart, [*ALWAYS, *changes]))))
    for one in yaml.safe_load_all(render(helm, chart, [])["config"]):
        part = one["metadata"]["labels"]["app.kubernetes.io/component"]
        (root / BASE / f"{part}.toml").write_text(MADE + one["data"]["tocsin.toml"].strip("\n") + "\n")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "."))
