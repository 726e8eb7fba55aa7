"""Wire models of the timeline of decisions, and what a client may ask of it; see `tocsin.client.models`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tocsin.client.models import DecisionOut, JournalEntryOut
from tocsin.client.wire import Count, Instant, Wire
from tocsin.domain.decision import DecisionState
from tocsin.domain.finding import ActionKind, Severity

# Wire models of the journal in pages, and what a client may ask of it; see `tocsin.client.models`.

ExportForm = Literal["jsonl", "cef"]


@dataclass(frozen=True, slots=True)
class JournalQuery:
    """Which entries are wanted; what is empty bounds nothing.

    `people` are entries that a person made. `text` is looked for in what the entry says, ASCII letters without regard
    to capitals: a host, a UUID, the id of a decision. The instants are a half-open span.
    """

    kinds: tuple[str, ...] = ()
    actor: str = ""
    people: bool = False
    text: str = ""
    start_ms: int | None = None
    end_ms: int | None = None


class JournalPage(Wire):
    """Entries, newest first."""

    entries: list[JournalEntryOut]
    next_before: Count | None = None
    """What to send as `before` for older ones; null where the journal's first entry was looked at."""
    head: Count
    """Number of the newest entry of the journal."""
    told: dict[str, str] = Field(default_factory=dict)
    """Sentence by id of the decisions, findings and incidents that the entries name."""
    kinds: list[str] = Field(default_factory=list)
    """Every kind that there can be."""


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """Which decisions are wanted; what is empty bounds nothing, but that notifications are left out unless asked for.

    `waiting` are those that wait for a person, False those that do not. `text` is looked for in the sentence, the rule,
    the subject, the host and the id, without regard to capitals.
    """

    states: tuple[DecisionState, ...] = ()
    actions: tuple[ActionKind, ...] = ()
    rule: str = ""
    pool: str = ""
    text: str = ""
    waiting: bool | None = None

    def wants(self, state: DecisionState, action: ActionKind, rule: str, pool: str, waiting: bool) -> bool:
        """Whether a decision is one of these, by all but its texts."""
        if action not in self.actions and (self.actions or action is ActionKind.NOTIFY):
            return False
        if (self.states and state not in self.states) or self.waiting not in (None, waiting):
            return False
        return self.rule in ("", rule) and self.pool in ("", pool)

    def found_in(self, texts: Iterable[str]) -> bool:
        """Whether `text` is in one of `texts`."""
        wanted = self.text.strip().casefold()
        return not wanted or any(wanted in one.casefold() for one in texts)


class Alternative(Wire):
    """One choice that was weighed. `notify` stands for going on as before."""

    action: ActionKind
    gpu_hours: float
    """Expected loss."""
    chosen: bool


class TimelineItem(DecisionOut):
    """A decision with what is needed to understand it and to take it back."""

    updated: Instant
    """Of its last entry in the journal."""
    reason: str = ""
    """Why it stands where it does; empty where the verdicts say it."""
    asked_by: str = ""
    """Who asked for it, where no rule did."""
    inverse: ActionKind | None = None
    """What would undo it; null where nothing does."""
    undo_problem: str = ""
    """Why it cannot be undone now; empty where it can."""
    undone_by: str = ""
    """Id of the decision that undoes it and waits or runs."""
    alternatives: list[Alternative] = Field(default_factory=list)
    """Expected losses that were weighed, the least first; empty where the rule alone named the action."""


class TimelineMark(Wire):
    """A decision as one mark on the axis of time."""

    id: str
    at: Instant
    action: ActionKind
    state: DecisionState
    severity: Severity
    sentence: str


class Timeline(Wire):
    """A page of decisions, newest first."""

    total: Count
    """Decisions that fit the query, on all pages."""
    offset: Count
    items: list[TimelineItem]
    marks: list[TimelineMark]
    """The newest that fit, on all pages."""
    states: dict[DecisionState, Count] = Field(default_factory=dict)
    """Decisions on record by state, notifications left out."""
    waiting: Count = 0
    """Of these, those that wait for a person."""
    actions: list[ActionKind] = Field(default_factory=list)
    """Actions, rules and pools that there are decisions of."""
    rules: list[str] = Field(default_factory=list)
    pools: list[str] = Field(default_factory=list)


class DecisionStory(Wire):
    """One decision and all that the journal says of it."""

    decision: TimelineItem
    entries: list[JournalEntryOut]
    """In order."""
    settle_s: float
    """Time between the end of an execution and the look at its effect."""
    runbooks_url: str = ""
    """Where the runbooks can be read; empty where the brain was not told."""


class UndoOut(Wire):
    """What undoes a decision; it runs once every guard allows it."""

    undone: str
    """Id of the decision that was done."""
    by: TimelineItem
