"""The site's own table of places: a CSV file with one row for a host or a GPU."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tocsin.domain.errors import InputError
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology.claims import Claim, ClaimSource
from tocsin.topology.labels import MOST_LETTERS, usable

MOST_BYTES = 16 * 1024 * 1024
"""Largest file that is read (own choice: 100,000 rows of 160 letters)."""
MOST_ROWS = 200_000

SUBJECTS = {"host": PlaceKind.HOST, "gpu": PlaceKind.GPU}
"""Columns that say what a row is about; each row fills one of them."""
PLACES = {
    kind.value: kind
    for kind in PlaceKind
    if kind not in (PlaceKind.GPU, PlaceKind.HOST, PlaceKind.LINK, PlaceKind.JOB, PlaceKind.POOL)
}
"""Columns that name places; an empty cell says nothing."""
LINKS = "links"
"""Column with the names of the NVLinks that end in a GPU, with ``;`` between them."""
MOST_LINKS = 64

_COLUMNS = (*SUBJECTS, *PLACES, LINKS)


def read_site_file(path: Path) -> list[Claim]:
    """The claims of the file at `path`. Raises InputError, which names row, column, value and remedy."""
    try:
        if path.stat().st_size > MOST_BYTES:
            problem = f"the file has more than {MOST_BYTES >> 20} MiB"
            raise InputError("topology.file", str(path), problem, "give one row for a host and leave its GPUs out")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(
            "topology.file", str(path), error.strerror or str(error), "give a file that can be read"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError("topology.file", str(path), f"no UTF-8 at byte {error.start}", "save it as UTF-8") from None
    return parse_site_file(text, path.name)


def parse_site_file(text: str, name: str) -> list[Claim]:
    """As `read_site_file`, of the text of a file that errors call `name`."""
    rows = csv.reader(io.StringIO(text), strict=True)
    claims: list[Claim] = []
    seen: dict[Place, int] = {}
    columns: list[str] = []
    try:
        for cells in rows:
            if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                continue
            if not columns:
                columns = _header(cells, name)
                continue
            if len(seen) >= MOST_ROWS:
                raise _error(name, rows.line_num, "row", len(seen) + 1, f"more than {MOST_ROWS} rows", "split the site")
            claims += _row(dict(_cells(columns, cells, name, rows.line_num)), seen, name, rows.line_num)
    except csv.Error as error:
        raise _error(name, rows.line_num, "row", "", f"no CSV: {error}", "mend the quotes of that row") from None
    if not columns:
        raise _error(name, 1, "row", "", "the file has no header", f"begin with columns such as {_some()}")
    return claims


def _some() -> str:
    return "host,rack,power_zone,cooling_zone"


def _error(name: str, line: int, field: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError(f"{name}, line {line}, {field}", value, problem, remedy)


def _header(cells: Sequence[str], name: str) -> list[str]:
    columns = [cell.strip() for cell in cells]
    for column in columns:
        if column not in _COLUMNS:
            raise _error(name, 1, "column", column, "no such column", f"take some of {', '.join(_COLUMNS)}")
        if columns.count(column) > 1:
            raise _error(name, 1, "column", column, "it is there twice", "leave one of them out")
    if not SUBJECTS.keys() & set(columns):
        raise _error(name, 1, "column", ",".join(columns), "neither host nor gpu is there", "add the column host")
    return columns


def _cells(columns: Sequence[str], cells: Sequence[str], name: str, line: int) -> Iterator[tuple[str, str]]:
    if len(cells) != len(columns):
        problem = f"{len(cells)} cells for {len(columns)} columns"
        raise _error(name, line, "row", ",".join(cells), problem, "give every row as many cells as the header has")
    for column, cell in zip(columns, cells, strict=True):
        value = cell.strip()
        if value and column != LINKS and not usable(value):
            problem = f"no name of 1 to {MOST_LETTERS} printable letters"
            raise _error(name, line, column, value, problem, "shorten it, or leave the cell empty")
        yield column, value


def _row(cells: Mapping[str, str], seen: dict[Place, int], name: str, line: int) -> Iterator[Claim]:
    filled = [(column, cells[column]) for column in SUBJECTS if cells.get(column)]
    if not filled:
        raise _error(name, line, "host", "", "the row is about nothing", "fill in host or gpu")
    # Beside a GPU the host says only where to look for it.
    column, value = filled[-1]
    subject = Place(SUBJECTS[column], value)
    if subject in seen:
        problem = f"line {seen[subject]} is about it already"
        raise _error(name, line, column, value, problem, "leave one of the two rows out")
    seen[subject] = line
    for place, kind in PLACES.items():
        if cells.get(place):
            yield Claim(subject, Place(kind, cells[place]), ClaimSource.SITE_FILE)
    yield from _links(subject, cells.get(LINKS, ""), name, line)


def _links(subject: Place, text: str, name: str, line: int) -> Iterator[Claim]:
    links = [link.strip() for link in text.split(";") if link.strip()]
    if not links:
        return
    if subject.kind is not PlaceKind.GPU:
        raise _error(name, line, LINKS, text, "a host has no links of its own", "give the row of a GPU, by its UUID")
    if len(links) > MOST_LINKS or not all(usable(link) for link in links):
        problem = f"more than {MOST_LINKS} links, or one with no usable name"
        raise _error(name, line, LINKS, text, problem, "name each link once, with ; between them")
    for link in links:
        yield Claim(subject, Place(PlaceKind.LINK, link), ClaimSource.SITE_FILE)
