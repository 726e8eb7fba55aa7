"""`tocsin status` over the real server and the fake fleet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.cli.status import own_metrics
from tocsin.cli.status_lines import Seen, all_lines, first_lines, health_lines, needs_a_look, waiting_lines
from tocsin.client.client import Client
from tocsin.client.control import Readiness
from tocsin.client.models import FleetSummary
from tocsin.client.models_cards import CardState
from tocsin_testing.fake_fleet import PREDICTIONS
from tocsin_testing.fake_service import FakeService, serving


def test_it_says_how_things_are_what_is_worst_and_what_waits() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        told = CliRunner().invoke(cli, ["status", "--all", "--api-url", url], catch_exceptions=False).output
        summary, cards = client.summary(), client.cards().items
        waiting = [decision for decision in client.decisions() if decision.approvable]
    assert f"{summary.gpus} GPUs on {summary.hosts} hosts (simulated): " in told
    assert f"mode {summary.mode}" in told
    assert f"  page {cards[0].id}  {cards[0].headline}\n    open. {cards[0].next}: drain, tocsin approve " in told
    asked = [card.action.decision for card in cards if card.action is not None and card.action.can_approve]
    rest = [decision for decision in waiting if decision.id not in asked]
    assert asked
    assert all(told.count(name) == 1 for name in asked), "what a card asks is said once"
    assert bool(rest) == ("waiting for a person" in told)
    assert "{" not in told


def test_what_is_predicted_has_its_lead_and_the_service_its_state() -> None:
    with serving(FakeService()) as url:
        told = CliRunner().invoke(cli, ["status", "--all", "--api-url", url], catch_exceptions=False).output
    assert "  in 2.5 h (90 min to 4.4 h), 91 %: Reaches 93 C" in told
    assert "breaker tripped (3 root causes within 1 h); tocsin breaker reset" in told
    assert "brain: ready" in told


def test_a_threshold_that_is_reached_already_is_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = replace(PREDICTIONS[0], eta_ms=FakeService().now_ms(), sentence="has reached 93 °C")
    monkeypatch.setattr(FakeService, "predictions", lambda _self: [reached, *PREDICTIONS[1:]])
    with serving(FakeService()) as url:
        told = CliRunner().invoke(cli, ["status", "--all", "--api-url", url], catch_exceptions=False).output
        ahead = json.loads(CliRunner().invoke(cli, ["status", "--json", "--api-url", url]).output)["ahead"]
    assert "has reached" not in told
    assert PREDICTIONS[1].sentence in told
    assert [one["sentence"] for one in ahead] == [p.sentence for p in PREDICTIONS[1:] if p.eta_ms]


def test_what_is_muted_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    muted = replace(PREDICTIONS[0], sentence="will reach 95 °C", muted=True)
    monkeypatch.setattr(FakeService, "predictions", lambda _self: [muted, *PREDICTIONS[1:]])
    with serving(FakeService()) as url:
        told = CliRunner().invoke(cli, ["status", "--all", "--api-url", url], catch_exceptions=False).output
    assert "will reach" not in told
    assert PREDICTIONS[1].sentence in told


def test_json_is_the_whole_summary_and_what_it_counts() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        told = json.loads(CliRunner().invoke(cli, ["status", "--json", "--api-url", url]).output)
        summary = client.summary().model_dump(mode="json")
    assert told.keys() == summary.keys() | {
        "brain", "ready", "service", "attention", "cards", "hidden", "ahead", "waiting",
    }  # fmt: skip
    assert len(told["waiting"]) == told["decisions_approvable"]
    assert all(one["eta"] for one in told["ahead"])
    assert told["ready"] == {"ready": True, "reasons": []}


def test_check_is_for_scripts() -> None:
    service = FakeService()
    with serving(service) as url:
        assert CliRunner().invoke(cli, ["status", "--api-url", url], standalone_mode=False).return_value == 0
        assert CliRunner().invoke(cli, ["status", "--check", "--api-url", url], standalone_mode=False).return_value == 1


@pytest.mark.parametrize(
    ("page", "said", "bad"),
    [
        ('tocsin_store_writes_total{store="sqlite"} 7\n', "store: 7 writes, 0 failed", False),
        ('tocsin_store_write_failures_total{store="a",reason="unavailable"} 2\n', "store: 0 writes, 2 failed", True),
        ("tocsin_store_damaged_segments 1\n", "1 files damaged and set aside", True),
        ("tocsin_store_damaged_rows 2\n", "2 rows damaged and set aside", True),
        ("tocsin_forecast_worker_deaths 3\n", "worker died 3 times", True),
        ("tocsin_model_silent_gpus 5\n", "no forecast for 5 GPUs", False),
        ("tocsin_brain_active 0\n", "another brain holds the lease", False),
        ('tocsin_loop_failures_total{loop="a"} 1\n', "1 unexpected errors", True),
    ],
)
def test_the_health_of_the_service(page: str, said: str, bad: bool) -> None:
    service = own_metrics(page)
    assert said in "\n".join(health_lines(Readiness(ready=True), service))
    assert needs_a_look(service) is bad


def test_a_brain_that_is_not_ready_says_why() -> None:
    assert health_lines(Readiness(ready=False, reasons=["it starts"]), {})[0] == "brain: not ready (it starts)"


def test_what_waits_without_a_card_is_listed_apart() -> None:
    (decision,) = [one for one in FakeService().decisions(100) if one.approvable][:1]
    assert waiting_lines([decision], {decision.id}, 1) == []
    title, line = waiting_lines([decision], set(), 1)
    assert title == "waiting for a person (1; tocsin approve ID, tocsin reject ID):"
    assert line.startswith(f"  {decision.id}  ")


def seen(ready: Readiness | None = None, service: dict[str, float] | None = None) -> Seen:
    fake = FakeService()
    cards, waiting = fake.cards(50), [one for one in fake.decisions(100) if one.approvable]
    ahead = [one for one in PREDICTIONS if one.eta_ms]
    ready, service = ready or Readiness(ready=True), service or {}
    return Seen(fake.summary(), ready, service, cards.items, cards.total, waiting, ahead)


def test_what_needs_a_person_comes_first_and_of_the_rest_only_how_much_it_is() -> None:
    one = seen()
    asking = [card for card in one.cards if card.action is not None and card.action.can_approve]
    told = first_lines(one)
    assert len(told) < len(all_lines(one)) / 2
    assert told[2] == "needs a person:"
    assert [line.split()[1] for line in told[3:7:2]] == [card.id for card in asking]
    rest = [card for card in one.cards if card not in asking]
    assert any(line.startswith("other cards: ") and f"{len(rest) - 1} warning, 1 note" in line for line in told), told
    assert f"{len(one.ahead)} predicted crossings, the first in 2.5 h" in told
    assert told[-2:] == ["brain, store and forecaster: nothing failed", "tocsin status --all shows all of it"]


def test_a_page_that_has_no_action_needs_a_person_until_somebody_has_it() -> None:
    one = seen()
    page = one.cards[0].model_copy(update={"action": None, "obstacle": "Drain cannot start now: paused."})
    told = first_lines(replace(one, cards=[page], waiting=[], summary=_none_waits(one)))
    assert told[2:5] == ["needs a person:", f"  page {page.id}  {page.headline}", f"    open. {page.obstacle}"]
    taken = page.model_copy(update={"state": CardState.ACKNOWLEDGED})
    told = first_lines(replace(one, cards=[taken], waiting=[], summary=_none_waits(one)))
    assert told[2] == "nothing needs a person"


def _none_waits(one: Seen) -> FleetSummary:
    return one.summary.model_copy(update={"decisions_approvable": 0})


@pytest.mark.parametrize(
    ("ready", "service"),
    [
        (Readiness(ready=False, reasons=["it starts"]), {}),
        (Readiness(ready=True), {"tocsin_brain_active": 0.0}),
        (Readiness(ready=True), {"tocsin_store_write_failures_total": 2.0}),
        (Readiness(ready=True), {"tocsin_promql_up": 0.0}),
    ],
)
def test_a_service_that_is_not_well_is_said_before_all_else(ready: Readiness, service: dict[str, float]) -> None:
    told = first_lines(seen(ready, service))
    assert told[2 : 2 + len(health_lines(ready, service))] == health_lines(ready, service)
    assert not any("nothing failed" in line for line in told)


def test_of_more_decisions_than_are_listed_all_are_counted() -> None:
    waiting = [one for one in FakeService().decisions(100) if one.approvable]
    assert waiting_lines(waiting, {waiting[0].id}, 40)[0].startswith("also waiting for a person (39; ")
    assert waiting_lines(waiting, {waiting[0].id}, 40)[-1] == "  and 31 more (see --json)"
