"""Which GPUs count in the limits of actions: no more of a host than others than its own agent show.

What must hold: GPUs that an agent makes up start no action on another host and hold none back there. So a host counts
as many whole GPUs as its manager shows or the site's file lists; without either, as many as it came with, and of
these no more than is usual. What is beyond that is surplus: it is watched and told of, and is nothing to any limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from statistics import median_low
from typing import Protocol, TypeVar

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.grouping import grouped
from tocsin.domain.reading import UNKNOWN_GPU, Gpu

MOST_PARTS = 7
"""MIG instances that one GPU has at most, on every model that has any."""


T = TypeVar("T")


class Owners(Protocol):
    """What is asked of `tocsin.runtime.brain.ownership.Ownership`."""

    newcomer_ms: int

    def counts(self, uuid: str, now_ms: int) -> bool:
        """Whether the GPU has been seen for long enough."""

    def age_ms(self, uuid: str, now_ms: int) -> int:
        """How long its host has had it."""

    def came_with(self, host: str) -> int:
        """Whole GPUs with which the host came."""

    def revision(self, host: str) -> int:
        """A number that is another one after a GPU of the host has come or gone."""


@dataclass(frozen=True, slots=True)
class LimitWeight:
    """What a GPU is to the limits. `counted`: shares are shares of it. `surplus`: it is more than its host has."""

    counted: bool
    surplus: bool


_UNKNOWN = LimitWeight(counted=False, surplus=True)


@dataclass(frozen=True, slots=True)
class _Came:
    """What an agent said of a GPU when it came: pool, rack and whether it is opted in."""

    pool: str
    rack: str
    managed: str


_Asked = tuple[tuple[int, ...], tuple[int | None, ...], int, int]
"""What a host's weights are made of, beside the time: its GPUs, by identity; what its manager shows, where one knows
it; with how many it came, where that is not more than usual; and whether any of them has come or gone."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a look at a host came to; it stays so until something else is asked, or until `until_ms`, when one of its
    GPUs is new no longer (None where none is). `gpus` keeps those that `asked` names alive."""

    asked: _Asked
    gpus: tuple[Gpu, ...]
    weights: Mapping[str, LimitWeight]
    racks: Mapping[str, Gpu]
    came: Mapping[str, _Came]
    until_ms: int | None

    def holds(self, asked: _Asked, now_ms: int) -> bool:
        """Whether a look for `asked` would come to the same."""
        return self.asked == asked and (self.until_ms is None or now_ms < self.until_ms)


class Counting:
    """Weights of the GPUs of a fleet, looked at anew where a host has changed; for one thread."""

    def __init__(self, owners: Owners, usual: int, managed_label: str, listed: Collection[str] = ()) -> None:
        """`usual` is `actions.unshown_gpus_per_host`, `listed` are the UUIDs in the site's file."""
        self._owners, self._usual, self._label = owners, usual, managed_label
        self._listed = frozenset(listed)
        self._came: dict[str, _Came] = {}
        self._gpus: tuple[Gpu, ...] | None = None
        self._hosts: dict[str, tuple[Gpu, ...]] = {}
        self._looked_at: dict[str, _Looked] = {}
        self._last: tuple[dict[str, LimitWeight], dict[str, Gpu]] = {}, {}
        self._now_usual = usual

    def look(
        self, gpus: Sequence[Gpu], nodes: Mapping[str, NodeState], now_ms: int
    ) -> tuple[dict[str, LimitWeight], dict[str, Gpu]]:
        """The weight of each of `gpus` by UUID, and those whose rack is the one that they came with."""
        # What an agent says of a GPU is the same object for as long as it says the same.
        last = self._gpus
        same = last is not None and len(gpus) == len(last) and all(map(is_, gpus, last))
        if not same:
            self._gpus, self._hosts = tuple(gpus), grouped((gpu.host, gpu) for gpu in gpus)
        hosts = self._hosts
        came = {host: self._owners.came_with(host) for host in hosts}
        # Of a host that is alone nobody else's limits can be widened.
        usual = max(self._usual, median_low(came.values())) if len(came) > 1 else max(came.values(), default=0)
        self._now_usual = max(usual, self._usual)
        looked = dict[str, _Looked]()
        for host, mine in hosts.items():
            asked = self._asked(host, mine, nodes, min(came[host], usual))
            known = self._looked_at.get(host)
            holds = known is not None and known.holds(asked, now_ms)
            looked[host] = known if known is not None and holds else self._looked(asked, mine, now_ms)
            same &= holds
        self._looked_at = looked
        if not same:
            self._came = _together(one.came for one in looked.values())
            self._last = (
                _together(one.weights for one in looked.values()),
                _together(one.racks for one in looked.values()),
            )
        return self._last

    def look_at_new(self, gpus: Sequence[Gpu], nodes: Mapping[str, NodeState], now_ms: int) -> None:
        """Look at hosts of which all of `gpus` are new since the last look: a fault of a node that has just come need
        not wait for the next. Of `gpus`, each host's are all that it has."""
        known, racks = self._last
        new = {gpu.host for gpu in gpus if gpu.uuid not in known}
        if not new:
            return
        # What a look has answered, and other threads may go through, is left as it is.
        weights, racks = dict(known), dict(racks)
        for host, mine in grouped((gpu.host, gpu) for gpu in gpus if gpu.host in new).items():
            if any(gpu.uuid in known for gpu in mine):
                continue
            came = min(self._owners.came_with(host), self._now_usual)
            found = self._looked(self._asked(host, mine, nodes, came), mine, now_ms)
            weights.update(found.weights)
            racks.update(found.racks)
            self._came.update(found.came)
        self._gpus, self._last = None, (weights, racks)

    def _asked(self, host: str, gpus: Sequence[Gpu], nodes: Mapping[str, NodeState], came: int) -> _Asked:
        shown = (nodes[host].gpus,) if host in nodes else ()
        return tuple(map(id, gpus)), shown, came, self._owners.revision(host)

    def _looked(self, asked: _Asked, gpus: Sequence[Gpu], now_ms: int) -> _Looked:
        _, shown, came, _ = asked
        wholes = self._in_order(gpus, now_ms)
        listed = sum(uuid in self._listed for uuid in wholes)
        most = (shown[0] if shown else None) or max(came, listed)
        surplus = _beyond(gpus, frozenset(wholes[:most]))
        said, racks = self._remember(gpus, now_ms)
        weights = {}
        for gpu in gpus:
            seen = bool(shown) or gpu.uuid in self._listed or self._owners.counts(gpu.uuid, now_ms)
            counted = seen and gpu.uuid not in surplus and not self._strays(gpu, said[gpu.uuid])
            weights[gpu.uuid] = LimitWeight(counted and not gpu.uuid.startswith(UNKNOWN_GPU), gpu.uuid in surplus)
        new = [age for gpu in gpus if (age := self._owners.age_ms(gpu.uuid, now_ms)) < self._owners.newcomer_ms]
        until_ms = now_ms + self._owners.newcomer_ms - max(new) if new else None
        return _Looked(asked, tuple(gpus), weights, racks, said, until_ms)

    def _is_new(self, gpu: Gpu, now_ms: int) -> bool:
        return self._owners.age_ms(gpu.uuid, now_ms) < self._owners.newcomer_ms

    @property
    def looked_at(self) -> Mapping[str, object]:
        """Of each host what the last look at all came to: the same object for as long as nothing of it changes."""
        return self._looked_at

    @property
    def surplus(self) -> frozenset[str]:
        """UUIDs of the GPUs that are more than their hosts have, by the last look."""
        return frozenset(uuid for uuid, weight in self._last[0].items() if weight.surplus)

    def of(self, gpu: Gpu) -> tuple[LimitWeight, Gpu]:
        """The weight of a GPU by the last look, and it with the rack that it came with. Nothing is done to one that
        came to a known host since, until the next look."""
        weights, racks = self._last
        return weights.get(gpu.uuid, _UNKNOWN), racks.get(gpu.uuid, gpu)

    def _remember(self, gpus: Iterable[Gpu], now_ms: int) -> tuple[dict[str, _Came], dict[str, Gpu]]:
        """What GPUs came with, and those that have another rack now: it may change while they are new, and is forgotten
        with them."""
        came, racks = {}, {}
        for gpu in gpus:
            said = _Came(gpu.pool, gpu.rack, self._opted(gpu))
            came[gpu.uuid] = first = said if self._is_new(gpu, now_ms) else self._came.get(gpu.uuid, said)
            if first.rack and first.rack != gpu.rack:
                racks[gpu.uuid] = replace(gpu, rack=first.rack)
        return came, racks

    def _opted(self, gpu: Gpu) -> str:
        return gpu.labels.get(self._label, "").strip().lower()

    def _strays(self, gpu: Gpu, first: _Came) -> bool:
        """Whether its agent has moved it into another pool, or opted it in, since it `first` came."""
        return gpu.pool != first.pool or self._opted(gpu) != first.managed

    def _in_order(self, gpus: Sequence[Gpu], now_ms: int) -> list[str]:
        """UUIDs of the whole GPUs of a host: those that the site lists, then in the order in which they came.

        One that could not be opened yet comes last: it keeps the place of the GPU that it is only until that is known.
        """
        ages: dict[str, int] = {}
        for gpu in gpus:
            whole = gpu.parent or gpu.uuid
            ages[whole] = max(ages.get(whole, 0), self._owners.age_ms(whole, now_ms))
        return sorted(ages, key=lambda uuid: (_rank(uuid, self._listed), -ages[uuid], uuid))


def _rank(uuid: str, listed: frozenset[str]) -> int:
    return 0 if uuid in listed else 2 if uuid.startswith(UNKNOWN_GPU) else 1


def _beyond(gpus: Iterable[Gpu], within: frozenset[str]) -> set[str]:
    """Of a host's GPUs those that are none of `within`, nor among the first parts of one."""
    found: set[str] = set()
    parts: Counter[str] = Counter()
    for gpu in sorted(gpus, key=lambda one: one.uuid):
        whole = gpu.parent or gpu.uuid
        parts[whole] += bool(gpu.parent)
        if whole not in within or parts[whole] > MOST_PARTS:
            found.add(gpu.uuid)
    return found


def _together(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for part in parts:
        found.update(part)
    return found
