"""The pages on the future, on fragmentation and on cost, in both languages, over the real API of the fake fleet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.dashboard.text import LANGUAGES, Text
from tocsin.domain.clock import to_iso
from tocsin.domain.usage import Prices
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.servers import free_port

APP = Path(tocsin.dashboard.__file__).with_name("app.py")
PAGES = ("forecast", "fragmentation", "cost")
HEADINGS = {
    "forecast": ("ahead.risk", "ahead.filling", "ahead.growing", "ahead.capacity"),
    "fragmentation": ("frag.mig", "frag.hosts", "frag.holes", "frag.plan"),
    "cost": ("cost.by_hour", "cost.table", "cost.lost"),
}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def url(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(service) as base:
        monkeypatch.setenv(URL_VARIABLE, base)
        yield base


def opened(page: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=60)
    app.query_params.update(query)
    app.run()
    app.switch_page(f"page_{page}.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def said(app: AppTest) -> str:
    """All that the page says, as one text."""
    words = []
    for kind in ("html", "markdown", "caption", "error", "info"):
        words += [str(getattr(getattr(element, "proto", None), "body", "")) for element in app.get(kind)]
    return "\n".join(words)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", PAGES)
def test_the_page_opens_with_all_its_parts(url: str, page: str, language: str) -> None:
    text = Text(language)
    shown = said(opened(page, lang=language))
    assert [key for key in HEADINGS[page] if text(key) not in shown] == []
    assert f">{text('simulated')}</span>" in shown


@pytest.mark.parametrize("page", PAGES)
def test_a_large_fleet_does_not_make_the_page_longer(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for hosts in (8, 125):
        with serving(FakeService(hosts=hosts)) as base:
            monkeypatch.setenv(URL_VARIABLE, base)
            shown = said(opened(page))
        sizes.append(shown.count("<tr>") + shown.count("tc-slices"))
    # A large fleet may have more of what is rare, up to the bound of each list, and no more than that.
    assert sizes[1] <= sizes[0] + 20


@pytest.mark.parametrize("page", PAGES)
def test_without_an_api_there_is_one_message_for_each_part(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{free_port()}")
    app = opened(page)
    assert app.error
    assert {"The brain's API does not answer" in error.value for error in app.error} == {True}


# ---------------------------------------------------------------------- forecast


def test_risks_come_worst_first_with_their_horizons_and_what_came_of_such(url: str) -> None:
    shown = said(opened("forecast"))
    assert [f"within {hours} h" in shown for hours in (1, 6, 24, 48)] == [True] * 4
    assert shown.index("gpu-node-05 · GPU 1") < shown.index("gpu-node-03 · GPU 5")
    assert "20 % <span" in shown
    assert (
        "the model states that of 100 GPUs with 31 % about 31 have a hardware fault within 48 h. Model hazard prior-1"
        in shown
    )
    assert "and 55 more" in shown
    assert "2 h of history, 6 h needed" in shown


def test_hosts_can_be_shown_and_the_choice_is_in_the_url(url: str) -> None:
    app = opened("forecast")
    app.segmented_control(key="by").set_value("host").run()
    assert app.query_params["by"] == "host"
    shown = said(app)
    assert "gpu-node-05 <span" in shown
    assert "at least one of its GPUs" in shown
    assert "GPU 1</a>" in said(opened("forecast", by="host"))


def test_memory_that_runs_full_has_its_job_its_instant_and_its_interval(url: str) -> None:
    shown = said(opened("forecast"))
    assert "gpu-node-02 · GPU 6" in shown
    assert "74 % · in 5.0 h, between 3.0 h and 8.6 h" in shown
    assert "reaches 98.0 % · Slurm job 4711" in shown
    assert "has begun" in shown


def test_a_pool_has_its_peak_and_one_without_enough_past_says_so(url: str) -> None:
    app = opened("forecast")
    shown = said(app)
    assert "training: 39 GPUs in service" in shown
    assert "peak 36.8 of 39" in shown
    assert "not enough data: 71 hours of history, 72 needed" in shown
    assert len(app.get("plotly_chart")) == 3


def test_a_forecast_that_is_not_ready_says_so_and_the_rest_stands(url: str, service: FakeService) -> None:
    service.working = True
    app = opened("forecast")
    shown = said(app)
    assert "Computing; this page refreshes by itself." in shown
    assert "gpu-node-05 · GPU 1" in shown
    assert not app.error


def test_an_empty_fleet_has_no_risk_and_says_what_one_needs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "HOSTS", 0)
    app = opened("forecast")
    assert "tocsin models list" in app.info[0].value
    for page in ("fragmentation", "cost"):
        opened(page)


# ---------------------------------------------------------------------- fragmentation


def test_the_mig_map_tells_known_guessed_and_unknown_layouts_apart(url: str) -> None:
    shown = said(opened("fragmentation"))
    assert "rules out" in shown
    assert "where its instances begin is not known" in shown
    assert shown.count('class="tc-slices" style="grid-template-columns:repeat(8') == 5
    assert 'class="blocked"' in shown


def test_free_fragmented_and_stranded_gpus_are_told_with_their_measure(url: str) -> None:
    shown = said(opened("fragmentation"))
    assert "Measured by the jobs of the settings: 50 % 1 GPU, 50 % 8 GPUs." in shown
    assert "gpu-node-04 <span" in shown
    assert "3 / 8" in shown


@pytest.mark.parametrize("planner", ["defragment", "mig", "place", "scale", "power"])
def test_each_planner_shows_its_plan(url: str, planner: str) -> None:
    app = opened("fragmentation", planner=planner)
    assert app.segmented_control(key="planner").value == planner
    shown = said(app)
    assert "simulated only, not executed" in shown
    assert "Before" in shown


def test_moves_have_gain_and_cost_and_hosts_a_before_and_after(url: str) -> None:
    shown = said(opened("fragmentation"))
    assert "Gain, GPU-h" in shown
    assert "of usable capacity" in shown
    assert "fragmented GPUs (F)" in shown
    assert " → " in shown
    assert 'href="decisions?lang=en&amp;show=all&amp;action=defragment"' in shown


def test_a_plan_without_steps_is_shown(url: str, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    made = service.plan("defragment")
    nothing = {"steps": [], "steps_total": 0, "refused": [], "hosts": [], "mig": [], "sentence": "Leave it as it is."}
    still = made.model_copy(update={"plans": [one.model_copy(update=nothing) for one in made.plans]})
    monkeypatch.setattr(service, "plan", lambda planner: still)
    assert "Leave it as it is." in said(opened("fragmentation"))


def test_a_plan_that_is_not_ready_says_so(url: str, service: FakeService) -> None:
    service.working = True
    assert "the plan of defragment is being worked out" in said(opened("fragmentation"))


# ---------------------------------------------------------------------- cost


def test_idle_stranded_and_energy_have_their_price(url: str) -> None:
    shown = said(opened("cost"))
    # 23 hours of 2 GPU-h held idle at 2.4; the stranded GPUs are of a model without a price.
    assert "110 EUR" in shown
    assert "have no price and are in no sum" in shown
    assert "kWh x PUE 1.3 x 0.21 EUR" in shown


def test_without_prices_hours_are_shown_and_how_to_set_prices(url: str, service: FakeService) -> None:
    service.prices = Prices()
    shown = said(opened("cost"))
    assert "No price is set" in shown
    assert "[prices]" in shown
    assert "46 GPU-h" in shown
    assert "EUR" not in shown.replace("currency = &quot;EUR&quot;", "")


def test_hours_without_readings_are_counted_and_never_idle(url: str) -> None:
    shown = said(opened("cost"))
    assert "1 of 24 hours have no reading at all." in shown
    assert "46 GPU-h" in shown  # 1 missing and 1 lost in each of 23 hours


@pytest.mark.parametrize(("period", "hours"), [("24h", 24), ("7d", 168), ("30d", 720)])
def test_a_period_is_kept_in_the_url_and_asked_for(url: str, period: str, hours: int) -> None:
    app = opened("cost", period=period)
    assert app.segmented_control(key="period").value == period
    assert f"1 of {hours} hours have no reading" in said(app)
    assert len(app.get("plotly_chart")) == 2


def test_the_hours_can_be_downloaded(url: str) -> None:
    from tocsin.client.client import Client
    from tocsin.dashboard.page_cost import csv_of

    app = opened("cost")
    assert len(app.get("download_button")) == 1
    with Client(url) as client:
        hours = client.cost().hours
    rows = list(csv.DictReader(io.StringIO(csv_of(hours))))
    assert len(rows) == len(hours) == 23
    assert rows[0]["at"] == to_iso(hours[0].at_ms)
    assert float(rows[0]["held_idle"]) == 2.0
    assert float(rows[0]["gpu_hours"]) == pytest.approx(hours[0].gpu_hours)


def test_faults_say_what_they_hit_and_what_was_done_before(url: str) -> None:
    shown = said(opened("cost"))
    assert "3 faults: 2 on a busy GPU, 1 on an idle one" in shown
    assert "4.50 GPU-h in all (an assumption, not a measurement)" in shown
    assert "1 of 3 faults were preceded by a successful action" in shown
    assert "4.5 h before the fault: Drain gpu-node-06" in shown
    assert "the GPU was already idle" in shown


def test_what_the_brain_says_cannot_become_markup(
    url: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.prices = Prices("<img src=x>", {"H100": 2.0}, None, 0.2, 1.0)
    monkeypatch.setattr(fleet, "pool", lambda host: "<img src=y>")
    for page in PAGES:
        assert "<img" not in said(opened(page))
