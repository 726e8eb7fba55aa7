"""The installation of `make demo` shows how far it is, keeps pip's output, and fails as pip does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tocsin_testing import needs

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / ".ci" / "install.sh"
PIP = [
    *(f"Collecting name{n}>=1 (from tocsin)\n  Downloading name{n}-1.whl ({size})" for n, size in
      enumerate(["16.9 MB", "900 kB", "1.25 MB", "81 kB"] * 10)),
    "Installing collected packages: a, b",
    "Successfully installed a-1 b-1",
]  # fmt: skip


@pytest.fixture
def pip(tmp_path: Path) -> Path:
    """A Python that says what pip says."""
    (tmp_path / "said").write_text("\n".join(PIP) + "\n")
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\ncat {tmp_path / "said"}\necho "$@" > {tmp_path / "asked"}\nexit ${{FAIL:-0}}\n')
    fake.chmod(0o755)
    return fake


def run(pip: Path, fail: int = 0) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), str(pip), str(pip.with_name("log")), "-e", ".[brain]"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"FAIL": str(fail), "PATH": "/bin:/usr/bin"}
    )


def test_it_says_how_far_it_is_and_keeps_what_pip_said(pip: Path) -> None:
    done = run(pip)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "  20 packages, 95 MB: name19>=1",
        "  40 packages, 190 MB: name39>=1",
        "  unpacking 40 packages: a minute or two",
    ]
    assert pip.with_name("log").read_text().splitlines()[-1] == PIP[-1]
    assert pip.with_name("asked").read_text().endswith("-e .[brain]\n")


def test_it_fails_as_pip_does_and_shows_why(pip: Path) -> None:
    done = run(pip, fail=1)
    assert done.returncode == 1
    assert PIP[-1] in done.stderr


def test_the_script_has_no_slip() -> None:
    program = needs.program("shellcheck", "shellcheck")
    done = subprocess.run([program, SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
