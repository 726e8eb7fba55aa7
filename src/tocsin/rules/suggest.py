"""The nearest known word, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy that names the entry of `known` closest to `word`."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.0)
    return f"did you mean {close[0]}?" if close else "remove it"
