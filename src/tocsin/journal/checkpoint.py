"""What the journal folded to at one of its entries, so that a start does not read it from the first one.

The state lies in a file beside the journal, its SHA-256 in an entry of the journal: it is as hard to forge as that is.
A state of another version of Tocsin, or one that no entry names, is not used; the journal is read whole then.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin import __version__
from tocsin.at_rest import blob
from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.entry import EntryKind

FORMAT = 1
"""Of the file; what a part of it means is bound to the version of Tocsin."""
MOST_BYTES = 256 * 1024 * 1024
"""Longest file that is read."""
LOOKED_AT = 5
"""Newest entries of the kind among which the file's is looked for: a crash may have left it one behind."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`parts` are the states by name, each of all entries up to number `seq`."""

    seq: int
    parts: Mapping[str, Any]


def path_of(journal: Path) -> Path:
    """File of the checkpoint of `journal`."""
    return journal.with_name(journal.name + ".fold")


def as_text(found: Checkpoint) -> tuple[str, dict[str, object]]:
    """The text that is kept, and the payload of the entry that makes it count."""
    content = {"format": FORMAT, "version": __version__, "seq": found.seq, "parts": found.parts}
    # In ASCII: a database keeps no text with a zero in it, which JSON may name by its escape alone.
    text = json.dumps(content, allow_nan=False)
    return text, {"seq": found.seq, "sha256": digest_of(text.encode()), "version": __version__}


def digest_of(data: bytes) -> str:
    """SHA-256 in hexadecimal, as entries name it."""
    return hashlib.sha256(data).hexdigest()


def save(journal: Path, found: Checkpoint) -> dict[str, object]:
    """Write the file; durable on return. The result is the payload of the entry that makes it count."""
    text, payload = as_text(found)
    write_atomically(path_of(journal), blob.closed(text.encode()), 0o600)
    return payload


def load(journal: Path, db: sqlite3.Connection) -> Checkpoint | None:
    """The checkpoint of the journal; None where there is none that counts here.

    It counts only if the chain holds from entry `seq` to the end, which is for the caller to see.
    """
    try:
        with path_of(journal).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    if len(data) > MOST_BYTES:
        return None
    try:
        data = blob.opened(data, path_of(journal))
    except blob.Unreadable:
        return None
    query = "SELECT seq, payload FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT ?"
    return named_by(db.execute(query, (EntryKind.CHECKPOINT, LOOKED_AT)), data)


def named_by(entries: Iterable[tuple[int, str]], data: bytes) -> Checkpoint | None:
    """What is kept in `data`, where one of the `entries`, numbers and payloads of the kind, newest first, names it."""
    own = digest_of(data)
    for number, payload in entries:
        try:
            named = json.loads(payload)
            if named.get("sha256") != own or named.get("version") != __version__:
                continue
            content = json.loads(data)
            seq = int(content["seq"])
            return Checkpoint(seq, content["parts"]) if content["format"] == FORMAT and 0 < seq < number else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
    return None
