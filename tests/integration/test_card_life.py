"""The life of a card in the simulated fleet: a yes, the action, its proof, the end, and a start of the brain anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.client.errors import NotFound
from tocsin.client.models_cards import Card, CardState
from tocsin.client.models_silences import AcknowledgeRequest, MaintenanceRequest, SnoozeRequest
from tocsin.config.settings import Settings
from tocsin.domain.decision import OutcomeStatus, Ruling
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import ActionKind
from tocsin.domain.silence import MatcherKind, SilenceKind
from tocsin.queries.card_life import CardLife
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.brain.recorder import Recorder
from tocsin.runtime.demo import Demo, demo_settings, only_faults
from tocsin_testing.builders import T0

STEPS = 60


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": 16},
            "forecast": {"worker": False, "models": tmp_path / "models"},
            "actions": {"confirmations": 1, "boot_grace_seconds": 0, "settle_seconds": 60},
        }
    )
    made = Demo(demo_settings(only_faults(wanted, 1), tmp_path), T0)
    made._script = []
    return made


def about(demo: Demo, gpu: str, state: CardState | None = None) -> Card | None:
    return next((card for card in demo.service.cards(100, state).items if card.subject.name == gpu), None)


def test_a_proven_reset_resolves_the_card_and_a_restart_keeps_it(demo: Demo) -> None:
    demo.step()
    gpu = demo.service.inject("row_remap", "4", "ann").gpu
    seen: list[CardState] = []
    approved = ""
    for _ in range(STEPS):
        demo.step()
        card = about(demo, gpu)
        if card is None:
            if approved:
                break
            continue
        seen += [card.state] if card.state not in seen[-1:] else []
        action = card.action
        if action is not None and action.kind is ActionKind.RESET_GPU and action.can_approve:
            demo.service.approve(action.decision, "ann")
            approved = action.decision
    assert seen[0] is CardState.OPEN
    assert CardState.VERIFYING in seen
    outcome = demo.service.decision(approved).outcome
    assert outcome is not None
    assert (outcome.status, outcome.measured) == (OutcomeStatus.SUCCEEDED, 0.0)
    over = about(demo, gpu, CardState.RESOLVED)
    assert over is not None
    assert over.proof == "Reset gpu worked: no new errors (goal: none)"
    assert demo.service.card(over.id) == over
    assert list(demo.brain.actions.controls().repaired) == [f"gpu:{gpu}"]
    life, settings = demo.brain.card_life, demo.settings
    demo.running.stop()

    again = open_brain(settings, demo.clock, propose=True, fleet=demo.fleet, pools=demo.fleet.pools)
    assert dict(again.brain.card_life.ended) == dict(life.ended)
    again.brain.tick()
    assert [finding.rule for finding in again.brain.active if finding.subject.name == gpu] == []
    kept = BrainService(again.brain).card(over.id)
    assert (kept.state, kept.proof) == (CardState.RESOLVED, over.proof)
    again.stop()


def test_the_life_is_the_same_by_entries_and_by_checkpoint(demo: Demo) -> None:
    demo.service.inject("power_brake", "8", "ann")
    for _ in range(45):
        demo.step()
    assert demo.service.cards(10, CardState.RESOLVED).total == 1
    journal, recorder = demo.brain.journal, demo.brain.recorder
    assert (
        recorder.cards.state() == Recorder(journal).cards.state() == CardLife.restored(recorder.cards.state()).state()
    )
    closed = [entry.payload for entry in journal.entries(kinds={EntryKind.INCIDENT_CLOSED})]
    assert closed
    demo.running.stop()


def test_what_people_silence_in_a_running_brain(demo: Demo) -> None:
    demo.step()
    gpu = demo.service.inject("row_remap", "4", "ann").gpu
    silences, place = demo.service.silences, next(one for one in demo.brain.gpus if one.uuid == gpu)
    while (card := about(demo, gpu)) is None:
        demo.step()
    taken = silences.acknowledge(card.id, AcknowledgeRequest(for_seconds=600.0), "ann", personal=True)
    assert (demo.service.card(card.id).state, taken.breaker_until) == (CardState.ACKNOWLEDGED, taken.until)
    silences.end_acknowledgement(card.id, "ann")
    assert demo.service.card(card.id).state is CardState.OPEN
    with pytest.raises(Conflict):
        silences.end_acknowledgement(card.id, "ann")
    with pytest.raises(NotFound, match="no GPU has rack nowhere"):
        silences.snooze(SnoozeRequest(kind=MatcherKind.RACK, name="nowhere", for_seconds=600.0), "ann")
    for kind, name in ((MatcherKind.CARD, card.id), (MatcherKind.HOST, place.host), (MatcherKind.RACK, place.rack)):
        made = silences.snooze(SnoozeRequest(kind=kind, name=name, for_seconds=600.0), "ann")
        assert silences.pools(kind, name) == silences.pools_of(SilenceKind.SNOOZE, made.id) == [place.pool]
        found = demo.service.cards(100)
        assert about(demo, gpu) is None
        # What else goes on at this host and rack is hidden with it.
        hidden = demo.service.cards(100, hidden=True).items
        assert [one.id for one in hidden if kind is MatcherKind.CARD or one.subject.name == gpu] == [card.id]
        assert {one.subject.host for one in hidden} == {place.host} or kind is MatcherKind.RACK
        assert (found.hidden, found.snoozes, found.maintenances) == (len(hidden), 1, 0)
        assert [one.id for one in silences.listed(SilenceKind.SNOOZE)] == [made.id]
        silences.end(SilenceKind.SNOOZE, made.id, "bob")
        assert about(demo, gpu) is not None
    request = MaintenanceRequest(kind=MatcherKind.HOST, name=place.host, for_seconds=7200.0)
    planned = silences.plan(request, "ann")
    demo.step()
    assert demo.service.cards(100).maintenances == 1
    held = {v.guard for one in demo.brain.statuses() for v in one.verdicts if v.ruling is Ruling.HOLD}
    assert "planned_maintenance" in held
    demo.running.stop()
    again = open_brain(demo.settings, demo.clock, propose=True, fleet=demo.fleet, pools=demo.fleet.pools)
    assert [one.id for one in BrainService(again.brain).silences.listed(SilenceKind.MAINTENANCE)] == [planned.id]
    again.stop()


def test_a_card_is_found_by_its_id_until_what_was_done_is_proven_and_all_of_it_is_over(demo: Demo) -> None:
    """What a lost GPU leaves behind, such as a narrow PCIe link, outlives its reboot: it is the same card."""
    demo.step()
    gpu = demo.service.inject("fallen_off_bus", "9", "ann").gpu
    known, seen = "", []
    for _ in range(3 * STEPS):
        demo.step()
        card = about(demo, gpu) if not known else demo.service.card(known)
        action = None if card is None else card.action
        if card is not None and action is not None and action.kind is ActionKind.REBOOT_NODE and action.can_approve:
            demo.brain.actions.operator.approve(action.decision, "ann")
            known = card.id
        if known and card is not None:
            seen += [card.state] if card.state not in seen[-1:] else []
            assert len([one for one in demo.service.cards(100).items if one.subject.name == gpu]) <= 1
        if seen[-1:] == [CardState.RESOLVED]:
            break
    demo.running.stop()
    assert [one for one in seen if one is not CardState.ACTING] == [
        CardState.OPEN, CardState.VERIFYING, CardState.OPEN, CardState.RESOLVED
    ]  # fmt: skip
