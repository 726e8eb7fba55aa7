"""Words that people read."""

from __future__ import annotations


def counted(count: int, one: str) -> str:
    """`count` with its noun, of which `one` is the singular and which takes a plain s: ``1 host``, ``2,000 hosts``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"
