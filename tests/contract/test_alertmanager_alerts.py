"""Alerts in a real Alertmanager: it groups, silences and routes; ends are ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.notifications.channel import ChannelDependencies, Message, Phase, build_channel, message_of
from tocsin.domain.clock import MINUTE, SECOND, Clock, SystemClock
from tocsin.domain.finding import Severity, Subject, SubjectKind
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings
from tocsin_testing.servers import alertmanager

pytestmark = pytest.mark.server

CONFIG = """
route:
  receiver: hook
  group_by: [alertname, pool]
  group_wait: 1s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: hook
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


class Rig:
    """An Alertmanager, a channel to it, and the receiver that it tells."""

    def __init__(self, url: str, receiver: HTTPServer, clock: Clock) -> None:
        self.url = url
        self._receiver = receiver
        self._clock = clock
        self._never = threading.Event()
        settings = channel_settings("alertmanager", url=url, labels={"cluster": "a"})
        self.channel = build_channel(ChannelDependencies(settings, LINKS, clock))

    def message(self, host: str, **more: Any) -> Message:
        """A notification of now about one GPU of `host`."""
        now_ms = self._clock.now_ms() - SECOND
        subject = Subject(SubjectKind.GPU, f"GPU-{host}", host, "train")
        fields: dict[str, Any] = {"at_ms": now_ms, "expires_ms": now_ms + MINUTE, "key": host} | more
        return message_of([replace(DECISION, subject=subject, **fields)], Phase.FIRING)

    def ended(self, message: Message) -> Message:
        """Its end, now."""
        return message_of(message.decisions, Phase.RESOLVED, self._clock.now_ms())

    def ask(self, path: str) -> Any:
        """An answer of the API."""
        return httpx2.get(f"{self.url}/api/v2/{path}").raise_for_status().json()

    def told(self, status: str) -> list[str]:
        """Hosts that the receiver was told of."""
        bodies = [json.loads(request.get_data()) for request, _ in self._receiver.log]
        return sorted({a["labels"]["host"] for body in bodies for a in body["alerts"] if a["status"] == status})

    def until(self, met: Callable[[], bool]) -> None:
        """Look until it is so, ten seconds at most."""
        for _ in range(200):
            if met():
                return
            self._never.wait(0.05)
        raise AssertionError("it did not come about within 10 s")


@pytest.fixture
def rig(tmp_path: Path, httpserver: HTTPServer) -> Iterator[Rig]:
    httpserver.expect_request("/told").respond_with_data("")
    with alertmanager(tmp_path, CONFIG.format(url=httpserver.url_for("/told"))) as url:
        made = Rig(url, httpserver, SystemClock())
        yield made
        made.channel.close()


def test_alerts_are_grouped_routed_and_resolved(rig: Rig) -> None:
    first, second = rig.message("node-1"), rig.message("node-2")
    other = rig.message("node-3", rule="gpu_silent", severity=Severity.WARNING)
    assert rig.channel.send([first, second, other]).detail == "answered 200"
    rig.until(lambda: len(rig.ask("alerts/groups")) == 2)
    groups = {group["labels"]["alertname"]: group for group in rig.ask("alerts/groups")}
    assert sorted(a["labels"]["host"] for a in groups["TocsinTemperatureHigh"]["alerts"]) == ["node-1", "node-2"]
    (alert,) = groups["TocsinGpuSilent"]["alerts"]
    assert alert["annotations"]["runbook_url"] == "https://docs.example.com/runbooks/actions/cordon.md"
    assert (alert["labels"]["severity"], alert["labels"]["cluster"]) == ("warning", "a")
    rig.until(lambda: rig.told("firing") == ["node-1", "node-2", "node-3"])
    assert rig.channel.send([rig.ended(first)]).ok
    rig.until(lambda: rig.told("resolved") == ["node-1"])
    assert sorted(a["labels"]["host"] for a in rig.ask("alerts?active=true")) == ["node-2", "node-3"]


def test_a_silence_there_keeps_it_quiet(rig: Rig) -> None:
    now = datetime.now(UTC)
    silence = {
        "matchers": [{"name": "host", "value": "node-1", "isRegex": False, "isEqual": True}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "ann",
        "comment": "power works",
    }
    httpx2.post(f"{rig.url}/api/v2/silences", json=silence).raise_for_status()
    assert rig.channel.send([rig.message("node-1"), rig.message("node-2")]).ok
    rig.until(lambda: rig.told("firing") == ["node-2"])
    rig.until(lambda: len(rig.ask("alerts?silenced=true&active=false")) == 1)
    (silenced,) = rig.ask("alerts?silenced=true&active=false")
    assert silenced["labels"]["host"] == "node-1"
    assert silenced["status"]["state"] == "suppressed"


def test_told_again_it_is_the_same_alert_held_for_longer(rig: Rig) -> None:
    message = rig.message("node-1")
    assert rig.channel.send([message]).ok
    (first,) = rig.ask("alerts")
    assert rig.channel.send([message]).ok
    rig.until(lambda: rig.ask("alerts")[0]["endsAt"] > first["endsAt"])
    (again,) = rig.ask("alerts")
    assert (again["fingerprint"], again["startsAt"]) == (first["fingerprint"], first["startsAt"])


def test_what_comes_back_after_its_end_is_active_again(rig: Rig) -> None:
    message = rig.message("node-1")
    assert rig.channel.send([message]).ok
    assert rig.channel.send([rig.ended(message)]).ok
    rig.until(lambda: rig.ask("alerts?active=true") == [])
    back = rig.message("node-1", key="again", at_ms=SystemClock().now_ms())
    assert rig.channel.send([rig.ended(message), back]).ok
    rig.until(lambda: len(rig.ask("alerts?active=true")) == 1)
