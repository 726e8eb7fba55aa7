"""Many names found in a text at once: what it takes grows with the text and the names, whoever chose either."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"[^\W_]+|[\W_]")
"""Letters and digits that stand together, or any one character beside them."""
_BITS = 32
"""A state and a word are one number: a tuple of both takes twice the memory."""


class NameFinder:
    """Finds names where they begin and end with whole words, in whatever case (Aho and Corasick, 1975, of words).

    Each state is the beginning of some name; state 0 is none. Of a state, `_fails` has the longest other one that is
    its end, and `_lengths` how many words the longest name has that ends there, 0 for none.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._words: dict[str, int] = {}
        self._next: dict[int, int] = {}
        self._fails, self._lengths = array("I", [0]), array("I", [0])
        live = [(0, words) for one in names if (words := self._numbers(one))]
        depth = 0
        # Level by level: where a state fails to has fewer words than it, so that it is known by then.
        while live:
            live = [(self._grown(state, words, depth), words) for state, words in live if depth < len(words)]
            depth += 1

    def __bool__(self) -> bool:
        return bool(self._next)

    def _numbers(self, name: str) -> array[int]:
        words = map(str.casefold, _WORD.findall(name))
        return array("I", [self._words.setdefault(word, len(self._words)) for word in words])

    def _grown(self, state: int, words: array[int], depth: int) -> int:
        """The state behind `state` by word number `depth`, made where it is new."""
        key = state << _BITS | words[depth]
        if (after := self._next.get(key)) is None:
            fail = self._after(self._fails[state], words[depth]) if state else 0
            after = self._next[key] = len(self._fails)
            self._fails.append(fail)
            self._lengths.append(self._lengths[fail])
        if depth + 1 == len(words):
            self._lengths[after] = depth + 1
        return after

    def _after(self, state: int, word: int) -> int:
        while (after := self._next.get(state << _BITS | word)) is None and state:
            state = self._fails[state]
        return after or 0

    def states(self, names: Iterable[str]) -> frozenset[int]:
        """The states of those of `names` that are among its own, for `replaced` to leave them."""
        return frozenset(state for one in names if (state := self._state(one)))

    def _state(self, name: str) -> int:
        """The state of a name; 0 where it is none."""
        state = 0
        for word in map(str.casefold, _WORD.findall(name)):
            number = self._words.get(word)
            state = 0 if number is None else self._next.get(state << _BITS | number, 0)
            if not state:
                return 0
        return state if self._is_name(state) else 0

    def _is_name(self, state: int) -> bool:
        return self._lengths[state] > self._lengths[self._fails[state]]

    def _met(self, text: str, but: frozenset[int] = frozenset()) -> Iterator[tuple[int, int]]:
        """Begin and end of the longest name at each place where one ends, of those whose state is not in `but`."""
        state, begins, known = 0, list[int](), dict[int, int]()
        for found in _WORD.finditer(text):
            begins.append(found.start())
            word = self._words.get(found[0].casefold())
            state = 0 if word is None else self._after(state, word)
            if length := self._longest(state, but, known) if but else self._lengths[state]:
                yield begins[-length], found.end()

    def _longest(self, state: int, but: frozenset[int], known: dict[int, int]) -> int:
        """Words of the longest name that ends in a state and is not in `but`; each state is looked at once, `known`."""
        passed = list[int]()
        while self._lengths[state] and state not in known and (state in but or not self._is_name(state)):
            passed.append(state)
            state = self._fails[state]
        length = known.get(state, self._lengths[state])
        known.update(dict.fromkeys(passed, length))
        return length

    def is_in(self, text: str) -> bool:
        """Whether any of the names stands in `text`."""
        return any(True for _ in self._met(text))

    def replaced(self, text: str, by: str, but: frozenset[int] = frozenset()) -> str:
        """`text` with `by` in place of each name; of names that overlap, in place of all together. Those whose state
        is in `but` are left."""
        spans = list[tuple[int, int]]()
        for begin, end in self._met(text, but):
            while spans and spans[-1][1] > begin:
                begin = min(begin, spans.pop()[0])
            spans.append((begin, end))
        parts, at = list[str](), 0
        for begin, end in spans:
            parts += (text[at:begin], by)
            at = end
        return "".join((*parts, text[at:]))
