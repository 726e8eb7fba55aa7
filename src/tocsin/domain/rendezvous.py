"""Rendezvous hashing (Thaler and Ravishankar, 1998): who of several has a key; few move when one comes or goes.

Of the keys that one had who goes, each of the others gets about the same share, and no other key moves; one that comes
gets its share from all. Everybody who knows the same names comes to the same answer, without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def owner_of(key: str, names: Iterable[str]) -> str:
    """Who of `names` has `key`; empty where there is nobody."""
    return max(names, key=lambda name: (_score(key, name), name), default="")


def _score(key: str, name: str) -> bytes:
    # The lengths keep two pairs apart whose letters together are the same.
    return blake2b(f"{len(name)}:{name}{key}".encode(), digest_size=16).digest()
