"""Every word that the dashboard says itself, in English and Chinese.

What the brain says (sentences of findings, predictions and guards) is shown as it comes, in English.
"""

from __future__ import annotations

import tomllib
from importlib import resources

LANGUAGES = {"en": "English", "zh": "中文"}
TABLES: dict[str, dict[str, list[str]]] = tomllib.loads(
    resources.files("tocsin.dashboard").joinpath("strings.toml").read_text(encoding="utf-8")
)
"""The strings by page, then by key: English, Chinese."""
STRINGS: dict[str, list[str]] = {key: words for table in TABLES.values() for key, words in table.items()}
"""Every string. A key stands in one table alone, which a test sees to."""


class Text:
    """Looks words up in one language."""

    def __init__(self, language: str) -> None:
        self.language = language if language in LANGUAGES else "en"
        self._column = list(LANGUAGES).index(self.language)

    def __call__(self, key: str, **values: object) -> str:
        """The string `key` with `values` filled in. Raises KeyError for a key that the table lacks."""
        return STRINGS[key][self._column].format(**values)

    def name(self, group: str, value: str) -> str:
        """The word for `value` of an enumeration; `value` itself where the table has none."""
        row = STRINGS.get(f"{group}.{value}")
        return row[self._column] if row else value

    def said(self, english: str, chinese: str) -> str:
        """What the brain says, in Chinese where that is the language and the brain has it."""
        return chinese if self.language == "zh" and chinese else english

    def duration(self, seconds: float) -> str:
        """`seconds` in the largest unit that leaves a number above one: 42 s, 18 min, 2.6 h, 3.1 d."""
        size = abs(seconds)
        for unit, length in (("d", 86_400), ("h", 3_600)):
            if size >= 2 * length:
                return self(f"unit.{unit}", n=f"{seconds / length:.1f}")
        if size >= 120:
            return self("unit.min", n=f"{seconds / 60:.0f}")
        return self("unit.s", n=f"{seconds:.0f}")
