"""Tocsin's own marks in comments of Slurm's nodes and jobs: what was begun is read from the cluster after a restart."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r"(?:^|(?<=\s))tocsin/([a-z_]+)/([0-9a-f]{16})/(\d{1,15})(?=\s|$)")
REASON_PREFIX = "tocsin: "
"""Start of the reason of every node that Tocsin drained; its end is the decision's id in brackets."""
_OWN = re.compile(r"^tocsin: .*\[[0-9a-f]{16}\]$", re.DOTALL)
_UNPRINTED = re.compile(r"[^A-Za-z0-9 .,:;%/_()\[\]+-]+")
_NOTE = re.compile(r"^\[tocsin: [^\[\]]*\] ?| ?\[tocsin: [^\[\]]*\]")
MAX_NOTE = 200
"""Characters of a note about faults."""
MOST = 4
MAX_REASON = 200
"""Characters of a reason: Slurm's own tables show 20 to 50."""


@dataclass(frozen=True, slots=True)
class CommentTag:
    """`what` (such as ``drain``) was begun at `at_ms` for the decision with `id`."""

    what: str
    id: str
    at_ms: int

    def __str__(self) -> str:
        return f"tocsin/{self.what}/{self.id}/{self.at_ms}"


def find(text: str, what: str, identity: str = "") -> CommentTag | None:
    """The newest mark of `what` in a comment, of the decision with `identity` where one is given; else None."""
    return max(
        (mark for mark in _all(text, what) if identity in ("", mark.id)), key=lambda mark: mark.at_ms, default=None
    )


def put(text: str, mark: CommentTag) -> str:
    """`text` with `mark` in place of any of the same kind and decision; the words of others stay.

    Of one kind the newest `MOST` marks are kept: two decisions may be about one job, a job may be moved for years.
    """
    others = [other for other in _all(text, mark.what) if other.id != mark.id]
    kept = sorted(others, key=lambda other: other.at_ms)[-(MOST - 1) :]
    return " ".join([*drop(text, mark.what).split(), *map(str, kept), str(mark)])


def drop(text: str, what: str) -> str:
    """`text` without marks of `what`."""
    return " ".join(_MARK.sub(lambda match: "" if match[1] == what else match[0], text).split())


def turn(text: str, what: str, into: str) -> str:
    """`text` with its marks of `what` as marks of `into`: it has ended, and is still known to have been."""
    for mark in sorted(_all(text, what), key=lambda one: one.at_ms):
        text = put(text, CommentTag(into, mark.id, mark.at_ms))
    return drop(text, what)


def without_note(text: str) -> str:
    """`text` as it was before a note about faults was put behind it."""
    return _NOTE.sub("", text)


def with_note(text: str, note: str) -> str:
    """`text` with `note`, of which only plain characters are kept, behind it; an empty one takes the last one back."""
    others = without_note(text)
    if not note:
        return others
    plain = " ".join(_UNPRINTED.sub(" ", note.replace("[", "(").replace("]", ")")).split())
    return f"{others}{' ' if others else ''}[tocsin: {plain[:MAX_NOTE].rstrip()}]"


def note_of(text: str) -> str:
    """The note about faults in a comment; empty for none."""
    found = _NOTE.search(text)
    return found[0].strip()[len("[tocsin: ") : -1] if found else ""


def without_marks(text: str) -> str:
    """`text` without any mark or note of Tocsin's; the words of others stay."""
    return " ".join(_MARK.sub("", without_note(text)).split())


def _all(text: str, what: str) -> list[CommentTag]:
    return [CommentTag(match[1], match[2], int(match[3])) for match in _MARK.finditer(text) if match[1] == what]


def reason(sentence: str, identity: str) -> str:
    """Reason of a drain. Only plain characters of `sentence` are kept: it may come to a remote shell."""
    plain = " ".join(_UNPRINTED.sub(" ", sentence).split())
    room = MAX_REASON - len(REASON_PREFIX) - len(identity) - 3
    return f"{REASON_PREFIX}{plain[:room].rstrip()} [{identity}]"


def is_own(text: str) -> bool:
    """Whether a node's reason is one that `reason` made."""
    return _OWN.match(text) is not None
