"""A journal in a file, read: the functions of this package over its path, as `tocsin.journal.port.JournalPast`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tocsin.domain.entry import Entry, Verification
from tocsin.journal import page as pages
from tocsin.journal import verify as checks
from tocsin.journal.files import read_entries
from tocsin.journal.page import Page, Wanted
from tocsin.journal.verify import SLICE_ENTRIES


class FilePast:
    """The journal at `path` with its archive; nothing stays open between two calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path)

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        return read_entries(self.path, after=after, kinds=kinds, limit=limit)

    def page(self, before: int | None, limit: int, wanted: Wanted) -> Page:
        return pages.read_page(self.path, before, limit, wanted)

    def newest(self, limit: int, wanted: Wanted) -> list[Entry]:
        return pages.newest(self.path, limit, wanted)

    def numbered(self, numbers: Sequence[int]) -> Iterator[Entry]:
        return pages.read_numbered(self.path, numbers)

    def number_before(self, at_ms: int) -> int:
        return pages.number_before(self.path, at_ms)

    def verify(self, key: bytes = b"", after: int = 0) -> Verification:
        return checks.verify(self.path, key, after)

    def verify_slice(
        self, key: bytes = b"", after: int = 0, previous: str = "", entries: int = SLICE_ENTRIES
    ) -> Verification:
        return checks.verify_slice(self.path, key, after, previous, entries)
