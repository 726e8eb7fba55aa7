"""What each host weighs in a record: one agent with many GPUs, or one that flaps, must not speak for a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

HOSTS = 5
"""From so many hosts on, none weighs more than one in so many (own choice)."""


def weighed(cases: Iterable[tuple[str, bool]], few: int) -> tuple[float, float]:
    """Cases, as (host, right), and the right ones among them, each host weighing at most a fifth of the whole.

    With fewer than `HOSTS` hosts none weighs more than the least of them, or `few` cases where that is more; one host
    alone has nobody to outvote, and weighs `few` at most too.
    """
    counts: Counter[str] = Counter()
    rights: Counter[str] = Counter()
    for host, right in cases:
        counts[host] += 1
        rights[host] += right
    if not counts:
        return 0.0, 0.0
    largest = sorted(counts.values(), reverse=True)
    cap = largest[HOSTS - 1] if len(largest) >= HOSTS else few if len(largest) == 1 else max(few, largest[-1])
    shares = {host: min(count, cap) / count for host, count in counts.items()}
    return sum(counts[host] * share for host, share in shares.items()), sum(
        rights[host] * share for host, share in shares.items()
    )
