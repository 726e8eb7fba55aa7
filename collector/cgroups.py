"""What a process belongs to, read from its cgroup path: container, pod, Slurm job. Pure; no input raises.

Both hierarchies are understood: v1 writes one line per controller (``11:memory:/kubepods/...``), v2 one line in all
(``0::/kubepods.slice/...``). Paths may begin with ``/../..`` where the reader sits in a cgroup namespace of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        path = line.split(":", 2)[-1] if line.count(":") >= 2 else ""
        found = _of_path(path)
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
    return Membership(
        container,
        _dashed(pod.group("uid")) if pod else "",
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


def _dashed(uid: str) -> str:
    """A UID as Kubernetes prints it; that of a static pod, which is a bare hash, stays as it is."""
    return uid.replace("_", "-")
