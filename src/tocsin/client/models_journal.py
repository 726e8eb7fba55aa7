"""Wire models of the journal in pages, and what a client may ask of it; see `tocsin.client.models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tocsin.client.models import JournalEntryOut
from tocsin.client.wire import Count, Wire

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
