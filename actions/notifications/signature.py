"""Signature of a webhook request: HMAC-SHA256 over the instant and the body."""

from __future__ import annotations

import hashlib
import hmac

from tocsin.domain.clock import MINUTE, SECOND

HEADER = "Tocsin-Signature"
"""``t=<seconds since the epoch>,v1=<hexadecimal HMAC-SHA256 of "<t>." followed by the body>``"""


def sign(secret: str, body: bytes, now_ms: int) -> str:
    """The header's value."""
    seconds = now_ms // SECOND
    return f"t={seconds},v1={_mac(secret, seconds, body)}"


def is_valid(header: str, secret: str, body: bytes, now_ms: int, tolerance_ms: int = 5 * MINUTE) -> bool:
    """What a receiver checks: the signature is of this body, and at most `tolerance_ms` old or ahead."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    if not parts.get("t", "").isdecimal() or not parts["t"].isascii():
        return False
    seconds = int(parts["t"])
    fresh = abs(now_ms - seconds * SECOND) <= tolerance_ms
    expected = _mac(secret, seconds, body).encode()
    return hmac.compare_digest(expected, parts.get("v1", "").encode()) and fresh


def _mac(secret: str, seconds: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
