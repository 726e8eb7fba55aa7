"""What a look at the controls costs does not grow with all that was ever decided."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from tocsin.actions.model.decision_json import dump_decision, dump_outcome
from tocsin.actions.model.decision_log import KEEP_FINAL, Ledger
from tocsin.domain.clock import MINUTE, ManualClock
from tocsin.domain.decision import Decision, Mode, Outcome, OutcomeStatus
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.journal.port import Draft
from tocsin_testing.action_world import fleet, subject_of
from tocsin_testing.builders import T0
from tocsin_testing.journal_double import JournalDouble

(GPU, *_) = fleet().values()


def life(number: int) -> list[Draft]:
    """A decision that was approved, ran and is to be made anew, and a person who gave it back."""
    key = f"hot|{GPU.uuid}|{number}"
    decision = Decision(
        rule="hot", subject=subject_of(GPU), action=ActionKind.CORDON, mode=Mode.ACT, severity=Severity.CRITICAL,
        category=Category.THERMAL, at_ms=T0, expires_ms=T0 + MINUTE, key=key, sentence="It is too hot.",
        findings=(f"f{number}",), incident=f"i{number}",
    )  # fmt: skip
    decision = replace(decision, parameters=replace(decision.parameters, cause=key))
    outcome = Outcome(key, OutcomeStatus.UNVERIFIED, "fake", T0, "cordoned")
    about = {"decision": decision.id, "key": key}
    started = {**about, "subject": f"gpu:{GPU.uuid}", "action": "cordon", "executor": "fake"}
    ended = {**about, "outcome": dump_outcome(outcome), "in_effect": False, "renew": True}
    held = {"subject": f"gpu:{GPU.uuid}", "until_ms": T0 + MINUTE, "cancelled": [f"f{number}"]}
    return [
        (EntryKind.DECISION, dump_decision(decision), False),
        (EntryKind.APPROVAL, about, False),
        (EntryKind.EXECUTION_STARTED, started, False),
        (EntryKind.OUTCOME, ended, False),
        (EntryKind.HOLD_OFF, held, False),
    ]


def bytes_of_a_look(ledger: Ledger, journal: JournalDouble) -> int:
    """What the first look after an entry takes of memory; the second one is the same object."""
    ledger.apply(journal.append(EntryKind.PAUSE, {"reason": "work on the racks"}))
    tracemalloc.start()
    try:
        found = ledger.controls()
        assert ledger.controls() is found
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_look_at_the_controls_copies_no_key_of_what_has_ended() -> None:
    journal, ledger, looks = JournalDouble(ManualClock(T0)), Ledger(), list[int]()
    for first in (0, KEEP_FINAL, 2 * KEEP_FINAL):
        for number in range(first, first + KEEP_FINAL):
            for entry in journal.append_many(life(number)):
                ledger.apply(entry)
        assert len(ledger.controls().started) == len(ledger.controls().cancelled) == first + KEEP_FINAL
        assert len(ledger.controls().finished) == len(ledger.controls().renewals) == first + KEEP_FINAL
        looks.append(bytes_of_a_look(ledger, journal))
    assert max(looks) < 1.1 * min(looks), looks
