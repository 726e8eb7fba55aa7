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
from tocsin.actions.notifications.trial import marked_message
from tocsin.domain.finding import Severity, Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, means, message

GOLDEN = Path(__file__).parent / "channels"
KINDS = ("alertmanager", "cloudevents", "dingtalk", "email", "feishu", "pagerduty", "slack")
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


def _written(kind: str, sent: Message, language: str) -> bytes:
    if kind == "email":
        settings = channel_settings("email", language=language)
        assert settings.mail is not None
        return compose(sent, settings, settings.mail, LINKS).as_bytes().replace(b"\r\n", b"\n")
    made = build_channel(means(kind, language=language))
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
    written = _written(kind, MESSAGES[which], language or "en")
    path = GOLDEN / f"{name}.{kind}.{'eml' if kind == 'email' else 'json'}"
    if os.environ.get("TOCSIN_WRITE_GOLDEN"):
        path.write_bytes(written)
    assert written == path.read_bytes()
