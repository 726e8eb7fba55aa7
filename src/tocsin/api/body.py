"""The body of a write: unpacked within a bound, and decoded line by line."""

from __future__ import annotations

import zlib

from tocsin.api.errors import ApiError
from tocsin.client.models import RejectedLine


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` without its ``Content-Encoding``.

    Raises ApiError 413 where the result would exceed `limit` bytes (a small body can unpack to gigabytes), 400 for
    gzip that is broken or cut short, 415 for an encoding other than gzip and identity.
    """
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise ApiError(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:50]} is not read; use gzip or identity"
        )
    unpacked = bytearray()
    rest = body
    while rest:
        decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            unpacked += decoder.decompress(rest, limit - len(unpacked) + 1)
        except zlib.error as error:
            raise ApiError(400, "broken_gzip", f"the body is not gzip: {error}") from error
        if len(unpacked) > limit:
            raise ApiError(413, "content_too_large", f"the body unpacks to more than {limit} bytes; send less at once")
        if not decoder.eof:
            raise ApiError(400, "broken_gzip", "the gzip body is cut short; send it again whole")
        rest = decoder.unused_data
    return bytes(unpacked)


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
