"""What a demo says in its terminal: a line for each incident, for what is asked of the person, and for its end."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import click

from tocsin.actions.model.ledger_entry import APPROVAL, DecisionStatus
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import SECOND, to_minute
from tocsin.domain.decision import DecisionState, Ruling, Verdict
from tocsin.domain.finding import ActionKind, Incident
from tocsin.domain.prediction import Prediction
from tocsin.terminal.text import fit, plain, span

WIDTH = 100
"""Columns of a line at most."""
_GONE = 3
"""Evaluations without an incident after which it has ended: one that comes and goes gives one line."""
_COLOURS = {"page": "red", "found": "yellow", "predicted": "magenta", "hold": "cyan", "done": "green", "ended": "green"}
_AT_ONCE = 3
"""Predictions that are told of one evaluation."""
_SOON_OVER = {"evidence"}
"""Guards whose hold is over within seconds: what they say is no news."""
_ENDS = {
    DecisionState.DONE: "done",
    DecisionState.GOAL_NOT_REACHED: "done, goal not reached",
    DecisionState.FAILED: "failed",
}
_SAID_ACTION = re.compile(r"^([^:]{1,70}):")


@dataclass(slots=True)
class _Card:
    """An incident that was told, whether as a page, and for how many evaluations it has not been there."""

    name: str
    since_ms: int
    paged: bool
    gone: int = 0
    ended: bool = False


@dataclass
class DemoTerminal:
    """Says what is new, once: incidents that people are told of, what waits for a person, what came of it.

    Incidents of level ``note`` are counted alone, as they are told to nobody. A line has `WIDTH` columns at most.
    """

    announce: Callable[[str], None]
    colour: bool = False
    _cards: dict[str, _Card] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _notes: bool = False

    def look(
        self,
        now_ms: int,
        incidents: Sequence[Incident],
        predictions: Iterable[Prediction],
        statuses: Iterable[DecisionStatus],
    ) -> None:
        """One evaluation."""
        self._incidents(now_ms, incidents)
        self._predictions(now_ms, [one for one in predictions if one.is_ahead and not one.muted])
        for status in statuses:
            if status.decision.incident in self._cards and status.decision.action is not ActionKind.NOTIFY:
                self._decision(now_ms, status)

    def _predictions(self, now_ms: int, ahead: Sequence[Prediction]) -> None:
        """The soonest of each GPU, once; of many that come at once the first few."""
        soonest = sorted(ahead, key=lambda one: math.inf if one.eta_ms is None else one.eta_ms)
        new = [one for one in soonest if self._first(f"prediction/{one.subject.key}")]
        for one in new[:_AT_ONCE]:
            self._line(now_ms, "predicted", one.sentence.partition(" (")[0])
        if len(new) > _AT_ONCE:
            self._line(now_ms, "predicted", f"{len(new) - _AT_ONCE} more, later: see the page Forecast")

    def _incidents(self, now_ms: int, incidents: Sequence[Incident]) -> None:
        here = {one.id: one for one in incidents}
        for known, card in self._cards.items():
            card.gone = 0 if known in here else card.gone + 1
            if card.gone >= _GONE and not card.ended:
                card.ended = True
                self._line(now_ms, "ended", card.name, f" (after {span((now_ms - card.since_ms) / SECOND)})")
        for known, one in here.items():
            card_before = self._cards.get(known)
            if card_before is None and one.alert_level is AlertLevel.NOTE:
                self._tell_of_notes(now_ms)
            elif card_before is None or card_before.ended:
                self._cards[known] = _Card(one.sentence, now_ms, one.alert_level is AlertLevel.PAGE)
                self._line(now_ms, _word(one), one.sentence)
                if one.root.expected:
                    self._said.add(f"prediction/{one.root.subject.key}")
            elif one.alert_level is AlertLevel.PAGE and not card_before.paged:
                # It was told before it was worth a page: people are called only now.
                card_before.paged, card_before.name = True, one.sentence
                self._line(now_ms, _word(one), one.sentence)

    def _tell_of_notes(self, now_ms: int) -> None:
        if not self._notes:
            self._notes = True
            self._line(
                now_ms, "note", "what wakes nobody is on the dashboard alone, such as memory that is full by design"
            )

    def _decision(self, now_ms: int, status: DecisionStatus) -> None:
        decision = status.decision
        found = _SAID_ACTION.match(plain(decision.sentence))
        what = found[1] if found else plain(decision.sentence)
        if status.state in _ENDS:
            if self._first(f"end/{decision.id}"):
                # What was done comes before the semicolon, and the line begins with it.
                said = status.reason.partition("; ")[2] or status.reason
                self._line(now_ms, _ENDS[status.state], what, f" ({said})" if said else "")
            return
        verdict = _holding(status)
        if verdict is None or verdict.guard in _SOON_OVER:
            return
        if self._first(f"decision/{decision.id}/{verdict.guard}"):
            asks = f": waits for you: tocsin approve {decision.id}" if status.waits_for_person else ""
            self._line(now_ms, "hold", what, asks or f" ({verdict.guard}: {verdict.reason})")

    def _first(self, key: str) -> bool:
        if key in self._said:
            return False
        self._said.add(key)
        return True

    def _line(self, now_ms: int, word: str, sentence: str, tail: str = "") -> None:
        """``10:33 found: SENTENCE``; where it is too long the sentence is cut, and `tail` keeps 60 columns at least."""
        now = to_minute(now_ms)
        # An instant of today needs no date beside the clock.
        said, tail = (
            re.sub(rf"{now[:10]} (\d\d:\d\d) UTC", r"\1", part) for part in (plain(sentence), _in_one_line(tail))
        )
        said = said.rstrip(".")
        head = f"{now[11:16]} {word}: "
        tail = fit(tail, max(60, WIDTH - len(head) - len(said)))
        line = fit(said, WIDTH - len(head) - len(tail)) + tail
        shown = click.style(f"{word}:", fg=_COLOURS.get(word), bold=word == "page") if self.colour else f"{word}:"
        self.announce(f"{now[11:16]} {shown} {line}")


def _word(one: Incident) -> str:
    if one.alert_level is AlertLevel.PAGE:
        return "page"
    return "predicted" if one.root.expected else "found"


def _in_one_line(tail: str) -> str:
    words = " ".join(tail.split())
    return f" {words}" if tail.startswith(" ") else words


def _holding(status: DecisionStatus) -> Verdict | None:
    """What keeps a decision that is not over from running; approval only where nothing else does."""
    if status.state not in (DecisionState.HELD, DecisionState.APPROVED):
        return None
    holds = [verdict for verdict in status.verdicts if verdict.ruling is not Ruling.ALLOW]
    return next((one for one in holds if one.guard != APPROVAL or status.waits_for_person), None)
