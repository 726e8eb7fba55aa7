"""What keeps the journal's own file short while the brain runs: its oldest entries go into its archive."""

from __future__ import annotations

import structlog

from tocsin.journal.archive import archive_next
from tocsin.journal.archive_files import archive_of
from tocsin.runtime.brain.brain import Brain

log = structlog.get_logger()

ARCHIVE_SECONDS = 300.0
"""Time between two looks. Each archives one file at most: a journal that has grown for years is brought in order in
hours, and nothing else waits for that."""


class JournalUpkeep:
    """Archives for a brain what its settings let go."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.metrics.set_function("tocsin_journal_archived_entries", self._archived)

    def look(self) -> None:
        """Archive what is due: one file at most."""
        made = archive_next(self._brain.journal, self._brain.settings.journal.keep_entries)
        if made is not None:
            log.info("old entries of the journal archived", first=made.first, last=made.last, file=made.path.name)

    def _archived(self) -> float:
        return float(max((file.last for file in archive_of(self._brain.journal.path)), default=0))
