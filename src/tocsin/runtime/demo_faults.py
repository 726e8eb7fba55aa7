"""Hard faults of a demo at distinct places, and what its cards make of them against the simulator's own account."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tocsin.client.models_cards import Card
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu, Reading
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet

LEAK_STEP = -9
"""Evaluation at which the demo's own leak begins: it is forecast from half an hour on, and over after 40 minutes."""
HELD_STEPS = 45
"""Evaluations before it over which the memory of its process stayed as it was: else no rise tells from a warm-up."""
HELD = 0.018
MEMORY_USED = "gpu_memory_used_ratio"
ROOM = (0.3, 0.7)
"""Shares of memory between which its process is: with less, 40 minutes to the end are as steep as a start."""
FIRST_STEP = 2
"""Evaluation at which the first of the faults strikes; each later one strikes an evaluation later."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of `kind` on the GPU with this number, from evaluation `step` on; below 1 from the past before them."""

    step: int
    kind: str
    gpu: int


def plan_faults(fleet: SimulatedFleet, count: int, past: int) -> list[PlannedFault]:
    """`count` hard faults, one on each of so many hosts spread over the fleet, of as many kinds as there are.

    What announces itself begins that much earlier, as far as the `past` evaluations before the first reach.
    Two are in one rack only where there are fewer racks than faults. Raises InputError where there are fewer hosts.
    """
    hosts: dict[str, list[int]] = {}
    for number, gpu in enumerate(fleet.gpus):
        hosts.setdefault(gpu.host, []).append(number)
    if count > len(hosts):
        problem = f"a fleet of {len(fleet.gpus)} GPUs has {len(hosts)} hosts, and each fault needs its own"
        raise InputError("--faults", count, problem, f"give at most {len(hosts)}, or more --gpus")
    hard = [kind for kind in fault_kinds(fleet.spec.scenario).values() if kind.hard]
    kinds = sorted((hard[place % len(hard)] for place in range(count)), key=lambda kind: kind.rehearsal_lead)
    free = list(_spread(hosts, fleet.gpus))
    planned = []
    for place, kind in enumerate(kinds):
        host, number = _suited(fleet, kind.kind, free, hosts, place)
        free.remove(host)
        lead = math.ceil(kind.rehearsal_lead / fleet.spec.interval_ms) if kind.precursor else 0
        planned.append(PlannedFault(max(1 - past, FIRST_STEP + place - lead), kind.kind, number))
    return planned


def leaking_gpu(before: Sequence[Reading], now: Sequence[Reading], spared: Collection[str]) -> str | None:
    """UUID of the whole GPU with the most room, on none of the hosts `spared`, whose one process held its memory from
    one time to the other; None where there is none."""
    then = {one.gpu.uuid: one for one in before}
    found = []
    for one in now:
        earlier, level = then.get(one.gpu.uuid), one.values.get(MEMORY_USED, 0.0)
        if one.values.get("gpu_mig_mode"):
            # A process fills no more than its instance.
            continue
        if earlier is None or one.gpu.host in spared or len(one.owners) != 1 or one.owners != earlier.owners:
            continue
        if ROOM[0] <= level <= ROOM[1] and abs(level - earlier.values.get(MEMORY_USED, 0.0)) <= HELD:
            found.append((level, one.gpu.uuid))
    return min(found)[1] if found else None


def _spread(hosts: dict[str, list[int]], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Hosts such that neighbours in the list are of different racks, as far as there are racks."""
    by_rack: dict[str, list[str]] = {}
    for host, numbers in hosts.items():
        by_rack.setdefault(gpus[numbers[0]].rack, []).append(host)
    for turn in range(max(map(len, by_rack.values()))):
        yield from (members[turn] for members in by_rack.values() if turn < len(members))


def _suited(
    fleet: SimulatedFleet, kind: str, free: Sequence[str], hosts: dict[str, list[int]], place: int
) -> tuple[str, int]:
    """The first free host with a GPU that `kind` can befall; not always its first GPU."""
    for host in free:
        numbers = hosts[host]
        gpu = numbers[place % len(numbers)]
        if not fleet.objection(kind, gpu):
            return host, gpu
    raise InputError("--faults", kind, "can befall no host that is left", "give fewer faults, or more --gpus")


@dataclass
class FaultCards:
    """Follows the cards of a fleet with planned faults; hosts tell faults apart, for each has its own."""

    fleet: SimulatedFleet
    planned: Sequence[PlannedFault]
    _acted: set[str] = field(default_factory=set)
    _explained: set[str] = field(default_factory=set)

    @property
    def hosts(self) -> list[str]:
        """The host of each fault."""
        gpus = self.fleet.gpus
        return [gpus[one.gpu].host for one in self.planned]

    def look(self, cards: Collection[Card]) -> None:
        """Note which faults have a card whose action can run, or that says why there is none."""
        for card in cards:
            (self._acted if card.action is not None else self._explained).add(card.subject.host)

    def report(self, cards: Collection[Card]) -> dict[str, object]:
        """Of `cards`, open and resolved: how many there are, how many faults have theirs, and of how many of these an
        action could run at some time. `cards_beyond` are those that no fault explains or that repeat one."""
        shown = {card.subject.host for card in cards}
        true = [host for host in self.hosts if host in shown]
        return {
            "cards": len(cards),
            "cards_true": len(true),
            "cards_beyond": len(cards) - len(true),
            "cards_answerable": sum(host in self._acted for host in true),
            "cards_explained": sum(host in self._explained and host not in self._acted for host in true),
        }
