"""The morning report, sent once a day: the brain's notifications take it out, and the journal knows that it was."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.actions.notifications.report import due_day, key_of, notice_of
from tocsin.client.models_report import MorningReport
from tocsin.domain.clock import SECOND
from tocsin.runtime.brain.brain import Brain

REPORT_LOOK_SECONDS = 30.0
"""How often it is looked at whether the report is due."""
HOURS = 24


class ReportWatch:
    """Hands the report of a day to the action loop once it is due. `report` makes that of the last hours."""

    def __init__(self, brain: Brain, report: Callable[[int], MorningReport]) -> None:
        self._brain = brain
        self._report = report

    def look(self) -> None:
        """Hand it in where it is due and the journal does not know it. Raises what `report` raises."""
        brain, settings = self._brain, self._brain.settings.notify
        now_ms = brain.clock.now_ms()
        at = settings.report_time
        # Until the fleet is seen again after a start it would report of less than there is.
        if not brain.evaluations or now_ms < brain.started_ms + brain.settings.actions.boot_grace_seconds * SECOND:
            return
        # A cell that is the whole fleet has a name too, which tells nobody anything.
        cell = brain.settings.journal.cell if brain.settings.cell.fleet else ""
        day = None if at is None else due_day(now_ms, at, settings.report_tz)
        if day is None or brain.actions.knows(key_of(day, cell)):
            return
        made = self._report(HOURS)
        english = " ".join(one.text for one in made.sentences)
        chinese = "".join(one.text_zh for one in made.sentences)
        mode = brain.settings.actions.mode
        brain.actions.tell(notice_of(day, english, chinese, now_ms, mode=mode, simulated=made.simulated, cell=cell))
