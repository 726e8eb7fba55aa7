"""The days and groups that a request about usage names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from tocsin.api.dependencies import instant_of
from tocsin.client.models_usage import UsageBy
from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.errors import InputError

LONGEST_DAYS = 366
LONGEST_JOB_DAYS = 31
"""Most days of one request by job, which are many."""
MOST_BY = 3
_WITHIN = len("2026-11-21")
"""Letters of an ISO day."""

Day = Annotated[str | None, Query(max_length=_WITHIN, description="Day in UTC, as 2026-11-21.")]
By = Annotated[
    list[UsageBy] | None,
    Query(max_length=MOST_BY, description="What rows are summed by; repeatable. Default: namespace."),
]


def days_of(start: str | None, end: str | None, now_ms: int, longest: int) -> tuple[int, int]:
    """First and last day of [`start`, `end`), days since the epoch; the last seven up to today where none is given.

    Raises InputError.
    """
    last = _day("end", end, now_ms // DAY + 1) - 1
    first = _day("start", start, max(0, last - 6))
    if first > last:
        raise InputError("start", start, f"not before end = {end or 'tomorrow'}", "give an earlier day")
    if last - first >= longest:
        raise InputError("start", start, f"more than {longest} days before end", "give a later day, or ask twice")
    return first, last


def usage_span(
    start: str | None, end: str | None, by: Sequence[UsageBy] | None, now_ms: int
) -> tuple[int, int, list[UsageBy]]:
    """`days_of` a request by `by`, and what its rows are summed by, each once."""
    wanted: list[UsageBy] = list(dict.fromkeys(by or ["namespace"]))
    longest = LONGEST_JOB_DAYS if "job" in wanted else LONGEST_DAYS
    return *days_of(start, end, now_ms, longest), wanted


def as_asked(first: int, last: int) -> dict[str, str]:
    """Parameters that name the days from `first` to `last`."""
    return {"start": to_iso(first * DAY)[:_WITHIN], "end": to_iso((last + 1) * DAY)[:_WITHIN]}


def _day(field: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if len(text) != _WITHIN:
        raise InputError(field, text, "is no day", "use a day in UTC, such as 2026-11-21")
    return instant_of(field, text, 0) // DAY
