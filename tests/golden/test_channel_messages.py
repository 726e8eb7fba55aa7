"""The body of every channel's messages, byte for byte. `TOCSIN_WRITE_GOLDEN=1` writes them anew."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.notifications.channel import Message, Phase, build_channel, message_of
from tocsin.actions.notifications.delivery import HttpChannel
from tocsin.actions.notifications.mail import compose
from tocsin.actions.notifications.slack_buttons import Button, Deed, buttons_of
from tocsin.actions.notifications.trial import marked_message
from tocsin.domain.decision import NotifyParameters
from tocsin.domain.finding import Severity, Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, means, message
from tocsin_testing.signed import SLACK_KEY

GOLDEN = Path(__file__).parent / "channels"
KINDS = ("alertmanager", "cloudevents", "dingtalk", "email", "feishu", "pagerduty", "slack", "teams")
SILENT = [
    replace(
        DECISION,
        rule="gpu_silent",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.GPU, f"GPU-{n}", f"node-{n}", "train"),
        key=f"gpu_silent|{n}",
        sentence=f"GPU-{n} on node-{n} has stopped reporting.",
        simulated=True,
    )
    for n in range(7)
]
MESSAGES: dict[str, Message] = {
    "firing": message(),
    "resolved": message(Phase.RESOLVED),
    "summary": message_of([DECISION, *SILENT], Phase.FIRING),
    "simulated": message(simulated=True, severity=Severity.WARNING, sentence="Memory < 10 % & falling, says <a@b>."),
    "test": marked_message("chat", T0),
}


def _written(kind: str, sent: Message, language: str, press_key: str = "", **more: object) -> bytes:
    if kind == "email":
        settings = channel_settings("email", language=language)
        assert settings.mail is not None
        return compose(sent, settings, settings.mail, LINKS).as_bytes().replace(b"\r\n", b"\n")
    made = build_channel(replace(means(kind, language=language, **more), press_key=press_key))
    assert isinstance(made, HttpChannel)
    body = json.loads(made.encode([sent]).body)
    made.close()
    return (json.dumps(body, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


NAMES = (*MESSAGES, "firing.zh", "resolved.zh")
# Alertmanager groups by itself: it is sent no summary.
CASES = [(kind, name) for kind in KINDS for name in NAMES if (kind, name) != ("alertmanager", "summary")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_message(kind: str, name: str) -> None:
    which, _, language = name.partition(".")
    _is_golden(
        f"{name}.{kind}.{'eml' if kind == 'email' else 'json'}", _written(kind, MESSAGES[which], language or "en")
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_message_with_buttons(language: str) -> None:
    written = _written("slack", MESSAGES["firing"], language, SLACK_KEY, buttons=True)
    _is_golden(f"buttons.{language}.slack.json", written)


@pytest.mark.parametrize("name", ["resolved", "summary", "test"])
def test_no_button_where_there_is_nothing_to_decide(name: str) -> None:
    assert _written("slack", MESSAGES[name], "en", SLACK_KEY, buttons=True) == _written("slack", MESSAGES[name], "en")


@pytest.mark.parametrize(("key", "buttons"), [("", True), (SLACK_KEY, False)])
def test_no_button_where_none_is_asked_for_or_none_would_be_heard(key: str, buttons: bool) -> None:
    plain = _written("slack", MESSAGES["firing"], "en")
    assert _written("slack", MESSAGES["firing"], "en", key, buttons=buttons) == plain


def test_what_waits_for_nobody_is_acknowledged_alone_and_what_has_no_card_not_at_all() -> None:
    firing = MESSAGES["firing"]
    told = replace(firing.first, parameters=NotifyParameters())
    assert buttons_of(replace(firing, decisions=(told,))) == [Button(Deed.ACKNOWLEDGE, told.incident)]
    assert buttons_of(replace(firing, decisions=(replace(told, incident=""),))) == []


def _is_golden(name: str, written: bytes) -> None:
    path = GOLDEN / name
    if os.environ.get("TOCSIN_WRITE_GOLDEN"):
        path.write_bytes(written)
    assert written == path.read_bytes()
