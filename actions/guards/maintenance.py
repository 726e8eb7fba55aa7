"""When disruptive actions may run."""

from __future__ import annotations

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.view import FleetView
from tocsin.config.settings import MaintenanceWindow
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.decision import Decision
from tocsin.domain.phrase import say


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def is_open(window: MaintenanceWindow, now_ms: int) -> bool:
    """Whether `now_ms` falls in the window; the minute that `end` names still belongs to it."""
    minute = now_ms % DAY // MINUTE
    start, end = _minute(window.start), _minute(window.end)
    return start <= minute <= end if start <= end else minute >= start or minute <= end


def next_start(window: MaintenanceWindow, now_ms: int) -> int:
    """The next instant after `now_ms` at which the window opens."""
    start = now_ms - now_ms % DAY + _minute(window.start) * MINUTE
    return start if start > now_ms else start + DAY


@guard("maintenance", 80, Applies.DISRUPTIVE)
def maintenance(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is a maintenance window open, where any is set."""
    windows = view.policy.settings.maintenance
    if not windows or any(is_open(window, now_ms) for window in windows):
        return None
    return Hold(say("outside the maintenance windows"), min(next_start(window, now_ms) for window in windows))
