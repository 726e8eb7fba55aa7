"""The Kubernetes manifests as kubectl renders them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tocsin_testing import needs

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet")
Json = dict[str, Any]


def kubectl() -> str:
    """A kubectl whose kustomize knows components: of release 1.27 or newer."""
    program = shutil.which("kubectl", path=f"{ROOT / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin") or needs.program(
        "kubectl", "kubernetes-client"
    )
    told = subprocess.run([program, "version", "--client"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"Kustomize Version: v(\d+)", told.stdout)
    if found is None or int(found[1]) < 5:
        needs.lack(f"{program} is older than release 1.27; `make setup` brings a newer one")
    return program


def copy(folder: Path) -> Path:
    """The manifests in `folder`, with tokens that `make.sh` wrote."""
    place = folder / "kubernetes"
    # Without what a person may have put beside the manifests.
    shutil.copytree(
        FOLDER, place, ignore=lambda where, names: [n for n in names if Path(where).name == "secrets" and "." not in n]
    )
    subprocess.run(["sh", str(place / "secrets" / "make.sh")], check=True, timeout=60)
    return place


@dataclass(frozen=True)
class Rendered:
    """One rendering: what `kubectl apply -k` would send."""

    documents: tuple[Json, ...]

    def of(self, *kinds: str) -> list[Json]:
        return [one for one in self.documents if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Json:
        return next(one for one in self.of(kind) if one["metadata"]["name"] == name)

    @cached_property
    def pods(self) -> dict[str, Json]:
        """Pod specifications by the name of their workload."""
        return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in self.of(*WORKLOADS)}

    def containers(self) -> Iterator[tuple[Json, Json]]:
        """Each container with its pod."""
        for pod in self.pods.values():
            yield from ((pod, one) for one in (*pod["containers"], *pod.get("initContainers", ())))

    def has(self, kind: str, name: str) -> bool:
        return any(one["metadata"]["name"] == name for one in self.of(kind))


def render(place: Path) -> Rendered:
    """What kubectl makes of the kustomization in `place`; it must have nothing to say about it."""
    command = [kubectl(), "kustomize", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Rendered(tuple(one for one in yaml.safe_load_all(done.stdout) if one))
