"""What a journal is to the rest of the service, whichever back end keeps it: a file, or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tocsin.domain.entry import Entry, EntryKind, Verification
from tocsin.domain.errors import Unavailable
from tocsin.journal.checkpoint import Checkpoint
from tocsin.journal.page import Page, Wanted
from tocsin.journal.verify import SLICE_ENTRIES

Draft = tuple[EntryKind, Mapping[str, object], bool]
"""Kind, payload and whether it is simulated."""


class NotLeading(Unavailable):
    """Another brain writes this journal now; the message names it. What was to be appended is not in it."""


class JournalPast(Protocol):
    """A journal as it is read; safe to use from several threads, also beside the writer.

    Each method raises InputError where there is no journal, ArchiveMissing where entries are not where they should be,
    and Unavailable where a database does not answer.
    """

    @property
    def name(self) -> str:
        """What people call it: the file, or the database without its password and the cell."""

    def entries(
        self, after: int = 0, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Entries above number `after`, in order."""

    def page(self, before: int | None, limit: int, wanted: Wanted) -> Page:
        """At most `limit` entries below number `before` (None: from the newest) that fit, newest first."""

    def newest(self, limit: int, wanted: Wanted) -> list[Entry]:
        """The newest `limit` entries that fit, of those that a page looks at, newest first."""

    def numbered(self, numbers: Sequence[int]) -> Iterator[Entry]:
        """The entries of these numbers, in order."""

    def number_before(self, at_ms: int) -> int:
        """Number of the newest entry from before `at_ms`, 0 where there is none."""

    def verify(self, key: bytes = b"", after: int = 0) -> Verification:
        """Whether the chain holds behind entry `after`. What it finds is told and not raised."""

    def verify_slice(
        self, key: bytes = b"", after: int = 0, previous: str = "", entries: int = SLICE_ENTRIES
    ) -> Verification:
        """The same of `entries` entries; `previous` is the hash that the slice before found at `after`."""


class LiveJournal(JournalPast, Protocol):
    """The journal of a running brain. An entry is durable when `append` returns.

    `leads` is False on standby: then `append` raises NotLeading, and `head` is as far as was read. `key` seals its end,
    empty where it is not sealed. `on_append` is told of entries once they are on disk; it must not raise.
    """

    key: bytes
    epoch: int
    checkpoint: Checkpoint | None
    on_append: Callable[[Sequence[Entry]], None]

    @property
    def head(self) -> int:
        """Number of the newest entry; 0 in an empty journal."""

    @property
    def leads(self) -> bool:
        """Whether this process writes it."""

    def must_lead(self) -> None:
        """Raise NotLeading, which names who leads, where this process does not."""

    def follow(self) -> list[Entry]:
        """What another process has appended since, a part at a time; `head` moves behind it. A writer gets nothing."""

    def append(
        self, kind: EntryKind, payload: Mapping[str, object], *, actor: str = "tocsin", simulated: bool = False
    ) -> Entry:
        """Add one entry. `payload` must be JSON without NaN. Raises NotLeading, and Unavailable."""

    def append_many(self, drafts: Sequence[Draft], *, actor: str = "tocsin") -> list[Entry]:
        """Add entries: all of them or none."""

    def folded(self, part: str) -> tuple[int, Any]:
        """The state of `part` of the checkpoint, and the number of the entry after which to go on; else (0, None)."""

    def save(self, seq: int, parts: Mapping[str, Any]) -> None:
        """Keep what the entries up to number `seq` folded to, for the next start."""

    def read_note(self, name: str) -> str:
        """What was kept beside the journal under `name`; empty where nothing was. Raises OSError and Unavailable."""

    def keep_note(self, name: str, text: str) -> None:
        """Replace what is kept beside the journal under `name`; durable on return. Raises OSError and Unavailable."""

    def archive(self, keep: int) -> str:
        """Archive the oldest entries that are due where the newest `keep` stay, one portion at most; what was done, in
        words, empty where nothing was due."""

    def archived(self) -> int:
        """Number of the newest entry that is archived."""

    def close(self) -> None:
        """Let go of files and connections; safe to repeat."""
