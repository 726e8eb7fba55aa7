"""Keys of the state on disk. An encrypted file says in its first bytes by which key it is, so nobody has to be told.

A file begins with 16 bytes: a mark, the size of its pages, a number of its own, and a tag that only its key makes from
these. The state's key itself encrypts nothing: each file has a key of its own, derived from that number.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.domain.errors import InputError

KEY_BYTES = 32
HEADER_BYTES = 16
CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Variable in which systemd names the folder of a unit's credentials (systemd.exec(5), LoadCredential=)."""
_MARK = b"tcs"
_TAG_AT = 12
_MOST_BYTES = 4096
"""Longest key file that is read."""
_FIELD = "at_rest.key_file"
_CREDENTIAL = "at_rest.credential"


class KeyLacks(InputError):
    """A file is encrypted, and not with a key of this process: that says nothing against the file."""


def is_header(data: bytes) -> bool:
    """Whether a file that begins with `data` is an encrypted one; by which key is another question."""
    return len(data) >= HEADER_BYTES and data.startswith(_MARK) and data[3] <= 16  # 64 KiB


@dataclass(frozen=True, slots=True)
class StateKey:
    """A key of the state: 32 bytes that no text shows."""

    secret: bytes = field(repr=False)

    def new_header(self, page_bytes: int = 0) -> bytes:
        """The first bytes of a new file; `page_bytes` is the size of a database's pages, a power of two up to 64 KiB,
        0 in a file that has none."""
        start = _MARK + bytes([max(page_bytes.bit_length() - 1, 0)]) + secrets.token_bytes(8)
        return start + self._tag(start)

    def made(self, header: bytes) -> bool:
        """Whether a file with these first bytes is encrypted by this key."""
        return is_header(header) and hmac.compare_digest(self._tag(header[:_TAG_AT]), header[_TAG_AT:HEADER_BYTES])

    def of_file(self, header: bytes) -> bytes:
        """The key of the file with these first bytes, 32 bytes."""
        return self.derived(b"file " + header[:_TAG_AT])

    def derived(self, purpose: bytes) -> bytes:
        """A key for `purpose`, 32 bytes (HMAC-SHA-256 as the pseudo-random function of SP 800-108 r1, one block)."""
        return hmac.new(self.secret, b"tocsin at rest " + purpose, hashlib.sha256).digest()

    def _tag(self, start: bytes) -> bytes:
        return self.derived(b"tag " + start)[: HEADER_BYTES - _TAG_AT]


def page_bytes_of(header: bytes) -> int:
    """Size of the pages of an encrypted database with these first bytes; 0 in a file without pages."""
    return (1 << header[3]) if header[3] else 0


def header_of(path: Path) -> bytes:
    """The first bytes of a file; empty where there is none, or none that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""


# ---------------------------------------------------------------------- where a key comes from


def read_key(path: Path, name: str = _FIELD, *, private: bool = True) -> StateKey:
    """The key in the file `path`: 32 bytes, or 64 hexadecimal digits. Raises InputError, naming setting `name`.

    With `private` the file must be closed to all but its owner.
    """
    try:
        with path.open("rb") as file:
            mode, data = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(_MOST_BYTES + 1)
    except OSError as error:
        remedy = "check the path and the account that reads it"
        raise InputError(name, str(path), error.strerror or str(error), remedy) from None
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(name, str(path), f"is open to others (mode {mode:04o})", f"chmod 600 {path}")
    if len(data) == KEY_BYTES:
        return StateKey(data)
    try:
        secret = bytes.fromhex(data.decode("ascii").strip())
    except (UnicodeDecodeError, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        remedy = f"use {KEY_BYTES} bytes, or what `openssl rand -hex {KEY_BYTES}` prints"
        raise InputError(name, str(path), f"is no key: it has {len(data)} bytes", remedy)
    return StateKey(secret)


def _configured(key_file: str, credential: str) -> tuple[StateKey, ...]:
    """The key that the settings name, as a file or as a credential of systemd; none where they name none."""
    if credential:
        folder = os.environ.get(CREDENTIALS, "")
        if not folder:
            remedy = f"start the program as a unit with LoadCredential={credential}:FILE, or use {_FIELD}"
            raise InputError(_CREDENTIAL, credential, f"is not here: ${CREDENTIALS} is not set", remedy)
        # systemd gives the folder to the unit's account alone, whatever the mode of a file in it.
        return (read_key(Path(folder) / credential, _CREDENTIAL, private=False),)
    return (read_key(Path(key_file)),) if key_file else ()


_NAMES = ("TOCSIN_HELD_KEY_FILE", "TOCSIN_HELD_CREDENTIAL")
"""Variables by which a process tells those that it starts, which get no settings, where the key is."""


def _from_environment() -> tuple[StateKey, ...]:
    return _configured(*(os.environ.get(name, "") for name in _NAMES))


def hold_configured(key_file: Path | None, credential: str) -> None:
    """From now on this process, and those that it starts, use the key that the settings name.

    It is read when the first file needs it: a command that opens none works for who may not read the key.
    """
    for name, value in zip(_NAMES, ("" if key_file is None else str(key_file.absolute()), credential), strict=True):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    RING.hold(_from_environment)


# ---------------------------------------------------------------------- the keys that this process holds


class Ring:
    """The keys of a process, read when the first file needs one. Safe to use from several threads.

    New files are encrypted with the first key, if there is any; files that are there with the key that made them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._load: Callable[[], Sequence[StateKey]] = _from_environment
        self._keys: tuple[StateKey, ...] | None = None
        self._plain = False

    def hold(self, load: Callable[[], Sequence[StateKey]], *, plain: bool = False) -> None:
        """From now on the keys are what `load` returns; it is called once, and may raise InputError.

        With `plain` they only read: new files are not encrypted.
        """
        with self._lock:
            self._load, self._keys, self._plain = load, None, plain

    def held(self) -> tuple[StateKey, ...]:
        """The keys, the one for new files first. Raises InputError where they cannot be had."""
        with self._lock:
            if self._keys is None:
                self._keys = tuple(self._load())
            return self._keys

    def first(self) -> StateKey | None:
        """The key of new files; None where they are plain."""
        return None if self._plain else next(iter(self.held()), None)

    def of(self, header: bytes, path: Path) -> StateKey:
        """The key of an encrypted file. Raises KeyLacks where this process does not hold it."""
        keys = self.held()
        for key in keys:
            if key.made(header):
                return key
        if not keys:
            raise KeyLacks(_FIELD, "", f"is not set, and {path} is encrypted", "set it, or at_rest.credential")
        remedy = "set the key that encrypted it; the file was not touched"
        raise KeyLacks(_FIELD, "...", f"is not the key of {path}", remedy)


RING = Ring()
"""Of this process: a file tells by which key it is, so no caller hands keys on."""
