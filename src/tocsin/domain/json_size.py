"""How much a JSON text takes once it is read."""

from __future__ import annotations


def values_in(body: bytes) -> int:
    """About the number of values in `body`, by its commas and opening brackets, those within texts among them.

    What a text takes in memory goes by this and not by its bytes: a list of empty lists takes thirty times its own.
    """
    return body.count(b",") + body.count(b"{") + body.count(b"[")
