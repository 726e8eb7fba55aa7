"""Copying a journal away and back, its archive with it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from tocsin.at_rest.database import connect_copy
from tocsin.domain.atomic_file import make_folder, make_private
from tocsin.domain.errors import Conflict, InputError
from tocsin.journal.archive_files import archive_of, file_of, folder_of
from tocsin.journal.files import Anchor, JournalBroken, connect, lock, newest, read_entries, sealed_in
from tocsin.journal.verify import verify


def backup(source: Path, target: Path, key: bytes = b"") -> None:
    """Copy the journal `source` with its anchor, sealed with `key`, to the new file `target`, also beside a writer.

    Its archive is copied to the folder of the archive of `target`.
    """
    for path in (target, folder_of(target)):
        if path.exists():
            raise InputError("target", str(path), "exists", "name a new file")
    with closing(connect(source, write=False)) as old:
        make_private(target)
        with closing(connect_copy(target, source)) as new:
            # The anchor before the copy: one that a writer moved meanwhile would name entries that the copy lacks.
            sealed = _sealed_anchor(source, key) if key else None
            old.backup(new)
            last = new.execute("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
            # What was sealed, and no more: a copy must not make good what was added without the key.
            end = newest(sealed, sealed_in(new, key)) if key else None
    # The archive last: what is archived meanwhile stands in the copy as well, and the other way round is a gap.
    _copy_archive(source, target)
    if end is None and last:
        end = Anchor(int(last[0]), str(last[1]))
    if end is not None:
        end.write(target, key)


def _sealed_anchor(source: Path, key: bytes) -> Anchor | None:
    try:
        return Anchor.read(source, key)
    except JournalBroken:
        return None


def _copy_archive(source: Path, target: Path) -> None:
    for file in archive_of(source):
        make_folder(folder_of(target))
        copy = file_of(target, file.first, file.last).path
        make_private(copy)
        shutil.copyfile(file.path, copy)


def restore(source: Path, target: Path, key: bytes = b"") -> None:
    """Put the backup `source` in place of the journal `target`; the replaced files stay beside it as ``.replaced``.

    Raises InputError where the backup's chain, or with a `key` its seal, does not hold, and Conflict where a brain uses
    `target`, where `target` is whole and the backup does not continue it, or where an earlier ``.replaced`` is still
    there.
    """
    result = verify(source, key)
    if not result.ok:
        raise InputError("source", str(source), result.problem, "use another backup")
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target):
        if target.exists() and verify(target, key).ok and not _continues(source, target):
            raise Conflict(f"{target} is whole and {source} does not continue it; move it aside first")
        aside = target.with_name(target.name + ".replaced")
        if aside.exists():
            raise Conflict(f"{aside} is left from an earlier restore; move it away first")
        fresh = target.with_name(target.name + ".restored")
        for path in (fresh, Anchor.path_of(fresh)):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder_of(fresh), ignore_errors=True)
        backup(source, fresh, key)
        for suffix in ("", "-wal", "-shm", ".head", ".archive"):
            old = target.with_name(target.name + suffix)
            if old.exists():
                old.rename(aside.with_name(aside.name + suffix))
        if folder_of(fresh).exists():
            folder_of(fresh).rename(folder_of(target))
        if Anchor.path_of(fresh).exists():
            Anchor.path_of(fresh).rename(Anchor.path_of(target))
        fresh.rename(target)


def _continues(source: Path, target: Path) -> bool:
    """Whether every entry of `target` is in `source`: the hash of the last one speaks for all before it."""
    last = None
    for entry in read_entries(target):
        last = entry
    return last is None or any(e.hash == last.hash for e in read_entries(source, after=last.seq - 1, limit=1))
