"""Whose processes are on a GPU: process -> container, pod and namespace, Slurm job.

Everything comes from the node itself: ``/proc`` (which must be the host's, so a container needs ``hostPID``) and the
names of the kubelet's log folders, ``<namespace>_<pod>_<uid>``. No API server and no kubelet socket is asked.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.metrics import split_variant
from tocsin.domain.reading import Owner, Reading

# Cgroup paths: both hierarchies are understood; v1 writes one line per controller (``11:memory:/kubepods/...``), v2
# one line in all (``0::/kubepods.slice/...``). Paths may begin with ``/../..`` where the reader sits in a cgroup
# namespace of its own.

_ID = r"(?P<id>[0-9a-f]{32,64})"
_POD = re.compile(
    r"(?:^|[-/])pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:[/:]|$)"
)
"""A pod's UID in a path: with dashes by the cgroupfs driver, with underscores by systemd's, plain for a static pod."""
_CONTAINER = re.compile(
    rf"(?:^|/)(?:(?:docker|cri-containerd|crio|libpod|containerd|nerdctl)-)?{_ID}(?:\.scope)?(?:/|$)"
)
_PREFIXED = re.compile(rf":(?:cri-containerd|crio|docker):{_ID}(?:/|$)")
"""containerd with its systemd cgroups switched off ends a path with ``slice:prefix:id``."""
_SLURM_JOB = re.compile(r"/job_(?P<job>\d+)(?:/step_(?P<step>[A-Za-z0-9_]+))?(?:/|$)")


@dataclass(frozen=True, slots=True)
class Membership:
    """Empty text where the path says nothing. `slurm_job` is ``job`` or ``job.step``."""

    container: str = ""
    pod_uid: str = ""
    slurm_job: str = ""


def membership(text: str) -> Membership:
    """What the content of a ``/proc/<pid>/cgroup`` says; controllers that say more outrank those that say less."""
    container = pod_uid = slurm_job = ""
    for line in text.splitlines():
        found = _of_path(line.split(":", 2)[-1] if line.count(":") >= 2 else "")
        container = container or found.container
        pod_uid = pod_uid or found.pod_uid
        # The controllers of Slurm differ in depth: one may name the job alone, another the step.
        slurm_job = max(slurm_job, found.slurm_job, key=len)
    return Membership(container, pod_uid, slurm_job)


def _of_path(path: str) -> Membership:
    pod = _POD.search(path) if "kubepods" in path else None
    container = _last(_CONTAINER, path, after=pod.end() - 1 if pod else 0) or _last(_PREFIXED, path)
    job = _SLURM_JOB.search(path) if "slurm" in path else None
    step = job.group("step") if job else None
    # The UID of a static pod is a bare hash, which has no underscores.
    return Membership(
        container,
        pod.group("uid").replace("_", "-") if pod else "",
        "" if job is None else f"{job.group('job')}.{step}" if step else job.group("job"),
    )


def _last(pattern: re.Pattern[str], path: str, after: int = 0) -> str:
    """The innermost match: a container inside a container is what runs the process."""
    found = ""
    position = after
    while (match := pattern.search(path, position)) is not None:
        found = match.group("id")
        position = match.end("id")
    return found


LOOK_AGAIN_MS = MINUTE
"""How long an owner is believed: a process hardly ever changes its cgroup, and a pod's folder may appear after it."""
MAX_FILE_BYTES = 1 << 20
"""Most of one file under ``/proc`` that is read."""
STAT_BYTES = 2048
"""More than any ``/proc/<pid>/stat`` has: 52 numbers and a name of 64 bytes at most."""

_PROCESS_KEY = "gpu_process_"
_PROCESS_METRICS = frozenset({"gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio"})
_POD_FOLDER = re.compile(r"^(?P<namespace>[a-z0-9-]+)_(?P<pod>[a-z0-9.-]+)_(?P<uid>[0-9a-f-]{32,36})$")
_SLURM_STEP_NAMES = {
    "4294967291": "interactive",
    "4294967292": "extern",
    "4294967294": "batch",
    "4294967295": "pending",
}
"""Steps that Slurm numbers from the top of 32 bits in a job's environment (slurm.h)."""


@dataclass(frozen=True, slots=True)
class _SeenProcess:
    """An owner as found at `at_ms` for the process that began at `started` (clock ticks after boot)."""

    owner: Owner
    started: str
    at_ms: int


class Attribution:
    """Finds owners by process number. `proc` is the host's ``/proc``, `pod_logs` the kubelet's ``/var/log/pods``."""

    def __init__(self, proc: Path = Path("/proc"), pod_logs: Path = Path("/var/log/pods")) -> None:
        self._proc = proc
        self._pod_logs = pod_logs
        self._seen: dict[int, _SeenProcess] = {}
        self._pods: Mapping[str, tuple[str, str]] = {}
        self._pods_ms: int | None = None

    def owner(self, pid: int, now_ms: int) -> Owner | None:
        """Who process `pid` is; None where it is gone. What cannot be read of it stays empty."""
        if not (started := _start_of(_stat(f"{self._proc}/{pid}/stat"))):
            self._seen.pop(pid, None)
            return None
        seen = self._seen.get(pid)
        # A number is given anew after a process ends; its start tells the two apart.
        if seen is None or seen.started != started or not 0 <= now_ms - seen.at_ms < LOOK_AGAIN_MS:
            seen = self._seen[pid] = _SeenProcess(self._look(pid, now_ms), started, now_ms)
        return seen.owner

    def keep(self, pids: AbstractSet[int]) -> None:
        """Forget every process but `pids`."""
        for pid in self._seen.keys() - pids:
            del self._seen[pid]

    def _look(self, pid: int, now_ms: int) -> Owner:
        folder = self._proc / str(pid)
        found = membership(_text(folder / "cgroup"))
        namespace, pod = self._pod(found.pod_uid, now_ms)
        return Owner(
            pid,
            process=_text(folder / "comm").strip(),
            container=found.container,
            pod=pod,
            namespace=namespace,
            pod_uid=found.pod_uid,
            slurm_job=found.slurm_job or _job_of(_text(folder / "environ")),
            user=_user_of(folder),
        )

    def _pod(self, uid: str, now_ms: int) -> tuple[str, str]:
        if not uid:
            return "", ""
        known = self._pods.get(uid)
        if known is None and (self._pods_ms is None or not 0 <= now_ms - self._pods_ms < LOOK_AGAIN_MS):
            self._pods = _pod_names(self._pod_logs)
            self._pods_ms = now_ms
            known = self._pods.get(uid)
        return known or ("", "")


class AttributionCompanion:
    """Gives each reading the owners of the processes that it lists (`gpu_process_memory_used_bytes` by pid)."""

    name = "attribution"

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with owners; a reading that has some already, from an exporter that knows pods, keeps them."""
        owners: dict[int, Owner | None] = {}
        readings: list[Reading] = []
        changed = False
        for reading in batch.readings:
            if not reading.owners and not reading.gpu.simulated:
                pids = _pids((*reading.values, *reading.missing))
                # A process on several GPUs is looked at once.
                for pid in pids:
                    if pid not in owners:
                        owners[pid] = self._attribution.owner(pid, now_ms)
                found = tuple(owner for pid in pids if (owner := owners[pid]) is not None)
                if found:
                    reading = replace(reading, owners=found)
                    changed = True
            readings.append(reading)
        self._attribution.keep(owners.keys())
        return replace(batch, readings=tuple(readings)) if changed else batch

    def close(self) -> None:
        """Nothing is held open."""


@lru_cache(maxsize=512)
def _pids(keys: tuple[str, ...]) -> tuple[int, ...]:
    """The processes among the names of a reading, rising. Few sets of names take turns on each GPU: what is read once a
    minute is in some."""
    found = {_pid_of(key) for key in keys if key.startswith(_PROCESS_KEY) and key.endswith("}")}
    return tuple(sorted(pid for pid in found if pid is not None))


@lru_cache(maxsize=4096)
def _pid_of(key: str) -> int | None:
    name, label, value = split_variant(key)
    return int(value) if name in _PROCESS_METRICS and label == "pid" and value.isdecimal() else None


def _stat(path: str) -> str:
    """The one file that is read of every process at every reading: without a buffer in between."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, STAT_BYTES).decode(errors="replace")
    except OSError:
        return ""  # it ended in between
    finally:
        os.close(descriptor)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _start_of(stat: str) -> str:
    """Field 22 of ``/proc/<pid>/stat`` (proc(5)); the name before it may itself hold blanks and brackets."""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _job_of(environment: str) -> str:
    """The Slurm job of a process's environment, for sites that do not track processes by cgroups."""
    values = dict(
        entry.split("=", 1) for entry in environment.split("\0") if entry.startswith("SLURM_") and "=" in entry
    )
    job = values.get("SLURM_JOB_ID") or values.get("SLURM_JOBID") or ""
    if not job.isdecimal():
        return ""
    step = values.get("SLURM_STEP_ID", "")
    step = _SLURM_STEP_NAMES.get(step, step)
    return f"{job}.{step}" if step.isalnum() else job


def _user_of(folder: Path) -> str:
    try:
        uid = folder.stat().st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return ""
    except KeyError:
        return str(uid)


def _pod_names(folder: Path) -> dict[str, tuple[str, str]]:
    """Pod UID to (namespace, pod), by the names of the kubelet's log folders; empty where there are none."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return {}
    matches = [_POD_FOLDER.match(name) for name in names]
    return {match["uid"]: (match["namespace"], match["pod"]) for match in matches if match is not None}
