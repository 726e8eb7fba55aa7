"""Rates: token buckets per key, and waits after wrong passwords. Both remember a bounded number of keys."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tocsin.domain.clock import Clock

MAX_KEYS = 10_000
"""Keys that are remembered; the one that was silent longest is forgotten first. Some 200 bytes each."""

V = TypeVar("V")


@lru_cache(maxsize=MAX_KEYS)
def same_network(address: str) -> str:
    """`address` as failures count for it: of IPv6 the /64 that one subscriber has all of (RFC 6177), else itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


class _Remembered(OrderedDict[str, V]):
    """The newest `MAX_KEYS` values by key."""

    def put(self, key: str, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > MAX_KEYS:
            self.popitem(last=False)


class TokenBuckets:
    """One token bucket a key: `burst` at once, `rate` a second on average."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._filled: _Remembered[tuple[float, float]] = _Remembered()
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Take one from the bucket of `key`: 0, or the seconds until there is one again."""
        with self._lock:
            now = self._clock.monotonic()
            level, since = self._filled.get(key) or (self._burst, now)
            level = min(self._burst, level + (now - since) * self._rate)
            granted = level >= 1.0
            self._filled.put(key, (level - 1.0 if granted else level, now))
            return 0.0 if granted else (1.0 - level) / self._rate

    def give_back(self, key: str) -> None:
        """Put back what was taken from the bucket of `key` for nothing."""
        with self._lock:
            if found := self._filled.get(key):
                self._filled[key] = (min(self._burst, found[0] + 1.0), found[1])

    def __len__(self) -> int:
        return len(self._filled)


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    until: float


class Lockout:
    """Waits that double: after `attempts` failures in a row a key is locked for `first` seconds, at most `longest`."""

    def __init__(self, clock: Clock, attempts: int, first: float, longest: float) -> None:
        self._clock = clock
        self._attempts = attempts
        self._first = first
        self._longest = longest
        self._failures: _Remembered[_Failures] = _Remembered()
        self._lock = threading.Lock()

    def wait(self, key: str) -> float:
        """Seconds for which `key` is still locked; 0 where it is not."""
        with self._lock:
            found = self._failures.get(key)
            return max(0.0, found.until - self._clock.monotonic()) if found else 0.0

    def failed(self, key: str) -> float:
        """Count a failure; the seconds for which `key` is locked from now on."""
        with self._lock:
            found = self._failures.get(key)
            now = self._clock.monotonic()
            # Whoever was quiet for the longest wait starts anew: four slips in a year are no attack.
            count = found.count + 1 if found and now - found.until < self._longest else 1
            beyond = count - self._attempts
            # 2 ** 20 waits of a second are more than any longest wait: it bounds the power, not the time.
            seconds = min(self._longest, self._first * 2.0 ** min(beyond, 20)) if beyond >= 0 else 0.0
            self._failures.put(key, _Failures(count, now + seconds))
            return seconds

    def succeeded(self, key: str) -> None:
        with self._lock:
            self._failures.pop(key, None)
