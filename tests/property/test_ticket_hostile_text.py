"""No text, however hostile, changes the structure of a request to a ticket system, its address or its headers."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.notifications.channel import Message, Phase, build_channel, message_of
from tocsin.actions.notifications.delivery import HttpAnswer, HttpRequest
from tocsin.actions.notifications.ticket import Evidence, TicketChannel
from tocsin.actions.notifications.ticket_template import at_path, filled, filled_json, filled_path
from tocsin_testing.hostile_messages import FEW, MESSAGES, TEXTS
from tocsin_testing.notify_world import DECISION, means
from tocsin_testing.ticket_doubles import BASIC, DOUBLES, SECRET, JiraCloud

CHANNELS: dict[str, TicketChannel] = {}
for _kind, _double in DOUBLES.items():
    _made = build_channel(means("ticket", **_double().channel()))
    assert isinstance(_made, TicketChannel)
    CHANNELS[_kind] = _made

ID = re.compile(r"[0-9a-f]{16}")
EVIDENCE = Evidence("tocsin-evidence-0.tar", b"x")
NAMES = ("a", "b", "secret")
WORDS = st.fixed_dictionaries(dict.fromkeys(NAMES, TEXTS))
TEMPLATES = st.lists(st.sampled_from(["${a}", "${b}", " ", "x", "$", "}", '"']), max_size=5).map("".join)
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    TEMPLATES | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l"]), inner, max_size=2),
    max_leaves=8,
)


def _requests(channel: TicketChannel, message: Message) -> dict[str, HttpRequest]:
    words = channel._words(message, EVIDENCE) | {"ticket": "GPU-1"}
    asked = channel._template.requests()
    return {name: channel._request(one, words, EVIDENCE) for name, one in asked.items()}


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    return [_shape(inner) for inner in value] if isinstance(value, list) else type(value)


PLAIN = {kind: _requests(channel, message_of([DECISION], Phase.FIRING)) for kind, channel in CHANNELS.items()}


@pytest.mark.parametrize("kind", sorted(CHANNELS))
@FEW
@given(MESSAGES)
def test_every_request_has_the_shape_that_it_has_with_plain_words(kind: str, message: Message) -> None:
    for name, request in _requests(CHANNELS[kind], message).items():
        plain = PLAIN[kind][name]
        assert (request.method, request.headers.keys()) == (plain.method, plain.headers.keys())
        assert (request.path, request.query.keys()) == (plain.path, plain.query.keys())
        for key, value in request.query.items():
            assert ID.sub("ID", value) == ID.sub("ID", plain.query[key])
        assert {key: value for key, value in request.headers.items() if key != "content-type"} == {
            key: value for key, value in plain.headers.items() if key != "content-type"
        }
        if name != "attach" and request.body:
            body = json.loads(request.body)
            assert _shape(body) == _shape(json.loads(plain.body))
            assert SECRET not in request.body.decode()
            assert BASIC.split()[1] not in request.body.decode()


@FEW
@given(MESSAGES)
def test_jira_takes_every_text(message: Message) -> None:
    requests = _requests(CHANNELS["jira_cloud"], message)
    opened, said = json.loads(requests["open"].body)["fields"], json.loads(requests["comment"].body)["body"]
    assert 0 < len(opened["summary"]) <= 255
    assert "\n" not in opened["summary"]
    for document in (opened["description"], said):
        JiraCloud().check_text(document)
    assert len(requests["open"].body) < 32_000


@FEW
@given(MESSAGES)
def test_wiki_text_has_no_markup_and_no_line_that_a_stranger_begins(message: Message) -> None:
    fields = json.loads(_requests(CHANNELS["jira_data_center"], message)["open"].body)["fields"]
    # Links are the site's own.
    assert not set("{}[]!|\\^~*#+@") & set(fields["description"])
    assert fields["description"].startswith("Found: ")


@FEW
@given(MESSAGES)
def test_journal_fields_have_no_tags(message: Message) -> None:
    body = json.loads(_requests(CHANNELS["servicenow"], message)["comment"].body)
    assert not set("[]<>@") & set(body["work_notes"])


@FEW
@given(WORDS, DOCUMENTS)
def test_filling_changes_texts_alone(words: dict[str, str], document: Any) -> None:
    made = filled_json(document, words)
    assert _shape(made) == _shape(document)
    assert filled_json(document, {name: f"${{{name}}}" for name in NAMES}) == document


@FEW
@given(WORDS, TEMPLATES)
def test_what_is_put_in_is_not_read_again(words: dict[str, str], text: str) -> None:
    parts = text.replace("${a}", "\0a\0").replace("${b}", "\0b\0").split("\0")
    meant = "".join(words[part] if number % 2 else part for number, part in enumerate(parts))
    assert filled(text, words) == meant


@FEW
@given(WORDS)
def test_no_word_begins_another_part_of_a_path(words: dict[str, str]) -> None:
    tidy = {name: text.encode(errors="replace").decode() for name, text in words.items()}
    made = filled_path("/t/${a}/x", tidy)
    assert made == f"/t/{quote(tidy['a'], safe='')}/x"
    assert made.count("/") == 3
    assert not set("?#\r\n ") & set(made)


@FEW
@given(st.text(max_size=200) | st.sampled_from(["[" * 50_000, '{"a":' * 50_000, "1" * 9_000, "NaN", '"\\ud800"']))
def test_no_answer_breaks_the_reader(text: str) -> None:
    try:
        at_path(HttpAnswer(200, text).json(), "result.0.sys_id")
    except KeyError:
        return
