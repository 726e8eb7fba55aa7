"""The limits as one budget of a fleet of several cells: what this cell tells, and what an action takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tocsin.actions.model.catalogue import is_disruptive
from tocsin.actions.model.past import past_of
from tocsin.actions.model.scope import (
    available,
    base_key,
    counted_in,
    effects,
    hosts_of,
    occupied,
    out_of_service,
    racks_of,
    slot_of,
    taken_out,
    usable_in,
)
from tocsin.actions.model.view import FleetView
from tocsin.config.settings import ActionSettings, LimitSettings
from tocsin.domain.decision import Decision
from tocsin.domain.fleet_share import CellShare, PoolShare, RestOfFleet

_AT_LEAST = frozenset({"min_available_ratio"})
"""Limits of which the greater one is the stricter."""
_BREAKER = ("breaker_root_causes", "breaker_window_seconds")


class FleetBudget(Protocol):
    """What the cells of a fleet share. Safe to call from several threads; only `forget_causes` raises.

    What an action takes is in the entry of its start: where that does not fit any more, the journal refuses the entry
    with `BudgetSpent`, and nothing has begun. What is in effect no more is given back by the next `publish`.
    """

    @property
    def shared(self) -> bool:
        """Whether there can be other cells."""

    def publish(self, share: CellShare) -> RestOfFleet:
        """Tell what this cell has; what the others have. Where nobody can be asked, what was last known."""

    def elsewhere(self, silent: Mapping[str, str]) -> Mapping[str, str]:
        """Of GPUs that are silent here, with their hosts, those that another cell reads on the same host, with the
        cell; none where nobody can be asked. Of very many some are looked up at a time, in turn."""

    def tell_causes(self, causes: Mapping[str, int]) -> Mapping[str, int]:
        """Tell the root causes that count for the breaker here, with their instants; those of the others."""

    def forget_causes(self) -> None:
        """A person resets the breaker: causes from before count in no cell any more. Raises Unavailable."""


class WholeFleet:
    """The budget of a cell that is the whole fleet: there is nobody to share it with."""

    shared = False

    def publish(self, share: CellShare) -> RestOfFleet:
        return RestOfFleet()

    def elsewhere(self, silent: Mapping[str, str]) -> Mapping[str, str]:
        return {}

    def tell_causes(self, causes: Mapping[str, int]) -> Mapping[str, int]:
        return {}

    def forget_causes(self) -> None:
        """Nobody else counts them."""


def limits_of(view: FleetView) -> LimitSettings:
    """The limits in force: of all cells the strictest."""
    if "limits" not in view.derived:
        view.derived["limits"] = _strictest(view.policy.settings, view.rest)
    found: LimitSettings = view.derived["limits"]
    return found


def _strictest(settings: ActionSettings, rest: RestOfFleet) -> LimitSettings:
    own = settings.limits
    changed = {
        name: type(value)(max(value, rest.limits[name]) if name in _AT_LEAST else min(value, rest.limits[name]))
        for name, value in own.model_dump().items()
        if name in rest.limits
    }
    return own.model_copy(update=changed) if changed else own


def root_causes_of(settings: ActionSettings, rest: RestOfFleet) -> int:
    """Root causes that trip the breaker: of all cells the fewest."""
    return int(min(settings.breaker_root_causes, rest.limits.get("breaker_root_causes", settings.breaker_root_causes)))


def share_of(view: FleetView, *, places: bool = False) -> CellShare:
    """What this cell has now, with `places` also where each GPU is; `view` has its own controls alone."""
    settings = view.policy.settings
    out = out_of_service(view)
    own = {base_key(decision.subject) for decision in effects(view)}
    outside = sorted((key, subject) for key, subject in occupied(view).items() if key not in own)
    pools = {
        name: PoolShare(counted_in(name, view), available(name, view, view.now_ms, out))
        for name in sorted(view.by_pool)
    }
    return CellShare(
        managed=len(view.managed & view.counted),
        gpus=len(view.physical),
        hosts=tuple(sorted(view.by_host)),
        pools=pools,
        outside=tuple((key, subject.host, tuple(sorted(racks_of(subject, view)))) for key, subject in outside),
        takings=tuple(taking_of(one, view) for one in sorted(effects(view), key=lambda each: each.key)),
        past=past_of(view.controls, view.findings, view.now_ms),
        limits=settings.limits.model_dump() | {name: getattr(settings, name) for name in _BREAKER},
        heard=_heard(view) if places else None,
    )


def _heard(view: FleetView) -> dict[str, str]:
    """Hosts by GPU, of those that are freshly read."""
    now_ms, fresh_ms = view.now_ms, view.policy.fresh_ms
    return {uuid: one.gpu.host for uuid, one in view.gpus.items() if one.is_fresh(now_ms, fresh_ms)}


def taking_of(decision: Decision, view: FleetView) -> dict[str, Any]:
    """What a decision takes of the budget, as JSON.

    `slot` and `action` are under what its tries are counted, `hosts` those of its subject. What is disruptive also has
    `gpus` that it takes out of service with their hosts (`gpu_hosts`), `racks`, and by pool how many usable GPUs it
    takes (`lost`), and whether all that the pool would lack here is of one host (`alone`).
    """
    slot, action = slot_of(decision)
    taken: dict[str, Any] = {
        "key": decision.key,
        "subject": base_key(decision.subject),
        "slot": slot,
        "action": str(action),
        "hosts": sorted(hosts_of(decision.subject, view)),
        "disruptive": is_disruptive(decision.action),
    }
    if not taken["disruptive"]:
        return taken
    gpus = taken_out(decision, view)
    pools = sorted({view.gpus[uuid].gpu.pool for uuid in gpus})
    return taken | {
        "gpus": sorted(gpus),
        "gpu_hosts": sorted({view.gpus[uuid].gpu.host for uuid in gpus}),
        "racks": sorted(racks_of(decision.subject, view)),
        "pools": {name: _of_pool(name, gpus, view) for name in pools},
    }


def _of_pool(name: str, gpus: frozenset[str], view: FleetView) -> dict[str, Any]:
    settings, out = view.policy.settings, out_of_service(view)
    before = available(name, view, view.now_ms, out)
    after = available(name, view, view.now_ms, out | gpus)
    left = {one.gpu.uuid for one in usable_in(name, view, view.now_ms, out | gpus)}
    gone = {one.gpu.host for one in view.by_pool.get(name, ()) if one.counted and one.gpu.uuid not in left}
    alone = len(gone) == 1 and limits_of(view).min_available_ratio < 1 and name not in settings.elastic_pools
    return {"lost": before - after, "alone": alone}
