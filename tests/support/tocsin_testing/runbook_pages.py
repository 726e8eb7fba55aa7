"""What each guard's runbook says of the guard: what it asks, from docs/guards.md, and an example of its verdict;
in each action's, the product's sentence.

`python -m tocsin_testing.runbook_pages` writes those parts into the runbooks, and the table of guards into their index.
"""

from __future__ import annotations

import re
from pathlib import Path

from tocsin.domain.finding import ActionKind
from tocsin_testing.runbooks import ACTION_SENTENCES, GUARD_VERDICTS

DOCS = Path(__file__).parents[3] / "docs"
BOOKS = DOCS / "operations" / "runbooks"
BEGIN, END = "<!-- made from docs/guards.md -->", "<!-- end of what is made -->"
BEGIN_ACTION = "<!-- made from the product's sentence -->"
ASKED_FOR = "every action but notify."
"""What a guard is asked for whose section says nothing else."""
_SECTION = re.compile(r"(?ms)^## `(\w+)`\n(.*?)(?=^## |\Z)")


def guards() -> dict[str, tuple[str, str]]:
    """By name what a guard asks, and of which actions."""
    found = {}
    for name, text in _SECTION.findall((DOCS / "guards.md").read_text(encoding="utf-8")):
        asks = point(text, "Asks")
        assert asks is not None, name
        found[name] = (asks[0].upper() + asks[1:], point(text, "Asked for") or ASKED_FOR)
    return found


def point(text: str, word: str) -> str | None:
    """What the section `text` of a guard has under `word`, in one line."""
    found = re.search(rf"(?ms)^- {word}: (.*?)(?=^- |\Z)", text)
    return " ".join(found[1].split()) if found else None


def runbook(text: str, name: str) -> str:
    """The runbook `text` of guard `name`, with what is made renewed."""
    asks, asked_for = guards()[name]
    asks = re.sub(r"\]\(([\w/.]+)", r"](../../../\1", asks).replace("](#", "](../../../guards.md#")
    part = (
        f"{BEGIN}\n\n## What it asks\n\n{asks} Asked for: {asked_for}\n\n## What you see\n\n"
        f"Beside the decision, on the dashboard and in the journal:\n\n```text\n{GUARD_VERDICTS[name]}\n```\n\n{END}"
    )
    return f"# `{name}`\n\n{part}\n\n## How to undo{text.split('## How to undo', 1)[1]}"


def action(text: str, name: str) -> str:
    """The runbook `text` of action `name`, with what is made renewed."""
    before = text.split(BEGIN_ACTION, 1)[0].split("## What you see", 1)[0].rstrip("\n")
    sentence = ACTION_SENTENCES[ActionKind(name)]
    part = (
        f"{BEGIN_ACTION}\n\n## What you see\n\n"
        f"The sentence of the decision, or of the message:\n\n```text\n{sentence}\n```\n\n{END}"
    )
    return f"{before}\n\n{part}\n\n## How to undo{text.split('## How to undo', 1)[1]}"


def index(text: str) -> str:
    """The index of the runbooks, `text`, with the table of guards renewed."""
    rows = [f"| [`{name}`](guards/{name}.md) | {_first(asks)} |" for name, (asks, _) in guards().items()]
    table = "\n".join(["| guard | what it asks |", "|---|---|", *rows])
    return f"{text.split(BEGIN, 1)[0]}{BEGIN}\n\n{table}\n\n{END}{text.split(END, 1)[1]}"


def _first(asks: str) -> str:
    """The first sentence, which is the question, without links."""
    return re.split(r"[.:;](?: |$)", re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", asks))[0]


def main() -> None:
    """Write all of them anew."""
    for path in sorted((BOOKS / "guards").glob("*.md")):
        path.write_text(runbook(path.read_text(encoding="utf-8"), path.stem), encoding="utf-8")
    for path in sorted((BOOKS / "actions").glob("*.md")):
        path.write_text(action(path.read_text(encoding="utf-8"), path.stem), encoding="utf-8")
    path = BOOKS / "README.md"
    path.write_text(index(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
