"""Files and folders that are on disk, and not in a cache alone, when a function returns."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, as far as they are not there. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names of the files in `folder` to disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy(source: Path, target: Path) -> None:
    """Copy the content of `source`; its name is on disk after `sync_folder`. Raises OSError."""
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 2**20)
        new.flush()
        os.fsync(new.fileno())
