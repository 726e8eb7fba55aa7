"""One way to replace a file: whole, durable, for whom it is meant."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tocsin.domain.atomic_file import atomic_file, make_folder, write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_text_and_bytes_take_the_place_of_what_is_there(path: Path) -> None:
    write_atomically(path, "old")
    write_atomically(path, "später")
    assert path.read_text(encoding="utf-8") == "später"
    write_atomically(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_nothing_beside_it(path: Path) -> None:
    def half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    write_atomically(path, "old")
    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_readers_see_the_old_content_until_the_new_is_whole(path: Path) -> None:
    write_atomically(path, "old")
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_the_mode_is_set_from_the_first_byte_on(path: Path) -> None:
    with atomic_file(path, 0o600):
        (unfinished,) = path.parent.iterdir()
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_file_and_folder_are_synced_in_that_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, "x")
    assert synced == [(False, False), (True, True)]


def test_a_rename_that_need_not_be_durable_syncs_no_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    write_atomically(path, "x", durable=False)
    assert synced == [False]


def test_a_folder_that_does_not_exist_is_an_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(path / "deeper", "x")


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    make_folder(deep)
    make_folder(deep)
    assert deep.is_dir()
