"""Wire models of what-if questions: one limit or mode changed, over the decisions of the past."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tocsin.client.wire import Count, Instant, RequestBody, Wire, Wired
from tocsin.domain.decision import Mode
from tocsin.domain.finding import ActionKind, Subject

LIMITED_GUARDS: Mapping[str, bool] = {
    "max_concurrent": True,
    "max_share": True,
    "max_per_host": True,
    "max_per_rack": True,
    "capacity": False,
    "attempts": True,
    "cooldown": False,
    "evidence": False,
}
"""Guards with a limit, and whether what they observe must be at most that; else it must be at least that."""


class WhatIfRequest(RequestBody):
    """One change: a guard with its limit, or a rule with its mode."""

    guard: Annotated[str, Field(max_length=100)] = ""
    """Name of a guard that has a limit, such as `max_share`."""
    limit: Annotated[float, Field(strict=True, ge=0, le=1e9)] | None = None
    """The limit that it would have, in the unit of its setting."""
    rule: Annotated[str, Field(max_length=200)] = ""
    """Name of a rule."""
    mode: Mode | None = None
    """How far the rule would go."""


class WhatIfAnswer(StrEnum):
    """What the change would have made of a decision."""

    WOULD_RUN = "would_run"
    STILL_HELD = "still_held"
    NOT_KNOWN = "not_known"
    """What is on record does not say."""


class WhatIfAfter(StrEnum):
    """What came of the GPU or host within 48 hours."""

    FAILED = "failed"
    """A hardware event: a critical XID, or the GPU was lost."""
    REPAIRED = "repaired"
    """No hardware event, and a person did something there by hand."""
    NOTHING = "nothing"
    NOT_KNOWN = "not_known"
    """The 48 hours are not over."""


class WhatIfDecision(Wire):
    """One decision that was held and never ran."""

    decision: str
    at: Instant
    rule: str
    action: ActionKind
    subject: Wired[Subject]
    answer: WhatIfAnswer
    held_by: list[str] = Field(default_factory=list)
    """Guards that would still hold it; of what is not known, those that cannot be judged too."""
    why: str = ""
    """Why it is not known."""
    after: WhatIfAfter


class WhatIfOut(Wire):
    """What a change would have made of the held decisions. Nothing is changed by asking."""

    start: Instant
    end: Instant
    change: str
    decisions: Count = 0
    """Held decisions of the span that were looked at."""
    would_run: Count = 0
    still_held: Count = 0
    not_known: Count = 0
    after: dict[WhatIfAfter, int] = Field(default_factory=dict)
    """Of those that would have run, what came of their GPUs and hosts."""
    complete: bool = True
    """Whether the whole span was looked at: of the decisions that ended the newest 2,000 are listed."""
    items: list[WhatIfDecision] = Field(default_factory=list)
    """The newest first: those that would have run, those that are not known, the rest; 200 at most."""
