"""How the versions of one component stand in a group, by how many hosts have and had each: pure counts, so that the
parts of a group may be counted at different places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tocsin.domain.versions import Standing

LEAST_HOSTS = 4
"""Hosts of a group below which nobody can say which of two versions is meant."""
MOST_SHARE = 0.25
"""Share of a group's hosts up to which those with another version are a small part of it."""
BROUGHT_BY = {"cuda_driver": "driver", "gsp_firmware": "driver", "fabric_manager": "driver"}
"""What comes with another component, in one version: the driver has CUDA's and the firmware of the GSP inside, and the
fabric manager has to have its version."""


class Held(NamedTuple):
    """One version: how many hosts have it, and how many had it a day ago."""

    version: str
    hosts: int
    ago: int


def standing_of(
    held: Sequence[Held], total_ago: int, least_hosts: int, most_share: float
) -> tuple[Standing, frozenset[str]]:
    """How versions stand in a group, and which of them drift. `held` has that of most hosts first; `total_ago` are the
    hosts of which it is known what they had a day ago."""
    total = sum(one.hosts for one in held)
    if total < least_hosts or not held:
        return Standing.FEW, frozenset()
    if len(held) == 1:
        return Standing.SAME, frozenset()
    rising = {one.version for one in held if total_ago >= least_hosts and _rises(one, total, total_ago)}
    common = held[0]
    if 2 * common.hosts > total and common.version not in rising:
        small = [one for one in held[1:] if one.hosts <= most_share * total]
        odd = frozenset(one.version for one in small if one.version not in rising)
        if odd:
            return Standing.DRIFT, odd
    return Standing.ROLLOUT if rising else Standing.MIXED, frozenset()


def _rises(one: Held, total: int, total_ago: int) -> bool:
    return one.hosts > one.ago and one.hosts * total_ago > one.ago * total
