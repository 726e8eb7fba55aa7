"""No text, however hostile, breaks a message, calls a crowd or outgrows what a receiver takes."""

from __future__ import annotations

import json
from dataclasses import replace
from email import message_from_bytes, policy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.notifications.channel import Message, Phase, build_channel, clip_bytes, message_of, text_of
from tocsin.actions.notifications.delivery import HttpChannel, HttpRequest
from tocsin.actions.notifications.mail import compose
from tocsin.actions.notifications.pagerduty import SUMMARY_LIMIT
from tocsin.actions.notifications.slack import HEADER_LIMIT, SECTION_LIMIT
from tocsin.actions.notifications.teams import MOST_BYTES
from tocsin.domain.decision import Decision
from tocsin.domain.words import clean, clip
from tocsin_testing.hostile_messages import FEW, MESSAGES, TEXTS, decisions
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, means

FEISHU_BYTES = 20 * 1024
DINGTALK_BYTES = 20_000
PAGERDUTY_BYTES = 512 * 1024
SLACK_TEXT = 40_000

KINDS = ("slack", "teams", "feishu", "dingtalk", "pagerduty", "cloudevents", "alertmanager")
CHANNELS = {
    (kind, language): build_channel(means(kind, language=language)) for kind in KINDS for language in ("en", "zh")
}


def _request(kind: str, message: Message, language: str) -> HttpRequest:
    made = CHANNELS[kind, language]
    assert isinstance(made, HttpChannel)
    return made.encode([message])


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, list):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value] if isinstance(value, str) else []


def _unprintable(text: str) -> list[str]:
    return [letter for letter in text if letter != "\n" and clean(f"a{letter}a") != f"a{letter}a" and letter != " "]


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_slack(message: Message, language: str) -> None:
    body = json.loads(_request("slack", message, language).body)
    assert len(body["text"]) <= SLACK_TEXT
    assert "<" not in body["text"]
    assert ">" not in body["text"]
    for block in body["blocks"]:
        if block["type"] == "context":
            (links,) = block["elements"]
            assert links["text"].count("<") == links["text"].count("|") <= 2
            continue
        assert block["text"]["type"] == "plain_text"
        assert 0 < len(block["text"]["text"]) <= (HEADER_LIMIT if block["type"] == "header" else SECTION_LIMIT)
    assert not any("@" in leaf for leaf in _leaves(body))


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_teams(message: Message, language: str) -> None:
    raw = _request("teams", message, language).body
    assert len(raw) <= len(json.dumps(json.loads(raw), separators=(",", ":"))) <= MOST_BYTES
    (attached,) = json.loads(raw)["attachments"]
    card = attached["content"]
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    runs = [run for block in card["body"] for run in block["inlines"]]
    assert {key for run in runs for key in run} <= {"type", "text", "size", "weight", "isSubtle"}
    assert all(run["type"] == "TextRun" and run["text"] and "@" not in run["text"] for run in runs)
    assert card["msteams"] == {"width": "Full"}
    assert {action["url"] for action in card["actions"]} <= {LINKS.console, LINKS.runbook(message.first)}


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_feishu(message: Message, language: str) -> None:
    request = _request("feishu", message, language)
    assert len(request.body) <= FEISHU_BYTES
    (post,) = json.loads(request.body)["content"]["post"].values()
    assert {element["tag"] for line in post["content"] for element in line} <= {"text", "a"}
    assert not any("@" in leaf or "<at" in leaf for leaf in _leaves(post))


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_dingtalk(message: Message, language: str) -> None:
    request = _request("dingtalk", message, language)
    assert len(request.body) <= DINGTALK_BYTES
    body = json.loads(request.body)
    assert body.keys() == {"msgtype", "text", "at"}
    assert (body["msgtype"], body["at"]) == ("text", {"isAtAll": False, "atMobiles": []})
    assert "@" not in body["text"]["content"]


@FEW
@given(MESSAGES)
def test_pagerduty(message: Message) -> None:
    request = _request("pagerduty", message, "en")
    assert len(request.body) <= PAGERDUTY_BYTES
    body = json.loads(request.body)
    assert len(body["dedup_key"]) <= 255
    if not message.resolved:
        assert 0 < len(body["payload"]["summary"]) <= SUMMARY_LIMIT
        assert body["payload"]["source"]


@FEW
@given(decisions(), st.sampled_from(Phase))
def test_alertmanager(decision: Decision, phase: Phase) -> None:
    (alert,) = json.loads(_request("alertmanager", message_of([decision], phase, DECISION.at_ms), "en").body)
    labels = alert["labels"]
    assert labels["alertname"].startswith("Tocsin")
    assert all(0 < len(value) <= 256 for value in labels.values())
    assert alert["endsAt"] >= alert["startsAt"]
    assert not any(_unprintable(leaf) for leaf in _leaves(alert))


@FEW
@given(MESSAGES)
def test_cloudevents_are_json_whatever_they_hold(message: Message) -> None:
    body = _request("cloudevents", message, "en").body
    assert json.loads(body)["specversion"] == "1.0"


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_mail_has_the_headers_and_the_recipients_that_were_meant(message: Message, language: str) -> None:
    found = channel_settings("email", language=language)
    assert found.mail is not None
    raw = compose(message, found, found.mail, LINKS).as_bytes()
    read = message_from_bytes(raw, policy=policy.default)
    meant = {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "X-Tocsin-Severity"}
    meant |= {"Content-Type", "Content-Transfer-Encoding", "MIME-Version"}
    meant |= {"In-Reply-To", "References"} if message.resolved else set()
    assert set(read.keys()) == meant
    assert len(read.keys()) == len(meant)
    assert read["To"] == "oncall@example.com"
    assert max(len(line) for line in raw.split(b"\r\n")) <= 998


@FEW
@given(MESSAGES, st.sampled_from(["en", "zh"]))
def test_texts_are_clean_and_bounded(message: Message, language: str) -> None:
    text = text_of(message, LINKS, language)
    assert len(text.title) <= 150
    assert "\n" not in text.title
    assert not _unprintable(text.plain())


@FEW
@given(TEXTS, st.integers(3, 200))
def test_clipping_keeps_the_bound_and_the_beginning(text: str, limit: int) -> None:
    tidy = clean(text)
    assert len(clip(tidy, limit)) <= limit
    assert len(clip_bytes(tidy, limit).encode()) <= limit
    for cut in (clip(tidy, limit), clip_bytes(tidy, limit)):
        assert cut == tidy or (cut.endswith("...") and tidy.startswith(cut[:-3]))


@pytest.mark.parametrize("text", ["@all", "a@b", "\n@here"])
def test_what_is_plain_mail_keeps_its_at(text: str) -> None:
    assert "@" in text_of(message_of([replace(DECISION, sentence=text)], Phase.FIRING), LINKS, "en").body
