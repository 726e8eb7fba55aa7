"""Where a GPU is: what one cell has of it, and which cell of several to look at."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.client.models import STATE_RANKS, FleetMap
from tocsin.client.models_cells import Whereabouts
from tocsin.client.whole_views import UNSEEN


def worst_of(fleet: FleetMap, host: str = "") -> str:
    """UUID of the GPU in the worst state, the likeliest to fail among these; on `host` alone where it is known. Empty
    where there is no GPU."""
    place = fleet.hosts.index(host) if host in fleet.hosts else -1
    chosen = [n for n in range(len(fleet.uuid)) if place < 0 or fleet.host[n] == place]
    return fleet.uuid[max(chosen, key=lambda n: (fleet.state[n], fleet.risk[n] or 0.0, -n))] if chosen else ""


def whereabouts(fleet: FleetMap, gpu: str, host: str) -> Whereabouts:
    """What the map of one cell has of the GPU with UUID `gpu` and of `host`; an empty name is nowhere."""
    ranks = dict(zip(fleet.uuid, fleet.state, strict=True))
    worst = worst_of(fleet)
    return Whereabouts(
        state=STATE_RANKS[ranks[gpu]] if gpu in ranks else None,
        host=host in fleet.hosts,
        worst=worst,
        worst_state=STATE_RANKS[ranks[worst]] if worst else None,
    )


def home_of(found: Mapping[str, Whereabouts]) -> str:
    """The cell to look at: the one that has the GPU, of several one that sees it, in the worst state first; else the
    one with the host, else the one with the worst GPU. Of equal ones the first by name; `found` has at least one."""
    having = [name for name in sorted(found) if found[name].state is not None]
    if having:
        return min(having, key=lambda name: (_rank(found[name]) in UNSEEN, -_rank(found[name])))
    hosting = next((name for name in sorted(found) if found[name].host), "")
    return hosting or max(sorted(found), key=lambda name: _worst(found[name]))


def others(found: Mapping[str, Whereabouts], home: str) -> list[str]:
    """The other cells that had the GPU."""
    return [name for name in sorted(found) if name != home and found[name].state is not None]


def _rank(one: Whereabouts) -> int:
    return -1 if one.state is None else STATE_RANKS.index(one.state)


def _worst(one: Whereabouts) -> int:
    return -1 if one.worst_state is None else STATE_RANKS.index(one.worst_state)
