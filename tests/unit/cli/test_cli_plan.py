"""`tocsin plan`: plans for people and as JSON, from a file or a made-up fleet, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.statefile import state_json
from tocsin.cli.main import cli
from tocsin.domain.errors import InputError


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOCSIN_PLANNING__EFFORT", "500")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("defragment", "--simulated", "64"), "the usual jobs cannot use"),
        (("defragment", "--simulated", "64", "--moves", "0"), "Leave the fleet as it is"),
        (("defragment", "--simulated", "64", "--pack-to", "5"), "fragmented_gpus"),
        (("mig", "--simulated", "16", "--at-once"), "creatable_3g"),
        (("place", "--simulated", "128"), "must wait on"),
        (("scale", "--simulated", "64", "--drain", "node-0000"), "node-0000"),
        (("scale", "--simulated", "64", "--demand", "training=90@5"), "Add"),
        (("power", "--simulated", "64", "--facility", "30000"), "Lower the power limit"),
        (("power", "--simulated", "64", "--rack", "rack-000=15000"), "rack_watts rack-000"),
        (("drill", "--runs", "2"), "scale_first"),
        (("compare", "--gpus", "64", "--seeds", "1", "--kind", "defragment"), "greedy"),
    ],
)
def test_what_people_read(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert said in result.output
    assert "(simulated)" in result.output or arguments[0] == "compare"


@pytest.mark.parametrize("kind", ["defragment", "mig", "place", "power"])
def test_json_has_all_of_a_plan(kind: str) -> None:
    made = json.loads(run(kind, "--simulated", "64", "--json").output)
    assert [one["kind"] for one in made] == [kind]
    assert made[0]["simulated"]
    assert {"steps", "refused", "before", "after", "sentence"} <= made[0].keys()


def test_json_of_the_others() -> None:
    rows = json.loads(run("compare", "--gpus", "64", "--seeds", "1", "--kind", "mig", "--json").output)
    assert rows[0]["planner_f"] <= rows[0]["greedy_f"] + 1e-6
    drilled = json.loads(run("drill", "--runs", "1", "--json").output)
    assert drilled["scale_first"][0]["broken_by_action"] == 0


def test_a_state_file_and_the_settings(tmp_path: Path) -> None:
    path, config = tmp_path / "state.json", tmp_path / "t.toml"
    path.write_text(state_json(rehearsal.fleet(64, 1)))
    config.write_text("[planning]\nmax_moves = 1\nfacility_watts = 30000\n")
    made = CliRunner().invoke(cli, ["--config", str(config), "plan", "defragment", "--state", str(path), "--json"])
    assert len(json.loads(made.output)[0]["steps"]) == 1
    capped = CliRunner().invoke(cli, ["--config", str(config), "plan", "power", "--state", str(path), "--json"])
    assert json.loads(capped.output)[0]["after"]["facility_watts"] <= 30000


@pytest.mark.parametrize(
    "arguments",
    [
        ("defragment",),
        ("defragment", "--simulated", "64", "--state", "x.json"),
        ("defragment", "--state", "none.json"),
        ("defragment", "--simulated", "64", "--hours", "0"),
        ("defragment", "--simulated", "64", "--hours", "nan"),
        ("scale", "--simulated", "64", "--demand", "training"),
        ("power", "--simulated", "64", "--rack", "15000"),
        ("compare", "--gpus", "four"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...]) -> None:
    assert isinstance(run(*arguments).exception, InputError)
