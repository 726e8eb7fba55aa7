"""How soon a person should hear of something: three levels, the same wherever a statement is shown or sent."""

from __future__ import annotations

from enum import StrEnum


class AlertLevel(StrEnum):
    """The order of definition is the order of rank."""

    NOTE = "note"
    """For the record; nobody is told."""
    WARNING = "warning"
    """For the working day."""
    PAGE = "page"
    """Needs a person now."""

    @property
    def rank(self) -> int:
        """0 for a note, 2 for a page."""
        return list(AlertLevel).index(self)
