"""How much may be out of service at once: in number, as a share, per host, per rack, what must be left, the breaker.

In a fleet of several cells the figures are those of all cells (`FleetView.rest`), and the strictest limits count.

Limits scale: where the shares come to less than a host, one host may be out, for nothing smaller can be drained. Where
that is the only host, or all of a pool, a person must approve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.budget import limits_of
from tocsin.actions.model.catalogue import is_disruptive
from tocsin.actions.model.scope import (
    available,
    base_key,
    counted_in,
    hosts_of,
    moves_nothing,
    occupied,
    out_of_service,
    racks_of,
    surely_out,
    taken_out,
    usable_in,
)
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision
from tocsin.domain.phrase import Phrase, say

_ROUNDING = 1e-9
"""Keeps 0.29 * 100 at 29 and 0.1 * 30 at 3."""


@guard("max_concurrent", 120, Applies.DISRUPTIVE)
def max_concurrent(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects be under a disruptive action."""
    others = len(occupied(view).keys() - {base_key(decision.subject)}) + view.rest.subjects
    most = limits_of(view).max_concurrent
    if others + 1 <= most:
        return None
    said = say("{n} under action already, at most {most} at once", n=others, most=most)
    if view.rest.subjects:
        template = "{n} under action already, {elsewhere} of them in other cells, at most {most} at once in the fleet"
        said = say(template, n=others, elsewhere=view.rest.subjects, most=most)
    return Hold(said, observed=others + 1, limit=most)


@guard("max_share", 130, Applies.DISRUPTIVE)
def max_share(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed share of the managed GPUs be out of service, or no more than one host."""
    if moves_nothing(decision):
        return None
    ratio, rest = limits_of(view).max_concurrent_ratio, view.rest
    wanted = out_of_service(view) | taken_out(decision, view)
    total, count = _managed(view), len(wanted) + rest.out
    # A share of nothing leaves no host either.
    if not _beyond_share(decision, view) or (ratio > 0 and total and not rest.out and _on_one_host(wanted, view)):
        return None
    most = math.floor(ratio * total + _ROUNDING)
    template = "{n} of {total} managed GPUs would be out of service, at most {most} ({ratio})"
    figures: dict[str, object] = {"n": count, "total": total, "most": most, "ratio": f"{ratio:.0%}"}
    if rest.cells:
        template = (
            "{n} of {total} managed GPUs of the fleet would be out of service, {elsewhere} of them in other cells, "
            "at most {most} ({ratio})"
        )
        figures["elsewhere"] = rest.out
    return Hold(say(template, **figures), observed=count / total if total else None, limit=ratio)


def _managed(view: FleetView) -> int:
    """Managed GPUs that count, of the fleet."""
    return len(view.managed_and_counted) + view.rest.managed


def _beyond_share(decision: Decision, view: FleetView) -> bool:
    """Whether the step takes GPUs out, and more would be out than the share allows. What is out already and stays out
    is no step: a reset within a drained host takes nothing more away."""
    out, taken = out_of_service(view), taken_out(decision, view)
    most = math.floor(limits_of(view).max_concurrent_ratio * _managed(view) + _ROUNDING)
    return not taken <= out and len(out | taken) + view.rest.out > most


def _host_of(uuid: str, view: FleetView) -> str:
    return view.gpus[uuid].gpu.host


def _on_one_host(uuids: Iterable[str], view: FleetView) -> bool:
    """Whether GPUs are all of one host; those whose host nobody names are of none."""
    hosts = {_host_of(uuid, view) for uuid in uuids}
    return len(hosts) == 1 and "" not in hosts


@guard("max_per_host", 140, Applies.DISRUPTIVE)
def max_per_host(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects of one host be under action."""
    most, rest = limits_of(view).max_per_host, view.rest.hosts
    mine = sorted(hosts_of(decision.subject, view))
    others = [s for key, s in occupied(view).items() if key != base_key(decision.subject)]
    counts = {host: sum(host in hosts_of(subject, view) for subject in others) + rest.get(host, 0) for host in mine}
    return _fullest("host", counts, most)


def _fullest(kind: str, counts: Mapping[str, int], most: int) -> Hold | None:
    """A hold where the place with the most subjects under action may have no other; the first of several."""
    place = max(counts, key=counts.__getitem__, default="")
    if not counts or counts[place] + 1 <= most:
        return None
    template = "{kind} {place} has {n} under action already, at most {most}"
    said = say(template, kind=kind, place=place, n=counts[place], most=most)
    return Hold(said, observed=counts[place] + 1, limit=most)


@guard("max_per_rack", 150, Applies.DISRUPTIVE)
def max_per_rack(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects of one rack be under action."""
    most, rest = limits_of(view).max_per_rack, view.rest.racks
    others = [s for key, s in occupied(view).items() if key != base_key(decision.subject)]
    mine = sorted(racks_of(decision.subject, view))
    counts = {rack: sum(rack in racks_of(subject, view) for subject in others) + rest.get(rack, 0) for rack in mine}
    return _fullest("rack", counts, most)


def shortfall(decision: Decision, view: FleetView, now_ms: int) -> dict[str, int]:
    """GPUs that each pool would lack of what must stay in service, were `decision` carried out; 0 where none lacks."""
    taken, out = taken_out(decision, view), out_of_service(view)
    ratio = limits_of(view).min_available_ratio
    lacking: dict[str, int] = {}
    for pool in sorted({view.gpus[uuid].gpu.pool for uuid in taken}):
        least = math.ceil(ratio * _of_pool(pool, view) - _ROUNDING)
        lacking[pool] = max(0, least - available(pool, view, now_ms, out | taken) - view.rest.pool(pool).usable)
    return lacking


def _of_pool(pool: str, view: FleetView) -> int:
    """GPUs of `pool` that count, in all cells."""
    return counted_in(pool, view) + view.rest.pool(pool).counted


@guard("capacity", 160, Applies.DISRUPTIVE)
def capacity(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would every pool that loses GPUs keep enough healthy ones in service.

    GPUs that cannot be seen freshly do not count as healthy. Where all that is lacking is of one host, it may go. An
    action that surely takes nothing usable away is allowed also where too little is left already: it may be the way
    back. What an undoing that was never seen to work may have given back counts as usable for this, and as out of
    service for what is left.
    """
    if moves_nothing(decision):
        return None
    ratio = limits_of(view).min_available_ratio
    below = _below_least(decision, view, now_ms)
    short = {pool: lacking for pool, lacking in below.items() if not _one_host_lacks(decision, pool, view, now_ms)}
    if not short:
        return None
    totals = {pool: _of_pool(pool, view) for pool in short}
    kept = {pool: math.ceil(ratio * totals[pool] - _ROUNDING) - lacking for pool, lacking in short.items()}
    pool = next(iter(short))
    template = "pool {pool} would keep {kept} of {total} GPUs in service, at least {least} ({ratio})"
    if view.rest.pool(pool).counted:
        template = "pool {pool} would keep {kept} of {total} GPUs of all cells in service, at least {least} ({ratio})"
    figures = {"kept": kept[pool], "total": totals[pool], "least": kept[pool] + short[pool]}
    worst = min(kept[name] / totals[name] for name in short)
    return Hold(say(template, pool=pool, ratio=f"{ratio:.0%}", **figures), observed=worst, limit=ratio)


def _below_least(decision: Decision, view: FleetView, now_ms: int) -> dict[str, int]:
    """GPUs that pools would lack, of those pools alone from which something usable is taken."""
    taken, sure = taken_out(decision, view), surely_out(view)
    return {
        pool: lacking
        for pool, lacking in shortfall(decision, view, now_ms).items()
        if lacking and available(pool, view, now_ms, sure | taken) < available(pool, view, now_ms, sure)
    }


def _one_host_lacks(decision: Decision, pool: str, view: FleetView, now_ms: int) -> bool:
    """Whether all that the pool would lack is of one host. An elastic pool grows first, and one of which all must stay
    gives nothing away."""
    elastic = pool in view.policy.settings.elastic_pools
    if limits_of(view).min_available_ratio >= 1 or elastic or view.rest.pool(pool).lacking:
        return False
    kept = usable_in(pool, view, now_ms, out_of_service(view) | taken_out(decision, view))
    left = {one.gpu.uuid for one in kept}
    return _on_one_host(set(_counted(pool, view)) - left, view)


def _counted(pool: str, view: FleetView) -> list[str]:
    return [member.gpu.uuid for member in view.by_pool.get(pool, ()) if member.counted]


def needs_person(decision: Decision, view: FleetView, now_ms: int) -> Phrase | None:
    """Why a person must approve whatever the mode: it takes the only host there is, or all of a pool; else None.

    Asked of what the shares alone would not allow; a site that sets them to that effect has agreed.
    """
    if not is_disruptive(decision.action):
        return None
    managed = view.managed_and_counted
    if _beyond_share(decision, view) and not view.rest.managed and _on_one_host(managed, view):
        return say("host {host} is the only one that is managed", host=_host_of(min(managed), view))
    for pool in sorted(_below_least(decision, view, now_ms)):
        members = _counted(pool, view)
        if _on_one_host(members, view) and not view.rest.pool(pool).counted:
            return say("host {host} holds all of pool {pool}", host=_host_of(members[0], view), pool=pool)
    return None


@guard("breaker", 180, Applies.FORWARD)
def breaker(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is the breaker closed; restore and uncordon may run also while it is tripped."""
    # Many different causes at once are not many faults but one mistake of ours, or of the fleet.
    tripped = view.controls.breaker
    if tripped is None:
        return None
    template = "the breaker tripped at {at} on {n} root causes; a person closes it with tocsin breaker reset"
    return Hold(say(template, at=to_iso(tripped.at_ms), n=len(tripped.causes)))
