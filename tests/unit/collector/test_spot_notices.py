"""Notices of three clouds, from doubles of their metadata services to the work being moved in time."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.loop.decide import decide
from tocsin.actions.model.policy import Policy
from tocsin.collector.spot import (
    AZURE_TAG,
    REPEAT_MS,
    Aws,
    Gcp,
    NoticeCompanion,
    SpotNotice,
    detect,
    open_cloud,
    open_notices,
)
from tocsin.config.cloud import CloudSettings
from tocsin.config.settings import Settings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock, SystemClock, from_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Severity, SubjectKind
from tocsin.domain.notice import NoticeCode, deadline_of, notice_text
from tocsin.rules.incidents import collapse
from tocsin.runtime.agent.companions import Companions, Context
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import World
from tocsin_testing.fake_slurm import FakeSlurm, Job
from tocsin_testing.rule_runs import Run, instant

NOW = from_iso("2026-11-21T08:20:00Z")
META = "/latest/meta-data"


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=2.0, trust_env=False) as made:
        yield made


class Ec2:
    """IMDSv2: pages want a token that the service gave out; what has no page is 404."""

    def __init__(self, server: HTTPServer) -> None:
        self.pages: dict[str, str] = {"/events/maintenance/scheduled": "[]"}
        self.token = "one"
        self.tokens = 0
        server.expect_request("/latest/api/token", method="PUT").respond_with_handler(self._give)
        server.expect_request(re.compile(f"^{META}/.*")).respond_with_handler(self._page)

    def _give(self, request: Request) -> Response:
        assert int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self.tokens += 1
        return Response(self.token)

    def _page(self, request: Request) -> Response:
        if request.headers.get("X-aws-ec2-metadata-token") != self.token:
            return Response(status=401)
        found = self.pages.get(request.path.removeprefix(META))
        return Response(status=404) if found is None else Response(found)


def test_ec2_says_nothing_while_there_is_no_page(httpserver: HTTPServer, client: httpx2.Client) -> None:
    double = Ec2(httpserver)
    aws = Aws(client, httpserver.url_for("").rstrip("/"))
    assert aws.ask(NOW) == []
    assert aws.ask(NOW) == []
    assert double.tokens == 1
    double.token = "two"
    assert aws.ask(NOW) == []
    assert double.tokens == 2, "an expired token is renewed"


def test_ec2_notices(httpserver: HTTPServer, client: httpx2.Client) -> None:
    double = Ec2(httpserver)
    double.pages["/spot/instance-action"] = '{"action": "terminate", "time": "2026-11-21T08:22:00Z"}'
    double.pages["/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-21T08:10:00Z"}'
    scheduled = {"NotBefore": "21 Nov 2026 09:00:43 GMT", "Description": "scheduled reboot", "State": "active"}
    double.pages["/events/maintenance/scheduled"] = json.dumps(
        [
            {**scheduled, "Code": "system-reboot"},
            {**scheduled, "Code": "instance-retirement", "State": "completed"},
            {**scheduled, "Code": "instance-stop"},
        ]
    )
    found = Aws(client, httpserver.url_for("").rstrip("/")).ask(NOW)
    assert [(n.code, n.deadline_ms and (n.deadline_ms - NOW) // SECOND) for n in found] == [
        (NoticeCode.INTERRUPTION, 120),
        (NoticeCode.PLANNED, None),
        (NoticeCode.REBOOT, 2443),
        (NoticeCode.INTERRUPTION, 2443),
    ]
    assert found[2].text == "EC2 system-reboot: scheduled reboot"


def compute_engine(server: HTTPServer, preempted: str, maintenance: str, flavor: str = "Google") -> str:
    for path, body in (("preempted", preempted), ("maintenance-event", maintenance)):
        server.expect_request(
            f"/computeMetadata/v1/instance/{path}", headers={"Metadata-Flavor": "Google"}
        ).respond_with_data(body, headers={"Metadata-Flavor": flavor})
    return server.url_for("").rstrip("/")


@pytest.mark.parametrize(
    ("preempted", "maintenance", "wanted"),
    [
        ("FALSE", "NONE", []),
        ("TRUE", "NONE", [(NoticeCode.INTERRUPTION, 30)]),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", [(NoticeCode.INTERRUPTION, 3600)]),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", [(NoticeCode.FREEZE, None)]),
    ],
)
def test_compute_engine(
    httpserver: HTTPServer, client: httpx2.Client, preempted: str, maintenance: str, wanted: list[object]
) -> None:
    gcp = Gcp(client, compute_engine(httpserver, preempted, maintenance))
    for later in (0, 10 * SECOND):
        found = gcp.ask(NOW + later)
        ends = [(n.code, n.deadline_ms and (n.deadline_ms - NOW) // SECOND) for n in found]
        assert ends == wanted, "the time counts from when it was first said"


def test_an_answer_without_googles_header_is_somebody_elses(httpserver: HTTPServer, client: httpx2.Client) -> None:
    with pytest.raises(ValueError, match="Metadata-Flavor"):
        Gcp(client, compute_engine(httpserver, "TRUE", "NONE", flavor="proxy")).ask(NOW)


def azure_event(
    kind: str, not_before: str, *, resources: tuple[str, ...] = ("vm-1",), status: str = "Scheduled"
) -> dict[str, object]:
    return {
        "EventId": "f020ba2e",
        "EventType": kind,
        "Resources": list(resources),
        "EventStatus": status,
        "NotBefore": not_before,
        "Description": "Host server is undergoing maintenance.",
    }


def test_azure_tells_of_all_machines_and_this_one_counts(httpserver: HTTPServer, client: httpx2.Client) -> None:
    soon = "Sat, 21 Nov 2026 08:35:00 GMT"
    events = [
        azure_event("Preempt", soon, resources=("vm-2",)),
        azure_event("Redeploy", soon, resources=("vm-2", "vm-1")),
        azure_event("Freeze", ""),
        azure_event("Reboot", "", status="Started"),
    ]
    httpserver.expect_request(
        "/metadata/scheduledevents", query_string="api-version=2020-07-01", headers={"Metadata": "true"}
    ).respond_with_json({"DocumentIncarnation": 1, "Events": events})
    httpserver.expect_request("/metadata/instance/compute/name").respond_with_data("vm-1")
    azure = open_cloud("azure", CloudSettings(azure_url=httpserver.url_for("")), client)
    for _ in range(2):
        assert [(n.code, n.deadline_ms and (n.deadline_ms - NOW) // SECOND) for n in azure.ask(NOW)] == [
            (NoticeCode.MOVE, 900),
            (NoticeCode.FREEZE, None),
            (NoticeCode.REBOOT, 0),
        ]
    asked = [request.path for request, _ in httpserver.log]
    assert asked.count("/metadata/instance/compute/name") == 1


def test_an_azure_event_that_has_started_is_told_once(client: httpx2.Client) -> None:
    events = [azure_event("Reboot", "", status="Started")]

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"Events": events})

    node = Node()
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as metadata:
        cloud = open_cloud("azure", CloudSettings(azure_vm="vm-1"), metadata)
        node.companion = NoticeCompanion(cloud, CloudSettings(), "node-1", node.clock, node.own)
        told = [event for _ in range(29) for event in node.events()]
        assert [(event.code, deadline_of(event.message)) for event in told] == [(NoticeCode.REBOOT, NOW + 10 * SECOND)]
        events[0] = {**events[0], "EventId": "another"}
        again = node.events()
        assert [deadline_of(event.message) for event in again] == [node.clock.now_ms()], "another event, another time"


bodies = st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Events", "Resources", "NotBefore", "EventType", "time", "Code"]), inner)
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@given(bodies, st.sampled_from(["aws", "gcp", "azure"]))
def test_no_answer_makes_a_cloud_raise_anything_unexpected(body: bytes, name: str) -> None:
    answer = httpx2.Response(200, content=body, headers={"Metadata-Flavor": "Google"})
    with httpx2.Client(transport=httpx2.MockTransport(lambda _: answer)) as client:
        cloud = open_cloud(name, CloudSettings(), client)
        try:
            found = cloud.ask(NOW)
        except (ValueError, httpx2.HTTPError):
            return
        assert all(isinstance(notice.code, NoticeCode) for notice in found)


class Announced:
    """A cloud that says what it is told to."""

    name = "aws"

    def __init__(self) -> None:
        self.notices: list[SpotNotice] = []
        self.error: Exception | None = None

    def ask(self, now_ms: int) -> list[SpotNotice]:
        if self.error is not None:
            raise self.error
        return self.notices


class Node:
    """A companion with its cloud and clock."""

    def __init__(self) -> None:
        self.cloud, self.clock, self.own = Announced(), ManualClock(NOW), OwnMetrics()
        settings = CloudSettings(timeout_seconds=0.1)
        self.companion = NoticeCompanion(self.cloud, settings, "node-1", self.clock, self.own)

    def events(self, *notices: SpotNotice, later: int = 10 * SECOND) -> list[Event]:
        self.cloud.notices = list(notices)
        self.clock.advance(later)
        self.companion.ask()
        return list(self.companion.enrich(Batch(), self.clock.now_ms()).events)


def spot(seconds: int = 120) -> SpotNotice:
    return SpotNotice(NoticeCode.INTERRUPTION, "EC2 spot: terminate", NOW + seconds * SECOND)


def test_a_notice_is_told_once_then_again_after_a_while_and_its_withdrawal_once() -> None:
    node = Node()
    assert node.events() == []
    (first,) = node.events(spot())
    assert (first.kind, first.host, first.gpu, first.code) == (EventKind.MAINTENANCE_NOTICE, "node-1", "", 1)
    assert first.severity is Severity.CRITICAL
    assert deadline_of(first.message) == NOW + 120 * SECOND
    assert node.events(spot()) == []
    assert [event.code for event in node.events(spot(60))] == [1], "its time has changed"
    assert [event.code for event in node.events(spot(60), later=REPEAT_MS)] == [1]
    assert [event.code for event in node.events()] == [0]
    assert node.events() == []


def test_what_is_far_away_is_planned_until_it_comes_near() -> None:
    node = Node()
    reboot = SpotNotice(NoticeCode.REBOOT, "EC2 system-reboot: x", NOW + 3 * HOUR)
    assert [event.code for event in node.events(reboot)] == [NoticeCode.PLANNED]
    later = node.events(reboot, later=2 * HOUR + MINUTE)
    assert [event.code for event in later] == [NoticeCode.WITHDRAWN, NoticeCode.REBOOT]
    assert later[0].at_ms < later[1].at_ms


def test_silence_withdraws_nothing() -> None:
    node = Node()
    node.events(spot())
    for error in (httpx2.ConnectError("no route"), ValueError("nonsense")):
        node.cloud.error = error
        assert node.events() == []
    assert node.own.value("tocsin_cloud_notices_total", outcome="unreachable") == 1
    assert node.own.value("tocsin_cloud_notices_total", outcome="unreadable") == 1
    assert node.own.value("tocsin_cloud_notices_total", outcome="notice") == 1


def test_the_thread_asks_and_ends(httpserver: HTTPServer) -> None:
    Ec2(httpserver).pages["/spot/instance-action"] = '{"action": "stop", "time": "2026-11-21T08:22:00Z"}'
    section = {"notices": "aws", "aws_url": httpserver.url_for(""), "poll_seconds": 0.01}
    settings = Settings.model_validate({"cloud": section, "agent": {"host": "node-9"}})
    own, never, deadline = OwnMetrics(), threading.Event(), time.monotonic() + 5
    companions = Companions(Context(settings, SystemClock(), own, "nvml"), [("notices", _opener)])
    while own.value("tocsin_cloud_notices_total", outcome="notice") < 2 and time.monotonic() < deadline:
        never.wait(0.01)
    seen = companions.enrich(Batch(), NOW)
    companions.close()
    assert [(event.host, event.code) for event in seen.events] == [("node-9", 1)]
    assert "notices" not in {thread.name for thread in threading.enumerate()}


def _opener(around: Context) -> NoticeCompanion | None:
    return open_notices(around.settings, around.clock, around.own)


def test_the_cloud_is_known_by_the_firmware(tmp_path: Path) -> None:
    assert detect(tmp_path) == ""
    for vendor, name in (
        ("Amazon EC2\n", "aws"),
        ("Google\n", "gcp"),
        ("Dell Inc.\n", ""),
        ("Microsoft Corporation\n", ""),
    ):
        (tmp_path / "sys_vendor").write_text(vendor)
        assert detect(tmp_path) == name
    (tmp_path / "chassis_asset_tag").write_text(AZURE_TAG + "\n")
    assert detect(tmp_path) == "azure"


def test_off_and_no_cloud_open_nothing(tmp_path: Path) -> None:
    for notices in ("off", "auto"):
        settings = Settings.model_validate({"cloud": {"notices": notices}})
        assert open_notices(settings, ManualClock(NOW), OwnMetrics(), folder=tmp_path) is None
    wanted = Settings.model_validate({"cloud": {"notices": "aws"}})
    simulated = Context(wanted, ManualClock(NOW), OwnMetrics(), "simulated")
    companions = Companions(simulated)
    assert "notices" not in companions.names
    companions.close()


@given(st.text(max_size=400), st.none() | st.integers(0, 4_000_000_000_000))
def test_the_deadline_is_read_back(text: str, deadline_ms: int | None) -> None:
    message = notice_text(text, deadline_ms)
    if deadline_ms is not None:
        assert deadline_of(message) == deadline_ms
    elif "before" not in text:
        assert deadline_of(message) is None


def test_work_is_off_the_node_before_the_notice_ends() -> None:
    """Event, finding, decision and executor: told to checkpoint at once, requeued before the 120 seconds are over."""
    run = Run()
    deadline = instant(0) + 120 * SECOND
    told = Event(
        EventKind.MAINTENANCE_NOTICE, "", "node-1", instant(0), NoticeCode.INTERRUPTION, notice_text("spot", deadline)
    )
    run.step(0, {"utilization_ratio": 0.9}, events=[told])
    (found,) = [finding for finding in run.last.active if finding.rule == "maintenance_notice"]
    assert (found.subject.kind, found.told) == (SubjectKind.HOST, True), "one report is enough"
    wanted = decide(collapse([found]), [], World().view(), Policy())
    (migrate,) = [each for each in wanted if each.action is ActionKind.MIGRATE]
    assert migrate.parameters.context.deadline_ms == deadline

    cluster, clock = FakeSlurm(jobs={7: Job("node-1")}), ManualClock(instant(0) + SECOND)
    slow = SlurmSettings(checkpoint_proof="comment", checkpoint_wait_seconds=3600)
    executor = SlurmExecutor(slow, cluster, clock)
    requeued = 0
    while executor.execute(migrate).pending:
        clock.advance(5 * SECOND)
        requeued = requeued or (clock.now_ms() if cluster.changes("requeue 7") else 0)
        cluster.ended()
        cluster.schedule()
    assert cluster.jobs[7].signals == ["USR1"]
    assert (cluster.jobs[7].node, cluster.jobs[7].state) == ("node-0", "RUNNING")
    assert 0 < requeued < deadline


def test_each_cloud_has_its_name(client: httpx2.Client) -> None:
    made = [open_cloud(name, CloudSettings(), client) for name in ("aws", "gcp", "azure")]
    assert [each.name for each in made] == ["aws", "gcp", "azure"]
