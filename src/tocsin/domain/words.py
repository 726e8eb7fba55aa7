"""Words that people read."""

from __future__ import annotations

import unicodedata


def counted(count: int, one: str) -> str:
    """`count` with its noun, of which `one` is the singular and which takes a plain s: ``1 host``, ``2,000 hosts``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def clean(text: str) -> str:
    """`text` without what is no text, on one line.

    Control characters and line ends become a space, invisible and direction marks vanish, half a surrogate pair becomes
    the replacement character.
    """
    kept = text if text.isprintable() else "".join(_kept(letter) for letter in text)
    return " ".join(kept.split())


def _kept(letter: str) -> str:
    kind = unicodedata.category(letter)
    if kind in {"Cc", "Zl", "Zp"}:
        return " "
    if kind == "Cf":
        return ""
    return "\ufffd" if kind in {"Cs", "Cn"} else letter


def clip(text: str, limit: int) -> str:
    """At most `limit` characters of `text`; what was cut off is shown as three dots."""
    return text if len(text) <= limit else text[: max(0, limit - 3)].rstrip() + "..."
