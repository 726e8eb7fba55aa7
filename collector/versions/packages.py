"""Versions of installed packages by the package database of the node: dpkg's status file, or rpm's SQLite file.

No program is run: a container has neither dpkg nor rpm of its node. The status file is RFC 822 text (deb-control(5));
of rpm's database only the SQLite backend is read (rpm 4.16 and newer, as in RHEL 9 and Fedora), whose rows are headers
of RPM's file format: an index of (tag, type, offset, count) in network order, then the store they point into.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path

from tocsin.collector.versions.files import Node

DPKG_STATUS = "var/lib/dpkg/status"
RPM_DATABASES = ("usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite")
MOST_STATUS_BYTES = 64 * 1024 * 1024
"""A full desktop's status file has about 5 MB."""
MOST_HEADER_BYTES = 16 * 1024 * 1024
_MOST_ROWS = 50_000
_STEPS_ASKED = 1_000
_MOST_STEPS = 20_000_000
"""Steps of SQLite's machine for all rows; what needs more is no package database."""

WANTED: Mapping[str, re.Pattern[str]] = {
    "fabric_manager": re.compile(r"nvidia-fabric-?manager(-\d+)?"),
    "container_toolkit": re.compile(r"nvidia-container-toolkit"),
    "nccl": re.compile(r"libnccl2?"),
    "cudnn": re.compile(r"(libcudnn\d*|cudnn\d*)(-cuda-\d+)?"),
}
"""Names of packages by component."""


def upstream(version: str) -> str:
    """A package's version without epoch and revision: ``550.163.01`` of ``1:550.163.01-0ubuntu1``."""
    bare = version.strip().partition(":")[2] or version.strip()
    return bare.rpartition("-")[0] or bare


def installed(node: Node) -> tuple[dict[str, str], bool]:
    """Versions by component, and whether there is a package database that could be read."""
    found, known = _of_dpkg(node)
    if known:
        return found, True
    return _of_rpm(node)


def _component(name: str) -> str:
    return next((key for key, pattern in WANTED.items() if pattern.fullmatch(name)), "")


def _of_dpkg(node: Node) -> tuple[dict[str, str], bool]:
    found: dict[str, str] = {}
    known = False
    for stanza in _stanzas(node.lines(DPKG_STATUS, MOST_STATUS_BYTES)):
        known = True
        key = _component(stanza.get("package", ""))
        if key and stanza.get("status", "").split()[-1:] == ["installed"] and stanza.get("version"):
            found.setdefault(key, upstream(stanza["version"]))
    return found, known


def _stanzas(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Package, status and version of each paragraph; one without a package is none."""
    made: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            if "package" in made:
                yield made
            made = {}
            continue
        name, colon, value = line.partition(":")
        field = name.lower()
        if colon and field in ("package", "status", "version"):
            made.setdefault(field, value.strip()[:256])
    if "package" in made:
        yield made


# ---------------------------------------------------------------------- rpm

_NAME, _VERSION = 1000, 1001
_STRING = 6
_ENTRY = struct.Struct(">IiiI")


def header_texts(blob: bytes) -> dict[int, str]:
    """Name and version, by tag, of a header as rpm's database keeps it; none where it is not one."""
    if len(blob) < 8:
        return {}
    number, size = struct.unpack_from(">II", blob)
    start = 8 + number * _ENTRY.size
    if number > 65_536 or start + size > len(blob):
        return {}
    found: dict[int, str] = {}
    for tag, kind, offset, _ in _ENTRY.iter_unpack(blob[8:start]):
        if tag in (_NAME, _VERSION) and kind == _STRING and 0 <= offset < size:
            end = blob.find(b"\0", start + offset, start + size)
            if end >= 0:
                found[tag] = blob[start + offset : end][:256].decode("utf-8", errors="replace")
    return found


def _of_rpm(node: Node) -> tuple[dict[str, str], bool]:
    for name in RPM_DATABASES:
        path = node.place(name)
        if path is None or not path.is_file():
            continue
        try:
            return _of_database(path), True
        except (sqlite3.Error, OSError):
            continue
    return {}, False


def _of_database(path: Path) -> dict[str, str]:
    """Raises sqlite3.Error where it is none, or takes more than a package database does."""
    # Read as a file that nobody changes: the database of another system is not to be locked or recovered.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_HEADER_BYTES)
        begun = count()
        db.set_progress_handler(lambda: int(next(begun) > _MOST_STEPS // _STEPS_ASKED), _STEPS_ASKED)
        return _of_headers(row[0] for row in db.execute("SELECT blob FROM Packages LIMIT ?", (_MOST_ROWS,)))


def _of_headers(blobs: Iterator[object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for blob in blobs:
        texts = header_texts(blob) if isinstance(blob, bytes) else {}
        key = _component(texts.get(_NAME, ""))
        if key and texts.get(_VERSION):
            found.setdefault(key, texts[_VERSION].strip())
    return found
