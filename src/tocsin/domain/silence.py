"""What a silence is, and by what it says what it covers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SilenceKind(StrEnum):
    """What a person said of a cause, or of a place."""

    ACKNOWLEDGEMENT = "acknowledgement"
    """I have this: it stays on the list, and nobody is told of it again."""
    SNOOZE = "snooze"
    """Not now: it is hidden until the end, or until it gets worse."""
    MAINTENANCE = "maintenance"
    """This is planned: it is hidden, and no action runs there."""


class MatcherKind(StrEnum):
    """The kind of thing that is covered."""

    CARD = "card"
    HOST = "host"
    POOL = "pool"
    RACK = "rack"
    LABEL = "label"
    """A label of GPUs, as `key=value`."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """What a silence covers."""

    kind: MatcherKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
