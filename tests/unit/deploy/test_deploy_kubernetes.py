"""The manifests as kubectl renders them: valid by Kubernetes' own schema, with the least privileges."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tocsin import __version__
from tocsin.actions.kubernetes.rights import FEATURES, needed
from tocsin.cli.main import cli
from tocsin.config.access import Role
from tocsin.config.address import split_address
from tocsin.config.settings import Settings
from tocsin_testing.rendered import (
    FOLDER,
    OURS,
    ROOT,
    WORKLOADS,
    Json,
    Rendered,
    copy,
    granted,
    render,
    settings_of,
    template,
    validate,
)

pytestmark = pytest.mark.server

OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
RELEASES = ("1.27.0", kubernetes_validate.latest_version())
DEFAULT_PORTS = {"api": 8470, "metrics": 9835, "http": 8501}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("deploy"))


@pytest.fixture(scope="module")
def overlays(place: Path) -> dict[str, Rendered]:
    return {name: render(place / "overlays" / name) for name in OVERLAYS}


def with_component(place: Path, *names: str) -> Rendered:
    """The base with components."""
    folder = place / "overlays" / "-".join(("tried", *names))
    folder.mkdir(exist_ok=True)
    parts = {"resources": ["../../base", "../../secrets"], "components": [f"../../components/{name}" for name in names]}
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**head, **parts}))
    return render(folder)


@pytest.fixture(scope="module")
def alone(place: Path) -> dict[str, Rendered]:
    """Each component on the base."""
    return {name: with_component(place, name) for name in COMPONENTS}


@pytest.fixture(scope="module")
def renderings(overlays: dict[str, Rendered], alone: dict[str, Rendered]) -> dict[str, Rendered]:
    return {**overlays, **alone}


def test_kubernetes_own_schema_knows_every_field(renderings: dict[str, Rendered]) -> None:
    every = {json.dumps(one, sort_keys=True): one for rendered in renderings.values() for one in rendered.documents}
    for document in every.values():
        validate(document, RELEASES)


def test_a_cluster_without_further_kinds_takes_every_overlay_but_the_one_that_says_so(
    overlays: dict[str, Rendered],
) -> None:
    """A cluster without the Prometheus operator refuses a ServiceMonitor, and `kubectl apply` ends in an error."""
    theirs = {name for name, rendered in overlays.items() if {one["kind"] for one in rendered.documents} & OURS.keys()}
    assert theirs == {"production-monitored"}
    brain = overlays["production-monitored"].named("ServiceMonitor", "tocsin-brain")
    assert brain["spec"]["endpoints"][0]["scheme"] == "https"
    others = [
        {json.dumps(one, sort_keys=True) for one in overlays[name].documents if one["kind"] not in OURS}
        for name in ("production", "production-monitored")
    ]
    assert others[0] == others[1]


def test_a_field_that_is_misspelt_is_noticed(overlays: dict[str, Rendered]) -> None:
    broken = json.loads(json.dumps(overlays["observe"].named("DaemonSet", "tocsin-agent")))
    broken["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(broken, RELEASES[0], strict=True)


def test_every_container_is_shut(renderings: dict[str, Rendered]) -> None:
    for name, rendered in renderings.items():
        for pod, container in rendered.containers():
            own, whole = container["securityContext"], pod["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"]["drop"] == ["ALL"], name
            assert "privileged" not in own, name
            assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, name
            assert not pod.get("hostNetwork"), name
            assert not pod.get("hostIPC"), name
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name
            assert "livenessProbe" in container, name


ROOT_FOR = {"kernel-log", "hook", "mig", "throttle"}
HOST_PID_FOR = {"attribution", "hook"}
SYS_ADMIN_FOR = {"mig", "throttle"}
HOST_PATHS = {
    "attribution": {"/var/log/pods"},
    "kernel-log": {"/var/lib/tocsin", "/var/log/journal", "/run/log/journal", "/etc/machine-id"},
    "hook": {"/var/lib/tocsin", "/run/tocsin"},
    "mig": {"/var/lib/tocsin"},
    "throttle": {"/var/lib/tocsin"},
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_privilege_comes_with_the_component_that_needs_it_and_with_no_other(
    alone: dict[str, Rendered], component: str
) -> None:
    pods = dict(alone[component].pods)
    agent = pods.pop("tocsin-agent")
    added = agent["containers"][0]["securityContext"]["capabilities"].get("add", [])
    assert (agent["securityContext"]["runAsUser"] == 0) == (component in ROOT_FOR)
    assert bool(agent.get("hostPID")) == (component in HOST_PID_FOR)
    assert added == (["SYS_ADMIN"] if component in SYS_ADMIN_FOR else [])
    paths = {volume["hostPath"]["path"]: volume["name"] for volume in agent["volumes"] if "hostPath" in volume}
    assert set(paths) == HOST_PATHS.get(component, set())
    writable = {mount["name"] for mount in agent["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
    assert {path for path, name in paths.items() if name in writable} <= {"/var/lib/tocsin", "/run/tocsin"}
    for pod in pods.values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_the_base_asks_for_nothing_of_the_node(place: Path) -> None:
    agent = with_component(place).pods["tocsin-agent"]
    assert agent["securityContext"]["runAsNonRoot"] is True
    assert not agent.get("hostPID")
    assert not [volume for volume in agent["volumes"] if "hostPath" in volume]
    assert agent["automountServiceAccountToken"] is False


RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"
}  # fmt: skip


CHART_VALUES = {
    "attribution": {"agent": {"attribution": True}},
    "hook": {"agent": {"hook": True}},
    "kernel-log": {"agent": {"kernelLog": True}},
    "mig": {"agent": {"mig": True}},
    "throttle": {"agent": {"throttle": True}},
    "tls": {"tls": {"secret": "tocsin-tls"}},
    "shared-token": {"tokens": {"shared": True}},
}
"""Components that patch the base, and the values of the chart that say the same."""


def shape(pod: Json) -> Json:
    """A pod without what kustomize and Helm write differently: order, hashes in names, settings by environment."""
    named = json.loads(re.sub(r'("tocsin-(?:agent|brain|dashboard|tokens))-[0-9a-z]{10}"', r'\1"', json.dumps(pod)))
    for one in named["containers"]:
        one["env"] = [each for each in one.get("env", ()) if not each["name"].startswith("TOCSIN_")]
        one["env"].sort(key=lambda each: each["name"])
        one["volumeMounts"].sort(key=lambda mount: mount["mountPath"])
    named["volumes"].sort(key=lambda volume: volume["name"])
    return dict(named)


def test_every_component_is_rendered_from_the_chart() -> None:
    rendered = {path.parent.name for path in FOLDER.glob("components/*/*.yaml") if "make chart" in path.read_text()}
    assert set(COMPONENTS) == rendered


@pytest.mark.parametrize("component", CHART_VALUES)
def test_what_patches_the_base_makes_the_same_pods_and_settings_as_the_chart(
    alone: dict[str, Rendered], place: Path, tmp_path: Path, component: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(CHART_VALUES[component]))
    chart, patched = template(values), alone[component]
    for one in chart.of(*WORKLOADS):
        kind, name = one["kind"], one["metadata"]["name"]
        assert shape(patched.pods[name]) == shape(chart.pods[name])
        assert settings_of(patched, kind, name, place) == settings_of(chart, kind, name, place)


def unrestricted(pod: Json) -> list[str]:
    """What of a pod Pod Security "restricted" does not admit, by the fields that the standard names."""
    whole = pod.get("securityContext", {})
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    found += [f"volume {v['name']}" for v in pod["volumes"] if not RESTRICTED_VOLUMES.issuperset(v.keys() - {"name"})]
    found += ["sysctls"] if whole.get("sysctls") else []
    for one in (*pod["containers"], *pod.get("initContainers", ())):
        own = {**whole, **one.get("securityContext", {})}
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": own.get("runAsNonRoot") is not True,
            "runAsUser": own.get("runAsUser") == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" not in capabilities.get("drop", ()),
            "capabilities.add": not {"NET_BIND_SERVICE"}.issuperset(capabilities.get("add", ())),
            "hostPort": any(port.get("hostPort") for port in one.get("ports", ())),
            "procMount": own.get("procMount", "Default") != "Default",
            "appArmorProfile": own.get("appArmorProfile", {}).get("type") == "Unconfined",
        }
        found += [field for field, is_wrong in wrong.items() if is_wrong]
    return found


def test_a_real_fleet_is_watched_under_pod_security_restricted(overlays: dict[str, Rendered], place: Path) -> None:
    restricted = overlays["restricted"]
    labels = restricted.named("Namespace", "tocsin")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert set(restricted.pods) == {"tocsin-agent", "tocsin-brain", "tocsin-dashboard"}
    assert {name: found for name, pod in restricted.pods.items() if (found := unrestricted(pod))} == {}
    assert {one["metadata"].get("namespace", "tocsin") for one in restricted.documents} == {"tocsin"}
    agent = settings_of(restricted, "DaemonSet", "tocsin-agent", place).agent
    assert (agent.kernel_log, agent.attribution, agent.source) == ("off", False, "auto")
    assert agent.push_url == "http://tocsin-brain:8470"


def test_what_wants_paths_of_the_host_is_not_admitted_there(overlays: dict[str, Rendered]) -> None:
    assert set(unrestricted(overlays["observe"].pods["tocsin-agent"])) == {
        "hostPID", "runAsNonRoot", "runAsUser", "volume state", "volume journal", "volume journal-run",
        "volume machine-id", "volume pod-logs",
    }  # fmt: skip


def test_rights_follow_what_the_settings_turn_on(overlays: dict[str, Rendered], place: Path) -> None:
    assert granted(overlays["demo"]) == {"tocsin-lease"}
    assert granted(overlays["observe"]) == {"tocsin-lease", "tocsin-tokenreviews"}
    production = overlays["production"]
    assert granted(production) == {"tocsin-lease", "tocsin-nodes", "tocsin-checkpoints", "tocsin-tokenreviews"}
    assert granted(production) == granted(overlays["production-monitored"])
    settings = settings_of(production, "StatefulSet", "tocsin-brain", place)
    wanted = {need.right for need in needed(settings.kubernetes, node_tokens=bool(settings.api.node_service_accounts))}
    own = {*FEATURES["lease"], *FEATURES["tokenreviews"]}
    assert wanted == {*FEATURES["nodes"], *FEATURES["checkpoints"], *own}
    assert settings.kubernetes.lease == "tocsin/brain"
    for rendered in overlays.values():
        bound = [s for b in rendered.of("ClusterRoleBinding", "RoleBinding") for s in b["subjects"]]
        assert {(s["namespace"], s["name"]) for s in bound} == {("tocsin", "tocsin-brain")}
        tokens = {name: pod.get("automountServiceAccountToken") for name, pod in rendered.pods.items()}
        assert [name for name, mounted in tokens.items() if mounted is not False] == ["tocsin-brain"]


def test_settings_load_and_fit_the_pod(renderings: dict[str, Rendered], place: Path) -> None:
    for name, rendered in renderings.items():
        for one in rendered.of("DaemonSet", "Deployment", "StatefulSet"):
            kind, workload = one["kind"], one["metadata"]["name"]
            settings = settings_of(rendered, kind, workload, place)
            (container,) = rendered.pods[workload]["containers"]
            (port,) = container["ports"]
            command = container["args"][0]
            assert command in cli.commands, name
            listen = {
                "agent": settings.agent.listen, "brain": settings.api.listen, "dashboard": settings.dashboard.listen
            }[command]  # fmt: skip
            assert split_address(listen, command) == ("0.0.0.0", port["containerPort"])
            assert DEFAULT_PORTS[port["name"]] == port["containerPort"]
            writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
            places = {
                "agent": [settings.agent.spool, settings.node.marker_folder],
                "brain": [settings.store.path, settings.journal.path, settings.forecast.models],
                "dashboard": [],
            }[command]
            assert all(str(path).startswith("/var/lib/tocsin/") for path in places)
            assert not places or "/var/lib/tocsin" in writable


def test_default_ports_are_those_of_the_settings() -> None:
    settings = Settings()
    addresses = (settings.api.listen, settings.agent.listen, settings.dashboard.listen)
    assert [split_address(each, "listen")[1] for each in addresses] == [*DEFAULT_PORTS.values()]


def test_parts_reach_each_other_with_the_token_of_their_role(overlays: dict[str, Rendered], place: Path) -> None:
    for name, rendered in overlays.items():
        brain = settings_of(rendered, "StatefulSet", "tocsin-brain", place)
        roles = {token.secret.get_secret_value(): token.role for token in brain.api.tokens}
        agent = settings_of(rendered, "Agent", "tocsin-fleet" if name == "demo" else "tocsin-agent", place)
        dashboard = settings_of(rendered, "Deployment", "tocsin-dashboard", place)
        shown = agent.agent.push_token_file
        assert shown is not None
        if name == "demo":
            assert roles[shown.read_text()] is Role.AGENT
        else:
            assert Role.AGENT not in roles.values()
            (volume,) = [v for v in rendered.pods["tocsin-agent"]["volumes"] if v["name"] == "token"]
            (source,) = volume["projected"]["sources"]
            asked = source["serviceAccountToken"]
            assert (asked["audience"], asked["path"]) == (brain.api.node_audience, shown.name)
            account = rendered.pods["tocsin-agent"]["serviceAccountName"]
            assert brain.api.node_service_accounts == [f"system:serviceaccount:tocsin:{account}"]
        assert roles[dashboard.dashboard.api_token.get_secret_value()] is Role.VIEWER
        scheme = "https" if brain.api.tls_certificate else "http"
        assert agent.agent.push_url == dashboard.dashboard.api_url == f"{scheme}://tocsin-brain:8470"
        assert rendered.named("Service", "tocsin-brain")["spec"]["ports"][0]["port"] == 8470
        probes = rendered.pods["tocsin-brain"]["containers"][0]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert probes[probe]["httpGet"].get("scheme", "HTTP") == scheme.upper()


def names_in(value: Any, key: str) -> set[str]:
    """Every string below a key of this name, however deep."""
    if isinstance(value, dict):
        own = {value[key]} if isinstance(value.get(key), str) else set()
        return own.union(*(names_in(each, key) for each in value.values()))
    return set().union(*(names_in(each, key) for each in value)) if isinstance(value, list) else set()


def test_what_is_named_is_there(renderings: dict[str, Rendered]) -> None:
    from_outside = {"tocsin-tls"}
    for name, rendered in renderings.items():
        kinds = {kind: {one["metadata"]["name"] for one in rendered.of(kind)} for kind in ("Secret", "ConfigMap")}
        accounts = {one["metadata"]["name"] for one in rendered.of("ServiceAccount")}
        for pod in rendered.pods.values():
            assert names_in(pod["volumes"], "secretName") <= kinds["Secret"] | from_outside, name
            assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} <= kinds["ConfigMap"], name
            assert pod["serviceAccountName"] in accounts, name
            claimed = {
                t["metadata"]["name"] for s in rendered.of("StatefulSet") for t in s["spec"]["volumeClaimTemplates"]
            }
            volumes = {volume["name"] for volume in pod["volumes"]} | claimed
            assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} <= volumes, name
        for monitor in rendered.of("ServiceMonitor"):
            named = names_in(monitor["spec"]["endpoints"], "name")
            assert named <= kinds["Secret"] | from_outside, name
            wanted = monitor["spec"]["selector"]["matchLabels"]
            services = [s for s in rendered.of("Service") if wanted.items() <= s["metadata"]["labels"].items()]
            ports = {port["name"] for service in services for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports, name
        labels = [
            one["spec"]["template"]["metadata"]["labels"]
            for one in rendered.of("DaemonSet", "Deployment", "StatefulSet")
        ]
        for service in rendered.of("Service"):
            selector = service["spec"]["selector"].items()
            chosen = any(selector <= one.items() for one in labels)
            assert chosen, f"{name}: {service['metadata']['name']}"


def test_policies_leave_open_what_the_parts_say_to_each_other_and_nothing_else(alone: dict[str, Rendered]) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in alone["network-policy"].of("NetworkPolicy")}
    deny = policies.pop("tocsin-default-deny")
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ports = {
        name: ({p["port"] for rule in spec.get("ingress", ()) for p in rule["ports"]},
               {p["port"] for rule in spec.get("egress", ()) for p in rule["ports"]})
        for name, spec in policies.items()
    }  # fmt: skip
    assert ports == {
        "tocsin-names": (set(), {53}),
        "tocsin-agent": ({9835}, {8470}),
        "tocsin-brain": ({8470}, {443, 6443}),
        "tocsin-dashboard": ({8501}, {8470}),
    }
    workloads = set(alone["network-policy"].pods)
    assert {
        spec["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for name, spec in policies.items()
        if name != "tocsin-names"
    } == workloads
    assert all(rule.get("from") for spec in policies.values() for rule in spec.get("ingress", ())), "from anywhere"


def test_images_have_a_version_and_the_simulated_fleet_plays_no_node(overlays: dict[str, Rendered]) -> None:
    for rendered in overlays.values():
        for _, container in rendered.containers():
            assert container["image"].endswith(f":{__version__}")
    demo = overlays["demo"]
    assert not demo.of("DaemonSet")
    assert "simulated" in demo.pods["tocsin-fleet"]["containers"][0]["args"]
    assert not any("runtimeClassName" in pod for pod in demo.pods.values())
    assert overlays["observe"].pods["tocsin-agent"]["runtimeClassName"] == "nvidia"


def test_tokens_are_random_and_a_new_one_starts_pods_anew(place: Path, overlays: dict[str, Rendered]) -> None:
    texts = {name: (place / "secrets" / name).read_text() for name in ("agent", "dashboard", "metrics", "admin")}
    assert len(set(texts.values())) == 4
    assert all(len(text) == 64 for text in texts.values())
    (before,) = (one["metadata"]["name"] for one in overlays["observe"].of("Secret"))
    (place / "secrets" / "agent").write_text("f" * 64)
    (after,) = (one["metadata"]["name"] for one in render(place / "overlays" / "observe").of("Secret"))
    (place / "secrets" / "agent").write_text(texts["agent"])
    assert before != after


def test_a_drain_of_the_brains_node_is_not_held_up(overlays: dict[str, Rendered]) -> None:
    for rendered in overlays.values():
        (budget,) = rendered.of("PodDisruptionBudget")
        brain = rendered.named("StatefulSet", "tocsin-brain")["spec"]
        assert budget["spec"]["maxUnavailable"] == brain["replicas"] == 1
        assert budget["spec"]["selector"]["matchLabels"] == brain["selector"]["matchLabels"]


def test_the_set_up_goes_on_where_no_kubectl_runs(tmp_path: Path) -> None:
    """As on a machine that the package has no program for: what it brings does not run, and nothing else is there."""
    for name in ("bash", "mktemp", "rm", "sed", "uname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\n[[ "$*" == *pip* ]] || printf "not for this machine" > "$3"\n')
    python.chmod(0o755)
    script = [str(tmp_path / "bash"), str(ROOT / ".ci" / "kubectl.sh"), str(tmp_path)]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "has no kubectl that runs on" in done.stderr
    assert not (tmp_path / "kubectl").exists()
