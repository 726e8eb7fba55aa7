"""The journal as the API shows it: in pages from the newest entry, and as lines for other systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tocsin.client.models_journal import ExportForm, JournalPage, JournalQuery
from tocsin.domain.errors import InputError
from tocsin.journal.export import export
from tocsin.journal.kinds import EntryKind
from tocsin.journal.page import Wanted, read_page
from tocsin.queries.convert import entry_out


def page(path: Path, query: JournalQuery, before: int | None, limit: int) -> JournalPage:
    """Entries that fit `query`, newest first. Raises InputError for an unknown kind."""
    wanted = Wanted(kinds_of(query.kinds), query.actor, query.people, query.text, query.start_ms, query.end_ms)
    found = read_page(path, before, limit, wanted)
    return JournalPage(
        entries=[entry_out(entry) for entry in found.entries],
        next_before=found.next_before,
        head=found.head,
        told=found.told,
        kinds=[kind.value for kind in EntryKind],
    )


def lines(path: Path, form: ExportForm, query: JournalQuery, after: int) -> Iterator[str]:
    """Lines of the entries above `after` of the kinds and the span of `query`, in order.

    Raises InputError for an unknown kind.
    """
    kinds = kinds_of(query.kinds)
    return export(path, form, since_ms=query.start_ms, until_ms=query.end_ms, after=after, kinds=kinds)


def kinds_of(names: Iterable[str]) -> frozenset[EntryKind]:
    """Kinds of entries by name. Raises InputError for one that is unknown."""
    known = {kind.value: kind for kind in EntryKind}
    for name in names:
        if name not in known:
            raise InputError("kind", name, "is no kind of entry", f"use one of {', '.join(known)}")
    return frozenset(known[name] for name in names)
