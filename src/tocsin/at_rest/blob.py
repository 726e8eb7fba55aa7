"""Single files, encrypted whole: AES-256-GCM with the file's own key, over the bytes of the file's header too."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tocsin.at_rest.keys import HEADER_BYTES, RING, StateKey, is_header
from tocsin.domain.errors import TocsinError

_NONCE = 12


class Unreadable(TocsinError):
    """An encrypted file is not as it was written."""


def closed(data: bytes, key: StateKey | None = None) -> bytes:
    """What is to be written for `data`: encrypted with `key`, or that of this process; `data` itself where there is
    none."""
    found = key or RING.first()
    if found is None:
        return data
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    header, nonce = found.new_header(), secrets.token_bytes(_NONCE)
    return header + nonce + AESGCM(found.of_file(header)).encrypt(nonce, data, header)


def write(file: IO[bytes], fill: Callable[[IO[bytes]], object]) -> None:
    """Write to `file` what `fill` writes, encrypted where this process has a key: without one nothing is held whole."""
    if RING.first() is None:
        fill(file)
        return
    made = io.BytesIO()
    fill(made)
    file.write(closed(made.getvalue()))


def read(path: Path) -> IO[bytes]:
    """The content of `path`, to be closed by the caller; plain data is read as it is asked for.

    Raises as `opened` does, and OSError.
    """
    file = path.open("rb")
    if not is_header(file.read(HEADER_BYTES)):
        file.seek(0)
        return file
    with file:
        file.seek(0)
        return io.BytesIO(opened(file.read(), path))


def opened(data: bytes, path: Path) -> bytes:
    """Inverse of `closed` for what was read from `path`; plain data as it is.

    Raises InputError where this process has not the key, and Unreadable.
    """
    if not is_header(data):
        return data
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    header, nonce = data[:HEADER_BYTES], data[HEADER_BYTES : HEADER_BYTES + _NONCE]
    key = RING.of(header, path)
    try:
        return AESGCM(key.of_file(header)).decrypt(nonce, data[HEADER_BYTES + _NONCE :], header)
    except (InvalidTag, ValueError):
        raise Unreadable(f"{path} is not as it was encrypted") from None
