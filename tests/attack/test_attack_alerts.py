"""What a stranger posts as an Alertmanager: bounded before it is read, never a 500, never at a good alert's cost."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.api.gate import MAX_CONTROL_BYTES
from tocsin.client.models_alerts import MOST_ALERTS
from tocsin.queries.foreign_alerts import MAX_KEPT, MOST_OF_HOST
from tocsin.queries.service import BrainService
from tocsin_testing.process_cost import cost
from tocsin_testing.push_site import PushSite, secret, series
from tocsin_testing.pushes import RW1, WRITE, request_1, snappy

ALERTS = "/v1/alertmanager"
JSON = {"Content-Type": "application/json"}
WEBHOOK = json.loads((Path(__file__).parents[1] / "data" / "alertmanager" / "webhook_firing.json").read_text())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PushSite]:
    made = PushSite(tmp_path)
    fleet = [series("GPU-a", "node-a"), series("GPU-b", "node-b")]
    assert made.post(WRITE, RW1, snappy(request_1(fleet))).status_code == 204
    yield made
    made.running.stop()


def alert(name: str = "good", node: str = "node-a", **more: Any) -> dict[str, Any]:
    """As a real Alertmanager posts it, about the GPU of `node`."""
    made: dict[str, Any] = copy.deepcopy(WEBHOOK["alerts"][0])
    made["labels"] |= {"node": node, "gpu": "0"}
    return made | {"fingerprint": name} | more


def body_of(*alerts: object) -> bytes:
    return json.dumps({**WEBHOOK, "alerts": alerts}).encode()


def _post(site: PushSite, body: bytes, who: str = "fleet") -> int:
    return site.post(ALERTS, JSON, body, who).status_code


def _taken(site: PushSite) -> dict[str, float]:
    """Alerts so far by outcome."""
    outcomes = ("firing", "resolved", "malformed", "unknown_place", "refused", "full")
    counts = {one: site.running.brain.metrics.value("tocsin_received_alerts_total", outcome=one) for one in outcomes}
    return {outcome: count for outcome, count in counts.items() if count}


def test_nobody_posts_without_a_token_of_an_agent_or_as_another_type(site: PushSite) -> None:
    assert _post(site, body_of(alert()), who="") == 401
    assert _post(site, body_of(alert()), who="anna") == 403
    assert site.post(ALERTS, {"Content-Type": "text/plain"}, body_of(alert())).status_code == 415
    assert _taken(site) == {}


def test_a_body_above_the_bound_is_refused_before_it_is_read(site: PushSite) -> None:
    good = body_of(alert())
    room = MAX_CONTROL_BYTES - len(good)
    assert MAX_CONTROL_BYTES == 256 * 1024
    held = cost(os.getpid()).bytes
    for more in (1, room * 200):
        answer = site.post(ALERTS, JSON, good + b" " * (room + more))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "content_too_large")
    assert cost(os.getpid()).bytes - held < 100_000_000
    assert _taken(site) == {}
    assert _post(site, good + b" " * room) == 204
    assert _taken(site) == {"firing": 1}


def test_more_alerts_than_one_request_may_have_are_refused_as_a_whole(site: PushSite) -> None:
    assert _post(site, body_of(*[5] * (MOST_ALERTS + 1))) == 422
    assert _taken(site) == {}
    assert _post(site, body_of(*[5] * (MOST_ALERTS - 1), alert())) == 204
    assert _taken(site) == {"malformed": MOST_ALERTS - 1, "firing": 1}


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "cut short": body_of(alert())[:-9],
    "no text": b"\xff\xfe\x00",
    "lists that never end": b"[" * 200_000,
    "objects that never end": b'{"a":' * 50_000,
    "deep lists": b'{"version":"4","alerts":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"version":"4","alerts":[' + b'{"labels":' * 20_000 + b"{}" + b"}" * 20_000 + b"]}",
    "a number without an end": b'{"version":"4","alerts":[' + b"9" * 200_000 + b"]}",
    "no list": b'{"version":"4","alerts":{"0":{}}}',
    "another version": json.dumps({**WEBHOOK, "version": "5"}).encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_that_means_harm_is_refused_and_the_next_good_one_is_taken(site: PushSite, name: str) -> None:
    assert len(HOSTILE[name]) <= MAX_CONTROL_BYTES
    assert _post(site, HOSTILE[name]) in {400, 422}
    assert _taken(site) == {}
    assert _post(site, body_of(alert())) == 204
    assert _taken(site) == {"firing": 1}


def _deep(levels: int) -> object:
    value: object = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


BAD_ALERTS: dict[str, object] = {
    "deep": _deep(200),
    "deep labels": alert("bad", labels=_deep(200)),
    "deep annotations": alert("bad", annotations={"summary": _deep(200)}),
    "labels": alert("bad", labels={f"l{n}": "v" for n in range(200)}),
    "a long label": alert("bad", labels={"node": "node-a", "l": "v" * 2_000}),
    "a long name of a label": alert("bad", labels={"node": "node-a", "l" * 2_000: "v"}),
    "a long annotation": alert("bad", annotations={"summary": "s" * 20_000}),
    "numbers as labels": alert("bad", labels={"node": "node-a", "gpu": 0}),
    "a long fingerprint": alert("f" * 2_000),
    "no fingerprint": alert(""),
    "another state": alert("bad", status="suppressed"),
    "a list": [alert("bad")],
    "no number": float("nan"),
}


@pytest.mark.parametrize("name", BAD_ALERTS)
def test_an_absurd_alert_costs_no_good_one(site: PushSite, name: str) -> None:
    assert _post(site, body_of(BAD_ALERTS[name], alert())) == 204
    assert _taken(site) == {"malformed": 1, "firing": 1}


ODD_ALERTS: dict[str, dict[str, Any]] = {
    "half a character": alert("odd", annotations={"summary": "\ud800"}),
    "control characters": alert("odd", annotations={"summary": "\x00\x1b[2J\u202e"}),
    "half a character as a label": alert("odd") | {"labels": {"node": "node-a", "gpu": "0", "alertname": "\udfff"}},
    "no time": alert("odd", startsAt="soon"),
    "a time past all": alert("odd", startsAt="9999-12-31T23:59:59-14:00"),
    "a time before all": alert("odd", startsAt="0001-01-01T00:00:00+14:00"),
}


@pytest.mark.parametrize("name", ODD_ALERTS)
def test_whatever_an_alert_that_is_taken_says_the_cards_are_answered(site: PushSite, name: str) -> None:
    line = f'gpu_event,kind=xid,gpu_uuid=GPU-a,host=node-a,code=79 message="fallen" {site.clock.now_ms()}'
    assert site.post("/api/v2/write?precision=ms", {}, line.encode()).status_code == 204
    site.clock.advance(1_000)
    site.running.brain.tick()
    assert _post(site, body_of(ODD_ALERTS[name])) == 204
    assert _taken(site) in ({"firing": 1}, {"malformed": 1})
    answer = site.http.get("/v1/cards?limit=10", headers={"Authorization": f"Bearer {secret('anna')}"})
    assert (answer.status_code, answer.json()["total"]) == (200, 1)


def test_a_node_says_nothing_of_alerts_of_another_node(site: PushSite) -> None:
    assert _post(site, body_of(alert("theirs", "node-b"))) == 204
    for sent in (alert("new", "node-b"), alert("theirs"), alert("theirs", status="resolved")):
        assert _post(site, body_of(sent), who="node-a") == 204
    assert _taken(site) == {"firing": 1, "refused": 3}
    assert _post(site, body_of(alert("mine")), who="node-a") == 204
    assert _post(site, body_of(alert("theirs", "node-b", status="resolved"))) == 204
    assert _taken(site) == {"firing": 2, "refused": 3, "resolved": 1}


def test_a_node_leaves_room_for_the_alerts_of_the_others(site: PushSite) -> None:
    assert MOST_OF_HOST * 10 <= MAX_KEPT
    for first in range(0, MAX_KEPT, 500):
        assert _post(site, body_of(*(alert(str(first + n)) for n in range(500))), who="node-a") == 204
    assert _taken(site) == {"firing": MOST_OF_HOST, "full": MAX_KEPT - MOST_OF_HOST}
    assert _post(site, body_of(alert("0"), alert("other", "node-b"))) == 204
    assert _taken(site)["firing"] == MOST_OF_HOST + 2


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_gives_a_500(site: PushSite, data: st.DataObject) -> None:
    good = bytearray(body_of(alert(), alert("b", "node-b")))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=4)):
        good[place] = byte
    body = bytes(good[: data.draw(st.integers(0, len(good)))]) if data.draw(st.booleans()) else bytes(good)
    assert _post(site, body) in {204, 400, 422}
    assert BrainService(site.running.brain).cards(10).total == 0
