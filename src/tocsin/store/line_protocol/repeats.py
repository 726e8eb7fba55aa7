"""What lines about GPUs repeat from tick to tick and from GPU to GPU: read once, then looked up by its text.

Of a GPU's thirty lines most say the same as ten seconds before, and the same as those of its neighbours: links that are
up, counters at nought. What is remembered is bounded, whatever senders make up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.domain.metrics import BY_FIELD

MOST_TAILS = 16_384
"""Tails of one generation: a fleet of one kind of GPU has some hundreds, and some for each process."""
LONGEST_TAIL = 512
MOST_BLOCKS = 16_384
"""Beginnings of one generation: one for each GPU that reports."""
MOST_SHARED = 1_024
"""Different blocks of one generation."""
LEAST_OF_BLOCK, LONGEST_BLOCK = 4, 8_192
"""Lines of a block, and its text without instants, in characters."""
VALUES_OF_FIELD = 256
"""Texts of one field that are remembered: all of a temperature's, the first of a counter's."""
_LONGEST_ITEM = 128

_BOUNDS = {name: (spec.name, spec.minimum, spec.maximum) for name, spec in BY_FIELD.items()}


class Tails:
    """Values in their bounds by the text that follows a GPU's name on a line: label and fields, without the instant.

    Two generations: what is not met while one fills is forgotten. May be used by several threads.
    """

    def __init__(self) -> None:
        self._new: dict[str, Mapping[str, float]] = {}
        self._old: dict[str, Mapping[str, float]] = {}

    def get(self, text: str) -> Mapping[str, float] | None:
        """The values of `text`; None where it is not known. Not to be changed by the caller."""
        found = self._new.get(text)
        if found is None and (found := self._old.get(text)) is not None:
            self.put(text, found)
        return found

    def put(self, text: str, values: Mapping[str, float]) -> None:
        """Remember that `text` says `values`."""
        if len(text) > LONGEST_TAIL:
            return
        if len(self._new) >= MOST_TAILS:
            self._old, self._new = self._new, {}
        self._new[text] = values


@dataclass(frozen=True, slots=True)
class Block:
    """The `tails` of lines that follow each other, and what they say together."""

    tails: tuple[str, ...]
    values: Mapping[str, float]


class Blocks:
    """What the labelled lines of a GPU said last, by the text that begins each of them. May be used by several threads.

    Two generations, as of `Tails`; GPUs whose lines say the same share one block.
    """

    def __init__(self) -> None:
        self._new: dict[str, Block] = {}
        self._old: dict[str, Block] = {}
        self._shared: dict[tuple[str, ...], Block] = {}

    def get(self, begin: str) -> Block | None:
        """The block of lines with this beginning; None where it is not known."""
        return self._new.get(begin) or self._old.get(begin)

    def put(self, begin: str, block: Block) -> None:
        """Remember `block`, unless it is too short to be worth it or too long."""
        size = len(begin) + sum(map(len, block.tails))
        if len(block.tails) < LEAST_OF_BLOCK or size > LONGEST_BLOCK:
            return
        if len(self._new) >= MOST_BLOCKS or len(self._shared) >= MOST_SHARED:
            self._old, self._new, self._shared = self._new, {}, {}
        self._new[begin] = self._shared.setdefault(block.tails, block)


class Items:
    """Name and value of fields without label, by their text ``name=value``. May be used by several threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}
        self._count: Counter[str] = Counter()

    def values(self, text: str) -> dict[str, float] | None:
        """Values by metric of fields without quotes; None where one is no known number in its bounds."""
        items = text.split(",")
        pairs = [*map(self._known.get, items)]
        if None in pairs:
            for place, pair in enumerate(pairs):
                if pair is None:
                    pairs[place] = fresh = self._read(items[place])
                    if fresh is None:
                        return None
        return dict(pairs)  # type: ignore[arg-type]  # there is no None left

    def _read(self, item: str) -> tuple[str, float] | None:
        name, _, raw = item.partition("=")
        row = _BOUNDS.get(name)
        # float() takes digit separators, which the format does not have; a NaN is in no bounds.
        if row is None or "_" in raw:
            return None
        try:
            value = float(raw)
        except ValueError:
            return None
        if not row[1] <= value <= row[2]:
            return None
        pair = row[0], value
        if self._count[name] < VALUES_OF_FIELD and len(item) <= _LONGEST_ITEM:
            self._count[name] += 1
            self._known[item] = pair
        return pair
