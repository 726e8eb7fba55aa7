"""Who was told what: the fold of entries of kind `notification`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tocsin.actions.model.decision_json import dump_decision
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import HOUR
from tocsin.domain.decision import Decision


@dataclass(frozen=True, slots=True)
class Done:
    """How telling one channel of one notification ended."""

    ok: bool
    detail: str
    attempts: int


PAGES_MS = 12 * HOUR
"""Span over which the pages to a receiver are counted: a shift."""


@dataclass(frozen=True, slots=True)
class Paged:
    """When a receiver was paged within the last 12 hours, by key of the message: for one thing, and in summary."""

    pages: Mapping[str, int]
    summaries: Mapping[str, int]


class Delivered:
    """Folds entries of kind `notification`; the same entries give the same state.

    An entry says which channel was told; the last one about a notification has its outcome as well. `open` is by
    channel and by key of the message what must be told when it ends: the notifications of that message by their keys.
    `pages` and `summaries` are by channel and key of the message when it paged; `gathered` are open messages of what
    was beyond a budget of pages, `lowered` those of them that were no page any more. `references` are by channel and
    key of an open message the names that the receiver gave them, `called` what people call those, where it is another.
    """

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Done]] = {}
        self.open: dict[str, dict[str, dict[str, Decision]]] = {}
        self.pages: dict[str, dict[str, int]] = {}
        self.summaries: dict[str, dict[str, int]] = {}
        self.gathered: dict[str, set[str]] = {}
        self.lowered: dict[str, set[str]] = {}
        self.references: dict[str, dict[str, str]] = {}
        self.called: dict[str, dict[str, str]] = {}

    def paged(self, channel: str, now_ms: int) -> Paged:
        """The pages to `channel` that count at `now_ms`."""
        kept = [
            {key: at_ms for key, at_ms in told.get(channel, {}).items() if at_ms > now_ms - PAGES_MS}
            for told in (self.pages, self.summaries)
        ]
        return Paged(*kept)

    def is_gathered(self, channel: str, message: str) -> bool:
        return message in self.gathered.get(channel, ())

    def is_lowered(self, channel: str, message: str) -> bool:
        return message in self.lowered.get(channel, ())

    def reference(self, channel: str, message: str) -> str:
        """The receiver's own name for an open message; empty where it gave none."""
        return self.references.get(channel, {}).get(message, "")

    def tickets(self) -> dict[str, dict[str, str]]:
        """What people call the open tickets, by the id of the incident and by channel."""
        found: dict[str, dict[str, str]] = {}
        for channel, references in self.references.items():
            for message, name in references.items():
                for decision in self.open.get(channel, {}).get(message, {}).values():
                    called = self.called.get(channel, {}).get(message, name)
                    found.setdefault(decision.incident, {})[channel] = called
        return found

    def _count_page(self, channel: str, kind: str, message: str, at_ms: int) -> None:
        told = self.summaries if kind == "summary" else self.pages
        mine = told.setdefault(channel, {})
        mine.setdefault(message, at_ms)
        for over in list(takewhile(lambda key: mine[key] <= at_ms - PAGES_MS, mine)):
            del mine[over]

    def apply(self, payload: Mapping[str, Any], decision: Decision | None, at_ms: int = 0) -> bool:
        """Take one entry in; whether it is the last one about a notification."""
        channel = payload["channel"]
        if "ended" in payload:
            for message in payload["ended"]:
                self.open.get(channel, {}).pop(message, None)
                self.gathered.get(channel, set()).discard(message)
                self.lowered.get(channel, set()).discard(message)
                self.references.get(channel, {}).pop(message, None)
                self.called.get(channel, {}).pop(message, None)
            return False
        key = payload["key"]
        if "page" in payload:
            self._count_page(channel, payload["page"], payload["page_key"], at_ms)
        if payload.get("gathered"):
            self.gathered.setdefault(channel, set()).add(payload["message"])
            if payload.get("level", AlertLevel.PAGE) != AlertLevel.PAGE:
                self.lowered.setdefault(channel, set()).add(payload["message"])
        if "outcome" in payload:
            self.told.pop(key, None)
        else:
            self.told.setdefault(key, {})[channel] = Done(payload["ok"], payload["detail"], payload["attempts"])
        if "message" in payload and decision is not None:
            self.open.setdefault(channel, {}).setdefault(payload["message"], {})[key] = decision
            if payload.get("reference"):
                self.references.setdefault(channel, {})[payload["message"]] = payload["reference"]
            if payload.get("called"):
                self.called.setdefault(channel, {})[payload["message"]] = payload["called"]
        return "outcome" in payload

    def plain(self) -> dict[str, Any]:
        """All but what must be told when it ends, by name, for a checkpoint of the journal."""
        return {
            "done": self.told,
            "pages": self.pages,
            "summaries": self.summaries,
            "gathered": self.gathered,
            "lowered": self.lowered,
            "references": self.references,
            "called": self.called,
        }

    def open_as_json(self) -> dict[str, Any]:
        """What must be told when it ends, for a checkpoint of the journal."""
        return {
            channel: {
                message: {key: dump_decision(decision) for key, decision in decisions.items()}
                for message, decisions in messages.items()
            }
            for channel, messages in self.open.items()
        }

    def done(self, key: str) -> Mapping[str, Done]:
        """The channels that are done with a notification that others still wait for."""
        return self.told.get(key, {})
