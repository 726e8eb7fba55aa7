"""Values of a GPU as numbers in a row, under names that a whole fleet has in common.

A value takes 8 bytes so, which as an entry of a dict takes several times as many. Numbers that lie in a row can be put
beside those of other GPUs without a look at each.
"""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

_NAMES = 1_024
"""Sets of names that are the same object to all: each kind of GPU and of source has some."""


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Keys of values in their order, each once, and the place of each; equal to itself alone."""

    keys: tuple[str, ...]
    places: Mapping[str, int] = field(repr=False)
    picks: dict[tuple[str, ...], tuple[tuple[str, int | None], ...]] = field(default_factory=dict, repr=False)
    """Where each of some keys stands, of those that were asked for together."""

    def __reduce__(self) -> tuple[Any, ...]:
        return names_of, (self.keys,)


@lru_cache(maxsize=_NAMES)
def names_of(keys: tuple[str, ...]) -> Names:
    """The one `Names` of these keys, for as long as they are in use. Raises ValueError where one stands twice."""
    places = {key: place for place, key in enumerate(keys)}
    if len(places) < len(keys):
        raise ValueError("a key stands twice")
    return Names(keys, places)


class NumberRow(Mapping[str, float]):
    """Values by key: `numbers` float64[n] are those of `names`, `rest` are variants that few GPUs have, as those of
    processes. No key is in both."""

    __slots__ = ("names", "numbers", "rest")

    def __init__(self, names: Names, numbers: array[float], rest: dict[str, float] | None = None) -> None:
        self.names, self.numbers = names, numbers
        self.rest = {} if rest is None else rest

    def __getitem__(self, key: str) -> float:
        place = self.names.places.get(key)
        return self.rest[key] if place is None else self.numbers[place]

    def get(self, key: str, default: Any = None) -> Any:
        place = self.names.places.get(key)
        return self.rest.get(key, default) if place is None else self.numbers[place]

    def __contains__(self, key: object) -> bool:
        return key in self.names.places or key in self.rest

    def __iter__(self) -> Iterator[str]:
        return chain(self.names.keys, self.rest)

    def __len__(self) -> int:
        return len(self.numbers) + len(self.rest)

    def items(self) -> ItemsView[str, float]:
        return self.plain().items()

    def values(self) -> ValuesView[float]:
        return self.plain().values()

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> dict[str, float]:
        """The same as a dict of its own: what looks at all values is quicker with it."""
        return {**dict(zip(self.names.keys, self.numbers, strict=True)), **self.rest}

    def takes(self, values: Mapping[str, float]) -> bool:
        """Whether `values` may be put to `rest`: variants that have no place in the row."""
        return all(key.endswith("}") for key in values) and self.names.places.keys().isdisjoint(values)


def parts_of(values: Mapping[str, float]) -> Iterator[tuple[Names | tuple[str, ...], array[float]]]:
    """`values` as keys with their numbers: those that many GPUs share, then those of this one; where they are no
    `NumberRow`, all of them at once. Raises TypeError or OverflowError for a value that is no number."""
    if not isinstance(values, NumberRow):
        yield tuple(values), array("d", [*values.values()])  # from a list it is filled at once
        return
    yield values.names, values.numbers
    if values.rest:
        yield tuple(values.rest), array("d", [*values.rest.values()])


def shape_of(values: Mapping[str, float]) -> tuple[Names | None, int]:
    """Equal for two values of the same keys in the same order, as far as can be seen at a look, for as long as it is
    kept: the keys of one alone by their hash, since a GPU may have those of thousands of processes."""
    if isinstance(values, NumberRow):
        return values.names, hash(tuple(values.rest))
    return None, hash(tuple(values))


def picked(values: Mapping[str, float], keys: tuple[str, ...]) -> list[float | None]:
    """The values of `keys`, None where there is none. For sets of keys that the program names: each is remembered."""
    if not isinstance(values, NumberRow):
        return [values.get(key) for key in keys]
    names, numbers, rest = values.names, values.numbers, values.rest
    if (picks := names.picks.get(keys)) is None:
        picks = names.picks[keys] = tuple((key, names.places.get(key)) for key in keys)
    return [rest.get(key) if place is None else numbers[place] for key, place in picks]


class Apart:
    """Whether values and others have no key in common, of GPUs that are much alike: what rows of the same names share
    with the same others is seen once. What it is asked about must live as long as it does."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, values: Mapping[str, float], others: Mapping[str, object]) -> bool:
        if not isinstance(values, NumberRow):
            return others.keys().isdisjoint(values.keys())
        key = id(values.names), id(others)
        if (apart := self._known.get(key)) is None:
            apart = self._known[key] = values.names.places.keys().isdisjoint(others.keys())
        return apart and (not values.rest or others.keys().isdisjoint(values.rest.keys()))


def joined(values: Mapping[str, float], more: Mapping[str, float]) -> Mapping[str, float]:
    """`values`, which may be changed, with `more`, which holds where both have a key; a `NumberRow` in place of nothing
    becomes the caller's. In time that grows with `more`, but for once that a row becomes a dict."""
    if isinstance(more, NumberRow) and not values:
        return more
    if isinstance(values, NumberRow) and values.takes(more):
        values.rest.update(more)
        return values
    whole = values if isinstance(values, dict) else dict(values.items())
    whole.update(more)
    return whole
