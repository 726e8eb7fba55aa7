"""Faults that no sign foretells: how often they come here, beside what a model expects of GPUs that show no sign.

A model of signs has seen other fleets. Most faults strike without a sign, at a rate that differs from fleet to fleet by
age, cooling and work. They add to what the model says of every GPU, as hazards of causes that know nothing of another
do: the chance that neither comes is the product of both. Who is warned of, and in which order, stays the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.domain.clock import DAY
from tocsin.forecaster.live.host_weight import host_shares

HALF_LIFE_MS = 14 * DAY
"""After this long a case weighs half, here and in the record of every kind: a fleet and its software change (own
choice)."""
DOUBT = 100.0
"""Cases without a fault beyond the model's word that are taken to have been, before any is known (own choice): two days
of a hundred GPUs, so that the first fault of a small fleet does not condemn the others."""
REBASE = 1e6
"""Weight of a new case at which older ones are put in relation to it again."""


@dataclass(slots=True)
class Unforeseen:
    """Of one model: cases of GPUs that it did not warn of, those of them that failed, and how many it expected to, by
    host. No host weighs more than a fifth."""

    hosts: dict[str, list[float]] = field(default_factory=dict)
    since_ms: int | None = None

    def settle(self, host: str, expected: float, came: bool, now_ms: int) -> None:
        """Take in a case whose window is over; `expected` is the model's own word, 0 to 1."""
        weight = self._weight(now_ms)
        kept = self.hosts.setdefault(host, [0.0, 0.0, 0.0])
        for place, more in enumerate((1.0, float(came), expected)):
            kept[place] += weight * more

    def chance(self, now_ms: int) -> float:
        """The chance (0 to 1) within one window that a GPU fails beyond what the model expects of it; 0 where nothing
        is known or the model expects too much already."""
        weight = self._weight(now_ms)
        shares = host_shares({host: one[0] for host, one in self.hosts.items()}, 1)
        sums = [sum(one[place] * shares[host] for host, one in self.hosts.items()) / weight for place in range(3)]
        cases, came, expected = sums
        return max(0.0, came - expected) / (cases + DOUBT)

    def _weight(self, now_ms: int) -> float:
        """What a case of now weighs: the older ones stay as they are and newer ones weigh more."""
        if self.since_ms is None:
            self.since_ms = now_ms
        weight = float(2.0 ** ((now_ms - self.since_ms) / HALF_LIFE_MS))
        if weight < REBASE:
            return weight
        self.hosts = {host: [each / weight for each in one] for host, one in self.hosts.items()}
        self.since_ms = now_ms
        return 1.0


def beside(chance: float, unforeseen: float, share: float = 1.0) -> float:
    """`chance` together with that of what no sign foretells, of which `share` of the window has its part."""
    return 1.0 - (1.0 - chance) * (1.0 - unforeseen) ** share if unforeseen else chance


def of_worlds(
    found: Mapping[tuple[str, str, bool], Unforeseen], target: str, now_ms: int
) -> dict[tuple[str, bool], float]:
    """By model and whether of simulated GPUs: the chance of what no sign foretells of `target`."""
    return {(model, world): one.chance(now_ms) for (mine, model, world), one in found.items() if mine == target}
