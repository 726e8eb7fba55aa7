"""Faults that no sign foretells: how often they come here, beside what a model expects of GPUs that show no sign.

A model of signs has seen other fleets. Most faults strike without a sign, at a rate that differs from fleet to fleet by
age, cooling and work. They add to what the model says of every GPU, as hazards of causes that know nothing of another
do: the chance that neither comes is the product of both. It is a word about the fleet: who is warned of, avoided or
moved, and at what price, goes by the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.domain.clock import DAY
from tocsin.forecaster.live.host_weight import HOSTS

HALF_LIFE_MS = 14 * DAY
"""After this long a case weighs half, here and in the record of every kind: a fleet and its software change (own
choice)."""
DOUBT = 100.0
"""Cases without a fault beyond the model's word that are taken to have been, before any is known (own choice): two days
of a hundred GPUs, so that the first fault of a small fleet does not condemn the others."""
LEAST = 0.01
"""A host whose cases weigh less together is forgotten."""
MOST_HOSTS = 20_000
"""Hosts of which cases are kept; those of more are not counted."""
TWO_DIGITS = 2
"""Digits of what is said: a figure that wavers is no news of every GPU."""


@dataclass(slots=True)
class Unforeseen:
    """Of one version of a model: cases of GPUs that it did not warn of, those of them that failed, and how many it
    expected to, by host. From five hosts on none weighs more than a fifth of all cases."""

    hosts: dict[str, list[float]] = field(default_factory=dict)
    since_ms: int = 0

    def settle(self, host: str, expected: float, came: bool, now_ms: int) -> None:
        """Take in a case whose window is over; `expected` is the model's own word, 0 to 1."""
        self._age(now_ms)
        kept = self.hosts.get(host)
        if kept is None:
            if len(self.hosts) >= MOST_HOSTS:
                return
            kept = self.hosts[host] = [0.0, 0.0, 0.0]
        for place, more in enumerate((1.0, float(came), expected)):
            kept[place] += more

    def chance(self) -> float:
        """The chance (0 to 1, two digits) within one window that a GPU fails beyond what the model expects of it; 0
        where nothing is known or the model expects too much already."""
        whole = sum(one[0] for one in self.hosts.values())
        most = whole / HOSTS if len(self.hosts) >= HOSTS else whole
        cases = beyond = 0.0
        for count, came, expected in self.hosts.values():
            share = min(1.0, most / count) if count > 0 else 0.0
            cases += share * count
            beyond += share * (came - expected)
        return float(f"{max(0.0, beyond) / (cases + DOUBT):.{TWO_DIGITS}g}")

    def _age(self, now_ms: int) -> None:
        """Let what is known weigh less for each day that has passed; a clock that goes back takes nothing away."""
        if not self.hosts or now_ms < self.since_ms:
            self.since_ms = now_ms
        days = (now_ms - self.since_ms) // DAY
        if days > 0:
            self.since_ms += days * DAY
            keep = 0.5 ** (days * DAY / HALF_LIFE_MS)
            aged = {host: [each * keep for each in one] for host, one in self.hosts.items()}
            self.hosts = {host: one for host, one in aged.items() if one[0] >= LEAST}


def beside(chance: float, unforeseen: float, share: float = 1.0) -> float:
    """`chance` together with that of what no sign foretells, of which `share` of the window has its part."""
    return 1.0 - (1.0 - chance) * (1.0 - unforeseen) ** share if unforeseen else chance


ModelKey = tuple[str, str, bool]
"""Family of a model, its version, and whether of simulated GPUs."""


def chances_of(found: Mapping[tuple[str, ModelKey], Unforeseen], target: str) -> dict[ModelKey, float]:
    """By model: the chance of what no sign foretells of `target`."""
    return {model: one.chance() for (mine, model), one in found.items() if mine == target}
