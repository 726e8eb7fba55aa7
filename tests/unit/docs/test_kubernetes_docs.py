"""docs/kubernetes.md: its commands print what it shows, and every mark that the code knows is in its tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tocsin.actions.kubernetes import actions as scaling
from tocsin.actions.kubernetes import api as objects
from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.rights import FEATURES
from tocsin.cli import act
from tocsin.cli.main import cli
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.config.settings import Settings
from tocsin_testing.kube_site import Site, double_site, owner_of
from tocsin_testing.servers import free_port

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
CONSOLE = re.search(r"(?s)```console\n(.*?)```", DOC)
OWNED = owner_of("apps/v1", "StatefulSet", "llm")


def _prepare(site: Site) -> None:
    for name in ("gpu-node-7", "gpu-node-8"):
        site.node(name)
    site.space = "training"
    for index, node in enumerate(("gpu-node-7", "gpu-node-7", "gpu-node-8")):
        site.pod(f"llm-{index}", node, app="llm", owner=OWNED)
    site.budget("llm", "llm", 2)
    site.space = "gpu-operator"
    site.daemon("dcgm-exporter-x7k2p", "gpu-node-7")
    site.space = "serving"
    site.deployment("llm", 3)


def test_the_commands_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONSOLE is not None
    monkeypatch.delenv("TOCSIN_CONFIG", raising=False)
    shown = [part.partition("\n") for part in CONSOLE.group(1).split("$ ")[1:]]
    with double_site(tmp_path) as site:
        _prepare(site)
        monkeypatch.setenv("TOCSIN_KUBERNETES__KUBECONFIG", str(site.kubeconfig))
        monkeypatch.setenv("TOCSIN_JOURNAL__BY_HAND", str(tmp_path / "by-hand.db"))
        monkeypatch.setenv("TOCSIN_DASHBOARD__API_URL", f"http://127.0.0.1:{free_port()}")
        clock = _Clock()
        monkeypatch.setattr(act, "SystemClock", lambda: clock)

        def a_pod_ends_and_another_comes(seconds: float) -> None:
            clock.now += 10.0
            for index in (0, 1):
                title = f"training/llm-{index}"
                pods = site.get("/api/v1/namespaces/training/pods")["items"]
                ending = [pod for pod in pods if pod["metadata"]["name"] == f"llm-{index}"]
                if ending and ending[0]["metadata"].get("deletionTimestamp"):
                    site.finish(title)
                    if index == 0:
                        site.space = "training"
                        site.pod("llm-3", "gpu-node-8", app="llm", owner=OWNED)

        monkeypatch.setattr(act, "rest", a_pod_ends_and_another_comes)
        assert shown[0][0].startswith("export TOCSIN_KUBERNETES__KUBECONFIG=")
        for command, _, output in shown[1:]:
            words = shlex.split(command)
            result = CliRunner().invoke(cli, words[1:], standalone_mode=False, catch_exceptions=False)
            assert (words[0], result.output) == ("tocsin", output), command


class _Clock:
    now = 0.0

    def now_ms(self) -> int:
        return 1_795_000_000_000 + int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


def test_every_mark_is_in_the_page() -> None:
    names = {
        value
        for module in (patches, objects, scaling)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("tocsin.io/") and value != patches.MIGRATED
    }
    short = DOC.replace("`tocsin.io/cordon-reason`, `-key`, `-at`", "tocsin.io/cordon-key tocsin.io/cordon-at")
    assert len(names) > 8
    assert [name for name in sorted(names) if name not in short] == []
    assert f"`{patches.MIGRATED}ID`" in DOC


def test_the_example_is_valid_and_the_settings_that_are_named_exist() -> None:
    import tomllib

    example = re.search(r"(?s)```toml\n(.*?)```", DOC)
    assert example is not None
    settings = Settings.model_validate(tomllib.loads(example.group(1)))
    assert settings.kubernetes.workloads["inference"].max_replicas == 12
    fields = KubernetesSettings.model_fields
    named = re.findall(r"`(\w+_seconds|\w+_pods|evict_\w+|autoscaled|workloads|lease|fault_taint|dry_run)\b", DOC)
    assert named
    assert [name for name in named if name not in fields] == []


def test_every_role_of_the_manifest_is_in_the_page() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    roles = {document["metadata"]["name"] for document in documents if document["kind"] == "ClusterRole"}
    assert roles == {f"tocsin-{feature}" for feature in FEATURES}
    assert [role for role in roles if f"`{role}`" not in DOC] == []
