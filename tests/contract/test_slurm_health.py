"""`tocsin slurm-health` as slurmd runs it: its one line, its exit codes, a driver that hangs, and a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tocsin.cli.slurm_health import read_scan
from tocsin_testing.slurm_cluster import Cluster, slurm_cluster

ROOT = Path(__file__).parents[2]
SMI = ROOT / "tests" / "data" / "nvidia_smi"
HEALTHY, LOST = "h100-healthy-query.csv", "h100-off-bus-xid79-query.csv"


@dataclass(frozen=True)
class Node:
    """A node whose driver is a program that says what a recording says; `toml` has its settings."""

    folder: Path

    def install(self, **health: object) -> None:
        smi = self.folder / "nvidia-smi"
        smi.write_text(
            f"#!/bin/sh\ncase $* in *-x*) exit 255 ;; esac\n[ ! -e {self.folder}/hangs ] || exec sleep 600\n"
            f"if [ -e {self.folder}/bad.$SLURMD_NODENAME ]; then cat {SMI / LOST}; else cat {SMI / HEALTHY}; fi\n"
        )
        smi.chmod(0o755)
        words = "\n".join(f"{name} = {json.dumps(value)}" for name, value in health.items() if name != "mode")
        (self.folder / "tocsin.toml").write_text(
            f'[agent]\nsource = "nvidia_smi"\nnvidia_smi_command = ["{smi}"]\nkernel_log = "off"\n'
            f'[actions]\nmode = "{health.get("mode", "observe")}"\n'
            f'[slurm]\nconf = "{self.folder.parent}/slurm.conf"\n[slurm.health]\n{words}\n'
        )

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tocsin.cli", "--config", str(self.folder / "tocsin.toml"), "slurm-health"]

    def run(self, name: str, *more: str) -> tuple[int, str]:
        environment = {**os.environ, "SLURMD_NODENAME": name}
        done = subprocess.run([*self.command, *more], env=environment, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout.decode().strip() or done.stderr.decode().strip()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "node").mkdir()
    made = Node(tmp_path / "node")
    made.install()
    return made


def test_it_prints_one_line_and_ends_with_the_verdict_of_a_scan(node: Node) -> None:
    code, said = node.run("gpu-n1")
    assert (code, said.count("\n")) == (0, 0)
    assert said.startswith("gpu-n1: healthy: ")
    assert said.endswith("; nothing to do")


def test_a_driver_that_hangs_is_left_alone_in_time(node: Node) -> None:
    node.install(seconds=5)
    (node.folder / "hangs").touch()
    begun = time.monotonic()
    code, said = node.run("gpu-n1")
    assert time.monotonic() - begun < 7
    assert (code, "the scan did not end within 3 s; does the driver hang?" in said) == (3, True), said


def test_a_wrong_setting_is_no_verdict(node: Node) -> None:
    node.install(seconds=80)
    code, said = node.run("gpu-n1")
    assert code == 3
    assert "slurm.health.seconds" in said


@pytest.mark.parametrize(
    ("out", "code", "wanted"),
    [
        (b"", -9, (3, "the scan ended with -9 and told nothing")),
        (b"[" * 100_000, 0, (3, "the scan ended with 0 and told nothing")),
        (b'{"exit_code": 0}', 2, (3, "the scan ended with 2 and told nothing")),
        (b'{"exit_code": 3, "blind": ["the driver"]}', 3, (3, "not seen: the driver")),
        (b'{"exit_code": 2, "gpus": [{"index": 3, "health": "act now"}]}', 2, (2, "GPU 3: act now")),
        (b'{"exit_code": 0, "gpus": [{"health": "healthy"}, 7]}', 0, (0, "1 GPUs read")),
    ],
)
def test_what_a_scan_tells(out: bytes, code: int, wanted: tuple[int, str]) -> None:
    found = read_scan(out, code)
    assert (found.code, found.sentence) == wanted


def test_the_gravest_finding_is_told_and_a_simulated_gpu_is_known() -> None:
    findings = [
        {"severity": "warning", "sentence": "It is warm.", "rule": "warm"},
        {"severity": "critical", "sentence": "GPU 3 fell off the bus.", "rule": "xid_bus"},
    ]
    report = {"exit_code": 2, "findings": findings, "gpus": [{"simulated": True, "health": "act now"}]}
    found = read_scan(json.dumps(report).encode(), 2)
    assert (found.sentence, found.simulated) == ("critical: GPU 3 fell off the bus. [xid_bus]", True)


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[Cluster, Node]]:
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = Path(name)
        (folder / "node").mkdir()
        node = Node(folder / "node")
        node.install(drain=True)
        program = node.folder / "healthcheck.sh"
        told = f"export PYTHONPATH={os.environ.get('PYTHONPATH', '')} PATH={os.environ['PATH']}"
        # Every second on each node, which would be a scan a second: only the one that is waited for is made.
        once = f'[ "$SLURMD_NODENAME" = gpu-n1 ] && rm {folder}/armed 2> /dev/null || exit 0'
        program.write_text(f"#!/bin/sh\n{told}\n{once}\n{' '.join(node.command)} > {folder}/said 2>&1\n")
        program.chmod(0o755)
        lines = f"HealthCheckProgram={program}\nHealthCheckInterval=1\nHealthCheckNodeState=ANY\n"
        with slurm_cluster(folder, lines) as cluster:
            yield cluster, node


@pytest.mark.server
def test_a_real_slurm_has_a_bad_node_drain_itself_and_no_second_one(real: tuple[Cluster, Node]) -> None:
    cluster, node = real
    (node.folder / "bad.gpu-n1").touch()
    code, said = node.run("gpu-n1", "--json")
    told = json.loads(said)
    assert (code, told["drained"]) == (2, False)
    assert told["said"] == 'would be drained with actions.mode = "act" and slurm.health.drain'
    assert "DRAIN" not in cluster.field("node", "gpu-n1", "State"), "in observe it only says"

    node.install(drain=True, mode="act")
    (cluster.folder / "armed").touch()
    cluster.until("slurmd drains it", lambda: "DRAIN" in cluster.field("node", "gpu-n1", "State"), 70)
    reason = cluster.run("sinfo", "-h", "-R", "-o", "%E|%u|%N")
    assert reason.startswith("gpu health: "), reason
    assert reason.strip().endswith("|root|gpu-n1"), reason
    (node.folder / "bad.gpu-n2").touch()
    code, said = node.run("gpu-n2")
    assert code == 2
    assert "not drained: 2 of 2 nodes would be out of service, at most 1 may (slurm.health.max_share)" in said
    assert "out of service already: gpu health: " in node.run("gpu-n1")[1]
    for name in ("gpu-n1", "gpu-n2"):
        (node.folder / f"bad.{name}").unlink()
    assert node.run("gpu-n1")[1].endswith("nothing to do"), "what it drained is a person's to give back"
    assert "DRAIN" in cluster.field("node", "gpu-n1", "State")
