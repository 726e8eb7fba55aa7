"""`tocsin cards` and `tocsin card` over the real server and the fake fleet."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tocsin.cli.cards import _list_lines, card_lines, summary_lines
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.models import GpuState
from tocsin.client.models_cards import Card, CardEvidence, CardState, CardTouches
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import to_iso
from tocsin.domain.finding import Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving


def said(*words: str) -> str:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False).output


def test_cards_say_what_is_wrong_and_how_to_say_yes() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        found, told = client.cards(), said("cards", "--api-url", url)
        document = json.loads(said("cards", "--json", "--api-url", url))
        none = said("cards", "--state", "resolved", "--api-url", url)
    assert f"{found.total} cards; {found.waiting} decisions wait for you\n" in told
    assert told.count("tocsin approve") == found.waiting
    several = _list_lines(found.model_copy(update={"waiting": found.waiting + 3}))[0]
    assert several.endswith("; 5 decisions wait for you, 3 of them not named here (tocsin status)")
    for card in found.items:
        assert f"  {card.level} {card.id}  {card.headline}" in told
        yes = f", tocsin approve {card.action.decision}" if card.action else card.obstacle
        assert yes in told
    assert [one["id"] for one in document["items"]] == [card.id for card in found.items]
    assert document["brain"] == url
    assert none.splitlines()[-1] == "no cards"


def test_one_yes_for_all_that_wait_alike_is_named() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        card = next(one for one in client.cards().items if one.action is not None)
    assert card.action is not None
    several = card.model_copy(update={"action": card.action.model_copy(update={"alike": 7})})
    yes = f"for all 8: tocsin approve {card.action.decision} --alike"
    assert summary_lines([several], 1)[1].endswith(yes)
    assert any(line.endswith(yes) for line in card_lines(several))


def test_a_card_is_told_with_its_evidence() -> None:
    with serving(FakeService()) as url, Client(url) as client:
        card = client.cards().items[0]
        told = said("card", card.id, "--api-url", url)
        document = json.loads(said("card", card.id, "--json", "--api-url", url))
        missing = CliRunner().invoke(cli, ["card", "nothing", "--api-url", url])
    assert card.headline in told
    assert f"- {card.evidence[0].name}: {card.evidence[0].text}" in told
    assert document["id"] == card.id
    assert missing.exit_code != 0


def test_a_resolved_card_says_what_proved_it() -> None:
    over = Card(
        id="c1", headline="n1 GPU 3: too hot", state=CardState.RESOLVED, health=GpuState.OK, level=AlertLevel.PAGE,
        since=to_iso(T0), resolved=to_iso(T0), proof="Reset gpu worked: no new errors (goal: none)",
        subject=Subject(SubjectKind.GPU, "GPU-1", "n1"), touches=CardTouches(gpus=1, hosts=1, gpu_names=["n1 GPU 3"]),
        evidence=[CardEvidence(kind="decision", text="done: Reset n1 GPU 3.", name="reset_gpu")], simulated=True,
    )  # fmt: skip
    assert summary_lines([over], 3)[1:] == [f"    resolved. {over.proof}", "  and 2 more (tocsin cards)"]
    lines = card_lines(over)
    assert lines[0] == "n1 GPU 3: too hot (simulated)"
    assert f"  proof:         {over.proof}" in lines
    assert "  state:         resolved at 2026-11-18 11:06 UTC" in lines
    again = over.model_copy(update={"state": CardState.REOPENED, "reopened_from": to_iso(T0), "resolved": None})
    assert "  state:         reopened, came again after its end at 2026-11-18 11:06 UTC" in card_lines(again)
