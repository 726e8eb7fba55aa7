"""The page on versions in both languages, over the real API of the fake fleet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.dashboard import page_versions
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.text import LANGUAGES, Text
from tocsin.domain.versions import Standing
from tocsin_testing import fake_drift
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving

APP = Path(tocsin.dashboard.__file__).with_name("app.py")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(FakeService()) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        yield base


def opened(**query: str) -> str:
    """All that the page says, as one text."""
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    app.switch_page("page_versions.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    told = [str(getattr(getattr(one, "proto", None), "body", "")) for one in app.get("html")]
    return "\n".join([*told, *(one.value for one in app.info)])


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_says_what_differs_where_and_why_something_is_not_known(url: str, language: str) -> None:
    text, shown = Text(language), opened(lang=language)
    keys = ("versions.drifting", "versions.rolling", "versions.standing.drift", "versions.standing.rollout")
    keys += ("versions.standing.few", "versions.untold", "versions.reason.2", "versions.component")
    assert [key for key in keys if text(key) not in shown] == []
    assert "550.163.01</b>" in shown
    assert "train-11" in shown
    assert "serve-00, serve-01, serve-02" in shown
    assert text("versions.because", what="驱动" if language == "zh" else "driver") in shown


def test_only_what_differs_or_is_on_its_way(url: str) -> None:
    shown = opened(show="odd")
    assert "VBIOS" in shown
    assert "container toolkit" not in shown
    assert Text("en")("versions.none_odd") in opened(show="odd", pool="lab")


def test_groups_are_those_of_the_pool() -> None:
    found = fake_drift.drift(T0, "", [])
    assert [group.pool for group in page_versions.shown(found, page_versions.ALL, False)] == [
        "training",
        "inference",
        "lab",
    ]
    assert [group.pool for group in page_versions.shown(found, "lab", False)] == ["lab"]
    odd = page_versions.shown(found, page_versions.ALL, True)
    standings = {one.standing for group in odd for one in group.components}
    assert standings == {Standing.DRIFT, Standing.ROLLOUT}
    assert set(page_versions.SIGNS) == set(Standing)


def test_a_page_without_versions_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = fake_drift.drift(T0, "nowhere", [])
    monkeypatch.setattr(FakeService, "drift", lambda *_: empty)
    assert Text("en")("versions.none") in opened()
