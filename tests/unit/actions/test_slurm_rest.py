"""slurmrestd as a way to Slurm: what is asked of it, what is left to commands, and what its answers come to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tocsin.actions.slurm import rest
from tocsin.actions.slurm.client import CommandResult, Slurm, SlurmProblem, Trouble, trouble_of
from tocsin.actions.slurm.rest import RestRunner
from tocsin.actions.slurm.rest_calls import RestCall, Served, call_of, ping_lines, problems_of, served_of
from tocsin.actions.slurm.state import SlurmJob
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import ManualClock
from tocsin_testing.builders import T0
from tocsin_testing.fake_slurm import FakeSlurm, Job
from tocsin_testing.fake_slurmrestd import FakeRestd

DATA = Path(__file__).parents[2] / "data" / "slurm"
NOW_S = T0 // 1000
SECRET = "eyJhbGciOiJIUzI1NiJ9.secret"


class Site:
    """A server, what is run beside it, and the cluster as the product sees it."""

    def __init__(self, restd: FakeRestd | None = None, **settings: Any) -> None:
        self.cluster = FakeSlurm(jobs={7: Job("node-0")}) if restd is None else restd.cluster
        self.restd = restd or FakeRestd(self.cluster)
        self.ran: list[str] = []
        self.clock = ManualClock(T0)
        told = {"rest_url": "https://slurm-rest:6820", "snapshot_seconds": 0, **settings}
        self.settings = SlurmSettings.model_validate(told)
        self.runner = RestRunner(self.settings, self.clock, self, self.restd.transport)
        self.slurm = Slurm(self.settings, self.runner, self.clock)

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        """A command that is no request."""
        self.ran.append(" ".join(command))
        return self.cluster.run(command, seconds)

    def answers(self, status: int = 200, **body: Any) -> None:
        """The next requests but the description are answered so."""
        self.slurm.ping()
        self.restd.answer = httpx2.Response(status, json=body)


def described(version: int = 43) -> Served:
    site = Site(FakeRestd(FakeSlurm(), f"v0.0.{version}"))
    answer = site.restd.transport.handle_request(httpx2.Request("GET", "http://x/openapi/v3"))
    answer.read()
    found = served_of(answer.text)
    assert found is not None
    return found


def test_the_newest_version_that_is_known_is_taken() -> None:
    assert described().version == 43
    recorded = served_of((DATA / "rest_openapi_paths.json").read_text())
    assert recorded is not None
    assert recorded.version == 38
    assert (recorded.has("nodes", "get"), recorded.has("node/{node_name}", "post")) == (True, False)
    assert recorded.url("node/{node_name}", "a b/c") == "/slurm/v0.0.38/node/a%20b%2Fc"
    assert served_of('{"paths": {"/slurm/v0.0.99/nodes/": {"get": {}}}}') is None


CALLS: list[tuple[str, RestCall]] = [
    ("scontrol ping", RestCall("GET", "/slurm/v0.0.43/ping/", reads=True)),
    ("sinfo --all --json", RestCall("GET", "/slurm/v0.0.43/nodes/", reads=True)),
    ("scontrol --all show node n1 --oneliner", RestCall("GET", "/slurm/v0.0.43/node/n1", reads=True)),
    ("squeue --all --json", RestCall("GET", "/slurm/v0.0.43/jobs/", reads=True)),
    (
        "scontrol update nodename=n1 state=drain reason=tocsin:_x comment=a=b",
        RestCall("POST", "/slurm/v0.0.43/node/n1", {"state": ["DRAIN"], "reason": "tocsin:_x", "comment": "a=b"}),
    ),
    ("scontrol update nodename=n1 comment=", RestCall("POST", "/slurm/v0.0.43/node/n1", {"comment": ""})),
    ("scontrol update jobid=7_2 admincomment=m", RestCall("POST", "/slurm/v0.0.43/job/7_2", {"admin_comment": "m"})),
    (
        "scontrol update jobid=7 starttime=now excnodelist=n[1-2]",
        RestCall(
            "POST",
            "/slurm/v0.0.43/job/7",
            {"begin_time": {"set": True, "infinite": False, "number": NOW_S}, "excluded_nodes": ["n1", "n2"]},
        ),
    ),
    ("scontrol hold 7", RestCall("POST", "/slurm/v0.0.43/job/7", {"hold": True})),
    ("scontrol release 7", RestCall("POST", "/slurm/v0.0.43/job/7", {"hold": False})),
    ("scontrol requeue 7", RestCall("GET", "/slurm/v0.0.43/job/7/requeue")),
    (
        "scancel --batch --signal=USR1 7",
        RestCall("DELETE", "/slurm/v0.0.43/job/7", query={"signal": "USR1", "flags": "BATCH_JOB"}),
    ),
    ("scancel --signal=USR1 7", RestCall("DELETE", "/slurm/v0.0.43/job/7", query={"signal": "USR1"})),
]


@pytest.mark.parametrize(("command", "wanted"), CALLS, ids=[command for command, _ in CALLS])
def test_a_command_is_a_request(command: str, wanted: RestCall) -> None:
    assert call_of(command.split(), described(), NOW_S) == wanted


@pytest.mark.parametrize(
    "command",
    [
        "sinfo --all --noheader --Node --format=%N|%T",
        "scontrol requeuehold 7",
        "scontrol reboot ASAP nextstate=DOWN reason=x n1",
        "scontrol show topology",
    ],
)
def test_what_it_has_no_request_for_is_run(command: str) -> None:
    assert call_of(command.split(), described(), NOW_S) is None


@pytest.mark.parametrize("command", [command for command, call in CALLS if not call.reads])
def test_an_old_server_reads_and_commands_change(command: str) -> None:
    recorded = served_of((DATA / "rest_openapi_paths.json").read_text())
    assert recorded is not None
    assert call_of(command.split(), recorded, NOW_S) is None
    assert call_of(["squeue", "--all", "--json"], recorded, NOW_S) is not None


def test_a_server_without_requeue_leaves_that_to_commands() -> None:
    site = Site(FakeRestd(FakeSlurm(jobs={7: Job("node-0")}), requeues=False))
    site.slurm.requeue(SlurmJob("7", 7, "RUNNING"))
    assert site.ran == ["scontrol requeue 7"]


def test_nodes_and_jobs_come_by_request_alone() -> None:
    site = Site()
    seen = site.slurm.snapshot()
    assert ([*seen.nodes], [job.ref for job in seen.jobs]) == ([f"node-{n}" for n in range(4)], ["7"])
    site.slurm.drain("node-1", "tocsin: hot", "mark")
    assert site.slurm.snapshot().nodes["node-1"].drained
    assert site.ran == []
    assert site.restd.asked.count("GET /openapi/v3") == 1
    assert site.slurm.file_seconds("/work/checkpoint.done") is None
    assert site.ran == ["stat -c %.Y -- /work/checkpoint.done"]


def test_an_error_counts_on_200_too() -> None:
    site = Site()
    with pytest.raises(SlurmProblem, match="Invalid node name") as unknown:
        site.slurm.drain("node-9", "tocsin: x", "")
    assert unknown.value.trouble is Trouble.UNKNOWN_NODE
    site.slurm.resume("node-0", "")
    assert problems_of(json.dumps({"errors": [{"error": "Unspecified error", "errno": -1}]})) == "Unspecified error"
    assert problems_of(json.dumps({"errors": [{"error_number": 7}]})) == "an error without words"
    assert problems_of(json.dumps({"errors": [], "warnings": [{"description": "old"}]})) == ""


def test_recorded_answers_of_a_real_server() -> None:
    assert ping_lines((DATA / "rest_ping.json").read_text()) == "Slurmctld(primary) at c is UP"
    said = problems_of((DATA / "rest_unknown_node.json").read_text())
    assert trouble_of(CommandResult(1, "", said)) is Trouble.UNKNOWN_NODE
    down = problems_of((DATA / "rest_controller_down.json").read_text())
    assert trouble_of(CommandResult(1, "", down)) is Trouble.UNREACHABLE
    assert "DOWN" in ping_lines('{"pings": [{"hostname": "c", "pinged": "DOWN", "mode": "primary"}]}')


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (401, Trouble.NO_LOGIN),
        (403, Trouble.NO_LOGIN),
        (429, Trouble.UNREACHABLE),
        (503, Trouble.UNREACHABLE),
        (504, Trouble.TIMED_OUT),
        (302, Trouble.UNREADABLE),
        (418, Trouble.OTHER),
    ],
)
def test_a_status_is_classified(status: int, wanted: Trouble) -> None:
    site = Site()
    site.slurm.ping()
    site.restd.answer = httpx2.Response(status, text="no JSON")
    with pytest.raises(SlurmProblem) as refused:
        site.slurm.mark_node("node-0", "x")
    assert refused.value.trouble is wanted


def _raising(error: Exception) -> Callable[[httpx2.Request], httpx2.Response]:
    def handle(request: httpx2.Request) -> httpx2.Response:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (httpx2.ConnectError("refused"), Trouble.UNREACHABLE),
        (httpx2.ConnectTimeout("late"), Trouble.UNREACHABLE),
        (httpx2.ReadTimeout("late"), Trouble.TIMED_OUT),
        (httpx2.RemoteProtocolError("broke off"), Trouble.TIMED_OUT),
    ],
)
def test_a_lost_answer_may_have_taken_effect_and_no_connection_has_not(error: Exception, wanted: Trouble) -> None:
    settings = SlurmSettings(rest_url="http://localhost:6820")
    runner = RestRunner(settings, ManualClock(T0), FakeSlurm(), httpx2.MockTransport(_raising(error)))
    with pytest.raises(SlurmProblem) as lost:
        runner.run(["scontrol", "ping"], 1.0)
    assert lost.value.trouble is wanted


def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "MOST_BYTES", 1000)
    site = Site(FakeRestd(FakeSlurm({f"node-{n}": FakeSlurm().nodes["node-0"] for n in range(50)})))
    with pytest.raises(SlurmProblem, match="more than") as endless:
        site.slurm.snapshot()
    assert endless.value.trouble is Trouble.UNREADABLE


def test_an_answer_that_trickles_is_given_up_at_the_deadline() -> None:
    clock = ManualClock(T0)

    class Trickle(httpx2.SyncByteStream):
        def __iter__(self) -> Any:
            while True:
                clock.advance(400)
                yield b" "

    handle = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=Trickle()))
    runner = RestRunner(SlurmSettings(rest_url="http://localhost"), clock, FakeSlurm(), handle)
    with pytest.raises(SlurmProblem, match="no whole answer") as late:
        runner.run(["scontrol", "ping"], 3.0)
    assert late.value.trouble is Trouble.TIMED_OUT
    assert clock.now_ms() - T0 <= 4000


def test_a_version_that_is_gone_is_looked_up_again() -> None:
    site = Site()
    site.slurm.ping()
    site.restd.version = "v0.0.44"
    with pytest.raises(SlurmProblem):
        site.slurm.ping()
    site.slurm.ping()
    assert site.restd.asked[-1] == "GET /slurm/v0.0.44/ping/"


def test_a_server_of_unknown_versions_is_named() -> None:
    site = Site(FakeRestd(FakeSlurm(), "v0.0.99"))
    site.restd.answer = httpx2.Response(200, json={"paths": {"/slurm/v0.0.99/ping/": {"get": {}}}})
    with pytest.raises(SlurmProblem, match=r"none of v0\.0\.37 to v0\.0\.46.*unset slurm\.rest_url"):
        site.slurm.snapshot()


def test_user_and_token_are_sent_and_the_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"SLURM_JWT={SECRET}\n")
    site = Site(rest_user="tocsin", rest_token_file=file)
    site.slurm.ping()
    assert site.restd.headers["X-SLURM-USER-NAME"] == "tocsin"
    assert site.restd.headers["X-SLURM-USER-TOKEN"] == SECRET
    file.write_text("renewed")
    site.slurm.ping()
    assert site.restd.headers["X-SLURM-USER-TOKEN"] == "renewed"


@pytest.mark.parametrize("text", [b"", b"two words", b"x\x00y", "ключ".encode(), b"x" * 20_000])
def test_a_file_without_a_token_is_named_and_its_text_is_not(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(text)
    with pytest.raises(SlurmProblem, match="rest_token_file") as refused:
        Site(rest_token_file=file).slurm.ping()
    assert refused.value.trouble is Trouble.NO_LOGIN
    assert "two words" not in str(refused.value)


def test_the_token_stands_in_no_message() -> None:
    site = Site(rest_token=SECRET, rest_user="tocsin")
    assert SECRET not in repr(site.settings)
    site.slurm.ping()
    for status in (401, 500, 302):
        site.restd.answer = httpx2.Response(status, text="")
        with pytest.raises(SlurmProblem) as refused:
            site.slurm.mark_node("node-0", "x")
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"rest_url": "slurm-rest:6820"}, "must be unix:/PATH"),
        ({"rest_url": "https://ann@slurm-rest"}, "must be unix:/PATH"),
        ({"rest_url": "http://slurm-rest:6820", "rest_token": SECRET}, "never sent without TLS"),
        ({"rest_token": SECRET, "rest_token_file": "/x"}, "give one of them"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as refused:
        SlurmSettings.model_validate(told)
    assert SECRET not in str(refused.value)
    assert SlurmSettings.model_validate({"rest_url": "http://127.0.0.1:6820", "rest_token": SECRET}).rest_url


@given(st.one_of(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps)))
def test_no_answer_is_too_strange(text: str) -> None:
    for read in (served_of, problems_of, ping_lines):
        try:
            read(text)  # type: ignore[operator]
        except ValueError:
            continue


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["errors", "paths", "pings", "error"]), inner),
    )
)
def test_no_document_is_too_strange(document: Any) -> None:
    for read in (served_of, problems_of, ping_lines):
        try:
            read(json.dumps(document))  # type: ignore[operator]
        except ValueError:
            continue
