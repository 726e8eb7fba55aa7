"""Proof of what other systems send back: a signature over instant and body, fresh, and taken once.

The body is checked as the bytes that came, before anything reads them.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tocsin.actions.notifications.delivery import SIGNATURE_HEADER, sign
from tocsin.api.errors import ApiError
from tocsin.domain.clock import MINUTE, SECOND, Clock, to_iso

FRESH_MS = 5 * MINUTE
"""How far the instant of a signature may be off, either way: what Slack asks of receivers."""
REMEMBERED_SECONDS = (2 * FRESH_MS + MINUTE) / SECOND
"""How long a signature is remembered: one from ahead stays fresh for twice `FRESH_MS`."""
MOST_REMEMBERED = 4_096
"""Signatures that are remembered of one sender: seven a second for as long as they can be fresh (own choice)."""

SLACK_TIMESTAMP, SLACK_SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"

_LONGEST_HEADER = 256


@dataclass(frozen=True, slots=True)
class Signature:
    """What a header says: seconds since the epoch as they were signed, and the hexadecimal HMAC-SHA256."""

    seconds: str
    mac: str

    @property
    def at_ms(self) -> int:
        return int(self.seconds) * SECOND


def own_signature(header: str) -> Signature:
    """The parts of a `Tocsin-Signature`, ``t=SECONDS,v1=HEX``. Raises ApiError 401 where it is none."""
    parts = [part.partition("=") for part in header[:_LONGEST_HEADER].split(",")]
    named = {name: value for name, _, value in parts}
    if len(header) > _LONGEST_HEADER or sorted(name for name, *_ in parts) != ["t", "v1"]:
        raise _lacking(f"{SIGNATURE_HEADER}: t=SECONDS,v1=HEX")
    return _checked(named["t"], named["v1"], f"{SIGNATURE_HEADER}: t=SECONDS,v1=HEX")


def slack_signature(timestamp: str, header: str) -> Signature:
    """What Slack's two headers say. Raises ApiError 401 where they are none of it.

    https://docs.slack.dev/authentication/verifying-requests-from-slack
    """
    version, _, mac = header.partition("=")
    wanted = f"{SLACK_TIMESTAMP}: SECONDS and {SLACK_SIGNATURE}: v0=HEX"
    return _checked(timestamp, mac if version == "v0" else "", wanted)


def _checked(seconds: str, mac: str, wanted: str) -> Signature:
    digits = seconds.isascii() and seconds.isdigit() and len(seconds) <= 12
    if not digits or len(mac) != 64 or not set(mac) <= set("0123456789abcdef"):
        raise _lacking(wanted)
    return Signature(seconds, mac)


def _lacking(wanted: str) -> ApiError:
    return ApiError(401, "signature_required", f"sign the request: {wanted}")


def own_mac(key: str, body: bytes, signature: Signature) -> str:
    """What a sender with `key` would have written, by the signature of Tocsin's own webhooks."""
    return sign(key, body, signature.at_ms).partition("v1=")[2]


def slack_mac(key: str, body: bytes, signature: Signature) -> str:
    """The same for Slack."""
    signed = f"v0:{signature.seconds}:".encode() + body
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


def signer(signature: Signature, made: Sequence[str], now_ms: int) -> int:
    """The number of the signature among `made`, one for each key. Raises ApiError 401 where it is none, or not fresh.

    All are compared, so that how long it takes says nothing of which key, or how many digits, were right.
    """
    same = [hmac.compare_digest(signature.mac, one) for one in made]
    if not any(same):
        raise ApiError(401, "signature_wrong", "the signature is not of this body, or not by a key that is known here")
    if abs(now_ms - signature.at_ms) > FRESH_MS:
        what = f"it was signed at {signature.seconds} s, and here it is {to_iso(now_ms)}"
        raise ApiError(401, "signature_old", f"{what}; sign each request anew, and set the clocks")
    return same.index(True)


class Replays:
    """Signatures that were taken while they can still be fresh, a bounded number of each sender.

    It lives as long as the process. After a restart what was begun is known by its name (`request_id` of
    `tocsin.api.service.SilenceService`), and a decision is settled once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, OrderedDict[str, _Taken]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def once(self, sender: str, mac: str) -> Iterator[bool]:
        """Whether `mac` of `sender` is new; it is remembered if the context ends well, so that a failure can be sent
        again.

        Raises ApiError 429 where the sender has sent more than is remembered: none is forgotten while it is fresh; and
        503 where the same is in work.
        """
        with self._lock:
            new = self._begin(self._seen.setdefault(sender, OrderedDict()), mac)
        try:
            yield new
        except BaseException:
            if new:
                with self._lock:
                    del self._seen[sender][mac]
            raise
        if new:
            self._seen[sender][mac].done = True

    def _begin(self, seen: OrderedDict[str, _Taken], mac: str) -> bool:
        now = self._clock.monotonic()
        while seen and (oldest := next(iter(seen.values()))).until <= now and oldest.done:
            seen.popitem(last=False)
        if (before := seen.get(mac)) is not None:
            if not before.done:
                raise ApiError(503, "busy", "the same request is in work", headers={"Retry-After": "1"})
            return False
        if len(seen) >= MOST_REMEMBERED:
            what = f"more than {MOST_REMEMBERED} signed requests in {REMEMBERED_SECONDS:.0f} s"
            raise ApiError(429, "rate_limited", what, headers={"Retry-After": "60"})
        seen[mac] = _Taken(now + REMEMBERED_SECONDS)
        return True


@dataclass(slots=True)
class _Taken:
    """When a signature may be forgotten, and whether what it asked for is done."""

    until: float
    done: bool = False
