"""What a channel is handed, and what it offers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tocsin.domain.decision import Decision
from tocsin.domain.finding import Severity


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a delivery ended.

    `certain` is False where it failed but the receiver may have taken it. `again` is False where the same message would
    be refused again. `rest_seconds` is how long the receiver asks to be left alone, 0 where it does not say.
    """

    ok: bool
    detail: str
    attempts: int
    certain: bool = True
    again: bool = True
    rest_seconds: float = 0.0


class Phase(StrEnum):
    """What is told of a fault."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Message:
    """One message about one notification, or about several that go together.

    `key` names it for good: the same message sent again, and the one about its end, have the same. `decisions` are the
    notifications, the gravest first. `at_ms` is when the first was decided, or when the last ended.
    """

    key: str
    decisions: tuple[Decision, ...]
    at_ms: int
    phase: Phase = Phase.FIRING
    test: bool = False

    @property
    def first(self) -> Decision:
        """The gravest notification."""
        return self.decisions[0]

    @property
    def summary(self) -> bool:
        """Whether it stands for several."""
        return len(self.decisions) > 1

    @property
    def resolved(self) -> bool:
        """Whether it tells of an end."""
        return self.phase is Phase.RESOLVED

    @property
    def severity(self) -> Severity:
        """The gravest of them."""
        return self.first.severity

    @property
    def simulated(self) -> bool:
        """Whether all are of a simulated fleet: the mark must never hide a real one."""
        return all(decision.simulated for decision in self.decisions)

    @property
    def id(self) -> str:
        """16 hexadecimal digits made from the key; of a single notification its decision's id."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


def message_of(decisions: Sequence[Decision], phase: Phase, at_ms: int | None = None) -> Message:
    """The message about `decisions`, at least one; `at_ms` is needed for an end."""
    gravest = tuple(sorted(decisions, key=urgency))
    keys = sorted(decision.key for decision in gravest)
    key = keys[0] if len(keys) == 1 else "summary|" + hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
    first_ms = min(decision.at_ms for decision in gravest)
    return Message(key, gravest, first_ms if at_ms is None else at_ms, phase)


def urgency(decision: Decision) -> tuple[int, int, str]:
    """Sorts the gravest first, then the oldest."""
    return (-decision.severity.rank, decision.at_ms, decision.key)


class Channel(Protocol):
    """Sends messages to one receiver, one try a call; expected failures come back as a delivery.

    `batch` is how many messages go into one request. `keyed` says that the receiver knows a message by its key: then an
    end is told for each, else ends may be told together. `refresh_seconds` is set where the receiver forgets what is
    not told again.
    """

    name: str
    batch: int
    keyed: bool
    refresh_seconds: float | None

    def send(self, messages: Sequence[Message]) -> Delivery:
        """Deliver up to `batch` messages as one; calls come from one thread at a time."""
        ...

    def close(self) -> None:
        """Let go of connections; safe to repeat, also while another thread sends."""
        ...


class Notifier(Protocol):
    """Tells people; expected failures come back as a delivery, they are not raised."""

    name: str

    def notify(self, decision: Decision) -> Delivery:
        """One try to deliver `decision`; the loop tries again at a later step."""
        ...
