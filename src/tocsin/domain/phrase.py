"""Sentences that can be told in more than one language: a template and its values, rendered when they are read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib import resources
from string import Formatter

MOST_VALUES = 16
"""Values of a phrase that are rendered; a journal may hold anything (own choice)."""

_NAMES = frozenset(
    {"gpu", "group", "host", "hosts", "id", "key", "name", "names", "node", "owner", "place", "pool", "rule", "subject"}
    | {"target", "who", "work"}
)
"""Values that people have named: a pool called ``power`` stays one."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """`template` is the English sentence with names in braces, by which a translation is found; `values` are texts, or
    phrases where a sentence has clauses of its own."""

    template: str
    values: Mapping[str, str | Phrase] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.template.format_map(self.values)


def say(template: str, /, **values: object) -> Phrase:
    """The phrase of `template` with `values`."""
    kept = {name: value if isinstance(value, Phrase) else str(value) for name, value in values.items()}
    return Phrase(template, kept)


def say_count(count: int, one: str) -> Phrase:
    """`tocsin.domain.words.counted` as a phrase."""
    return Phrase(f"{{n}} {one}" if count == 1 else f"{{n}} {one}s", {"n": f"{count:,}"})


def say_all(clauses: Sequence[Phrase]) -> Phrase:
    """`clauses`, one at least, with semicolons between them."""
    return reduce(lambda before, then: say("{before}; {then}", before=before, then=then), clauses)


def say_list(parts: Sequence[Phrase]) -> Phrase:
    """`parts`, one at least, with commas between them."""
    return reduce(lambda before, then: say("{before}, {then}", before=before, then=then), parts)


def names_in(template: str) -> frozenset[str]:
    """Names in braces. Raises ValueError for braces that do not match."""
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name is not None)


@cache
def _chinese_of(template: str) -> tuple[str, frozenset[str]]:
    """The Chinese template and its names, of a template of the catalogue: thousands of forecasts are told by one."""
    chinese = chinese_phrases()[template]
    return chinese, names_in(chinese)


@cache
def chinese_phrases() -> Mapping[str, str]:
    """Chinese template by English template."""
    text = resources.files("tocsin.domain").joinpath("phrases_zh.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def in_chinese(phrase: Phrase | str | None) -> str:
    """`phrase` in Chinese; empty where it is a text alone, has no translation, or lacks one of the values."""
    if not isinstance(phrase, Phrase) or len(phrase.values) > MOST_VALUES:
        return ""
    if phrase.template not in chinese_phrases():
        return ""
    template, names = _chinese_of(phrase.template)
    if not names <= phrase.values.keys():
        return ""
    parts = {
        name: value if name in _NAMES and isinstance(value, str) else word_in_chinese(value)
        for name, value in phrase.values.items()
    }
    return template.format_map(parts)


def word_in_chinese(value: Phrase | str) -> str:
    """What stands in a sentence as a value: in Chinese where the catalogue has it, else as it is."""
    if isinstance(value, Phrase):
        return in_chinese(value) or str(value)
    return chinese_phrases().get(value, value)
