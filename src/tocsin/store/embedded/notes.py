"""Text that rows of readings carry, few of them different: reasons for what is missing, and owners."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tocsin.domain.reading import Missing, Owner, owner_of_json

Index = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Notes:
    """Row i has text `texts[of[i]]`, or none where `of[i]`, int32[n], is -1."""

    of: Index
    texts: tuple[str, ...]

    def take(self, rows: npt.NDArray[np.intp]) -> Notes:
        """The notes of the rows numbered `rows`."""
        return Notes(self.of[rows], self.texts)

    def last(self, first: npt.NDArray[np.intp]) -> Notes:
        """The last text of each run of rows that starts at one of `first`."""
        place = np.maximum.reduceat(np.where(self.of >= 0, np.arange(len(self.of)), -1), first)
        return Notes(np.where(place >= 0, self.of[place], np.int32(-1)).astype(np.int32), self.texts)


@lru_cache(maxsize=1_024)
def no_notes(height: int) -> Notes:
    """Notes of `height` rows that carry none; shared, so not to be written to."""
    of = np.full(height, -1, np.int32)
    of.flags.writeable = False
    return Notes(of, ())


def notes_of(parts: Sequence[Notes]) -> Notes:
    """The notes of all `parts`, one after the other."""
    if not any(part.texts for part in parts):
        return no_notes(sum(len(part.of) for part in parts))
    numbers: dict[str, int] = {}
    found = []
    for part in parts:
        known = np.array([*(numbers.setdefault(text, len(numbers)) for text in part.texts), -1], dtype=np.int32)
        found.append(known[part.of])
    return Notes(np.concatenate(found) if found else np.empty(0, np.int32), tuple(numbers))


def combined_reasons(notes: Notes, group: Index, height: int) -> Notes:
    """Reasons of the rows of each group together; a later row's reason for a name replaces an earlier one's.

    `group`, int32[n], rises and numbers `height` groups.
    """
    found: dict[int, int] = {}
    texts = list(notes.texts)
    known = {text: number for number, text in enumerate(texts)}
    rows = np.flatnonzero(notes.of >= 0)
    for one, number in zip(group[rows].tolist(), notes.of[rows].tolist(), strict=True):
        before = found.get(one)
        if before is None or before == number:
            found[one] = number
            continue
        text = _combined(texts[before], texts[number])
        found[one] = known.setdefault(text, len(texts))
        if found[one] == len(texts):
            texts.append(text)
    of = np.full(height, -1, np.int32)
    of[list(found.keys())] = list(found.values())
    return Notes(of, tuple(texts))


@lru_cache(maxsize=4096)
def _combined(before: str, after: str) -> str:
    return _dump({**json.loads(before), **json.loads(after)})


def _dump(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def reasons_text(missing: Sequence[tuple[str, Missing]]) -> str:
    """Reasons as text."""
    return _dump({name: int(reason) for name, reason in missing})


@lru_cache(maxsize=8192)
def reasons_of(text: str) -> tuple[tuple[str, Missing], ...]:
    """Inverse of `reasons_text`."""
    return tuple((name, Missing(code)) for name, code in json.loads(text).items())


@lru_cache(maxsize=16_384)
def owners_text(owners: tuple[Owner, ...]) -> str:
    """Owners as text; the same processes are written again with every reading, of 10,000 GPUs others on each."""
    return _dump([owner.as_json() for owner in owners])


@lru_cache(maxsize=8192)
def owners_of(text: str) -> tuple[Owner, ...]:
    """Inverse of `owners_text`."""
    return tuple(owner_of_json(document) for document in json.loads(text))
