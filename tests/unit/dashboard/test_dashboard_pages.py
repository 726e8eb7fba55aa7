"""Every page, in both languages, over the real API of the fake fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.dashboard import heatmap
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.text import LANGUAGES, Text
from tocsin.domain.clock import HOUR, to_iso
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.servers import free_port

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
PAGES = ["overview", "gpu", "decisions", "scoreboard"]
SECRET = "a-viewer-secret-0123"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def url(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(service) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        yield base


def opened(page: str = "overview", **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    if page != "overview":
        app.switch_page(f"page_{page}.py")
        app.query_params.update(query)
        app.run()
    assert not app.exception
    return app


def said(app: AppTest) -> str:
    """All that the page says, as one text."""
    kinds = ["html", "markdown", "caption", "error", "info", "warning", "success", "page_link", "expander"]
    words = []
    for kind in kinds:
        for element in app.get(kind):
            proto = getattr(element, "proto", None)
            words += [str(getattr(proto, name, "")) for name in ("body", "label")]
    return "\n".join(words)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_and_says_that_the_fleet_is_simulated(url: str, page: str, language: str) -> None:
    text = Text(language)
    app = opened(page, lang=language)
    shown = said(app)
    assert f">{text('simulated')}</span>" in shown
    assert text("simulated.banner") in shown
    headings = {
        "overview": text("attention"),
        "gpu": text("gpu.findings"),
        "decisions": text("why.title"),
        "scoreboard": text("score.by_rule"),
    }
    assert headings[page] in shown
    assert not app.error


@pytest.mark.parametrize("page", PAGES)
def test_a_real_fleet_is_not_called_simulated(url: str, service: FakeService, page: str) -> None:
    service.simulated = False
    assert Text("en")("simulated.banner") not in said(opened(page))


def test_now_ranks_what_needs_attention(url: str) -> None:
    shown = said(opened())
    order = [
        shown.index(words) for words in ("gpu-node-06 GPU 2: xid fatal", "GPU 5: temperature high", "GPU 6: memory")
    ]
    assert order == sorted(order)
    assert "Waits for your approval until 05:00 UTC" in shown
    assert "waiting costs <b>36 GPU-hours</b>" in shown
    assert "XID 79: the GPU" in shown, "what a card rests on is behind its fold"
    assert "Decisions waiting for a person: 2" in shown


def test_a_card_has_one_button_where_a_yes_starts_something(url: str, service: FakeService) -> None:
    app = opened()
    asking = [card for card in service.cards(100).items if card.action is not None]
    yes = [button.key for button in app.button if str(button.key).startswith("approve-card-")]
    assert yes == [f"approve-card-{card.id}" for card in asking]
    assert len(asking) < len(service.cards(100).items)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_card_is_acknowledged_given_back_and_snoozed_from_the_list(
    url: str, service: FakeService, language: str
) -> None:
    text, card = Text(language), service.cards(1).items[0]
    app = opened(lang=language)
    app.button(key=f"acknowledge-{card.id}").click().run()
    (taken,) = service.silences.stand
    until = text("card.acknowledged", who="loopback", at=taken.until[11:16])
    assert f"<b>{until}</b>" in said(app)
    app.button(key=f"acknowledge-{card.id}").click().run()
    assert not service.silences.stand
    app.button(key=f"snooze-8-{card.id}").click().run()
    assert text("attention.hidden", n=1, snoozes=1, maintenances=0) in said(app)
    assert card.headline not in said(app).split(text("card.snoozed", headline=""))[0]
    assert not app.error


def test_a_viewer_is_told_why_a_card_cannot_be_acknowledged(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Token(name="vera", role=Role.VIEWER, secret=SecretStr(SECRET))
    with serving(service, ApiSettings(tokens=[token])) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        monkeypatch.setenv("TOCSIN_DASHBOARD__API_TOKEN", SECRET)
        app = opened()
        button = app.button(key=f"acknowledge-{service.cards(1).items[0].id}")
    assert (button.disabled, bool(button.help)) == (True, True)


def test_what_a_pool_lacks_needs_attention_too(url: str) -> None:
    shown = said(opened())
    assert "pool inference: pool underused" in shown
    assert "mean utilization 26.9 % over 15 min" in shown.lower()


@pytest.mark.parametrize("colour", heatmap.MEASURES)
def test_the_map_can_be_coloured_by_each_measure(url: str, colour: str) -> None:
    app = opened()
    app.segmented_control(key="colour").set_value(colour).run()
    assert not app.exception
    assert len(app.get("bidi_component")) == 1
    assert app.query_params.get("colour", "state") == colour


def test_filters_of_the_map_are_kept_in_the_url(url: str) -> None:
    app = opened(pool="inference", find="node-07")
    assert app.multiselect(key="pool").value == ["inference"]
    assert app.text_input(key="find").value == "node-07"
    app.text_input(key="find").set_value("nowhere").run()
    assert app.query_params["find"] == "nowhere"
    assert [each.value for each in app.info] == ["No GPU matches this filter."]


def test_the_gpu_of_the_url_is_shown(url: str) -> None:
    app = opened("gpu", gpu=fleet.uuid(*fleet.HOT))
    assert app.selectbox(key="chosen_gpu").value == fleet.uuid(*fleet.HOT)
    assert app.selectbox(key="chosen_host").value == "gpu-node-03"
    shown = said(app)
    assert "temperature-high" in shown
    assert "Reaches 93 C, the slowdown threshold" in shown
    assert "XID 13" in shown


def test_choosing_a_gpu_is_kept_in_the_url(url: str) -> None:
    app = opened("gpu")
    assert app.query_params["gpu"] == fleet.uuid(*fleet.LOST)
    app.selectbox(key="chosen_host").set_value("gpu-node-02").run()
    assert app.query_params["gpu"] == fleet.uuid(*fleet.LEAKING)
    assert "memory-high" in said(app)


def test_an_unknown_gpu_in_the_url_is_said_until_another_is_chosen(url: str) -> None:
    app = opened("gpu", gpu="GPU-none")
    told = ["No GPU GPU-none has been read; another one is shown."]
    assert [w.value for w in app.warning] == told
    app.run()
    assert [w.value for w in app.warning] == told
    app.selectbox(key="chosen_host").set_value("gpu-node-02").run()
    assert not app.warning


def test_a_gpu_of_the_url_cannot_become_markup(url: str) -> None:
    app = opened("gpu", gpu="![x](http://evil/)")
    assert r"!\[x\](http\://evil/)" in app.warning[0].value


def test_a_lost_gpu_says_why_it_has_no_values(url: str) -> None:
    shown = said(opened("gpu", gpu=fleet.uuid(*fleet.LOST)))
    assert "GPU does not respond" in shown
    assert "No prediction yet." in shown


def test_a_prediction_without_enough_data_says_so(url: str) -> None:
    shown = said(opened("gpu", gpu=fleet.uuid(7, 0)))
    assert "not enough data" in shown
    assert "14 min of history" in shown


def test_what_a_prediction_rests_on_and_what_was_diagnosed_is_shown(url: str) -> None:
    shown = said(opened("gpu", gpu=fleet.uuid(*fleet.HOT)))
    assert "situations like this one ended in a fault before: 6" in shown
    assert "Evidence of predictions" in shown
    assert "<b>temperature &gt;= 93 C</b>" in shown
    assert "limited by communication between the GPUs" in said(opened("gpu", gpu=fleet.uuid(0, 3)))
    assert "受限于" in said(opened("gpu", gpu=fleet.uuid(0, 3), lang="zh"))


def test_a_host_of_the_url_leads_to_its_worst_gpu(url: str) -> None:
    app = opened("gpu", host="gpu-node-03")
    assert app.query_params["gpu"] == fleet.uuid(*fleet.HOT)
    assert "host" not in app.query_params


@pytest.mark.parametrize("span", ["1h", "24h", "7d", "30d"])
def test_each_time_span_draws_and_is_kept_in_the_url(url: str, span: str) -> None:
    app = opened("gpu", gpu=fleet.uuid(*fleet.HOT))
    app.segmented_control(key="span").set_value(span).run()
    assert not app.exception
    assert len(app.get("plotly_chart")) == 1
    assert app.query_params["span"] == span


def test_one_can_go_back_in_time_and_return(url: str) -> None:
    app = opened("gpu", gpu=fleet.uuid(*fleet.HOT))
    app.button(key="earlier").click().run()
    assert app.query_params["until"] == to_iso(fleet.NOW_MS - 3 * HOUR)
    assert not app.exception
    app.button(key="now").click().run()
    assert "until" not in app.query_params


@pytest.mark.parametrize("peers", ["none", "node", "model", "job"])
def test_the_peers_can_be_chosen(url: str, peers: str) -> None:
    app = opened("gpu", gpu=fleet.uuid(*fleet.HOT), peers=peers)
    assert app.segmented_control(key="peers").value == peers
    assert ("middle 80 % of peers" in said(app)) == (peers != "none")


def test_a_refused_token_is_one_clear_message(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Token(name="v", role=Role.VIEWER, secret=SecretStr(SECRET))
    with serving(service, ApiSettings(tokens=[token])) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        app = opened()
    assert len(app.error) == 1
    assert "TOCSIN_DASHBOARD__API_TOKEN" in app.error[0].value


@pytest.mark.parametrize("page", PAGES)
def test_without_an_api_there_is_one_clear_message(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{free_port()}")
    app = opened(page)
    assert len(app.error) == 1
    assert "The brain's API does not answer" in app.error[0].value
    assert "tocsin brain" in app.error[0].value


def test_a_defect_of_the_api_is_one_clear_message(url: str, service: FakeService) -> None:
    service.broken = True
    app = opened()
    assert len(app.error) == 1
    assert "The API's answer is not usable" in app.error[0].value


def test_an_empty_fleet_says_what_to_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "HOSTS", 0)
    for page in ("overview", "gpu"):
        app = opened(page)
        assert "tocsin agent" in app.info[0].value


def test_the_language_is_kept_in_the_url(url: str) -> None:
    app = opened()
    assert app.query_params["lang"] == "en"
    app.segmented_control(key="lang").set_value("zh").run()
    assert app.query_params["lang"] == "zh"
    assert "需要立即关注" in said(app)


def test_what_the_fleet_says_cannot_become_markup(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = replace(fleet.FINDINGS[0], sentence="<img src=x onerror=alert(1)> a & b")
    monkeypatch.setattr(fleet, "FINDINGS", [evil, *fleet.FINDINGS[1:]])
    for page in ("overview", "gpu"):
        shown = said(opened(page))
        assert "&lt;img src=x onerror=alert(1)&gt; a &amp; b" in shown
        assert "<img" not in shown
