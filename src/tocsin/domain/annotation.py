"""What is worth a mark above a chart: something that was done or that began, at an instant or over a span."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Annotation:
    """One mark, made from one entry of the journal.

    `key` names it for good: the same entry, read again, gives the same. `kind` is the entry's. `end_ms` is set where it
    is about a span that has ended, which began at `at_ms`. `host`, `gpu`, `pool` and `action` are empty where they do
    not apply.
    """

    key: str
    kind: str
    at_ms: int
    text: str
    actor: str
    end_ms: int | None = None
    host: str = ""
    gpu: str = ""
    pool: str = ""
    action: str = ""
    simulated: bool = False
