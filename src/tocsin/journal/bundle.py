"""A sealed archive of a few files for somebody outside: a plain tar, the same bytes for the same content.

It is not compressed: what a stranger sends unpacks to no more than it is, and every machine makes the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.domain.entry import canonical, digest
from tocsin.domain.errors import InputError

FILES = frozenset(
    {"README.txt", "gpu.json", "journal.jsonl", "peers.csv", "telemetry.csv", "versions.json", "xids.csv"}
)
"""What an archive holds beside its manifest and signature; any other name is refused."""
MANIFEST, SIGNATURE = "MANIFEST.sha256", "MANIFEST.sha256.sig"
UNSIGNED = "unsigned"
MOST_BYTES = 64 * 1024 * 1024
"""Largest archive that is made or read."""
_BLOCK = tarfile.BLOCKSIZE
_SCHEME = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found; `problem` is empty where nothing is wrong.

    `signed` says that there is a signature, `proven` that the key given made it. `entries` counts journal entries,
    `withheld` those without their content, whose hash only the journal itself can confirm.
    """

    problem: str
    signed: bool = False
    proven: bool = False
    entries: int = 0
    withheld: int = 0
    files: tuple[str, ...] = ()


def pack(files: Mapping[str, bytes], key: bytes = b"") -> bytes:
    """The archive of `files`, whose names are `FILES`, signed with `key` where there is one."""
    manifest = _manifest(files)
    return _tar({**files, MANIFEST: manifest, SIGNATURE: _signature(manifest, key)})


def check(path: Path, key: bytes = b"") -> Checked:
    """Whether the archive at `path` is as it was made. Raises InputError where it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError("FILE", str(path), error.strerror or str(error), "name an evidence file") from None
    if len(content) > MOST_BYTES:
        raise InputError("FILE", str(path), f"has more than {MOST_BYTES:,} bytes", "an evidence file is smaller")
    return check_bytes(content, key)


def check_bytes(content: bytes, key: bytes = b"") -> Checked:
    """Whether `content` is an archive as it was made: every byte of it counts."""
    try:
        files = _untar(content)
        manifest, signature = files.pop(MANIFEST), files.pop(SIGNATURE)
    except (ValueError, KeyError) as error:
        return Checked(f"is no evidence archive: {error}")
    if files.keys() != FILES:
        return Checked(f"lacks {', '.join(sorted(FILES - files.keys()))}")
    if manifest != _manifest(files):
        wrong = [name for name in sorted(files) if _line(name, files[name]) not in manifest]
        return Checked(f"{', '.join(wrong) or MANIFEST} is not what {MANIFEST} says")
    signed = signature != f"{UNSIGNED}\n".encode()
    if key and not signed:
        return Checked("is unsigned, so the key given proves nothing")
    if key and not hmac.compare_digest(signature, _signature(manifest, key)):
        return Checked("the signature was not made with the key given", signed=True)
    if signed and not _is_signature(signature):
        return Checked(f"{SIGNATURE} holds no signature")
    if _tar({**files, MANIFEST: manifest, SIGNATURE: signature}) != content:
        return Checked("has bytes beside its files that are not as they were made", signed=signed)
    problem, entries, withheld = _check_entries(files["journal.jsonl"])
    return Checked(problem, signed, signed and bool(key), entries, withheld, tuple(sorted(files)))


def _manifest(files: Mapping[str, bytes]) -> bytes:
    return b"".join(_line(name, files[name]) for name in sorted(files))


def _line(name: str, content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()


def _signature(manifest: bytes, key: bytes) -> bytes:
    if not key:
        return f"{UNSIGNED}\n".encode()
    made = hmac.new(key, b"tocsin evidence manifest\n" + manifest, hashlib.sha256)
    return f"{_SCHEME} {made.hexdigest()}\n".encode()


def _is_signature(content: bytes) -> bool:
    scheme, _, value = content.decode("ascii", "replace").rstrip("\n").partition(" ")
    return scheme == _SCHEME and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(files[name]), 0, 0o644
            tar.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()


def _untar(content: bytes) -> dict[str, bytes]:
    """The files, read block by block: nothing is written anywhere, and no header may name what it does not hold."""
    found: dict[str, bytes] = {}
    at = 0
    while at + _BLOCK <= len(content) and any(content[at : at + _BLOCK]):
        try:
            member = tarfile.TarInfo.frombuf(content[at : at + _BLOCK], "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(str(error)) from None
        if member.type != tarfile.REGTYPE or member.name not in FILES | {MANIFEST, SIGNATURE} or member.name in found:
            raise ValueError(f"it may not hold {member.name[:100]!r}")
        start = at + _BLOCK
        if not 0 <= member.size <= len(content) - start:
            raise ValueError(f"{member.name} is cut short")
        found[member.name] = content[start : start + member.size]
        at = start + -(-member.size // _BLOCK) * _BLOCK
    return found


def _check_entries(lines: bytes) -> tuple[str, int, int]:
    """What is wrong with the extract, its entries, and how many of them stand without content."""
    withheld = count = last = 0
    for count, line in enumerate(lines.splitlines(), 1):
        try:
            row = json.loads(line)
            seq = int(row["seq"])
            if seq <= last:
                return f"journal.jsonl: entry {seq} is out of order", count, withheld
            last = seq
            if "withheld" in row:
                withheld += 1
                continue
            text = canonical(row["payload"])
            head = (row["previous_hash"], seq, row["epoch"], row["at_ms"], row["kind"], row["actor"], row["simulated"])
            if digest(*head, text) != row["hash"]:
                return f"journal.jsonl: the content of entry {seq} does not fit its hash", count, withheld
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"journal.jsonl: line {count} is no entry", count, withheld
    return "", count, withheld
