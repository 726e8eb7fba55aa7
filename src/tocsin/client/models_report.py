"""Wire models of the morning report: five sentences, and the figures that they are made of."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tocsin.client.wire import Count, Instant, Wire
from tocsin.domain.decision import Mode


class ReportTopic(StrEnum):
    """What a sentence of the report is about, in the order of the report."""

    HAPPENED = "happened"
    DID = "did"
    WRONG = "wrong"
    WAITS = "waits"
    EXPECT = "expect"


class ReportSentence(Wire):
    """One sentence."""

    topic: ReportTopic
    text: str
    text_zh: str = ""


class ReportFigures(Wire):
    """The counts of the sentences; each is of the span but for what stands now."""

    broke: Count = 0
    """Places where something broke: one card each."""
    over: Count = 0
    """Of these the ones where all of it has ended."""
    open_cards: Count = 0
    """Cards that are open now, hidden ones not counted."""
    done: Count = 0
    """Actions that ended well."""
    goal_not_reached: Count = 0
    failed: Count = 0
    running: Count = 0
    """Actions that run now."""
    forecasts_settled: Count = 0
    """Forecasts that something would come, whose time ended in the span."""
    forecasts_wrong: Count = 0
    """Of these the ones after which it did not come."""
    rejected: Count = 0
    """Decisions that people rejected, but for those of which they said that the statement was right."""
    waiting: Count = 0
    """Actions that a yes would start now."""
    expected: Count = 0
    """Forecasts that stand now and are not muted."""


class MorningReport(Wire):
    """What happened, what Tocsin did, what it got wrong, what waits and what to expect."""

    start: Instant
    end: Instant
    simulated: bool = False
    mode: Mode
    sentences: list[ReportSentence] = Field(default_factory=list)
    figures: ReportFigures = Field(default_factory=ReportFigures)
