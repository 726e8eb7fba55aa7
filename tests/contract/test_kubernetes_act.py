"""`tocsin act` against an API server: the double, or a real one by kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.actions.kube.port import KubeError
from tocsin.cli import act
from tocsin.cli.main import cli
from tocsin.domain.errors import InputError
from tocsin_testing.kube_site import Site, open_site, write_kubeconfig
from tocsin_testing.servers import free_port


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("TOCSIN_CONFIG", raising=False)
    monkeypatch.setenv("TOCSIN_KUBERNETES__EVICT_BARE_PODS", "true")
    with open_site(tmp_path) as found:

        def pods_end(seconds: float) -> None:
            for pod in found.get(f"/api/v1/namespaces/{found.space}/pods")["items"]:
                if pod["metadata"].get("deletionTimestamp"):
                    found.finish(f"{found.space}/{pod['metadata']['name']}")

        monkeypatch.setattr(act, "rest", pods_end)
        yield found


def _act(site: Site, *words: str) -> tuple[int, str]:
    command = ["act", "--kubeconfig", str(site.kubeconfig), *words]
    result = CliRunner().invoke(cli, command, standalone_mode=False, catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.output


def test_a_node_is_cordoned_drained_and_given_back(site: Site) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    code, said = _act(site, "--dry-run", "drain", node, "--reason", "XID 79")
    assert (code, said) == (0, f"ok: dry run: would evict {train}; not allowed now nothing; would leave nothing\n")
    assert "unschedulable" not in site.find_node(node)["spec"]
    assert _act(site, "--yes", "cordon", node, "--reason", "XID 79") == (0, f"ok: cordoned {node}\n")
    assert site.find_node(node)["metadata"]["annotations"]["tocsin.io/cordon-reason"] == "person: XID 79"
    code, said = _act(site, "--yes", "drain", node, "--reason", "XID 79")
    assert (code, said) == (0, f"... waiting: {train} is ending\nok: 1 pods evicted from {node}\n")
    assert _act(site, "--yes", "uncordon", node) == (0, f"ok: uncordoned {node}\n")
    assert "unschedulable" not in site.find_node(node)["spec"]
    site.edit(f"/api/v1/nodes/{node}", spec={"unschedulable": True})
    code, said = _act(site, "--yes", "uncordon", node)
    assert (code, said) == (1, f"failed: {node} was cordoned by somebody else, who has to give it back\n")


def test_a_drain_that_a_budget_forbids_ends_with_its_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    node = site.node()
    site.pod("train-0", node)
    site.budget("train", "train", 1)
    now = [0.0]

    class Clock:
        def now_ms(self) -> int:
            return 1_795_000_000_000 + int(now[0] * 1000)

        def monotonic(self) -> float:
            now[0] += 1.0
            return now[0]

    monkeypatch.setattr(act, "SystemClock", Clock)
    code, said = _act(site, "--yes", "drain", node, "--reason", "XID 79", "--wait", "20")
    assert code == 1
    assert "failed: not drained within 20 s: " in said
    assert "The disruption budget train needs 1 healthy pods and has 1 currently" in said


def test_a_workload_is_scaled_unless_an_autoscaler_owns_it(site: Site) -> None:
    target = site.deployment("infer", 3)
    path = f"/apis/apps/v1/namespaces/{site.space}/deployments/infer/scale"
    assert _act(site, "--dry-run", "scale", target, "5") == (0, f"ok: dry run: {target}: 3 -> 5 replicas\n")
    assert site.get(path)["spec"]["replicas"] == 3
    assert _act(site, "--yes", "scale", target, "5") == (0, f"ok: {target}: 3 -> 5 replicas\n")
    assert _act(site, "--yes", "scale", target, "0") == (0, f"ok: {target}: 5 -> 0 replicas\n")
    site.autoscaler("infer", 2, 4)
    code, said = _act(site, "--yes", "scale", target, "4")
    assert code == 1
    assert "HorizontalPodAutoscaler infer (2 to 4 replicas) sets the replicas" in said
    with pytest.raises(InputError, match="TARGET"):
        _act(site, "--yes", "scale", "infer", "4")


def test_labels_checkpoints_migration_avoidance_and_mig(site: Site) -> None:
    node = site.node()
    assert _act(site, "--yes", "label", node, "team=blue", "rack=7") == (0, f"ok: labelled {node}\n")
    assert _act(site, "--yes", "label", node, "team=blue") == (0, f"ok: {node} is labelled so already\n")
    assert _act(site, "--yes", "label", node, "rack-")[0] == 0
    labels = site.find_node(node)["metadata"]["labels"]
    assert (labels["team"], "rack" in labels) == ("blue", False)
    with pytest.raises(InputError, match="LABELS"):
        _act(site, "--yes", "label", node, "nothing")
    assert _act(site, "--yes", "checkpoint", node)[0] == 1
    assert "new work goes elsewhere" in _act(site, "--yes", "avoid", node)[1]
    train = site.pod("train-0", node)
    assert _act(site, "--dry-run", "mig", node, "all-1g.10gb")[0] == 1
    assert _act(site, "--yes", "migrate", node, train)[0] == 0
    code, said = _act(site, "--dry-run", "mig", node, "all-1g.10gb")
    assert (code, said) == (0, f"ok: dry run: asked mig-manager for all-1g.10gb on {node}\n")


def test_nodes_and_rights_are_shown_without_leave_to_act(site: Site) -> None:
    node = site.node()
    train = site.pod("train-0", node)
    assert f"{node}: takes work; {train}\n" in _act(site, "nodes")[1]
    shown = {each["host"]: each for each in json.loads(_act(site, "nodes", "--json")[1])}
    assert shown[node]["work"] == [train]
    assert _act(site, "rights") == (0, "ok: every right is granted\n")


@pytest.mark.parametrize("words", [[], ["--yes", "--dry-run"]])
def test_whether_to_act_must_be_said(site: Site, words: list[str]) -> None:
    with pytest.raises(InputError, match="--dry-run or --yes"):
        _act(site, *words, "cordon", "node-1", "--reason", "why")


def test_an_absent_server_is_exit_code_3(site: Site, tmp_path: Path) -> None:
    nobody = write_kubeconfig(tmp_path / "nobody", f"http://127.0.0.1:{free_port()}", "t")
    with pytest.raises(KubeError, match="cannot connect") as caught:
        _act(site, "--kubeconfig", str(nobody), "--yes", "uncordon", "node-1")
    assert caught.value.exit_code == 3
