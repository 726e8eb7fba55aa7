"""The body of a write: unpacked within a bound, and decoded line by line."""

from __future__ import annotations

import zlib

from tocsin.api.errors import ApiError
from tocsin.client.models import RejectedLine

MAX_MEMBERS = 4096
"""Members that a gzip body may have: each costs a decoder, empty ones too. Files of bgzip have one for 64 KiB."""
_STEP = 8192
"""Bytes that a decoder is given at once: what is left behind the end of a member is copied."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` without its ``Content-Encoding``.

    Raises ApiError 413 where the result would exceed `limit` bytes (a small body can unpack to gigabytes), 400 for
    gzip that is broken, cut short or of more than `MAX_MEMBERS` members, 415 for an encoding other than gzip and
    identity.
    """
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise ApiError(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:50]} is not read; use gzip or identity"
        )
    unpacked = bytearray()
    place = members = 0
    while place < len(body):
        members += 1
        if members > MAX_MEMBERS:
            raise ApiError(400, "broken_gzip", f"the gzip body has more than {MAX_MEMBERS} members; send it as one")
        place = _unpack_member(body, place, unpacked, limit)
    return bytes(unpacked)


def _unpack_member(body: bytes, place: int, unpacked: bytearray, limit: int) -> int:
    """Add the member that begins at `place` to `unpacked`; where the next one begins."""
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while not decoder.eof:
        part = body[place : place + _STEP]
        if not part:
            raise ApiError(400, "broken_gzip", "the gzip body is cut short; send it again whole")
        try:
            unpacked += decoder.decompress(part, limit - len(unpacked) + 1)
        except zlib.error as error:
            raise ApiError(400, "broken_gzip", f"the body is not gzip: {error}") from error
        if len(unpacked) > limit:
            raise ApiError(413, "content_too_large", f"the body unpacks to more than {limit} bytes; send less at once")
        place += len(part)
    return place - len(decoder.unused_data)


def decode(body: bytes) -> tuple[str, list[RejectedLine]]:
    """`body` as text, and the lines that are no UTF-8: these are left empty, so that the others keep their numbers."""
    try:
        return body.decode(), []
    except UnicodeDecodeError:
        pass
    lines: list[str] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(body.split(b"\n"), start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            lines.append("")
            rejected.append(RejectedLine(number=number, problem=f"not UTF-8 at byte {error.start}"))
    return "\n".join(lines), rejected
