"""Slurm's short form of many host names: ``gpu-[1-3,07],login``."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_NAMES = 100_000
"""More than any cluster has: a range with a slip in it must not fill the memory."""

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


def expand(text: str) -> tuple[str, ...]:
    """The names that `text` stands for, in its order. Raises ValueError for what is no host list."""
    names: list[str] = []
    for part in _parts(text):
        names.extend(_expand_one(part, MOST_NAMES - len(names)))
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """The pieces between commas outside brackets."""
    depth, begun = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text[:80]!r}: brackets do not match")
        if letter == "," and depth == 0:
            yield text[begun:at].strip()
            begun = at + 1
    if depth:
        raise ValueError(f"{text[:80]!r}: brackets do not match")
    yield text[begun:].strip()


def _expand_one(part: str, room: int) -> list[str]:
    names = [""] if part else []
    while part:
        before, bracket, rest = part.partition("[")
        inside, _, part = rest.partition("]")
        numbers = list(_numbers(inside, room)) if bracket else [""]
        if len(names) * len(numbers) > room:
            raise ValueError(f"a host list of more than {MOST_NAMES} names")
        names = [name + before + number for name in names for number in numbers]
    return names


def _numbers(inside: str, room: int) -> Iterator[str]:
    for piece in inside.split(","):
        match = _RANGE.match(piece.strip())
        if match is None:
            raise ValueError(f"{inside[:80]!r} is no range of numbers")
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < room:
            raise ValueError(f"{piece[:80]!r} runs backwards or is too long")
        yield from (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
