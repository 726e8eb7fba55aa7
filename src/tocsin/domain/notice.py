"""Notices that a machine is about to be taken away: what they mean, and until when work has to be off it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

from tocsin.domain.clock import from_iso, to_iso
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Evidence

_DEADLINE = re.compile(r"; before (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)$")
MAX_TEXT = 300


class NoticeCode(IntEnum):
    """What an event of kind ``maintenance_notice`` says; its `code`."""

    WITHDRAWN = 0
    """Nothing is announced any more."""
    INTERRUPTION = 1
    """The machine is stopped, preempted or ended."""
    PLANNED = 2
    """Something is foreseen, or far away; for people."""
    REBOOT = 3
    """The machine, or its host, is rebooted."""
    FREEZE = 4
    """The machine stands still for some seconds and goes on."""
    MOVE = 5
    """The machine is moved to other hardware; what is on its local disks is lost."""


def notice_text(text: str, deadline_ms: int | None) -> str:
    """The message of an event: `text`, and until when."""
    plain = " ".join(text.split())[:MAX_TEXT]
    return plain if deadline_ms is None else f"{plain}; before {to_iso(deadline_ms)}"


def deadline_of(message: str) -> int | None:
    """The deadline that `notice_text` wrote; None where there is none."""
    match = _DEADLINE.search(message)
    try:
        return None if match is None else from_iso(match[1])
    except ValueError:
        return None


def deadline_in(evidence: Iterable[Evidence]) -> int | None:
    """The earliest deadline of the notices among a finding's evidence; None where there is none."""
    prefix = f"{EventKind.MAINTENANCE_NOTICE}:"
    found = [deadline_of(each.text) for each in evidence if each.name.startswith(prefix)]
    return min((deadline for deadline in found if deadline is not None), default=None)
