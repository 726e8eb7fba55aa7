"""A defect of the dashboard costs one card; a busy brain costs nothing that was known before."""

from __future__ import annotations

import gzip
import logging
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.client.errors import Busy
from tocsin.dashboard import kept_answers
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.app import PAGES
from tocsin.dashboard.boundary import _Told, boundary, reference_of
from tocsin.dashboard.kept_answers import KEEP_SECONDS, KeptAnswers, PageClient
from tocsin.dashboard.text import LANGUAGES, Text
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import Conflict, Unavailable
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
FRAME = ("/v1/cells", "/v1/fleet", "/v1/login/methods")
"""What the frame around a page asks for."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    service = FakeService()
    with serving(service) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        yield service


def opened(page: str, language: str = "en") -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params["lang"] = language
    app.run()
    if page != "overview":
        app.switch_page(PAGES[page][0]).run()
    return app


def headings(app: AppTest) -> str:
    return "\n".join(str(getattr(element, "proto", element).body) for element in app.get("html"))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", PAGES)
def test_a_defect_costs_a_page_one_card_and_the_frame_stays(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, page: str, language: str
) -> None:
    text, ask = Text(language), PageClient._ask

    def broken(client: PageClient, method: str, path: str, *arguments: Any, **more: Any) -> httpx2.Response:
        if path not in FRAME:
            raise ZeroDivisionError(path)
        return ask(client, method, path, *arguments, **more)

    monkeypatch.setattr(PageClient, "_ask", broken)
    monkeypatch.setattr("tocsin.dashboard.boundary._TOLD", _Told())
    with caplog.at_level(logging.ERROR, "tocsin.dashboard"):
        app = opened(page, language)
    assert not app.exception
    assert app.error
    for card in app.error:
        assert text("defect") in card.value
        assert "ZeroDivisionError" in card.value
        found = re.search("`([0-9a-f]{8})`", card.value)
        assert found is not None
        assert found[1] in caplog.text
    assert text("simulated.banner") in headings(app)
    assert app.segmented_control(key="lang").value == language


def test_a_defect_is_logged_once_and_another_one_anew(caplog: pytest.LogCaptureFixture) -> None:
    def fail(kind: type[Exception]) -> str:
        try:
            raise kind("x")
        except kind as error:
            return reference_of(error)

    assert fail(KeyError) == fail(KeyError) != fail(IndexError)
    for _ in range(3):
        with boundary("a part"):
            raise LookupError("once")
    assert caplog.text.count("while drawing a part") == 1


@pytest.mark.parametrize("page", PAGES)
def test_a_busy_brain_costs_a_page_nothing_that_was_known(service: FakeService, page: str) -> None:
    app = opened(page)
    before = len(headings(app))
    service.busy = True
    app.run()
    assert not app.error
    assert not app.exception
    assert "The brain is busy" in headings(app)
    assert len(headings(app)) > 0.9 * before


def test_a_busy_brain_is_not_said_to_be_down(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers.ANSWERS, "_known", OrderedDict())
    service.busy = True
    app = opened("overview")
    assert not app.error
    assert "The brain is busy" in app.info[0].value
    assert "does not answer" not in app.info[0].value


class Brain:
    """Answers with what `say` holds: a text, a status or an error."""

    def __init__(self) -> None:
        self.say: str | int | Exception = "[]"
        self.clock = ManualClock(0)
        self.answers = KeptAnswers()
        self.waits: list[float] = []

    def client(self, token: str = "") -> PageClient:
        def handle(request: httpx2.Request) -> httpx2.Response:
            self.waits.append(request.extensions["timeout"]["read"])
            if isinstance(self.say, Exception):
                raise self.say
            if isinstance(self.say, int):
                return httpx2.Response(self.say, json={"error": {"code": "x", "message": "said so", "details": {}}})
            return httpx2.Response(200, text=self.say)

        transport = httpx2.MockTransport(handle)
        return PageClient("http://brain", token, answers=self.answers, clock=self.clock, transport=transport)


@pytest.mark.parametrize("trouble", [503, 429, httpx2.ReadTimeout("slow"), httpx2.PoolTimeout("full")])
def test_the_last_answer_stands_in_for_a_busy_brain(trouble: int | Exception) -> None:
    brain = Brain()
    with brain.client() as client:
        assert client.findings() == []
        assert client.oldest_s == 0
    brain.say = trouble
    brain.clock.advance(20_000)
    with brain.client() as client:
        assert client.findings() == []
        assert client.oldest_s == 20
        with pytest.raises(Busy):
            client.incidents()
    brain.clock.advance(20_000)
    with brain.client() as client:
        client.findings()
    assert brain.waits[-3:] == [3.0, 10.0, 10.0]
    brain.clock.advance(int(KEEP_SECONDS * 1000))
    with brain.client() as client, pytest.raises(Busy):
        client.findings()


@pytest.mark.parametrize("trouble", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("nobody")])
def test_a_brain_that_is_down_is_down(trouble: Exception) -> None:
    brain = Brain()
    with brain.client() as client:
        client.findings()
        brain.say = trouble
        with pytest.raises(Unavailable) as caught:
            client.findings()
    assert not isinstance(caught.value, Busy)


def test_no_token_gets_what_another_one_asked_for_and_no_refusal_is_hidden() -> None:
    brain = Brain()
    with brain.client("alice") as client:
        client.findings()
    brain.say = 503
    with brain.client("mallory") as client, pytest.raises(Busy):
        client.findings()
    brain.say = 409
    with brain.client("alice") as client, pytest.raises(Conflict):
        client.findings()


def test_what_is_kept_is_bounded() -> None:
    answers = KeptAnswers(most_bytes=100)
    keys = [("http://brain", "", f"/{n}", "") for n in range(4)]
    for key in keys:
        answers.put(key, httpx2.Response(200, request=httpx2.Request("GET", "http://x"), content=b"x" * 40), 0.0)
    assert [answers.find(key, 0.0) is not None for key in keys] == [False, False, True, True]
    answers.put(keys[3], httpx2.Response(200, request=httpx2.Request("GET", "http://x"), content=b"x" * 101), 0.0)
    assert answers.find(keys[3], 0.0) is None
    assert answers.find(keys[2], 0.0) is not None


def test_an_answer_is_kept_without_the_connection_that_it_came_by() -> None:
    answers = KeptAnswers()
    asked = httpx2.Request("GET", "http://x/v1/gpus")
    packed = httpx2.Response(200, headers={"content-encoding": "gzip"}, content=gzip.compress(b"{}"), request=asked)
    answers.put(("b", "t", "p", ""), packed, 0.0)
    found = answers.find(("b", "t", "p", ""), 1.0)
    assert found is not None
    assert (found[0].json(), found[0].stream is packed.stream) == ({}, False)


def test_what_nobody_asks_for_again_goes() -> None:
    answers = KeptAnswers()
    for number in range(3000):
        made = httpx2.Response(200, content=b"{}", request=httpx2.Request("GET", "http://x"))
        answers.put(("b", "t", "p", str(number)), made, 0.001 * number)
    assert len(answers._known) <= 1000
    late = httpx2.Response(200, content=b"{}", request=httpx2.Request("GET", "http://x"))
    answers.put(("b", "t", "p", "late"), late, KEEP_SECONDS + 10.0)
    assert list(answers._known) == [("b", "t", "p", "late")]
