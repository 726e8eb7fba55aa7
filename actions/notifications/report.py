"""The morning report as a notification: when it is due, and for which channels it is."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, tzinfo

from tocsin.config.notify import ChannelSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.decision import Decision, Mode, NotifyParameters
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind

REPORT = "morning_report"
"""Rule of the notification, by which channels ask for it."""
LATE_MS = 3 * HOUR
"""How late it may be sent, and for how long sending is tried (own choice: by noon it is no morning report)."""
_CALLS_PEOPLE = frozenset({"alertmanager", "pagerduty", "ticket"})
"""Kinds of channel whose receiver calls somebody, or keeps an alert or a ticket open."""


def due_day(now_ms: int, at: time, zone: tzinfo) -> date | None:
    """The day in `zone` whose report is due at `now_ms`; None before `at` and when it is more than `LATE_MS` late."""
    day = datetime.fromtimestamp(now_ms / SECOND, zone).date()
    due_ms = round(datetime.combine(day, at, zone).astimezone(UTC).timestamp() * SECOND)
    return day if 0 <= now_ms - due_ms < LATE_MS else None


def key_of(day: date, cell: str = "") -> str:
    """The idempotency key of the report of a day: the journal has it once it is decided, so none is sent twice.

    It names the `cell` of a fleet that has several: one receiver gets the reports of all, and drops what it has.
    """
    return f"{REPORT}|fleet:fleet|{ActionKind.NOTIFY}|{day.isoformat()}{f'|{cell}' if cell else ''}"


def notice_of(
    day: date, sentence: str, sentence_zh: str, now_ms: int, *, mode: Mode, simulated: bool, cell: str = ""
) -> Decision:
    """The notification: a note, so that it uses up nobody's pages. `cell` is as in `key_of`."""
    if cell:
        sentence, sentence_zh = f"In cell {cell}: {sentence}", f"单元 {cell}：{sentence_zh}"
    return Decision(
        rule=REPORT,
        subject=Subject(SubjectKind.FLEET, "fleet"),
        action=ActionKind.NOTIFY,
        mode=mode,
        severity=Severity.INFO,
        level=AlertLevel.NOTE,
        category=Category.TELEMETRY,
        at_ms=now_ms,
        expires_ms=now_ms + LATE_MS,
        key=key_of(day, cell),
        sentence=sentence,
        simulated=simulated,
        parameters=NotifyParameters(sentence_zh=sentence_zh),
    )


def is_report(decision: Decision) -> bool:
    """Whether it is a morning report."""
    return decision.rule == REPORT and decision.action is ActionKind.NOTIFY


def takes_report(settings: ChannelSettings) -> bool:
    """Whether a channel is one for reports, whatever level it asks for."""
    return settings.kind not in _CALLS_PEOPLE
