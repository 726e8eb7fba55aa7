"""`tocsin ack`, `snooze`, `snoozes` and `maintenance` over the real server and the fake fleet."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tocsin.cli.cards import hidden_line
from tocsin.cli.main import cli
from tocsin.client.models_cards import Cards
from tocsin.domain.errors import InputError
from tocsin_testing.fake_service import FakeService, serving


def test_a_card_is_taken_given_back_and_hidden() -> None:
    service = FakeService()
    with serving(service) as url:

        def said(*words: str) -> str:
            return CliRunner().invoke(cli, [*words, "--api-url", url], catch_exceptions=False).output

        card = service.cards(1).items[0]
        assert f"ok: {card.id} acknowledged by loopback until " in said("ack", card.id, "--for", "2h")
        assert f"    acknowledged by loopback until {service.silences.stand[0].until[:10]}" in said("cards")
        assert f"{card.id} is open again" in said("ack", card.id, "--end")
        made = json.loads(said("snooze", "--host", card.subject.host, "--for", "1d", "--reason", "bad fan", "--json"))
        assert (made["kind"], made["name"], made["reason"]) == ("host", card.subject.host, "bad fan")
        assert f"{made['id']}  host {card.subject.host}, " in said("snoozes")
        hidden = json.loads(said("cards", "--hidden", "--json"))
        assert card.id in [one["id"] for one in hidden["items"]]
        assert hidden_line(service.cards(1))[0] in said("status")
        assert f"hidden:        snooze of host {card.subject.host} by loopback" in said("card", card.id)
        assert "ended" in said("snooze", "--end", made["id"])
        assert said("snoozes").splitlines()[-1] == "no snoozes"
        start = "2027-01-01T00:00:00.000Z"
        planned = json.loads(
            said(
                "maintenance",
                "plan",
                "--host",
                card.subject.host,
                "--start",
                "2027-01-01T00:00:00Z",
                "--for",
                "4h",
                "--json",
            )
        )
        assert planned["start"] == start
        assert "2027-01-01 00:00 UTC to 2027-01-01 04:00 UTC" in said("maintenance", "list")
        assert "ended" in said("maintenance", "end", planned["id"])
        for words in (["snooze", "--for", "1h"], ["snooze", "--host", "a", "--pool", "b", "--for", "1h"]):
            result = CliRunner().invoke(cli, [*words, "--api-url", url])
            assert isinstance(result.exception, InputError)


def test_the_count_of_hidden_cards_is_a_sentence() -> None:
    assert hidden_line(Cards()) == []
    assert hidden_line(Cards(hidden=3, snoozes=1)) == ["3 cards are hidden by 1 snooze (tocsin cards --hidden)"]
    both = hidden_line(Cards(hidden=1, snoozes=2, maintenances=1))
    assert both == ["1 card is hidden by 2 snoozes and 1 planned maintenance (tocsin cards --hidden)"]
