"""Answers to Slack: where they may go, by which way, and that one that does not get there is counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.notifications.delivery import Receiver
from tocsin.actions.notifications.slack_buttons import Deed
from tocsin.api.slack_replies import MOST_WAITING, SlackReplies, is_slack, settled, whispered, words

ADDRESS = "https://hooks.slack.com/actions/T0/1/secret-part-of-it"


class Lost:
    """Counts what got lost."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Semaphore(0)

    def __call__(self) -> None:
        self.count += 1
        self.changed.release()


@pytest.fixture
def lost() -> Lost:
    return Lost()


@pytest.fixture
def replies(lost: Lost) -> Iterator[SlackReplies]:
    made = SlackReplies(2.0, lost)
    yield made
    made.close()


def lead_to(replies: SlackReplies, server: HTTPServer) -> threading.Event:
    """Let answers for Slack go to a server of this machine, at the same path; the event tells that one is done."""
    done = threading.Event()

    class Watched(Receiver):
        def close(self) -> None:
            super().close()
            done.set()

    replies.receiver = lambda url: Watched(server.url_for(urlsplit(url).path), 2.0)
    return done


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://hooks.slack.com/actions/T0",
        "https://hooks.slack.com",
        "https://hooks.slack.com.evil.example/actions",
        "https://evil.example/hooks.slack.com/",
        "https://hooks.slack.com@evil.example/",
        "https://hooks.slack.com:444/actions",
        "https://user@hooks.slack.com/actions",
        "https://hooks.slack.com\\@evil.example/",
        "https://hooks.slack.com/a\nHost: evil.example",
        "https://hooks.slack.com/a?next=http://evil.example",
        "https://hooks.slack.com/a#b",
        "https://xn--hooks-slack.com/a",
        "https://HOOKS.SLACK.COM/a",
        "//hooks.slack.com/a",
        "https://169.254.169.254/latest/meta-data",
    ],
)
def test_an_answer_goes_to_slack_and_nowhere_else(replies: SlackReplies, lost: Lost, url: str) -> None:
    assert not is_slack(url)
    replies.post(url, whispered("x"))
    assert lost.count == 1


def test_slacks_own_address_is_taken() -> None:
    assert is_slack(ADDRESS)


def test_an_answer_gets_there(replies: SlackReplies, lost: Lost, httpserver: HTTPServer) -> None:
    done = lead_to(replies, httpserver)
    body = whispered("a < b & @here")
    assert body["text"] == "a &lt; b &amp; \uff20here"
    httpserver.expect_ordered_request("/actions/T0/1/secret-part-of-it", method="POST", json=body).respond_with_data(
        "busy", status=503
    )
    httpserver.expect_ordered_request("/actions/T0/1/secret-part-of-it", method="POST", json=body).respond_with_data(
        "ok"
    )
    with httpserver.wait(raise_assertions=True, stop_on_nohandler=True, timeout=10):
        replies.post(ADDRESS, body)
    assert done.wait(10)
    assert lost.count == 0


def test_what_slack_refuses_is_counted(replies: SlackReplies, lost: Lost, httpserver: HTTPServer) -> None:
    lead_to(replies, httpserver)
    httpserver.expect_request("/actions/T0/1/secret-part-of-it").respond_with_data("used_url", status=404)
    replies.post(ADDRESS, whispered("x"))
    assert lost.changed.acquire(timeout=10)


def test_a_slack_that_does_not_answer_holds_up_nobody(lost: Lost, httpserver: HTTPServer) -> None:
    replies, gate = SlackReplies(2.0, lost), threading.Event()

    def stuck(_url: str) -> Receiver:
        gate.wait(10)
        return Receiver(httpserver.url_for("/"), 2.0)

    replies.receiver = stuck
    for _ in range(MOST_WAITING + 3):
        replies.post(ADDRESS, whispered("x"))
    assert lost.count == 3, "more than that many do not wait"
    gate.set()
    replies.close()
    replies.post(ADDRESS, whispered("x"))
    assert lost.count == 4 + 2, "what was under way has ended, what waited is dropped with the process"


def test_the_proxy_of_the_environment_is_asked_for_slack_by_name(
    replies: SlackReplies, lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                asked.append(connection.recv(1_000).split(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setattr("tocsin.api.slack_replies.ATTEMPTS", 1)
        waiting = threading.Thread(target=refuse)
        waiting.start()
        replies.post(ADDRESS, whispered("x"))
        assert lost.changed.acquire(timeout=10)
        waiting.join(10)
    assert asked == [b"CONNECT hooks.slack.com:443 HTTP/1.1"]


def test_a_message_keeps_its_words_and_loses_what_is_used_up() -> None:
    def button(deed: str) -> dict[str, str]:
        return {"type": "button", "action_id": f"tocsin_{deed}"}

    blocks = [
        {"type": "header"},
        {"type": "section"},
        {"type": "input", "element": {}},
        {"type": "actions", "elements": [button("approve"), button("decline"), button("acknowledge")]},
    ]
    approved = settled(blocks, Deed.APPROVE, "by anna")
    assert [block["type"] for block in approved["blocks"]] == ["header", "section", "context", "actions"]
    assert approved["blocks"][-1]["elements"] == [button("acknowledge")]
    taken = settled(blocks, Deed.ACKNOWLEDGE, "by anna")
    assert taken["blocks"][-1]["elements"] == [button("approve"), button("decline")]
    assert settled([], Deed.APPROVE, "by anna")["blocks"] == [
        {"type": "context", "elements": [{"type": "plain_text", "text": "by anna", "emoji": False}]}
    ]


def test_words_are_text_and_no_more() -> None:
    assert words("refused", "en", why="a {who}\x1b\n\u202eb.") == "Nothing was done: a {who} b."
    assert words("refused", "nonsense", why="w" * 2_000).endswith("...")
