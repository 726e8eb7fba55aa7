"""Things put together by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, tuple[T, ...]]:
    """The things of each key; keys and things in the order in which they come first."""
    found: dict[K, list[T]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return {key: tuple(things) for key, things in found.items()}


def in_parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`whole` in pieces of `size`, the last of which may be shorter."""
    return (whole[first : first + size] for first in range(0, len(whole), size))
