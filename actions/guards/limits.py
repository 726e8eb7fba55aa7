"""How much may be out of service at once: in number, as a share, per host, per rack, what must be left, the breaker."""

from __future__ import annotations

import math

from tocsin.actions.guards.base import Applies, Hold, guard
from tocsin.actions.model.scope import (
    available,
    base_key,
    counted_in,
    hosts_of,
    occupied,
    out_of_service,
    racks_of,
    surely_out,
    taken_out,
)
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import to_iso
from tocsin.domain.decision import Decision

_ROUNDING = 1e-9
"""Keeps 0.29 * 100 at 29 and 0.1 * 30 at 3."""


@guard("max_concurrent", 120, Applies.DISRUPTIVE)
def max_concurrent(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects be under a disruptive action."""
    others = occupied(view).keys() - {base_key(decision.subject)}
    most = view.policy.settings.limits.max_concurrent
    return None if len(others) + 1 <= most else Hold(f"{len(others)} under action already, at most {most} at once")


@guard("max_share", 130, Applies.DISRUPTIVE)
def max_share(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed share of the managed GPUs be out of service."""
    ratio = view.policy.settings.limits.max_concurrent_ratio
    total = len(view.managed & view.counted)
    most = math.floor(ratio * total + _ROUNDING)
    wanted = len(out_of_service(view) | taken_out(decision, view))
    if wanted <= most:
        return None
    return Hold(f"{wanted} of {total} managed GPUs would be out of service, at most {most} ({ratio:.0%})")


@guard("max_per_host", 140, Applies.DISRUPTIVE)
def max_per_host(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects of one host be under action."""
    most = view.policy.settings.limits.max_per_host
    mine = hosts_of(decision.subject, view)
    others = [s for key, s in occupied(view).items() if key != base_key(decision.subject)]
    for host in sorted(mine):
        here = sum(host in hosts_of(subject, view) for subject in others)
        if here + 1 > most:
            return Hold(f"host {host} has {here} under action already, at most {most}")
    return None


@guard("max_per_rack", 150, Applies.DISRUPTIVE)
def max_per_rack(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would no more than the allowed number of subjects of one rack be under action."""
    most = view.policy.settings.limits.max_per_rack
    others = [s for key, s in occupied(view).items() if key != base_key(decision.subject)]
    for rack in sorted(racks_of(decision.subject, view)):
        here = sum(rack in racks_of(subject, view) for subject in others)
        if here + 1 > most:
            return Hold(f"rack {rack} has {here} under action already, at most {most}")
    return None


def shortfall(decision: Decision, view: FleetView, now_ms: int) -> dict[str, int]:
    """GPUs that each pool would lack of what must stay in service, were `decision` carried out; 0 where none lacks."""
    taken, out = taken_out(decision, view), out_of_service(view)
    ratio = view.policy.settings.limits.min_available_ratio
    lacking: dict[str, int] = {}
    for pool in sorted({view.physical[uuid].gpu.pool for uuid in taken}):
        least = math.ceil(ratio * counted_in(pool, view) - _ROUNDING)
        lacking[pool] = max(0, least - available(pool, view, now_ms, out | taken))
    return lacking


@guard("capacity", 160, Applies.DISRUPTIVE)
def capacity(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Would every pool that loses GPUs keep enough healthy ones in service.

    GPUs that cannot be seen freshly do not count as healthy. An action that surely takes nothing usable away is allowed
    also where too little is left already: it may be the way back. What an undoing that was never seen to work may have
    given back counts as usable for this, and as out of service for what is left.
    """
    taken, sure = taken_out(decision, view), surely_out(view)
    ratio = view.policy.settings.limits.min_available_ratio
    for pool, lacking in shortfall(decision, view, now_ms).items():
        total = counted_in(pool, view)
        least = math.ceil(ratio * total - _ROUNDING)
        if lacking and available(pool, view, now_ms, sure | taken) < available(pool, view, now_ms, sure):
            kept = f"pool {pool} would keep {least - lacking} of {total} GPUs in service"
            return Hold(f"{kept}, at least {least} ({ratio:.0%})")
    return None


@guard("breaker", 180, Applies.FORWARD)
def breaker(decision: Decision, view: FleetView, now_ms: int) -> Hold | None:
    """Is the breaker closed; restore and uncordon may run also while it is tripped."""
    # Many different causes at once are not many faults but one mistake of ours, or of the fleet.
    tripped = view.controls.breaker
    if tripped is None:
        return None
    return Hold(
        f"the breaker tripped at {to_iso(tripped.at_ms)} on {len(tripped.causes)} root causes; "
        "a person closes it with tocsin breaker reset"
    )
