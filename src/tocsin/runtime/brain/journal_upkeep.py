"""What keeps the journal short while the brain runs: its oldest entries go into its archive."""

from __future__ import annotations

import structlog

from tocsin.runtime.brain.brain import Brain

log = structlog.get_logger()

ARCHIVE_SECONDS = 300.0
"""Time between two looks. Each archives one portion at most: a journal that has grown for years is brought in order in
hours, and nothing else waits for that."""


class JournalUpkeep:
    """Archives for a brain what its settings let go."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        brain.metrics.set_function("tocsin_journal_archived_entries", lambda: float(brain.journal.archived()))

    def look(self) -> None:
        """Archive what is due: one portion at most."""
        said = self._brain.journal.archive(self._brain.settings.journal.keep_entries)
        if said:
            log.info("old entries of the journal archived", what=said)
