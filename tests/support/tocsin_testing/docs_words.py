"""How many words of the documentation are written by hand: all Markdown that people read, less what programs write.

`python -m tocsin_testing.docs_words` prints the pages with the most words, and the sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tocsin.cli.reference import PAGES
from tocsin_testing import figures, runbook_pages, storm_run

ROOT = Path(__file__).parents[3]
WRITTEN_BY_PROGRAMS = {
    **{f"{name}.md": "tocsin reference" for name in PAGES},
    "accuracy_figures.md": "tocsin backtest --out",
    "research.md": "tocsin backtest --out",
    "rehearsals.md": "tocsin rehearse set --page",
    "scan_conditions.md": "python -m tocsin_testing.scan_page",
    "performance_figures.md": "make bench",
}
"""Pages of docs/ that a program writes whole, with the program; each page names it, which a test holds."""
PARTS = (
    (figures.BEGIN, figures.END),
    (storm_run.BEGIN, storm_run.END),
    (runbook_pages.BEGIN, runbook_pages.END),
    (runbook_pages.BEGIN_ACTION, runbook_pages.END),
    ("<!-- generated: begin -->", "<!-- generated: end -->"),
    ("<!-- values -->", "<!-- /values -->"),
)
"""Marks around what programs write into a page: bench, storms, runbooks, `make grafana`, `make chart`."""


def pages() -> Iterator[Path]:
    """Every page that a person wrote, or a part of."""
    for path in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]):
        if path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT).as_posix() not in (
            WRITTEN_BY_PROGRAMS
        ):
            yield path


def by_hand(text: str) -> str:
    """`text` without what programs write into it: marked parts, and what commands print in blocks of a console."""
    for begin, end in PARTS:
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", "", text, flags=re.DOTALL)
    return re.sub(r"(?ms)^```console\n.*?^```", lambda found: _commands(found.group()), text)


def _commands(block: str) -> str:
    return "\n".join(line for line in block.splitlines() if line.startswith("$ "))


def words(text: str) -> int:
    """Words have a letter or a digit: lines of tables and signs alone are none."""
    return sum(any(character.isalnum() for character in word) for word in text.split())


def main() -> None:
    """Print the pages, the longest first, and the sum."""
    counts = {path.relative_to(ROOT).as_posix(): words(by_hand(path.read_text("utf-8"))) for path in pages()}
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6,}  {name}")
    print(f"{sum(counts.values()):6,}  words written by hand")


if __name__ == "__main__":
    main()
