"""The configurations of docs/scale.md load, agree with each other, and its commands print what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.config.load import load_settings
from tocsin.config.settings import Settings, StoreKind
from tocsin.runtime.brain.succession import open_fleet, refuse_other_leases
from tocsin_testing import needs

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "scale"
PAGES = ("scale.md", "install.md")
FILES = sorted(path.name for path in FOLDER.glob("*.toml"))


def read(folder: Path, name: str) -> Settings:
    """The settings of a file, with a secret wherever it names a file for one."""
    text = (FOLDER / name).read_text()
    for place in re.findall(r'_file = "(/etc/tocsin/secrets/[^"]+)"', text):
        path = folder / Path(place).relative_to("/etc/tocsin")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a secret for {place}")
        path.chmod(0o600)
    path = folder / name
    path.write_text(text.replace("/etc/tocsin", str(folder)))
    return load_settings(path, environ={})


@pytest.mark.parametrize("name", FILES)
def test_a_configuration_loads(tmp_path: Path, name: str) -> None:
    read(tmp_path, name)


def test_a_cell_reads_and_writes_one_tenant(tmp_path: Path) -> None:
    for name in ("cell-brain.toml", "victoriametrics-cluster.toml"):
        store = read(tmp_path, name).store
        assert store.kind is StoreKind.VICTORIAMETRICS
        tenants = (
            re.search(r"/insert/(\d+)/influx$", store.url),
            re.search(r"/select/(\d+)/prometheus$", store.read_url),
        )
        assert tenants[0] is not None
        assert tenants[1] is not None
        assert tenants[0][1] == tenants[1][1]


def test_the_agents_of_a_cell_push_to_its_brain(tmp_path: Path) -> None:
    brain, agent = read(tmp_path, "cell-brain.toml"), read(tmp_path, "cell-agent.toml")
    cell = brain.journal.cell.replace("_", "-")
    assert cell == agent.agent.pool
    assert agent.agent.push_url == brain.cell.url
    assert agent.agent.push_url.startswith(f"http://brain-{cell}.")
    assert brain.cell.url not in agent.agent.cell_urls
    assert brain.cell.hosts == [f"{cell}-*"]
    assert agent.agent.push_url.rpartition(":")[2] == brain.api.listen.rpartition(":")[2]
    assert brain.actions.mode == "observe"


def test_a_cell_is_part_of_a_fleet_with_one_budget_of_limits(tmp_path: Path) -> None:
    brain = read(tmp_path, "cell-brain.toml")
    assert brain.journal.url.get_secret_value().startswith("postgresql://")
    assert brain.journal.cell != Settings().journal.cell, "each cell has a name of its own"
    fleet = open_fleet(brain)
    assert fleet is not None
    assert fleet.database.schema == f"fleet_{brain.cell.fleet}"
    fleet.close()
    refuse_other_leases(brain)
    assert brain.kubernetes.lease == "", "the lease is a row of the database"


def test_stores_of_half_answers_are_refused_by_the_cluster_too() -> None:
    script = FOLDER / "victoriametrics-cluster.sh"
    assert "-search.denyPartialResponse" in script.read_text()
    done = subprocess.run(
        [needs.program("shellcheck", "shellcheck"), script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def shown(page: str) -> list[tuple[str, str]]:
    """Each command of Tocsin in the page's consoles, with the output that the page shows."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    found = []
    for block in re.findall(r"(?s)```console\n(.*?)```", text):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = part.partition("\n")
            if command.startswith("tocsin size"):
                found.append((command, output))
    return found


@pytest.mark.parametrize(("command", "output"), [each for page in PAGES for each in shown(page)])
def test_the_pages_show_what_the_command_prints(tmp_path: Path, command: str, output: str) -> None:
    config = tmp_path / "none.toml"
    config.write_text("")
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(cli, ["--config", str(config), *words], catch_exceptions=False)
    assert done.output == output


def test_the_pages_name_every_file_of_the_folders() -> None:
    text = "".join((ROOT / "docs" / page).read_text("utf-8") for page in PAGES)
    for folder in ("scale", "systemd", "slurm", "container"):
        for path in (ROOT / "deploy" / folder).iterdir():
            assert path.name in text or path.stem in {"agent", "brain", "dashboard", "common"}, path
