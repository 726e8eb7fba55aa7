"""The client's methods for the timeline of decisions and the journal in pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

from tocsin.client.models_decisions import DecisionStory, Timeline, TimelineQuery, UndoOut
from tocsin.client.models_journal import ExportForm, JournalPage, JournalQuery
from tocsin.domain.clock import to_iso

T = TypeVar("T")
Params = Mapping[str, str | int | Sequence[str]]


def _span(query: JournalQuery) -> dict[str, str | int | Sequence[str]]:
    ends = {"start": query.start_ms, "end": query.end_ms}
    return {"kind": list(query.kinds), **{name: to_iso(at_ms) for name, at_ms in ends.items() if at_ms is not None}}


class DecisionCalls(ABC):
    """Part of `tocsin.client.client.Client`, which sends and reads."""

    @abstractmethod
    def _get(self, kind: type[T], path: str, params: Params | None = None) -> T: ...

    @abstractmethod
    def _post(self, kind: type[T], path: str, body: Mapping[str, object]) -> T: ...

    @abstractmethod
    def _stream(self, path: str, params: Params) -> Iterator[bytes]: ...

    def timeline(self, query: TimelineQuery | None = None, offset: int = 0, limit: int = 50) -> Timeline:
        """Decisions that fit `query`, newest first, in pages."""
        asked = query or TimelineQuery()
        params: dict[str, str | int | Sequence[str]] = {"offset": offset, "limit": limit}
        params |= {"state": [state.value for state in asked.states], "action": [one.value for one in asked.actions]}
        params |= {"rule": asked.rule, "pool": asked.pool, "text": asked.text}
        params |= {} if asked.waiting is None else {"waiting": str(asked.waiting).lower()}
        return self._get(Timeline, "/v1/timeline", params)

    def story(self, decision_id: str) -> DecisionStory:
        """One decision with its alternatives and its entries of the journal."""
        return self._get(DecisionStory, f"/v1/decisions/{quote(decision_id, safe='')}/story")

    def undo(self, decision_id: str, reason: str = "") -> UndoOut:
        """Undo what a decision did, through the guards."""
        return self._post(UndoOut, f"/v1/decisions/{quote(decision_id, safe='')}/undo", {"reason": reason})

    def journal_page(
        self, query: JournalQuery | None = None, before: int | None = None, limit: int = 100
    ) -> JournalPage:
        """Journal entries below `before`, newest first."""
        asked = query or JournalQuery()
        params = _span(asked) | {"limit": limit, "actor": asked.actor, "text": asked.text}
        params |= {"people": str(asked.people).lower()} | ({} if before is None else {"before": before})
        return self._get(JournalPage, "/v1/journal/page", params)

    def export_journal(self, form: ExportForm, query: JournalQuery | None = None) -> Iterator[bytes]:
        """The journal as lines, in pieces as they come; of `query` the kinds and the span count."""
        yield from self._stream("/v1/journal/export", _span(query or JournalQuery()) | {"form": form})
