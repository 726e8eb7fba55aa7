"""The morning report and what-if questions over a running brain: one report a day, also after a restart."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.notifications.report import REPORT, key_of
from tocsin.client.models_what_if import WhatIfRequest
from tocsin.config.settings import Settings
from tocsin.domain.clock import DAY, HOUR, ManualClock, to_iso
from tocsin.domain.entry import EntryKind
from tocsin.queries import service
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.report_watch import ReportWatch
from tocsin_testing.builders import T0


def opened(folder: Path, clock: ManualClock, **more: object) -> RunningBrain:
    settings = Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"boot_grace_seconds": 0},
            "notify": {"report_at": to_iso(T0 + HOUR)[11:16]},
            **more,
        }
    )
    return open_brain(settings, clock)


def look(running: RunningBrain) -> list[str]:
    """The reports that the journal has after two looks."""
    brain = running.brain
    watch = ReportWatch(brain, BrainService(brain).morning_report)
    for _ in range(2):
        brain.tick()
        watch.look()
    brain.tick()
    decided = brain.journal.entries(kinds={EntryKind.DECISION})
    return [str(one.payload["sentence"]) for one in decided if one.payload["rule"] == REPORT]


def test_one_report_a_day_is_decided_over_a_restart_and_questions_are_answered(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    running = opened(tmp_path, clock)
    assert look(running) == []
    clock.advance(HOUR + 60_000)
    (told,) = look(running)
    assert told.startswith("No GPU reports: nothing is known of the last 24 h; no card is open now. Tocsin carried out")
    running.stop()
    again = opened(tmp_path, clock)
    assert look(again) == [told]
    clock.advance(DAY)
    assert len(look(again)) == 2
    asked = BrainService(again.brain).what_if(WhatIfRequest(guard="max_share", limit=0.5))
    assert (asked.decisions, asked.complete) == (0, True)
    again.stop()


def test_the_report_of_one_cell_of_several_names_it(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    cell = {"fleet": "gpus", "url": "http://west.test"}
    journal = {"path": tmp_path / "journal.db", "cell": "west"}
    running = opened(tmp_path, clock, cell=cell, journal=journal)
    clock.advance(HOUR + 60_000)
    (told,) = look(running)
    assert told.startswith("In cell west: No GPU reports")
    assert running.brain.actions.knows(key_of(date.fromisoformat(to_iso(T0)[:10]), "west"))
    running.stop()


def test_a_report_is_of_now_however_long_its_forecasts_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, clock, made = ManualClock(T0), ManualClock(T0), []

    def slowly(*_: Any) -> list[Any]:
        made.append(clock.now_ms())
        wall.advance(12_000)
        return []

    monkeypatch.setattr(service, "stated_cases", slowly)
    running = opened(tmp_path, clock)
    asked = BrainService(running.brain, wall=wall)
    asked.morning_report(24)
    clock.advance(HOUR)
    wall.advance(60_000)
    assert asked.morning_report(24).end == to_iso(T0 + HOUR)
    assert made == [T0]
    wall.advance(240_000)
    asked.morning_report(24)
    assert made == [T0, T0 + HOUR]
    running.stop()
