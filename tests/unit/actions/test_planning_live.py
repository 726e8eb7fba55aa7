"""The state that planners get of a running fleet is a state file."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tocsin.actions.planning.build import work_id
from tocsin.actions.planning.state import GpuMode
from tocsin.actions.planning.statefile import parse_state
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli.main import cli
from tocsin.config.settings import Settings
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0

GPUS = 32


def test_the_demos_fleet_can_be_planned_for(tmp_path: Path) -> None:
    wanted = Settings.model_validate(
        {"simulation": {"gpus": GPUS}, "forecast": {"worker": False, "models": tmp_path / "models"}}
    )
    demo = Demo(demo_settings(wanted, tmp_path), T0)
    demo.step()
    state = parse_state(json.dumps(demo.service.planning_state()))
    server = ApiServer(create_app(demo.service, demo.settings.api), "127.0.0.1", 0, demo.settings.api)
    server.start()
    try:
        told = {"TOCSIN_DASHBOARD__API_URL": server.url}
        done = CliRunner().invoke(cli, ["plan", "power", "--state", "live", "--facility", "9000", "--json"], env=told)
    finally:
        server.stop()
        demo.running.stop()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert len(state.gpus) == GPUS, "GPUs in MIG mode among them: what still fits tells their layouts"
    assert {slot.mode for slot in state.gpus.values()} == {GpuMode.EXCLUSIVE, GpuMode.MIG}
    jobs = {work_id(job.owner) for job in demo.fleet.jobs()}
    assert {work.id for work in state.works.values() if not work.stays} <= jobs
    assert any(len(work.holds) == 8 and work.lost_s is not None for work in state.works.values())
    assert {node.pool for node in state.nodes.values()} == {gpu.pool for gpu in demo.fleet.gpus}
    assert state.simulated
