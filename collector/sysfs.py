"""Files of a sysfs tree, read within bounds: what is absent, unreadable or no number is None."""

from __future__ import annotations

import os
from pathlib import Path

MOST_BYTES = 4_096
"""An attribute of sysfs is at most a page."""
_DIGITS = 20
"""Of the largest 64-bit number."""


def text_of(path: Path) -> str | None:
    """The content of an attribute without blanks at its ends; None where there is none."""
    try:
        # Without a file object in between: some are read at every reading.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, MOST_BYTES).decode("ascii", errors="replace").strip()
        finally:
            os.close(descriptor)
    except OSError:  # a port that is down, or a device on its way out, answers EINVAL, EIO or ENODEV
        return None


def number_of(path: Path) -> int | None:
    """The whole number that an attribute holds, not below 0."""
    return whole(text_of(path) or "")


def whole(word: str) -> int | None:
    """`word` as a number of up to 64 bits; None where it is none."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= _DIGITS else None


def entries(folder: Path, most: int) -> list[str]:
    """Names in `folder` in order, at most `most`; none where there is no such folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for _, entry in zip(range(most), found, strict=False))
    except OSError:
        return []
