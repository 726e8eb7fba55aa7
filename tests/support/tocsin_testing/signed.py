"""What a receiver of signed requests checks."""

from __future__ import annotations

import hmac

from tocsin.actions.notifications.delivery import sign
from tocsin.domain.clock import MINUTE, SECOND


def is_valid(header: str, secret: str, body: bytes, now_ms: int, tolerance_ms: int = 5 * MINUTE) -> bool:
    """Whether the signature is of this body, and at most `tolerance_ms` old or ahead."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    if not parts.get("t", "").isdecimal() or not parts["t"].isascii():
        return False
    at_ms = int(parts["t"]) * SECOND
    expected = sign(secret, body, at_ms).partition("v1=")[2]
    return hmac.compare_digest(expected.encode(), parts.get("v1", "").encode()) and abs(now_ms - at_ms) <= tolerance_ms
