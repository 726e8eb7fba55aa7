"""Tables as CSV for people's spreadsheets. Names in them are a stranger's word: none of them becomes a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_SIGNS = r"=+\-@＝＋－＠"
_BEFORE_SIGN = re.compile(rf'(?<![\s;"])[\s;"]*(?=[{_SIGNS}])')
"""What stands before a sign that may begin a formula, as long as it is: linear in the text.

Spreadsheets take full-width signs for the plain ones."""
_ENDS_CELL = re.compile(r"[;\t\r\n]")
"""What ends a cell in a spreadsheet that does not split by commas, even within quotes that do not begin its cell."""


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV of RFC 4180 with line feeds: `head` plain, texts in quotes, numbers (and no others) without.

    A text of which a spreadsheet would run a part, however it splits lines, has an apostrophe there.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(head)
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([defused(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def defused(text: str) -> str:
    """`text` with an apostrophe before each sign that would begin a formula."""
    return _BEFORE_SIGN.sub(_marked, f"'{text}" if text[:1] in ("\t", "\r", "\n") else text)


def _marked(found: re.Match[str]) -> str:
    begins = found.start() == 0 or _ENDS_CELL.search(found[0]) is not None
    return f"{found[0]}'" if begins else found[0]
