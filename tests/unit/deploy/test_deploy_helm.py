"""The Helm chart over a matrix of values: valid for releases of Kubernetes, with the rights that the settings need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tocsin import __version__
from tocsin.actions.kubernetes.rights import FEATURES, Need, needed
from tocsin.config.access import Role
from tocsin.runtime.brain.pod_role import ACTIVE, LABEL
from tocsin_testing.rendered import (
    CHART,
    ROOT,
    WORKLOADS,
    Json,
    Rendered,
    granted,
    helm,
    run_helm,
    settings_of,
    template,
    validate,
)

pytestmark = pytest.mark.server

RELEASES = ("1.33.0", "1.34.0", "1.35.0", "1.36.0")
ABILITIES = ("kernelLog", "attribution", "hook", "mig", "throttle")
WORKLOAD: Json = {"target": "serving/deployment/llm", "min_replicas": 2, "max_replicas": 12}
ACTS: Json = {"actions": {"executors": ["kubernetes", "journal_only"]}}
EVERYTHING: Json = {
    "fullnameOverride": "gpus",
    "mode": "propose",
    "image": {"registry": "registry.example/tocsin", "tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": ["pull"]},
    "tls": {"secret": "tocsin-tls"},
    "agent": {**dict.fromkeys(ABILITIES, True), "versions": "dpkg", "dcgmUrl": "http://dcgm:9400/metrics"},
    "brain": {
        "envFrom": ["tocsin-notify"],
        "image": {"digest": f"sha256:{'0' * 64}"},
        "storage": {"size": "20Gi", "className": "fast"},
    },
    "dashboard": {"replicas": 2, "nodeSelector": {"pool": "web"}, "tolerations": [{"operator": "Exists"}]},
    "networkPolicy": {"enabled": True, "denyNamespace": True, "agentEgressPorts": [9400]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "groups": ["dcgm-exporter", "forecast", "gpu", "service", "xid"]},
    "grafana": {"enabled": True},
    "namespace": {"create": True, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    "config": {
        "agent": {"pool": "train", "spool_max_bytes": 1073741824},
        "actions": {"executors": ["kubernetes"], "managed_pools": ["train"]},
        "kubernetes": {
            "workloads": {"llm": WORKLOAD},
            "autoscaled": "raise_minimum",
            "delete_blocked_pods": True,
            "show_faults": True,
            "read_conditions": True,
            "device_rules": "NoExecute",
        },
    },
}
MATRIX: dict[str, Json] = {
    "defaults": {},
    "everything": EVERYTHING,
    **{ability: {"agent": {ability: True}} for ability in ABILITIES},
    "acts": {"config": ACTS, "networkPolicy": {"enabled": True}},
    "acts without checkpoints": {"config": {**ACTS, "kubernetes": {"checkpoint_seconds": 0}}},
    "scales": {"config": {**ACTS, "kubernetes": {"workloads": {"llm": WORKLOAD}}}},
    "alone": {
        "dashboard": {"enabled": False}, "networkPolicy": {"enabled": True},
        "config": {"kubernetes": {"lease": "", "show_faults": True}},
    },
    "several brains": {
        "brain": {"replicas": 3},
        "serviceMonitor": {"enabled": True},
        "config": {**ACTS, "journal": {"url_file": "/run/secrets/tocsin/journal-url"}},
    },
    "one cell of several": {
        "serviceMonitor": {"enabled": True},
        "config": {
            "journal": {"url_file": "/run/secrets/tocsin/journal-url", "cell": "west"},
            "cell": {"fleet": "gpus", "url": "https://tocsin-west.example:8470"},
        },
    },
    "no rights": {"rbac": {"create": False}},
    "shared token": {"tokens": {"shared": True}},
    "desks": {
        "fullnameOverride": "tocsin",
        "networkPolicy": {"enabled": True, "brainFromIngress": True, "ingressNamespace": "edge"},
    },
}  # fmt: skip
NAMED = {"everything": "fleet-a", "desks": "fleet-b"}
"""Rows whose release has a name that is no word of the chart; the others are `tocsin`."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rendered]:
    folder = tmp_path_factory.mktemp("values")
    found = {}
    for name, values in MATRIX.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        found[name] = template(path, NAMED.get(name, "tocsin"), namespace="gpus")
    return found


def test_every_object_is_valid_in_each_release_and_carries_the_labels_of_its_own(matrix: dict[str, Rendered]) -> None:
    every = {
        (NAMED.get(name, "tocsin"), json.dumps(one, sort_keys=True)): one
        for name, rendered in matrix.items()
        for one in rendered.documents
    }
    for (release, _), document in every.items():
        validate(document, RELEASES)
        labels = {name.split("/")[-1]: value for name, value in document["metadata"]["labels"].items()}
        assert labels.keys() >= {"name", "component"}
        assert (labels["instance"], labels["version"], labels["managed-by"], labels["part-of"]) == (
            release, __version__, "Helm", "tocsin",
        ), document  # fmt: skip
    kinds = {one["kind"] for one in every.values()}
    assert kinds >= {"Namespace", "NetworkPolicy", "ServiceMonitor", "PrometheusRule", "PodDisruptionBudget"}
    other = {one["kind"] for (release, _), one in every.items() if release != "tocsin"}
    assert other == kinds, "each kind of object stands in a release of another name too"


def test_pods_and_selectors_are_of_their_own_release_too(matrix: dict[str, Rendered]) -> None:
    for name, release in NAMED.items():
        found = [*_instances(list(matrix[name].documents))]
        assert set(found) == {release}
        pods = [one["spec"]["template"]["metadata"]["labels"] for one in matrix[name].of(*WORKLOADS)]
        assert [one["app.kubernetes.io/instance"] for one in pods] == [release] * 3


def _instances(value: object) -> Iterator[str]:
    """Every release that is named in labels or selectors, however deep."""
    if isinstance(value, list):
        for one in value:
            yield from _instances(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from [one] if key == "app.kubernetes.io/instance" else _instances(one)


def test_ticket_systems_reach_the_brain_by_the_ingress_where_that_is_asked_for(matrix: dict[str, Rendered]) -> None:
    edge = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}}
    (rule,) = matrix["desks"].named("NetworkPolicy", "tocsin-brain")["spec"]["ingress"]
    assert edge in rule["from"]
    assert rule["ports"] == [{"port": 8470, "protocol": "TCP"}]
    (unasked,) = matrix["acts"].named("NetworkPolicy", "tocsin-brain")["spec"]["ingress"]
    assert len(rule["from"]) == len(unasked["from"]) + 1
    assert "ingress" not in json.dumps(unasked["from"])


def test_helm_has_nothing_against_the_chart() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"\[(?:WARNING|ERROR)\].*", done.stdout) == []
    notes = run_helm("install", "tocsin", str(CHART), "--dry-run=client", "--namespace", "gpus")
    assert "kubectl -n gpus port-forward service/tocsin-dashboard 8501:80" in notes.stdout, notes.stderr


def test_chart_and_package_are_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_brain_gets_the_rights_that_its_settings_need(matrix: dict[str, Rendered], tmp_path: Path) -> None:
    tokens(tmp_path)
    # Roles signs and conditions have rights of role nodes too: they are bound where the executor is not.
    shared = {"signs", "conditions", "pod"}
    roles = {right: feature for feature, rights in FEATURES.items() if feature not in shared for right in rights}
    for name, rendered in matrix.items():
        full = "gpus" if name == "everything" else "tocsin"
        settings = settings_of(rendered, "brain", f"{full}-brain", tmp_path)
        acts = "kubernetes" in settings.actions.executors
        own = {Need(right, "node-1") for right in FEATURES["pod"]}
        needs = [need for need in needed(settings.kubernetes) if acts and need.right in roles and need not in own]
        wanted = {(roles[need.right], need.namespace) for need in needs}
        wanted |= {("signs", "")} if settings.kubernetes.show_faults else set()
        wanted |= {("conditions", "")} if settings.kubernetes.read_conditions else set()
        wanted |= {("tokenreviews", "")} if settings.api.node_service_accounts else set()
        wanted |= {("pod", "gpus")} if settings.kubernetes.pod else set()
        wanted |= {("lease", settings.kubernetes.lease.split("/")[0])} if settings.kubernetes.lease else set()
        bound = {
            (one["roleRef"]["name"].removeprefix(f"{full}-"), one["metadata"].get("namespace", ""))
            for one in rendered.of("ClusterRoleBinding", "RoleBinding")
        }
        assert bound == (set() if name == "no rights" else wanted), name
        assert {one["metadata"]["name"] for one in rendered.of("ClusterRole")} >= granted(rendered)


def tokens(folder: Path) -> None:
    (folder / "secrets").mkdir(exist_ok=True)
    for name in ("agent", "dashboard", "metrics", "admin", "journal-url"):
        (folder / "secrets" / name).write_text(name * 16)
        (folder / "secrets" / name).chmod(0o600)


def test_settings_of_every_part_load_and_say_what_the_values_say(matrix: dict[str, Rendered], tmp_path: Path) -> None:
    tokens(tmp_path)
    for name, rendered in matrix.items():
        for one in rendered.of(*WORKLOADS):
            settings_of(rendered, one["kind"], one["metadata"]["name"], tmp_path)
        checksums = [one["spec"]["template"]["metadata"]["annotations"] for one in rendered.of(*WORKLOADS)]
        assert len({json.dumps(each) for each in checksums}) == (2 if name == "alone" else 3)
    everything = matrix["everything"]
    agent = settings_of(everything, "agent", "gpus-agent", tmp_path)
    assert (agent.agent.pool, agent.agent.spool_max_bytes, agent.agent.source) == ("train", 1 << 30, "dcgm_exporter")
    assert (agent.agent.kernel_log, agent.agent.attribution) == ("journald", True)
    assert agent.agent.push_url == "https://gpus-brain:8470"
    brain = settings_of(everything, "brain", "gpus-brain", tmp_path)
    assert (brain.actions.mode, brain.kubernetes.workloads["llm"].max_replicas) == ("propose", 12)
    assert everything.pods["gpus-brain"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "tocsin-notify"}}]
    assert brain.api.tls_certificate == Path("/run/tls/tls.crt")


def test_several_brains_share_a_journal_and_one_service_finds_the_active_one(matrix: dict[str, Rendered]) -> None:
    rendered = matrix["several brains"]
    (brain,) = [one for one in rendered.of("StatefulSet") if one["metadata"]["name"] == "tocsin-brain"]
    assert (brain["spec"]["replicas"], brain["spec"]["podManagementPolicy"]) == (3, "Parallel")
    pod = rendered.pods["tocsin-brain"]
    (spread,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["podAffinityTerm"]["labelSelector"] == brain["spec"]["selector"]
    names = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert names["TOCSIN_KUBERNETES__POD"] == "$(POD_NAMESPACE)/$(POD_NAME)"
    selected = {one["metadata"]["name"]: one["spec"]["selector"] for one in rendered.of("Service")}
    assert selected["tocsin-brain"] == brain["spec"]["selector"]["matchLabels"] | {LABEL: ACTIVE}
    (alone,) = [one for one in matrix["defaults"].of("Service") if one["metadata"]["name"] == "tocsin-brain"]
    assert LABEL not in alone["spec"]["selector"]


def test_all_that_is_scraped_of_one_cell_of_several_names_it(matrix: dict[str, Rendered]) -> None:
    """Grafana's variable *Cell* is made of that label."""
    monitors = matrix["one cell of several"].of("ServiceMonitor")
    assert [one["metadata"]["name"] for one in monitors] == ["tocsin-agent", "tocsin-brain"]
    for one in monitors:
        (endpoint,) = one["spec"]["endpoints"]
        assert endpoint["relabelings"] == [{"targetLabel": "cell", "replacement": "west"}]
    for name in ("everything", "several brains"):
        endpoints = [each for one in matrix[name].of("ServiceMonitor") for each in one["spec"]["endpoints"]]
        assert len(endpoints) == 2
        assert all("relabelings" not in each for each in endpoints), "a fleet without cells has no such label"


def test_several_brains_without_a_shared_journal_are_refused() -> None:
    done = run_helm("template", "tocsin", str(CHART), "--set", "brain.replicas=2")
    assert done.returncode != 0
    assert "set config.journal.url_file" in done.stderr


def test_every_container_is_shut_but_for_the_ability_that_needs_more(matrix: dict[str, Rendered]) -> None:
    for name, rendered in matrix.items():
        for pod, container in rendered.containers():
            own, whole = container["securityContext"], pod["securityContext"]
            is_agent = container["name"] == "agent"
            assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False), name
            assert own["capabilities"]["drop"] == ["ALL"]
            assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
            wanted = {name} if is_agent and (name in ABILITIES or name == "everything") else set()
            is_root = bool(wanted & {"everything", "kernelLog", "hook", "mig", "throttle"})
            assert (whole["runAsUser"] == 0, whole["runAsNonRoot"]) == (is_root, not is_root), name
            assert bool(wanted & {"everything", "attribution", "hook"}) == bool(pod.get("hostPID")), name
            assert bool(wanted & {"everything", "mig", "throttle"}) == ("add" in own["capabilities"]), name
            assert bool(wanted) == any("hostPath" in volume for volume in pod["volumes"]), name
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["volumes"]} | ({"state"} & mounts), name


def test_each_agent_has_a_token_of_its_own_node_unless_one_for_all_is_asked_for(
    matrix: dict[str, Rendered], tmp_path: Path
) -> None:
    tokens(tmp_path)
    for name, rendered in matrix.items():
        full = "gpus" if name == "everything" else "tocsin"
        pod = rendered.pods[f"{full}-agent"]
        api = settings_of(rendered, "brain", f"{full}-brain", tmp_path).api
        agent = settings_of(rendered, "agent", f"{full}-agent", tmp_path).agent
        (volume,) = [one for one in pod["volumes"] if one["name"] == "token"]
        (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "token"]
        assert (agent.host, agent.push_token_file) == ("node-1", tmp_path / "secrets" / "agent"), name
        (host,) = [one for one in pod["containers"][0]["env"] if one["name"] == "TOCSIN_AGENT__HOST"]
        assert host["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        assert pod["automountServiceAccountToken"] is False
        assert any(one.role is Role.AGENT for one in api.tokens) == (name == "shared token")
        if name == "shared token":
            assert "projected" not in volume
            assert api.node_service_accounts == []
            continue
        assert api.node_service_accounts == [f"system:serviceaccount:gpus:{pod['serviceAccountName']}"]
        (source,) = volume["projected"]["sources"]
        asked = {"path": "agent", "audience": api.node_audience, "expirationSeconds": 3600}
        assert source == {"serviceAccountToken": asked}
        assert (mount["mountPath"], mount["readOnly"]) == ("/run/secrets/tocsin", True)


def test_a_cluster_that_names_no_node_in_tokens_is_refused_with_the_remedy() -> None:
    old = ("template", "tocsin", str(CHART), "--kube-version", "1.29.9")
    done = run_helm(*old)
    assert done.returncode != 0
    assert "set tokens.shared=true" in done.stderr
    assert run_helm(*old, "--set", "tokens.shared=true").returncode == 0
    assert run_helm("template", "tocsin", str(CHART), "--kube-version", "1.30.0").returncode == 0


@pytest.mark.parametrize("packages", ["dpkg", "rpm"])
def test_versions_take_what_they_need_of_the_node_and_read_it_alone(packages: str, tmp_path: Path) -> None:
    tokens(tmp_path)
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"agent": {"versions": packages}}))
    rendered = template(values)
    pod = rendered.pods["tocsin-agent"]
    mounts = {
        one["mountPath"]: one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"].startswith("/host")
    }
    assert set(mounts) == {"/host/usr", "/host/etc/alternatives", f"/host/var/lib/{packages}"}
    assert all(one["readOnly"] for one in mounts.values())
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert {paths[one["name"]] for one in mounts.values()} == {path.removeprefix("/host") for path in mounts}
    agent = settings_of(rendered, "agent", "tocsin-agent", tmp_path).agent
    assert agent.host_root == Path("/host")
    assert pod["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("agent.versions=apk", "versions"),
        ("mode=destroy", "/mode"),
        ("agent.kernellog=true", "kernellog"),
        ("config.agent.pol=train", "pol"),
        ("config.agent.interval_seconds=0", "interval_seconds"),
        ("config.agent.push_token=secret", "push_token"),
        ("config.notify.urls.ops=https://hooks.example/secret", "urls"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(change: str, said: str) -> None:
    done = run_helm("template", "tocsin", str(CHART), "--set", change)
    assert done.returncode != 0
    assert said in done.stderr


def test_boards_and_alerts_are_the_shipped_ones(matrix: dict[str, Rendered]) -> None:
    everything = matrix["everything"]
    boards = {
        name: json.loads(text)
        for one in everything.of("ConfigMap")
        for name, text in one["data"].items()
        if one["metadata"]["labels"].get("grafana_dashboard") == "1"
    }
    shipped = ROOT / "grafana" / "dashboards" / "prometheus"
    assert boards == {f"tocsin-{path.name}": json.loads(path.read_text()) for path in shipped.glob("*.json")}
    groups = [group["name"] for one in everything.of("PrometheusRule") for group in one["spec"]["groups"]]
    files = (ROOT / "grafana" / "alerts").glob("*.yaml")
    assert sorted(groups) == sorted(g["name"] for path in files for g in yaml.safe_load(path.read_text())["groups"])


def test_what_is_made_of_the_chart_and_of_the_settings_is_what_lies_there(tmp_path: Path) -> None:
    for name in ("deploy", "docs", "grafana"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / ".ci" / "chart.py"), helm(), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    made = [*(path for path in (tmp_path / "deploy").rglob("*") if path.is_file()), tmp_path / "docs" / "helm.md"]
    other = [
        str(one.relative_to(tmp_path))
        for one in made
        if one.read_bytes() != (ROOT / one.relative_to(tmp_path)).read_bytes()
    ]
    assert other == [], "run: make chart"
