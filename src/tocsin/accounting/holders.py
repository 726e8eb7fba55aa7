"""Whose a GPU is: the holder behind the processes on it, and what is known of that holder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tocsin.domain.reading import MOST_LETTERS, Owner

NOBODY = ""
"""Key of what no one holds: free and stranded time, and time that nobody saw."""
UNKNOWN = "?"
"""Key of work whose owner nobody knows."""
OTHER = "+"
"""Key of the work beyond what one day keeps apart."""
MOST_SHARERS = 16
"""Holders of one GPU that are told apart; the rest of them is `UNKNOWN` (own choice)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A piece of work that holds GPUs, by the names that people ask for; empty text is unknown or none.

    `key` is its id as managers have it: ``slurm/JOB``, ``pod/UID`` or ``pod/NAMESPACE/NAME``, ``container/ID``,
    ``user/NAME``. `job` is what a person calls it.
    """

    key: str
    job: str = ""
    namespace: str = ""
    user: str = ""
    team: str = ""
    account: str = ""


Said = Mapping[tuple[str, str], Holder]
"""Holders by host and key, each in the words of that host: what one says of a piece of work names no time of another's
GPUs."""


def holders_of(owners: tuple[Owner, ...]) -> tuple[Holder, ...]:
    """The holders behind `owners`, by key, each once; processes of one job are one holder."""
    if len(owners) == 1:  # As a rule.
        return (_holder(owners[0]),)
    found: dict[str, Holder] = {}
    for owner in owners:
        one = _holder(owner)
        found.setdefault(one.key, one)
    kept = [found[key] for key in sorted(found)]
    return tuple(kept if len(kept) <= MOST_SHARERS else [*kept[: MOST_SHARERS - 1], Holder(UNKNOWN)])


# Of single owners: what hosts say of a GPU may have megabytes, and be another thing each time.
@lru_cache(maxsize=4_096)
def _holder(owner: Owner) -> Holder:
    names = {"namespace": owner.namespace, "user": owner.user}
    if owner.slurm_job:
        job = owner.slurm_job.partition(".")[0]
        return Holder(_cut(f"slurm/{job}"), _cut(f"Slurm job {job}"), **names)
    title = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
    if owner.pod_uid or title:
        return Holder(_cut(f"pod/{owner.pod_uid or title}"), _cut(title or f"pod {owner.pod_uid}"), **names)
    if owner.container:
        return Holder(_cut(f"container/{owner.container}"), f"container {owner.container[:12]}", **names)
    # Processes come and go; a person stays.
    return Holder(_cut(f"user/{owner.user}"), "", **names) if owner.user else Holder(UNKNOWN)


def _cut(text: str) -> str:
    return text[:MOST_LETTERS]
