"""Webhook bodies and signature, byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.notifications.delivery import sign
from tocsin.actions.notifications.webhook import NOTIFIED, REQUESTED, encode
from tocsin.domain.decision import CordonParameters, Decision, DecisionContext, Mode
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind

GOLDEN = Path(__file__).parent / "actions"

ACTION = Decision(
    rule="temperature_high",
    subject=Subject(SubjectKind.GPU, "GPU-5d1f0b7c", "node-7", "train"),
    action=ActionKind.CORDON,
    mode=Mode.ACT,
    severity=Severity.CRITICAL,
    category=Category.THERMAL,
    at_ms=1_795_000_000_123,
    expires_ms=1_795_003_600_123,
    key="temperature_high|gpu:GPU-5d1f0b7c|cordon|1794999000000",
    sentence="Cordon GPU-5d1f0b7c on node-7: 93 °C for 10 min, limit 85 °C.",
    findings=("0123456789abcdef",),
    incident="0123456789abcdef",
    parameters=CordonParameters(context=DecisionContext(host="node-7", pool="train")),
)
NOTICE = replace(
    ACTION,
    action=ActionKind.NOTIFY,
    severity=Severity.WARNING,
    key="temperature_high|gpu:GPU-5d1f0b7c|notify|1794999000000",
    sentence="Memory < 10 % free & falling on <node-7>.",
    simulated=True,
)


@pytest.mark.parametrize(
    ("name", "decision", "kind", "form"),
    [
        ("action.cloudevents.json", ACTION, REQUESTED, "cloudevents"),
        ("notice.cloudevents.json", NOTICE, NOTIFIED, "cloudevents"),
        ("action.slack.json", ACTION, REQUESTED, "slack"),
        ("notice.slack.json", NOTICE, NOTIFIED, "slack"),
    ],
)
def test_body(name: str, decision: Decision, kind: str, form: str) -> None:
    body, _ = encode(decision, kind, "tocsin", form)
    assert body + b"\n" == (GOLDEN / name).read_bytes()


def test_event_keeps_the_rules_of_cloudevents_1_0() -> None:
    event = json.loads((GOLDEN / "action.cloudevents.json").read_bytes())
    assert {"id", "source", "specversion", "type"} <= event.keys()
    assert all(name.isascii() and name.isalnum() and name.islower() and len(name) <= 20 for name in event)
    assert all(isinstance(event[name], str | bool) for name in event.keys() - {"data"})


def test_signature_is_that_of_another_implementation() -> None:
    # printf '1795000000.' | cat - body | openssl dgst -sha256 -hmac s3cret
    body = (GOLDEN / "action.cloudevents.json").read_bytes().rstrip(b"\n")
    assert sign("s3cret", body, ACTION.at_ms) == (GOLDEN / "action.signature.txt").read_text().strip()
