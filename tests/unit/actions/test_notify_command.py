"""`tocsin notify test` as an operator sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pytest_httpserver import HTTPServer
from werkzeug import Response

from tocsin.cli.main import cli
from tocsin.domain.errors import InputError
from tocsin_testing.servers import free_port
from tocsin_testing.ticket_doubles import SECRET, JiraCloud


def _run(folder: Path, text: str, *arguments: str) -> Result:
    path = folder / "tocsin.toml"
    path.write_text(text)
    return CliRunner().invoke(cli, ["--config", str(path), "notify", "test", *arguments])


def _settings(httpserver: HTTPServer) -> str:
    base = httpserver.url_for("")
    return f"""
[webhook]
url = "{base}/webhook"
[[notify.channels]]
name = "oncall"
kind = "pagerduty"
url = "{base}/pagerduty"
secret = "k"
min_severity = "critical"
[[notify.channels]]
name = "room"
kind = "feishu"
url = "{base}/feishu"
"""


def test_each_channel_gets_one_marked_message_whatever_it_is_told_otherwise(
    httpserver: HTTPServer, tmp_path: Path
) -> None:
    httpserver.expect_request("/webhook").respond_with_data(status=204)
    httpserver.expect_request("/pagerduty").respond_with_data(status=202)
    httpserver.expect_request("/feishu").respond_with_json({"code": 0})
    result = _run(tmp_path, _settings(httpserver))
    assert result.output.splitlines() == [
        "ok  webhook (webhook): answered 204",
        "ok  oncall (pagerduty): answered 202; end: answered 202",
        "ok  room (feishu): answered 200",
    ]
    assert result.exit_code == 0
    bodies = [json.loads(request.get_data()) for request, _ in httpserver.log]
    assert [body.get("event_action") for body in bodies] == [None, "trigger", "resolve", None]
    assert all("nothing is wrong" in json.dumps(body) for body in bodies if body.get("event_action") != "resolve")


def test_one_that_fails_gives_status_1_and_says_what_it_answered(httpserver: HTTPServer, tmp_path: Path) -> None:
    httpserver.expect_request("/feishu").respond_with_json({"code": 19021, "msg": "sign match fail"})
    result = _run(tmp_path, _settings(httpserver), "--channel", "room", "--json")
    assert result.exit_code == 1
    (answer,) = json.loads(result.output)
    assert (answer["channel"], answer["ok"], answer["end"]) == ("room", False, None)
    assert "code 19021" in answer["answer"]


def test_nobody_there(tmp_path: Path) -> None:
    result = _run(tmp_path, f'[webhook]\nurl = "http://127.0.0.1:{free_port()}/"\n')
    assert result.exit_code == 1
    assert result.output.startswith("failed  webhook (webhook): cannot connect")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [("", (), "no channel is set"), ("", ("--channel", "x"), "no channel has this name")],
)
def test_nothing_to_test(tmp_path: Path, text: str, arguments: tuple[str, ...], said: str) -> None:
    result = _run(tmp_path, text, *arguments)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_the_documentation_shows_what_it_prints(httpserver: HTTPServer, tmp_path: Path) -> None:
    said = {"code": 19021, "msg": "sign match fail or timestamp is not within one hour from current time"}
    httpserver.expect_request("/api/v2/alerts").respond_with_data("")
    httpserver.expect_request("/pagerduty").respond_with_data(status=202)
    httpserver.expect_request("/feishu").respond_with_data(json.dumps(said, separators=(",", ":")))
    base = httpserver.url_for("")
    text = f"""
[[notify.channels]]
name = "alerts"
kind = "alertmanager"
url = "{base}"
[[notify.channels]]
name = "oncall"
kind = "pagerduty"
url = "{base}/pagerduty"
secret = "k"
[[notify.channels]]
name = "room"
kind = "feishu"
url = "{base}/feishu"
[[notify.channels]]
name = "mail"
kind = "email"
mail = {{ host = "127.0.0.1", port = {free_port()}, sender = "a@b.c", to = ["d@e.f"] }}
"""
    result = _run(tmp_path, text)
    assert result.exit_code == 1
    shown = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text(encoding="utf-8")
    assert f"```text\n{result.output}```" in shown


def test_a_ticket_is_opened_and_resolved_and_a_card_goes_to_teams(httpserver: HTTPServer, tmp_path: Path) -> None:
    jira = JiraCloud()
    httpserver.expect_request("/flow").respond_with_data(status=202)
    httpserver.expect_request(re.compile("/rest/.*")).respond_with_handler(jira)
    base = httpserver.url_for("")
    text = f"""
[[notify.channels]]
name = "repair"
kind = "ticket"
url = "{base}"
secret = "{SECRET}"
[notify.channels.ticket]
template = "jira_cloud"
values = {{ project = "GPU", issuetype = "Task", resolve_transition = "31" }}
[[notify.channels]]
name = "team"
kind = "teams"
url = "{base}/flow?sig=0123456789"
"""
    result = _run(tmp_path, text)
    assert result.output.splitlines() == [
        "ok  repair (ticket): opened GPU-1; end: resolved GPU-1",
        "ok  team (teams): answered 202",
    ]
    assert jira.asked == ["find", "open", "attach", "state", "comment", "transition"]
    jira.instead = lambda step: Response("", 403) if step == "attach" else None
    partly = _run(tmp_path, text, "--channel", "repair")
    assert partly.exit_code == 1
    assert partly.output.startswith("failed  repair (ticket): opened GPU-2; without the evidence: attach: answered 403")
