"""A real Slurm on the loopback address: munged, slurmctld and one slurmd a node, with stand-ins for GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tocsin_testing import needs
from tocsin_testing.servers import free_port

_T = TypeVar("_T")
SECONDS = 120.0
"""How long anything may take: other tests run beside this one."""
_PACKAGES = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sinfo": "slurm-client"}

_CONF = """ClusterName=tocsin
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SwitchType=switch/none
MpiDefault=none
ReturnToService=0
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobRequeue=1
KillWait=1
SlurmdParameters=config_overrides
PrivateData=cloud
ResumeProgram={folder}/resume.sh
SuspendProgram={folder}/suspend.sh
RebootProgram=/bin/true
SuspendTime=3600
SuspendTimeout=1
ResumeTimeout=60
SuspendExcNodes={fixed}
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=500 Gres=gpu:h200:2{more}\n"
)


@dataclass
class Cluster:
    """`conf` is its slurm.conf. Work goes to ``gpu-n1`` where it has room, else to ``gpu-n2``.

    The node ``cloud-1`` has no power until it is powered up and `boot` is called.
    """

    folder: Path
    fixed: tuple[str, ...] = ("gpu-n1", "gpu-n2")
    cloud: tuple[str, ...] = ("cloud-1",)
    lines: str = ""
    """Further lines of slurm.conf."""
    rest: str = ""
    """Address of slurmrestd once it runs."""
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def run(self, *command: str) -> str:
        """What a command of Slurm printed; it must end well within `SECONDS`."""
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
        return done.stdout.decode()

    def submit(self, *more: str) -> str:
        """Number of a new job that runs `job.sh`."""
        out = str(self.folder / "%j.out")
        shown = self.run("sbatch", "--parsable", "-n1", "--gres=gpu:1", "-o", out, *more, str(self.folder / "job.sh"))
        return shown.strip()

    def field(self, kind: str, name: str, key: str) -> str:
        """One field of ``scontrol show``."""
        shown = self.run("scontrol", "--all", "show", kind, name, "--oneliner")
        return next((word.split("=", 1)[1] for word in shown.split() if word.startswith(f"{key}=")), "")

    def until(self, what: str, seen: Callable[[], _T], seconds: float = SECONDS) -> _T:
        """Ask until it is so; fails with the controller's log."""
        deadline, never = time.monotonic() + seconds, threading.Event()
        pause = 0.05
        while time.monotonic() < deadline:
            found = seen()
            if found:
                return found
            never.wait(pause)
            pause = min(pause * 1.2, 0.5)
        raise AssertionError(f"not within {seconds:g} s: {what}\n{self.run('squeue')}{self.run('sinfo', '-N')}")

    def boot(self, name: str, *more: str) -> None:
        """Start a node's daemon."""
        self._start("slurmd", "-D", "-N", name, "-f", str(self.conf), *more)

    def serve_rest(self) -> str:
        """Start slurmrestd, which takes whoever runs as this user; its address."""
        needs.program("slurmrestd", "slurmrestd")
        place = self.folder / "rest.socket"
        # It loads all of its plug-ins but where it is told, and those of slurmdbd end it where there is none.
        plugins = ["-s", "openapi/v0.0.37,openapi/v0.0.38", "-a", "rest_auth/local"]
        more = {"SLURMRESTD_SECURITY": "disable_user_check"}
        self._start("slurmrestd", *plugins, "-f", str(self.conf), f"unix:{place}", more=more)
        self._until_alive("slurmrestd", place.exists)
        self.rest = f"unix:{place}"
        return self.rest

    def clear(self) -> None:
        """End all jobs and put the fixed nodes back into service."""
        if self.run("squeue", "-h").strip():
            self.run("scancel", "--user=root")
            self.until("no job is left", lambda: not self.run("squeue", "-h").strip())
        for name in self.fixed:
            if "DRAIN" in self.field("node", name, "State"):
                self.run("scontrol", "update", f"nodename={name}", "state=resume")

    def start(self) -> None:
        """Start all of it and wait until the fixed nodes are idle."""
        self._write()
        munged = ["munged", "--foreground", "--force", "--key-file", str(self.folder / "munge.key")]
        files = {"--socket": "munge.socket", "--pid-file": "munge.pid", "--seed-file": "munge.seed"}
        places = [word for option, name in files.items() for word in (option, str(self.folder / name))]
        self._start(*munged, *places, "--log-file", str(self.folder / "munge.log"))
        self._until_alive("munged", lambda: (self.folder / "munge.socket").exists())
        self._start("slurmctld", "-D", "-i", "-f", str(self.conf))
        for name in self.fixed:
            self.boot(name)
        self._until_alive("slurmctld and slurmd", self._all_idle, 20.0)

    def stop(self) -> None:
        """End the jobs, then the daemons, then whatever still runs out of the cluster's folder."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, OSError):
            self.clear()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(5)
        for pid in _running_from(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "LC_ALL": "C"}

    def _all_idle(self) -> bool:
        command = ["sinfo", "-h", "-N", "-o", "%t", "-n", ",".join(self.fixed)]
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=SECONDS, check=False)
        return done.stdout.decode().split() == ["idle"] * len(self.fixed)

    def _start(self, *command: str, more: Mapping[str, str] | None = None) -> None:
        environment = self._environment | dict(more or {})
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        self._daemons.append(daemon)

    def _until_alive(self, what: str, seen: Callable[[], bool], seconds: float = SECONDS) -> None:
        deadline, never = time.monotonic() + seconds, threading.Event()
        while not seen():
            dead = [each.args for each in self._daemons if each.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not start: {dead}\n{(self.folder / 'daemons.log').read_text()[-3000:]}")
            never.wait(0.05)

    def _write(self) -> None:
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool", "dev", *(f"spool/{each}" for each in self.fixed + self.cloud)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for word in ("resume", "suspend"):
            script = self.folder / f"{word}.sh"
            script.write_text(f'#!/bin/sh\necho "{word} $1" >> {self.folder}/power.log\n')
            script.chmod(0o755)
        text = _CONF.format(host=host, port=free_port(), folder=self.folder, fixed=",".join(self.fixed))
        gres = "AutoDetect=off\n"
        for weight, name in enumerate(self.fixed + self.cloud, start=1):
            more = " State=CLOUD" if name in self.cloud else ""
            text += _NODE.format(name=name, host=host, port=free_port(), weight=weight, more=more)
            gres += f"NodeName={name} Name=gpu Type=h200 File={self.folder}/dev/{name}_gpu[0-1]\n"
            for number in range(2):
                os.mknod(self.folder / "dev" / f"{name}_gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        text += f"PartitionName=gpu Nodes={','.join(self.fixed + self.cloud)} Default=YES MaxTime=INFINITE State=UP\n"
        self.conf.write_text(text + self.lines)
        (self.folder / "gres.conf").write_text(gres)
        job = self.folder / "job.sh"
        job.write_text(_JOB.format(folder=self.folder))
        job.chmod(0o755)


_JOB = """#!/bin/bash
# Checkpoints on USR1, and goes on from its checkpoint after a requeue.
file={folder}/$SLURM_JOB_ID.checkpoint
trap 'echo "step $steps on $SLURMD_NODENAME" >> $file' USR1
steps=0
echo "start $SLURMD_NODENAME gpu $CUDA_VISIBLE_DEVICES" >> {folder}/$SLURM_JOB_ID.starts
[ -e $file ] && tail -n1 $file >> {folder}/$SLURM_JOB_ID.resumed
while :; do sleep 0.05; steps=$((steps + 1)); done
"""


def _running_from(folder: Path) -> list[int]:
    """Processes whose command line or SLURM_CONF lies in `folder`: step daemons outlive their slurmd."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if str(folder).encode() in told and b"pytest" not in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def slurm_cluster(folder: Path, lines: str = "") -> Iterator[Cluster]:
    """A cluster of two nodes with two GPUs each, and one cloud node; in CI a missing one is a failure.

    `lines` are further ones of its slurm.conf.
    """
    for program, package in _PACKAGES.items():
        needs.program(program, package)
    if os.geteuid() != 0:
        needs.lack("a Slurm of one's own needs root, for device files and for its daemons")
    cluster = Cluster(folder, lines=lines)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
