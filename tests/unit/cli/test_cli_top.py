"""`tocsin top` in scripts, and its mistakes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.domain.errors import InputError, Unavailable
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)


def top(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["top", *arguments])


def test_once_says_the_worst_first_and_how_much_is_left_out() -> None:
    with serving(FakeService()) as url:
        lines = top("--once", "--rows", "3", "--api-url", url).output.splitlines()
    assert lines[0].startswith(f"brain {url}: mode propose, running, BREAKER TRIPPED")
    assert lines[1].startswith("64 GPUs on 8 hosts (simulated): 58 ok")
    assert lines[3].startswith("◆ gpu-node-06 GPU 2: PAGE xid fatal; open. ")
    table = lines[lines.index("", 3) + 2 :]
    assert table[0].startswith("✕ gpu-node-06 GPU 2")
    assert "lost: XID 79" in table[0]
    assert "↗ 91 % in 2.5 h (90 min to 4.4 h)" in table[1]
    assert table[3] == "and 61 more (see --rows and --json)"


def test_json_is_the_whole_look_less_what_is_filtered() -> None:
    with serving(FakeService()) as url:
        told = json.loads(top("--json", "--filter", "temp>80", "--api-url", url).output)
    assert told.keys() == {"origin", "at", "simulated", "fleet", "gpus", "incidents", "decisions", "cards", "notes"}
    assert [(gpu["host"], gpu["index"]) for gpu in told["gpus"]] == [("gpu-node-03", 5)]
    assert told["fleet"]["gpus"] == 64
    assert told["simulated"] is True


def test_this_node_needs_no_brain() -> None:
    told = json.loads(top("--local", "--source", "simulated", "--json").output)
    assert told["fleet"] is None
    assert len(told["gpus"]) == 64
    assert "nothing is predicted" in top("--local", "--source", "simulated", "--once", "--rows", "1").output


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((), InputError, "add --once"),
        (("--once", "--filter", "heat>1"), InputError, "compare one of"),
        (("--once", "--local", "--agent", "http://127.0.0.1:9"), InputError, "give one of them"),
        (("--once", "--source", "nvml"), InputError, "add --local"),
        (("--once", "--agent", "127.0.0.1:9"), InputError, "is no http"),
        (("--once", "--agent", "http://127.0.0.1:9"), Unavailable, "tocsin agent"),
        (("--once", "--api-url", "http://127.0.0.1:9"), Unavailable, "tocsin brain"),
    ],
)
def test_mistakes_say_what_to_do(arguments: tuple[str, ...], error: type[Exception], said: str) -> None:
    result = top(*arguments)
    assert isinstance(result.exception, error)
    assert said in str(result.exception)
