"""Prolog, epilog and health check of deploy/slurm, on doubles of the commands and on a real Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tocsin_testing import needs
from tocsin_testing.slurm_cluster import Cluster, slurm_cluster

FOLDER = Path(__file__).parents[2] / "deploy" / "slurm"
SCRIPTS = ("common.sh", "epilog.sh", "healthcheck.sh", "prolog.sh")
SAID = {
    0: "gpu-n1: 8 GPUs read by nvml: healthy",
    1: "gpu-n1: 8 GPUs read by nvml: attention\n\nwarning: GPU 2 is warm. [warm; proposes: notify]",
    2: 'gpu-n1: 8 GPUs read by nvml: act now\n\ncritical: GPU 3 "fell" off the bus. [xid_79; proposes: drain]',
    3: "tocsin: no NVML library",
}
REASON = "gpu health: critical: GPU 3 fell off the bus. [xid_79; proposes: drain]"


def test_a_linter_finds_no_fault() -> None:
    program = needs.program("shellcheck", "shellcheck")
    for script in (*SCRIPTS, "slurm-health.sh", "../kubernetes/secrets/make.sh"):
        done = subprocess.run([program, "-x", script], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, ""), script


@dataclass(frozen=True)
class Site:
    """The scripts with a double of `tocsin scan`, whose verdict is in a file."""

    folder: Path

    @property
    def slurm_conf(self) -> Path:
        return self.folder.parent / "slurm.conf"

    def install(self, **conf: str) -> None:
        for name in SCRIPTS:
            shutil.copy(FOLDER / name, self.folder / name)
        scan = self.folder / "tocsin"
        scan.write_text(
            f'#!/bin/sh\necho "$@" >> {self.folder}/scans\ncat {self.folder}/said\nexit $(cat {self.folder}/code)\n'
        )
        scan.chmod(0o755)
        told = {"TOCSIN": str(scan), "VERDICT": str(self.folder / "run" / "verdict"), **conf}
        lines = [f"{name}={value}\n" for name, value in told.items()]
        (self.folder / "tocsin-slurm.conf").write_text("".join([*lines, f"export SLURM_CONF={self.slurm_conf}\n"]))
        self.gpus_are(0)

    def gpus_are(self, code: int) -> None:
        (self.folder / "said").write_text(SAID[code] + "\n")
        (self.folder / "code").write_text(f"{code}\n")

    @property
    def scans(self) -> int:
        path = self.folder / "scans"
        return path.read_text().count("\n") if path.exists() else 0


@dataclass(frozen=True)
class Doubled(Site):
    """The same with a double of scontrol, which keeps the reason of the one node."""

    def install(self, **conf: str) -> None:
        super().install(**conf)
        place = self.folder / "bin"
        place.mkdir(exist_ok=True)
        (place / "scontrol").write_text(
            f"""#!/bin/sh
echo "$@" >> {self.folder}/calls
case $1 in
show) [ ! -s {self.folder}/reason ] || echo "   Reason=$(cat {self.folder}/reason) [root@2026-11-21T20:00:00]" ;;
update) case "$*" in
    *state=resume*) : > {self.folder}/reason ;;
    *) for each; do case $each in reason=*) printf '%s' "${{each#reason=}}" > {self.folder}/reason ;; esac; done ;;
    esac ;;
esac
"""
        )
        (place / "scontrol").chmod(0o755)

    @property
    def reason(self) -> str:
        path = self.folder / "reason"
        return path.read_text() if path.exists() else ""

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SLURMD_NODENAME": "gpu-n1"}
        command = ["sh", str(self.folder / script)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def site(tmp_path: Path) -> Doubled:
    made = Doubled(tmp_path)
    made.install()
    return made


@pytest.mark.parametrize(("code", "drained"), [(0, ""), (1, ""), (2, REASON), (3, "")])
@pytest.mark.parametrize("script", ["healthcheck.sh", "epilog.sh"])
def test_what_wants_action_now_takes_the_node_out_of_service(
    site: Doubled, script: str, code: int, drained: str
) -> None:
    site.gpus_are(code)
    done = site.run(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert site.reason == drained


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (2, 1), (3, 0)])
def test_no_job_starts_where_something_wants_action_now(site: Doubled, code: int, ends: int) -> None:
    site.gpus_are(code)
    done = site.run("prolog.sh")
    assert done.returncode == ends
    assert ("takes no job" in done.stdout) == bool(ends)


def test_a_site_may_drain_what_cannot_be_seen(site: Doubled) -> None:
    site.install(BLIND="drain")
    site.gpus_are(3)
    assert site.run("prolog.sh").returncode == 1
    assert site.reason == "gpu health: tocsin: no NVML library"


def test_the_word_of_whoever_drained_before_stays(site: Doubled) -> None:
    (site.folder / "reason").write_text("fan, ask Ann")
    site.gpus_are(2)
    site.run("healthcheck.sh")
    site.install(GIVE_BACK="yes")
    site.run("healthcheck.sh")
    assert site.reason == "fan, ask Ann"


def test_a_node_is_given_back_only_where_the_site_says_so(site: Doubled) -> None:
    site.gpus_are(2)
    site.run("healthcheck.sh")
    site.gpus_are(1)
    site.run("healthcheck.sh")
    assert site.reason == REASON
    site.install(GIVE_BACK="yes")
    site.run("healthcheck.sh")
    assert site.reason == ""


def test_a_fresh_verdict_is_believed_and_an_old_one_is_not(site: Doubled) -> None:
    site.run("healthcheck.sh")
    assert site.run("prolog.sh").returncode == 0
    assert site.scans == 1
    verdict = site.folder / "run" / "verdict"
    os.utime(verdict, (verdict.stat().st_mtime - 3600,) * 2)
    site.gpus_are(2)
    assert site.run("prolog.sh").returncode == 1
    assert site.scans == 2


def test_a_node_that_was_mended_takes_jobs_at_once(site: Doubled) -> None:
    site.gpus_are(2)
    assert site.run("prolog.sh").returncode == 1
    site.gpus_are(0)
    (site.folder / "reason").write_text("")
    assert site.run("prolog.sh").returncode == 0
    assert (site.reason, site.scans) == ("", 2)
    assert site.run("prolog.sh").returncode == 0
    assert site.scans == 2, "the good verdict is believed"


def test_a_scan_that_hangs_is_no_verdict(site: Doubled) -> None:
    site.install(SECONDS_TO_SCAN="0.1")
    (site.folder / "tocsin").write_text("#!/bin/sh\nexec sleep 60\n")
    assert site.run("prolog.sh").returncode == 0
    assert (site.folder / "run" / "verdict").read_text().startswith("3 ")


def test_a_program_that_is_not_there_is_no_verdict(site: Doubled) -> None:
    site.install(TOCSIN="/nonexistent/tocsin")
    assert site.run("prolog.sh").returncode == 0
    assert (site.folder / "run" / "verdict").read_text().startswith("3 ")


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[Cluster, Site]]:
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = Path(name)
        place = folder / "scripts"
        place.mkdir()
        site = Site(place)
        site.install()
        example = (FOLDER / "slurm.conf.example").read_text().replace("/etc/slurm/tocsin", str(place))
        with slurm_cluster(folder, example.replace("HealthCheckInterval=300", "HealthCheckInterval=1")) as cluster:
            yield cluster, site


@pytest.mark.server
def test_a_real_slurm_keeps_jobs_off_a_bad_node(real: tuple[Cluster, Site]) -> None:
    cluster, site = real
    job = cluster.submit()
    cluster.until("a job runs on a good node", lambda: cluster.field("job", job, "JobState") == "RUNNING")
    cluster.run("scancel", job)
    assert site.scans > 0
    cluster.until("its epilog has run", lambda: "COMPLETING" not in cluster.field("node", "gpu-n1", "State"))
    site.gpus_are(2)
    cluster.until("the health check drains", lambda: "DRAIN" in cluster.field("node", "gpu-n1", "State"), 70)
    shown = cluster.run("sinfo", "-h", "-R", "-o", "%E")
    assert REASON in shown
    second = cluster.submit("--nodelist=gpu-n1")
    assert cluster.field("job", second, "JobState") == "PENDING"
    cluster.run("scancel", second)
    site.install(GIVE_BACK="yes")
    cluster.until("it is given back", lambda: "DRAIN" not in cluster.field("node", "gpu-n1", "State"), 70)
