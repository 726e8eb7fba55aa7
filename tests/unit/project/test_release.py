"""`make release`: what a release has in it, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.utils import canonicalize_name

from tocsin import __version__
from tocsin_testing.rendered import helm, run_helm

ROOT = Path(__file__).parents[3]


def run(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{role}_{what}": "t@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = os.environ | who | environ
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def release(tree: Path) -> subprocess.CompletedProcess[str]:
    return run("bash", ".ci/release.sh", sys.executable, cwd=tree, PYTHONPATH="")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """What the checks before the build look at, as a repository of its own."""
    for name in (
        ".ci/release.sh",
        "src/tocsin/__init__.py",
        "CHANGELOG.md",
        "deploy/helm/tocsin/Chart.yaml",
        "deploy/kubernetes/base/kustomization.yaml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    assert run("git", "init", "-q", cwd=tmp_path).returncode == 0
    commit(tmp_path)
    return tmp_path


def commit(tree: Path) -> None:
    assert run("git", "add", "-A", cwd=tree).returncode == 0
    assert run("git", "commit", "-qm", "a change", cwd=tree).returncode == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "CHANGELOG.md",
            f"## [{__version__}]",
            "## [Unreleased]",
            f"CHANGELOG.md has nothing under ## [{__version__}]",
        ),
        ("deploy/kubernetes/base/kustomization.yaml", f"newTag: {__version__}", "newTag: 9.9.9", "a newTag"),
        (
            "deploy/helm/tocsin/Chart.yaml",
            f"appVersion: {__version__}",
            "appVersion: 9.9.9",
            "appVersion of deploy/helm",
        ),
    ],
)
def test_a_release_that_does_not_fit_together_is_refused(small: Path, name: str, old: str, new: str, said: str) -> None:
    text = (small / name).read_text()
    assert old in text
    (small / name).write_text(text.replace(old, new, 1))
    assert "changes that are in no commit" in release(small).stderr
    commit(small)
    refused = release(small)
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


def test_a_release_has_all_its_parts_and_they_agree(tmp_path: Path) -> None:
    helm()
    tree = tmp_path / "tree"
    assert run("git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(tree), cwd=tmp_path).returncode == 0
    done = release(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    made = tree / "dist" / f"tocsin-{__version__}"
    sums = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert {path.name for path in made.iterdir()} == {*sums, "SHA256SUMS"}
    assert all(hashlib.sha256((made / name).read_bytes()).hexdigest() == value for name, value in sums.items())
    (wheel,) = made.glob("*.whl")
    with ZipFile(wheel) as files:
        names = set(files.namelist())
    assert {"tocsin/actions/loop/loop.py", "tocsin/dashboard/fleet_map.js", "tocsin/rules/defaults.toml"} <= names
    with tarfile.open(made / f"tocsin-kubernetes-{__version__}.tar.gz") as manifests:
        assert f"tocsin-kubernetes-{__version__}/base/kustomization.yaml" in manifests.getnames()
    chart = run_helm(
        "template", "tocsin", str(made / f"tocsin-chart-{__version__}.tgz"), "--set", "grafana.enabled=true"
    )
    assert "tocsin-fleet.json" in chart.stdout, chart.stderr
    assert "### Added" in (made / "NOTES.md").read_text()
    parts = json.loads((made / f"tocsin-{__version__}.cdx.json").read_text())
    lines = (made / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    found = {one["name"]: one for one in parts["components"]}
    for name in ("influxdb-client", "nvidia-ml-py", "prometheus-client", "scikit-learn", "statsmodels", "streamlit"):
        assert found[name]["version"] == pinned[name]
        assert found[name]["hashes"]
    own = next(one for one in parts["dependencies"] if one["ref"] == parts["metadata"]["component"]["bom-ref"])
    assert f"pkg:pypi/click@{pinned['click']}" in own["dependsOn"]
    assert f"pkg:pypi/streamlit@{pinned['streamlit']}" in own["dependsOn"]
