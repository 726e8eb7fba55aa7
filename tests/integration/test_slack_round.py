"""A message goes to Slack, its button is pressed, and the message says who decided: all of it over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.notifications.channel import build_channel
from tocsin.actions.notifications.delivery import Receiver
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import SystemClock
from tocsin.domain.decision import DecisionState, NotifyParameters
from tocsin_testing.fake_service import FakeService
from tocsin_testing.notify_world import means, message
from tocsin_testing.signed import ANNA, SLACK_KEY, VERA, desks_and_slack, press_body, press_headers

REPLIES = "/actions/T0TEAM/1/secret-part-of-it"


@dataclass
class Round:
    """A brain, and a server that is Slack to it: the webhook and the address of answers."""

    url: str
    service: FakeService
    slack: HTTPServer

    def told(self, decision: str, card: str) -> list[dict[str, Any]]:
        """The blocks of the message that goes to the room about a decision that waits."""
        self.slack.expect_request("/services/hook").respond_with_data("ok")
        firing = message(incident=card, parameters=NotifyParameters(proposes=decision))
        given = means("slack", url=self.slack.url_for("/services/hook"), buttons=True)
        channel = build_channel(replace(given, press_key=SLACK_KEY))
        assert channel.send([firing]).ok
        channel.close()
        sent, _ = self.slack.log[-1]
        blocks: list[dict[str, Any]] = json.loads(sent.data)["blocks"]
        return blocks

    def press(self, blocks: list[dict[str, Any]], label: str, user: str) -> dict[str, Any]:
        """Press the button that is labelled so; what Slack is answered."""
        block = blocks[-1]
        button = next(one for one in block["elements"] if one["text"]["text"] == label)
        pressed = {name: button[name] for name in ("action_id", "value", "type")} | {"block_id": block["block_id"]}
        payload = {
            "type": "block_actions",
            "user": {"id": user},
            "actions": [pressed],
            "message": {"blocks": blocks},
            "response_url": f"https://hooks.slack.com{REPLIES}",
        }
        body = press_body(payload)
        self.slack.expect_oneshot_request(REPLIES, method="POST").respond_with_data("ok")
        with self.slack.wait(raise_assertions=True, stop_on_nohandler=False, timeout=10):
            headers = press_headers(body, SystemClock().now_ms())
            answer = httpx2.post(f"{self.url}/v1/slack/interactive", content=body, headers=headers, trust_env=False)
        assert (answer.status_code, answer.content) == (200, b"")
        sent, _ = self.slack.log[-1]
        assert sent.path == REPLIES
        reply: dict[str, Any] = json.loads(sent.data)
        return reply


@pytest.fixture
def world(httpserver: HTTPServer) -> Iterator[Round]:
    service, settings = FakeService(), ApiSettings.model_validate(desks_and_slack())
    app = create_app(service, settings)
    replies = app.state.slack.replies
    replies.receiver = lambda url: Receiver(httpserver.url_for(urlsplit(url).path), 5.0)
    server = ApiServer(app, settings=settings)
    server.start()
    yield Round(server.url, service, httpserver)
    server.stop()
    replies.close()


def labels(blocks: list[dict[str, Any]]) -> list[str]:
    return [one["text"]["text"] for one in blocks[-1]["elements"]]


def test_a_decision_is_approved_in_the_room_and_its_card_acknowledged(world: Round) -> None:
    decision = next(one.id for one in world.service.decisions(50) if one.approvable)
    blocks = world.told(decision, world.service.cards(1).items[0].id)
    assert labels(blocks) == ["Approve", "Decline", "Acknowledge"]

    low = world.press(blocks, "Approve", VERA)
    assert (low["response_type"], world.service.decision(decision).state) == ("ephemeral", DecisionState.HELD)

    approved = world.press(blocks, "Approve", ANNA)
    assert world.service.decision(decision).state is DecisionState.APPROVED
    assert approved["replace_original"]
    assert approved["blocks"][: len(blocks) - 1] == blocks[:-1], "its words are as they were"
    assert labels(approved["blocks"]) == ["Acknowledge"]

    late = world.press(blocks, "Decline", ANNA)
    assert late["text"].startswith("Nothing was done: decision")

    taken = world.press(approved["blocks"], "Acknowledge", ANNA)
    said = [block["elements"][0]["text"] for block in taken["blocks"] if block["type"] == "context"]
    assert said[-2] == "Approved by anna. It runs once the guards allow it."
    assert said[-1].startswith("Acknowledged by anna until 20")
    assert [block["type"] for block in taken["blocks"]].count("actions") == 0
    assert [one.by for one in world.service.silences.stand] == ["slack:anna"]
