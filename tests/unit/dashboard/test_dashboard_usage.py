"""The page on usage in both languages, over the real API of the fake fleet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.accounting.table import SLURM_NAMESPACE
from tocsin.client.client import Client
from tocsin.client.models_usage import UsageBy, UsageRow
from tocsin.client.usage_csv import csv_of
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.page_usage import BY, name_of
from tocsin.dashboard.text import LANGUAGES, Text
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
    app.switch_page("page_usage.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return "\n".join(str(getattr(getattr(one, "proto", None), "body", "")) for one in app.get("html"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_says_who_used_what_and_what_less_would_have_done_for(url: str, language: str) -> None:
    text, shown = Text(language), opened(lang=language, by="job")
    keys = ("usage.used", "usage.not_seen", "usage.table", "usage.chart", "usage.right_size", "usage.by.job")
    assert [key for key in keys if text(key) not in shown] == []
    assert "Slurm job 41" in shown
    assert text("usage.nobody") in shown
    assert "MIG 1g.10gb" in shown
    assert "192 GPU" in shown
    assert "384 EUR" in shown


@pytest.mark.parametrize("by", BY)
def test_it_sums_by_everything(url: str, by: UsageBy) -> None:
    assert Text("en")(f"usage.by.{by}") in opened(by=by, days="30d")


def test_a_group_without_price_says_so_and_not_zero(url: str) -> None:
    shown = opened(by="model")
    row = shown.split("<td>NVIDIA L4", 1)[1].split("</tr>", 1)[0]
    assert Text("en")("usage.no_price") in row
    assert "0 EUR" not in row


def test_the_file_has_what_the_api_has(url: str) -> None:
    with Client(url) as client:
        found = client.usage("2026-11-16", "2026-11-18", ["namespace"])
    rows = list(csv.DictReader(io.StringIO(csv_of(found))))
    assert sum(float(row["gpu_hours"]) for row in rows) == pytest.approx(found.total.gpu_hours)


def test_names_of_groups() -> None:
    def named(group: dict[str, str], *, held: bool = True, rest: bool = False, language: str = "en") -> str:
        figures = dict.fromkeys(
            ("gpu_hours", "used", "idle", "untold", "free", "stranded", "not_seen", "kwh", "unmetered", "unpriced"), 0.0
        )
        row = UsageRow(group=group, held=held, rest=rest, **figures)
        return name_of(row, [*group] or ["model", "kind"], Text(language))

    assert named({"model": "H100", "kind": "on_demand"}) == "H100 · on demand"
    assert named({"model": "H100", "kind": ""}, held=False) == "H100 (nobody)"
    assert named({"model": "", "kind": ""}) == "(not known)"
    assert named({"namespace": SLURM_NAMESPACE}) == "no namespace (Slurm)"
    assert named({"namespace": SLURM_NAMESPACE}, language="zh") == "无命名空间（Slurm）"
    assert named({"namespace": ""}) == "(not known)"
    assert named({}, rest=True) == "(all others)"
