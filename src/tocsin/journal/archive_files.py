"""Files of the archive of a journal: old entries that stand in the journal's own file no more.

They lie in a folder beside the journal and belong to it. Each is a database like the journal's own with some entries in
a row, and is never written again; the chain goes on from one into the next, and from the last into the journal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.errors import TocsinError

_NAME = re.compile(r"(\d{12})-(\d{12})\.db")


class ArchiveMissing(TocsinError):
    """Entries stand in the journal no more, and the file of its archive that has them is not there."""


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """The file with the entries `first` to `last`."""

    first: int
    last: int
    path: Path


def folder_of(journal: Path) -> Path:
    """Folder of the archive of `journal`; may be a link to another volume."""
    return journal.with_name(journal.name + ".archive")


def file_of(journal: Path, first: int, last: int) -> ArchiveFile:
    """Where the entries `first` to `last` of `journal` are archived."""
    return ArchiveFile(first, last, folder_of(journal) / f"{first:012d}-{last:012d}.db")


def archive_of(journal: Path) -> list[ArchiveFile]:
    """The files of the archive, by their first entry; what is named otherwise is none of them."""
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in folder_of(journal).iterdir()]
    except OSError:
        return []
    return sorted(ArchiveFile(int(name[1]), int(name[2]), path) for name, path in found if name is not None)


def file_with(journal: Path, seq: int) -> ArchiveFile:
    """The file with entry `seq`. Raises ArchiveMissing."""
    files = archive_of(journal)
    for file in files:
        if file.first <= seq <= file.last:
            return file
    folder = folder_of(journal)
    remedy = f"no file of {folder} has it: put the archive back, or restore a backup"
    raise ArchiveMissing(f"entry {seq} is missing: it is not in the journal any more, and {remedy}")
