"""`tocsin act` against an API server: the double, or a real one by kubeconfig."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli import act
from tocsin.cli.act import Deed, ManualRecord, account, default_path
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import Entry
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.journal.files import read_entries
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService
from tocsin_testing.kube_site import SITES, DirectDoor, Site, open_site, write_kubeconfig
from tocsin_testing.servers import free_port


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("TOCSIN_CONFIG", raising=False)
    monkeypatch.setenv("TOCSIN_KUBERNETES__EVICT_BARE_PODS", "true")
    monkeypatch.setenv("TOCSIN_JOURNAL__BY_HAND", str(tmp_path / "own" / "by-hand.db"))
    monkeypatch.setenv("TOCSIN_TOKEN_FILE", str(tmp_path / "tokens.json"))
    monkeypatch.setenv("TOCSIN_DASHBOARD__API_URL", f"http://127.0.0.1:{free_port()}")
    with open_site(tmp_path, request.param) as found:

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
    assert (code, said) == (1, f"failed: {node} was cordoned by someone else, who has to uncordon it\n")


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


def test_a_scale_past_the_bounds_of_the_settings_says_so_and_is_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = site.deployment("infer", 3)
    bounds = {"serve": {"target": target, "min_replicas": 2, "max_replicas": 4}}
    monkeypatch.setenv("TOCSIN_KUBERNETES__WORKLOADS", json.dumps(bounds))
    for replicas, bound in ((5, "above kubernetes.workloads.serve.max_replicas = 4"), (4, ""), (1, "min_replicas = 2")):
        code, said = _act(site, "--yes", "scale", target, str(replicas))
        assert code == 0
        assert bound in said
        assert ("warning: " in said) is bool(bound)
        assert f"-> {replicas} replicas" in said


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("cordon", "n1", "--reason", "why"), "get nodes"),
        (("drain", "n1", "--reason", "why"), "get nodes"),
        (("label", "n1", "a=b"), "get nodes"),
        (("scale", "default/deployment/infer", "5"), "get deployments/scale"),
        (("nodes",), "list nodes"),
    ],
)
def test_a_right_that_is_lacking_has_one_exit_code(site: Site, words: tuple[str, ...], right: str) -> None:
    if site.double is None:
        pytest.skip("the rights of a real server's administrator are not taken away")
    site.node()
    site.deployment("infer", 3)
    site.double.withheld = frozenset({right})
    assert _code(site, "--yes", *words) == 3
    site.double.withheld = frozenset()
    assert _code(site, "--yes", *words) == 0


def test_what_is_not_there_has_one_exit_code(site: Site) -> None:
    for words in (("cordon", "no-such", "--reason", "why"), ("label", "no-such", "a=b")):
        assert _code(site, "--yes", *words) == 1
    assert _code(site, "--yes", "scale", f"{site.space}/deployment/no-such", "5") == 1


def _code(site: Site, *words: str) -> int:
    try:
        return _act(site, *words)[0]
    except KubeError as error:
        return error.exit_code


def test_labels_checkpoints_migration_avoidance_and_mig(site: Site) -> None:
    node = site.node()
    assert _act(site, "--yes", "label", node, "team=blue", "rack=7") == (0, f"ok: labelled {node}\n")
    assert _act(site, "--yes", "label", node, "team=blue") == (0, f"ok: {node} already has these labels\n")
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


def test_all_that_it_set_in_the_cluster_is_taken_back_on_record(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_KUBERNETES__FAULT_TAINT", "tocsin.io/fault")
    cordoned, avoided, other = site.node("n1"), site.node("n2"), site.node("n3")
    site.edit(f"/api/v1/nodes/{other}", spec={"unschedulable": True})
    for words in (("cordon", cordoned, "--reason", "XID 79"), ("avoid", avoided)):
        assert _act(site, "--yes", *words)[0] == 0
    began = len(_own(tmp_path))
    cordon = "cordon, taint tocsin.io/fault:NoSchedule, label tocsin.io/cordoned-by, condition TocsinGpuHealthy"
    avoid = "taint tocsin.io/avoid:PreferNoSchedule"
    would = f"{cordoned}: would take back {cordon}\n{avoided}: would take back {avoid}\n"
    assert _release(site, "--all", "--dry-run") == (0, f"{would}ok: 2 nodes would be released\n")
    assert len(_own(tmp_path)) == began
    said = f"{cordoned}: took back {cordon}\n{avoided}: took back {avoid}\nok: 2 nodes released\n"
    assert _release(site, "--all", "--yes", "--reason", "removed") == (0, said)
    for node in (cordoned, avoided):
        found = site.find_node(node)
        assert "tocsin.io/fault" not in json.dumps(found["spec"])
        assert "tocsin.io/avoid" not in json.dumps(found["spec"])
        assert "TocsinGpuHealthy" not in json.dumps(found["status"])
        assert "tocsin.io/cordoned-by" not in found["metadata"].get("labels", {})
        assert not found["spec"].get("unschedulable")
    assert site.find_node(other)["spec"]["unschedulable"] is True
    assert json.loads(_release(site, "--all", "--yes", "--json")[1])["said"] == ["ok: 0 nodes released"]
    begun, ended = [one.payload for one in _own(tmp_path)[began : began + 2]]
    assert (begun["action"], begun["subject"]["kind"], begun["reason"]) == ("release_all", "fleet", "removed")
    assert (ended["status"], ended["detail"]) == ("succeeded", "ok: 2 nodes released")


@pytest.mark.parametrize("told", [True, False])
def test_the_conditions_that_settings_name_are_taken_back_also_where_no_writer_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    if site.double is None:
        pytest.skip("a real server tells who writes")
    monkeypatch.setenv("TOCSIN_KUBERNETES__NODE_CONDITION", "GpuFit")
    monkeypatch.setenv("TOCSIN_KUBERNETES__REPAIR_CONDITION", "AcceleratedHardwareReady")
    node, cluster = site.node(), Cluster(DirectDoor(site.double))
    before = cluster.node(node).conditions
    for kind in ("GpuFit", "AcceleratedHardwareReady", "TocsinGpuFault"):
        cluster.set_condition(node, {"type": kind, "status": "False", "reason": "TocsinDrain"})
    if not told:
        site.double.forget_writers()
    taken = "condition TocsinGpuFault, condition AcceleratedHardwareReady, condition GpuFit"
    assert _release(site, "--all", "--yes") == (0, f"{node}: took back {taken}\nok: 1 nodes released\n")
    assert cluster.node(node).conditions == before


def test_a_layout_that_has_to_stay_is_said_by_the_exit_code(site: Site) -> None:
    node = site.node(labels={"nvidia.com/mig.config": "all-disabled"})
    key = {"tocsin.io/mig-key": "k", "tocsin.io/mig-config-first": "all-disabled", "tocsin.io/mig-config-before": ""}
    labels = {"nvidia.com/mig.config": "all-1g.10gb"}
    site.edit(f"/api/v1/nodes/{node}", metadata={"labels": labels, "annotations": key})
    train = site.pod("train-0", node)
    code, said = _release(site, "--all", "--yes")
    assert (code, f"{train} hold GPUs; drain the node and run tocsin release --all again" in said) == (1, True)
    assert said.endswith("failed: 1 nodes keep something of Tocsin's, 0 nodes released\n")
    site.finish(train)
    said = f"{node}: took back label nvidia.com/mig.config, again all-disabled\nok: 1 nodes released\n"
    assert _release(site, "--all", "--yes") == (0, said)
    assert site.find_node(node)["metadata"]["labels"]["nvidia.com/mig.config"] == "all-disabled"


def _release(site: Site, *words: str) -> tuple[int, str]:
    command = ["release", "--kubeconfig", str(site.kubeconfig), *words]
    result = CliRunner().invoke(cli, command, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.output


@pytest.mark.parametrize("words", [(), ("--all", "host", "n1"), ("host",), ("--all",)])
def test_what_to_release_must_be_said(site: Site, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"name KIND and NAME, or --all|give exactly one"):
        _release(site, *words)


@pytest.mark.parametrize("words", [[], ["--yes", "--dry-run"]])
def test_whether_to_act_must_be_said(site: Site, words: list[str]) -> None:
    with pytest.raises(InputError, match="give exactly one"):
        _act(site, *words, "cordon", "node-1", "--reason", "why")


def _own(folder: Path) -> list[Entry]:
    path = folder / "own" / "by-hand.db"
    return list(read_entries(path)) if path.exists() else []


def test_without_a_brain_each_deed_is_in_a_chain_of_the_person_s_own(site: Site, tmp_path: Path) -> None:
    node = site.node()
    _act(site, "--dry-run", "cordon", node, "--reason", "XID 79")
    assert _own(tmp_path) == []
    _act(site, "--yes", "cordon", node, "--reason", "XID 79")
    _act(site, "--yes", "label", node, "team=blue")
    _act(site, "--yes", "scale", site.deployment("infer", 3), "5")
    _act(site, "--yes", "checkpoint", node)
    begun, ended, *others = _own(tmp_path)
    assert {(entry.kind, entry.actor) for entry in (begun, ended, *others)} == {("manual_action", account())}
    assert begun.payload["subject"] == {"kind": "host", "name": node, "host": node, "pool": "", "detail": ""}
    assert (begun.payload["phase"], begun.payload["action"], begun.payload["reason"]) == ("begun", "cordon", "XID 79")
    assert str(begun.payload["manager"]).startswith("http")
    assert (ended.payload["id"], ended.payload["status"]) == (begun.payload["id"], "succeeded")
    assert ended.payload["detail"] == f"ok: cordoned {node}"
    assert [(entry.payload["action"], entry.payload["status"]) for entry in others] == [
        ("label", ""), ("label", "succeeded"), ("scale_out", ""), ("scale_out", "succeeded"),
        ("checkpoint", ""), ("checkpoint", "failed"),
    ]  # fmt: skip
    path = tmp_path / "own" / "by-hand.db"
    assert verify(path).ok
    assert path.parent.stat().st_mode & 0o077 == 0
    shown = CliRunner().invoke(cli, ["journal", "export", str(path), "--format", "cef"], catch_exceptions=False)
    assert f"suser={account()} act=act by hand cat=cordon outcome=success dhost={node}" in shown.output


def test_a_brain_takes_the_record_under_the_name_of_the_token(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, service = site.node(), FakeService()
    tokens = [
        Token(name=name, role=role, secret=SecretStr(f"{name}-secret-0123456789"))
        for name, role in (("otto", Role.OPERATOR), ("vera", Role.VIEWER))
    ]
    server = ApiServer(create_app(service, ApiSettings(tokens=tokens)))
    server.start()
    try:
        monkeypatch.setenv("TOCSIN_DASHBOARD__API_URL", server.url)
        monkeypatch.setenv("TOCSIN_DASHBOARD__API_TOKEN", "otto-secret-0123456789")
        _act(site, "--yes", "cordon", node, "--reason", "XID 79")
        entries = service.journal(1, 10)
        assert [(entry.kind, entry.actor) for entry in entries] == [("manual_action", "otto")] * 2
        assert [entry.payload["by"] for entry in entries] == [account()] * 2
        assert _own(tmp_path) == []
        # One who may not is on record all the same, with the reason.
        monkeypatch.setenv("TOCSIN_DASHBOARD__API_TOKEN", "vera-secret-0123456789")
        code, said = _act(site, "--yes", "uncordon", node)
    finally:
        server.stop()
    assert code == 0
    assert "the brain refused the record (token vera is viewer" in said
    assert [entry.payload["phase"] for entry in _own(tmp_path)] == ["begun", "ended"]


def test_nothing_is_done_that_is_not_on_record(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = site.node()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOCSIN_JOURNAL__BY_HAND", str(tmp_path / "file" / "by-hand.db"))
    with pytest.raises(InputError, match="nothing is done that is not on record"):
        _act(site, "--yes", "cordon", node, "--reason", "XID 79")
    assert "unschedulable" not in site.find_node(node)["spec"]


def test_a_deed_that_breaks_off_is_on_record_as_failed(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KubeError):
        _act(site, "--yes", "label", "no-such-node", "team=blue")
    begun, ended = _own(tmp_path)
    assert (begun.payload["status"], ended.payload["status"]) == ("", "failed")
    assert "no-such-node" in str(ended.payload["detail"])


def test_another_command_that_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "by-hand.db"
    clock = ManualClock(T0)

    def nobody() -> Client:
        return Client(f"http://127.0.0.1:{free_port()}")

    said: list[str] = []
    deed = Deed("0" * 16, "cordon", Subject(SubjectKind.HOST, "n", "n"), "why", "here")
    other = Journal.open(path, clock)
    timer = threading.Timer(0.1, other.close)
    timer.start()
    ManualRecord(nobody, path, clock, said.append).begun(deed)
    timer.join()
    assert [entry.payload["phase"] for entry in read_entries(path)] == ["begun"]
    assert said == []


def test_the_own_journal_lies_among_the_person_s_state(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_path({"XDG_STATE_HOME": "/x"}) == Path("/x/tocsin/by-hand.db")
    monkeypatch.setenv("HOME", "/home/anna")
    assert default_path({}) == Path("/home/anna/.local/state/tocsin/by-hand.db")
    assert account({"SUDO_USER": "anna"}).endswith("(sudo anna)")


def test_an_absent_server_is_exit_code_3(site: Site, tmp_path: Path) -> None:
    nobody = write_kubeconfig(tmp_path / "nobody", f"http://127.0.0.1:{free_port()}", "t")
    with pytest.raises(KubeError, match="cannot connect") as caught:
        _act(site, "--kubeconfig", str(nobody), "--yes", "uncordon", "node-1")
    assert caught.value.exit_code == 3
