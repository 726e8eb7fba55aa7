"""Silences of a real Alertmanager: what it says of them, and that both sides agree on what each covers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.actions.model.alert_labels import labels_of
from tocsin.actions.notifications.alertmanager_silences import AlertmanagerClient
from tocsin.actions.notifications.channel import ChannelDependencies, Phase, build_channel, message_of
from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, SECOND, SystemClock
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings
from tocsin_testing.servers import alertmanager

pytestmark = pytest.mark.server

CONFIG = """
route: { receiver: nobody, group_wait: 1s }
receivers: [{ name: nobody }]
"""
MATCHERS = [
    [("alertname", "=", "TocsinTemperatureHigh")],
    [("alertname", "=~", "Tocsin.*"), ("severity", "!=", "critical")],
    [("alertname", "=~", "Tocsin.*"), ("severity", "!=", "warning")],
    [("alertname", "=~", "Tocsin")],
    [("host", "=~", "node-(7|8)"), ("cluster", "!~", "b|c")],
    [("host", "=~", "node-(7|8)"), ("cluster", "!~", "a")],
    [("host", "=", "node-7"), ("absent", "=", "")],
    [("host", "=", "node-7"), ("absent", "=~", ".+")],
    [("host", "=~", "(?i)NODE-7"), ("pool", "=~", "^tr[[:alpha:]]+$")],
    [("host", "=~", "node-\\d"), ("part", "!=", "x")],
]
_SIGNS = {"=": (False, True), "!=": (False, False), "=~": (True, True), "!~": (True, False)}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with alertmanager(tmp_path_factory.mktemp("am"), CONFIG) as found:
        yield found


def until(met: Any) -> None:
    """Look until it is so, ten seconds at most."""
    never = threading.Event()
    for _ in range(200):
        if met():
            return
        never.wait(0.05)
    raise AssertionError("it did not come about within 10 s")


def set_silence(url: str, matchers: list[tuple[str, str, str]], comment: str) -> str:
    now = datetime.now(UTC)
    body = {
        "matchers": [
            {"name": name, "value": value, "isRegex": _SIGNS[sign][0], "isEqual": _SIGNS[sign][1]}
            for name, sign, value in matchers
        ],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "ann",
        "comment": comment,
    }
    made = httpx2.post(f"{url}/api/v2/silences", json=body).raise_for_status().json()
    return str(made["silenceID"])


def test_both_sides_agree_on_what_each_silence_covers(url: str) -> None:
    clock = SystemClock()
    now_ms = clock.now_ms() - SECOND
    decision = replace(DECISION, at_ms=now_ms, expires_ms=now_ms + MINUTE)
    decision = replace(decision, subject=replace(decision.subject, host="node-7"))
    ids = [set_silence(url, matchers, f"number {n}") for n, matchers in enumerate(MATCHERS)]
    channel = build_channel(
        ChannelDependencies(channel_settings("alertmanager", url=url, labels={"cluster": "a"}), LINKS, clock)
    )
    assert channel.send([message_of([decision], Phase.FIRING)]).ok
    channel.close()

    def there() -> set[str]:
        (alert,) = httpx2.get(f"{url}/api/v2/alerts?silenced=true").raise_for_status().json()
        return set(alert["status"]["silencedBy"])

    until(there)
    client = AlertmanagerClient(url, {}, clock, timeout_seconds=5)
    found = client.silences(clock.now_ms())
    assert (found.problems, len(found.standing)) == ((), len(MATCHERS))
    labels = {name: (value,) for name, value in labels_of(decision, {"cluster": "a"}).items()}
    here = {one.id for one in found.standing if one.covers(labels)}
    assert 0 < len(here) < len(MATCHERS)
    assert {ids.index(one) for one in here} == {ids.index(one) for one in there()}
    (first,) = [one for one in found.standing if one.id == ids[0]]
    assert (first.by, first.comment) == ("ann", "number 0")
    httpx2.delete(f"{url}/api/v2/silence/{ids[0]}").raise_for_status()
    until(lambda: ids[0] not in {one.id for one in client.silences(clock.now_ms()).standing})
    client.close()


def test_a_brain_knows_the_silences_before_it_tells_anything(url: str, tmp_path: Path) -> None:
    name = set_silence(url, [("host", "=", "node-7")], "before the start")
    wanted = {
        "store": {"path": tmp_path / "store.db"},
        "journal": {"path": tmp_path / "journal.db"},
        "forecast": {"worker": False},
        "alertmanager": {"url": url},
    }
    running = open_brain(Settings.model_validate(wanted), SystemClock())
    try:
        assert not running.brain.alert_silences.known
        running.start(evaluate=False)
        assert name in {one.id for one in running.brain.alert_silences.known}
        assert "silences" in {thread.name for thread in running.threads}
    finally:
        running.stop()
