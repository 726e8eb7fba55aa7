"""Whose processes are on a GPU: process -> container, pod and namespace, Slurm job.

Everything comes from the node itself: ``/proc`` (which must be the host's, so a container needs ``hostPID``) and the
names of the kubelet's log folders, ``<namespace>_<pod>_<uid>``. No API server and no kubelet socket is asked.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tocsin.collector.cgroups import membership
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE
from tocsin.domain.metrics import split_variant
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading

LOOK_AGAIN_MS = MINUTE
"""How long an owner is believed: a process hardly ever changes its cgroup, and a pod's folder may appear after it."""
MAX_FILE_BYTES = 1 << 20
"""Most of one file under ``/proc`` that is read."""

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
class _Seen:
    """An owner as found at `at_ms` for the process that began at `started` (clock ticks after boot)."""

    owner: Owner
    started: str
    at_ms: int


class Attribution:
    """Finds owners by process number. `proc` is the host's ``/proc``, `pod_logs` the kubelet's ``/var/log/pods``."""

    def __init__(self, proc: Path = Path("/proc"), pod_logs: Path = Path("/var/log/pods")) -> None:
        self._proc = proc
        self._pod_logs = pod_logs
        self._seen: dict[int, _Seen] = {}
        self._pods: Mapping[str, tuple[str, str]] = {}
        self._pods_ms: int | None = None

    def owner(self, pid: int, now_ms: int) -> Owner | None:
        """Who process `pid` is; None where it is gone. What cannot be read of it stays empty."""
        started = _start_of(_text(self._proc / str(pid) / "stat"))
        if not started:
            self._seen.pop(pid, None)
            return None
        seen = self._seen.get(pid)
        # A number is given anew after a process ends; its start tells the two apart.
        if seen is None or seen.started != started or not 0 <= now_ms - seen.at_ms < LOOK_AGAIN_MS:
            seen = self._seen[pid] = _Seen(self._look(pid, now_ms), started, now_ms)
        return seen.owner

    def keep(self, pids: set[int]) -> None:
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
        pids: set[int] = set()
        readings: list[Reading] = []
        changed = False
        for reading in batch.readings:
            owners: tuple[Owner, ...] = ()
            if not reading.owners and not reading.gpu.simulated:
                numbers = _pids(reading)
                pids |= numbers
                found = [self._attribution.owner(pid, now_ms) for pid in sorted(numbers)]
                owners = tuple(owner for owner in found if owner is not None)
            changed = changed or bool(owners)
            readings.append(replace(reading, owners=owners) if owners else reading)
        self._attribution.keep(pids)
        return replace(batch, readings=tuple(readings)) if changed else batch

    def close(self) -> None:
        """Nothing is held open."""


def _pids(reading: Reading) -> set[int]:
    keys = [*reading.values, *reading.missing]
    return {pid for key in keys if "{" in key and (pid := _pid_of(key)) is not None}


@lru_cache(maxsize=4096)
def _pid_of(key: str) -> int | None:
    name, label, value = split_variant(key)
    return int(value) if name in _PROCESS_METRICS and label == "pid" and value.isdecimal() else None


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
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
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
