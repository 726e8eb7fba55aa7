"""The commands of a node work with what `pip install tocsin` brings: nothing of any extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

EXTRAS = {
    "boto3", "fastapi", "influxdb_client", "kubernetes", "pandas", "plotly", "polars", "pyarrow", "ray", "safetensors",
    "scipy", "sklearn", "skops", "sqlcipher3", "statsmodels", "streamlit", "torch", "uvicorn",
}  # fmt: skip
"""Modules of the optional dependencies in pyproject.toml, and those that come along with them."""


def tocsin(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line where no module of `EXTRAS` can be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))"
    code = f"{blocked}; from tocsin.cli.main import main; main()"
    clean = {k: v for k, v in os.environ.items() if not (k.startswith("TOCSIN_") and "__" in k)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**clean, "TOCSIN_SIMULATION__GPUS": "8"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("command", "extra"), [("brain", "extra brain"), ("dashboard", "extra dashboard")])
def test_what_needs_an_extra_says_which(tmp_path: Path, command: str, extra: str) -> None:
    done = tocsin(tmp_path, command)
    assert done.returncode == 3, done.stderr
    assert extra in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("scan", "--source", "simulated"), "8 GPUs read by simulated"),
        (("agent", "--source", "simulated", "--once"), "161 values"),
        (("xid", "79"), "fallen off the bus"),
        (("reference", "dcgm-counters"), "DCGM_FI_DEV_XID_ERRORS"),
    ],
)
def test_a_command_of_a_node_needs_no_extra(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = tocsin(tmp_path, *arguments)
    assert said in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_a_recording_of_dcgm_exporter_is_lived_through_without_extras(tmp_path: Path) -> None:
    path = tmp_path / "past.prom"
    path.write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",Hostname="n1"} 41 1700000000000\n')
    config = tmp_path / "tocsin.toml"
    config.write_text(f'[agent]\nsource = "replay"\nreplay = ["{path}"]\nspool = "{tmp_path}/spool.db"\n')
    done = tocsin(tmp_path, "--config", str(config), "agent", "--once", "--json")
    assert json.loads(done.stdout.splitlines()[0])["values"] == {"gpu_temperature_celsius": 41.0}, done.stderr


def test_an_import_says_which_extra_it_needs(tmp_path: Path) -> None:
    done = tocsin(tmp_path, "import", "prometheus", "http://127.0.0.1:9", "--since", "1h", "--to", "past.prom")
    assert done.returncode == 3
    assert "extra brain" in done.stderr
