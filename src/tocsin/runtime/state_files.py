"""The files that brain and agent keep: which of them hold what they read and did, and what encrypts each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tocsin.at_rest.database import PAGE_BYTES
from tocsin.at_rest.keys import RING, header_of, is_header
from tocsin.at_rest.mounts import Disks
from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.errors import InputError
from tocsin.journal import checkpoint
from tocsin.journal.archive_files import archive_of

STORE_PAGE_BYTES = 16_384
"""Pages of the embedded store, which keeps large chunks."""
_SEGMENT_MARK = b"PARE"
"""First bytes of an encrypted Parquet file."""


class Form(StrEnum):
    """How a file is written, and so how it is encrypted."""

    DATABASE = "database"
    BLOB = "file"
    SEGMENT = "segment"
    REMAINS = "remains"
    """Put aside by a repair or a restore: nothing reads it any more."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file of the state."""

    path: Path
    form: Form
    page_bytes: int = PAGE_BYTES

    @property
    def encrypted(self) -> bool:
        """Whether it is there and encrypted with some key."""
        start = header_of(self.path)
        return is_header(start) or (self.form is Form.SEGMENT and start.startswith(_SEGMENT_MARK))


def usage_path(settings: Settings) -> Path | None:
    """The file of usage; None where it is in memory."""
    if settings.usage.file is not None or settings.store.kind == StoreKind.MEMORY:
        return settings.usage.file
    return settings.store.path.with_name(f"{settings.store.path.name}.usage.db")


def features_path(settings: Settings) -> Path:
    """The file of the risk model's features between two starts."""
    return settings.store.path.with_name(f"{settings.store.path.name}.features.npz")


def brain_files(settings: Settings) -> list[StateFile]:
    """What a brain keeps with names of hosts, GPUs, jobs or people in it, whether it is there or not."""
    found = [StateFile(features_path(settings), Form.BLOB)]
    if not settings.journal.url.get_secret_value():
        found += _journal_files(settings.journal.path)
    if (usage := usage_path(settings)) is not None:
        found += _database(usage)
    if settings.store.kind == StoreKind.SQLITE:
        found += _database(settings.store.path, STORE_PAGE_BYTES)
        for suffix in (".segments", ".segments.damaged"):
            form = Form.SEGMENT if suffix == ".segments" else Form.REMAINS
            folder = settings.store.path.with_name(settings.store.path.name + suffix)
            found += [StateFile(path, form) for path in _inside(folder)]
    return found


def agent_files(settings: Settings) -> list[StateFile]:
    """The same of an agent."""
    return _database(settings.agent.spool) if settings.agent.push_url else []


def _journal_files(path: Path) -> list[StateFile]:
    notes = [
        StateFile(note, Form.BLOB) for note in (checkpoint.path_of(path), path.with_name(path.name + ".annotations"))
    ]
    return [*_database(path), *notes, *(StateFile(file.path, Form.DATABASE) for file in archive_of(path))]


def _database(path: Path, page_bytes: int = PAGE_BYTES) -> list[StateFile]:
    aside = [one for suffix in (".damaged*", ".replaced*") for one in path.parent.glob(path.name + suffix)]
    remains = [StateFile(one, Form.REMAINS) for one in sorted(aside) if one.is_file() and one.suffix != ".head"]
    return [StateFile(path, Form.DATABASE, page_bytes), *remains]


def _inside(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_file())


# ---------------------------------------------------------------------- what start refuses


def exposed(settings: Settings, files: Sequence[StateFile], disks: Disks | None = None) -> list[tuple[Path, str]]:
    """The files that neither a key nor their disk encrypts, each with what was seen of its disk.

    Without a key a file that is still to be made counts as well.
    """
    disks, has_key = disks or Disks(), bool(RING.held())
    known: dict[Path, str] = {}
    found = []
    for file in files:
        there = file.path.exists()
        if file.encrypted or (not there and has_key) or _vouched(file.path, settings.at_rest.vouched):
            continue
        folder = file.path.absolute().parent
        why = known.setdefault(folder, disks.why_plain(folder))
        if why:
            found.append((file.path, why))
    return found


def _vouched(path: Path, folders: Sequence[Path]) -> bool:
    real = path.absolute().resolve()
    return any(folder.absolute().resolve() in real.parents for folder in folders)


def require_encryption(settings: Settings, files: Sequence[StateFile], disks: Disks | None = None) -> None:
    """Raise InputError, which names them, where files are plain and the settings require that none is."""
    if not settings.at_rest.require_encryption:
        return
    found = exposed(settings, files, disks)
    if not found:
        return
    segments = Counter(path.parent for path, _ in found if path.suffix == ".parquet")
    named = [str(path) for path, _ in found if path.parent not in segments]
    named += [f"{count} files in {folder}" for folder, count in segments.items()]
    why = "; ".join(dict.fromkeys(why for _, why in found))
    remedy = (
        "set at_rest.key_file and run `tocsin at-rest encrypt`, remove what was put aside, move them to a LUKS volume, "
        "or name the folder in at_rest.vouched where its disk is encrypted in another way"
    )
    raise InputError(
        "at_rest.require_encryption", True, f"these files are plain, or would be: {', '.join(named)} ({why})", remedy
    )


def plain_despite_key(files: Sequence[StateFile]) -> list[Path]:
    """Files that are there and plain though this process holds a key."""
    return [file.path for file in files if file.path.exists() and not file.encrypted] if RING.held() else []
