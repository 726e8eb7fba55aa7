"""Wire models of what a person did by hand, past the guards; see `tocsin.client.models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tocsin.client.wire import Wire, Wired
from tocsin.domain.subject import Subject

Text = Annotated[str, Field(max_length=4000)]
Name = Annotated[str, Field(max_length=300)]


class ManualAction(Wire):
    """One half of a deed: that it begins, or how it ended."""

    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    """The same for both halves."""
    phase: Literal["begun", "ended"]
    action: str = Field(pattern=r"^[a-z_]{1,40}$")
    subject: Wired[Subject]
    reason: Text = ""
    parameters: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    manager: Name = ""
    """Which cluster it was done to."""
    by: Name = ""
    """Account and machine, as the sender has them; the journal's actor is the name of the sender's token."""
    status: Literal["", "succeeded", "failed"] = ""
    """How it ended; empty while it begins."""
    detail: Text = ""


class ManualActionOut(Wire):
    """Where it is on record."""

    seq: int
    """Number of the journal's entry."""
