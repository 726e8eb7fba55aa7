"""Where an agent is sent that speaks to the brain of another cell than its own."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from tocsin.client.control import ErrorOut

MISDIRECTED = 421
"""Status of an answer that names another brain (RFC 9110, section 15.5.20)."""
OTHER_CELL = "other_cell"
"""Its error code."""
ACTIVE_ONLY = "tocsin-active-only"
"""Header by which a brain on standby is not to answer: what it sees stands for no cell."""
ASSIGNED_ONLY = "tocsin-assigned-only"
"""Header of what an agent sends elsewhere than to its own address: only the cell that has its host is to take it."""


def moved_to(status: int, body: bytes, allowed: Collection[str]) -> str:
    """The base URL of the brain that an answer names, where that is one of `allowed`; empty else.

    An agent's token goes to no address that only an answer names: who answers may be anybody.
    """
    if status != MISDIRECTED:
        return ""
    try:
        error = ErrorOut.model_validate_json(body, extra="ignore").error
    except ValidationError:
        return ""
    url = error.details.get("url") if error.code == OTHER_CELL else None
    named = url.rstrip("/") if isinstance(url, str) else ""
    return next((one for one in allowed if one.rstrip("/") == named), "")
