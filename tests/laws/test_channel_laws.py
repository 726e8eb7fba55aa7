"""What every kind of channel keeps to, those of other packages too. A mail server is in `test_channel_mail`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.notifications.channel import Channel, Message, Phase, build_channel, message_of
from tocsin.domain.clock import MINUTE
from tocsin.plugins import OWN_PACKAGE, Kind, plugins
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, means
from tocsin_testing.servers import free_port
from tocsin_testing.ticket_doubles import JiraCloud

KINDS = list(plugins(Kind.CHANNEL))
OTHERS = [one.name for one in plugins(Kind.CHANNEL).values() if one.package != OWN_PACKAGE]
SECRET = "5ecret"
TAKEN: dict[str, Any] = {"dingtalk": {"errcode": 0, "errmsg": "ok"}, "feishu": {"code": 0, "msg": "success"}}
"""What a receiver answers that has taken a message, where the status alone does not say it."""
TEXTS = (
    "node-1 GPU 3 is hot.",
    "",
    "x" * 100_000,
    "\x00\x1b[31m\u202e\ud83d",
    '<a href="x">@channel</a> ${jndi} {{x}}',
)


def _built(kind: str, port: int) -> Channel:
    if kind == "email":
        mail = {"host": "127.0.0.1", "port": port, "sender": "a@example.com", "to": ["b@example.com"]}
        return build_channel(means(kind, mail=mail))
    return build_channel(means(kind, url=f"http://127.0.0.1:{port}/hook/{SECRET}?token={SECRET}"))


def _messages(channel: Channel, sentence: str = TEXTS[0], phase: Phase = Phase.FIRING) -> list[Message]:
    """As many as go into one request."""
    end = T0 + MINUTE if phase is Phase.RESOLVED else None
    each = [replace(DECISION, sentence=sentence, key=f"k{number}") for number in range(min(channel.batch, 3))]
    return [message_of([one], phase, end) for one in each]


@pytest.fixture(params=KINDS)
def nobody(request: pytest.FixtureRequest) -> Iterator[Channel]:
    """A channel whose receiver does not answer."""
    made = _built(request.param, free_port())
    yield made
    made.close()


@pytest.fixture(params=[kind for kind in KINDS if kind != "email"])
def taken(request: pytest.FixtureRequest, httpserver: HTTPServer, tmp_path: Path) -> Iterator[Channel]:
    """A channel whose receiver takes everything."""
    kind = request.param
    if kind in OTHERS:
        made = build_channel(means(kind, url=f"http://127.0.0.1:1{tmp_path}/told"))
    elif kind == "ticket":
        # A status alone names no ticket.
        httpserver.expect_request(re.compile("/rest/.*")).respond_with_handler(JiraCloud())
        made = build_channel(means(kind, url=httpserver.url_for("")))
    else:
        answer = json.dumps(TAKEN.get(kind, {}))
        httpserver.expect_request("/hook").respond_with_data(answer)
        httpserver.expect_request("/hook/api/v2/alerts").respond_with_data("")
        made = build_channel(means(kind, url=httpserver.url_for("/hook")))
    yield made
    made.close()


def test_it_is_named_as_in_the_settings_and_says_how_it_is_fed(nobody: Channel) -> None:
    assert nobody.name in KINDS
    assert nobody.batch >= 1
    assert isinstance(nobody.keyed, bool)
    assert nobody.refresh_seconds is None or nobody.refresh_seconds > 0


def test_a_receiver_that_does_not_answer_is_a_delivery_to_try_again(nobody: Channel) -> None:
    delivery = nobody.send(_messages(nobody))
    assert (delivery.ok, delivery.certain, delivery.again) == (False, True, True)
    assert delivery.attempts == 1
    assert delivery.rest_seconds >= 0
    assert delivery.detail
    assert "\n" not in delivery.detail


def test_no_text_that_comes_back_holds_the_secret(nobody: Channel) -> None:
    assert SECRET not in nobody.send(_messages(nobody)).detail.replace(f"/hook/{SECRET}", "")


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("sentence", TEXTS, ids=["plain", "empty", "long", "controls", "markup"])
def test_whatever_the_sentence_it_is_taken(taken: Channel, sentence: str, phase: Phase) -> None:
    delivery = taken.send(_messages(taken, sentence, phase))
    assert delivery.ok, delivery.detail
    assert delivery.attempts == 1


def test_several_that_go_together_are_one_message(taken: Channel) -> None:
    several = message_of([replace(DECISION, key=f"k{number}") for number in range(5)], Phase.FIRING)
    assert taken.send([several]).ok


def test_close_is_safe_to_repeat(nobody: Channel, taken: Channel) -> None:
    for one in (nobody, taken):
        one.close()
        one.close()
