"""What the planners see of a running fleet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.layouts import layouts_of, running_demand
from tocsin.actions.planning.state import FleetState, Pool
from tocsin.actions.planning.statefile import state_json
from tocsin.config.planning import PlanningSettings
from tocsin.domain.finding import Category, Severity
from tocsin.domain.reading import Reading
from tocsin.queries.idle_gpus import at_work
from tocsin.queries.task_mix import mix_of
from tocsin.runtime.brain import Brain, is_lost


def live_state(brain: Brain, now_ms: int, readings: Sequence[Reading] | None = None) -> FleetState:
    """The fleet as its newest readings (`readings`, where given), managers, findings and forecasts show it.

    What no manager tells is left out: no plan moves work of which nobody knows what it would lose. What is not idle and
    has no known owner is work that stays where it is.
    """
    readings = brain.memory.latest() if readings is None else readings
    sick = {f.subject.name for f in brain.active if f.category is Category.HARDWARE and f.severity is Severity.CRITICAL}
    healthy = {one.gpu.uuid: one.gpu.uuid not in sick and not is_lost(one) for one in readings}
    planning = brain.settings.planning
    work = brain.managers.work()
    layouts = layouts_of(readings)
    known = Knowledge(
        facts=work.facts,
        nodes=brain.managers.nodes(),
        budgets=work.budgets,
        rooms=work.rooms,
        layouts=layouts,
        demand=running_demand(layout.placed for layout in layouts.values() if layout.placed),
        pools={name: _pool(name, readings, planning) for name in sorted({one.gpu.pool for one in readings})},
        healthy=healthy,
        # No work goes on where a GPU has fallen off the bus.
        at_work=at_work([one for one in readings if not is_lost(one)]),
        mix=mix_of(brain.settings.fragmentation.task_mix, readings)[0],
        restart_s=planning.restart_seconds,
    )
    return fleet_state_from(readings, brain.pools(), brain.forecasts.current(now_ms), now_ms, known)


def _pool(name: str, readings: Sequence[Reading], planning: PlanningSettings) -> Pool:
    """What may be done to a pool's size; a node that is added is like the commonest of those it has."""
    mine = [one.gpu for one in readings if one.gpu.pool == name and not one.gpu.is_mig]
    sizes = Counter(Counter(gpu.host for gpu in mine).values())
    models = Counter(gpu.model for gpu in mine)
    return Pool(
        name,
        floor_gpus=planning.pool_floor_gpus.get(name, 0),
        most_nodes=planning.pool_max_nodes.get(name),
        node_gpus=sizes.most_common(1)[0][0] if sizes else 0,
        node_model=models.most_common(1)[0][0] if models else "",
        provision_s=planning.provision_seconds,
    )


def state_document(brain: Brain, now_ms: int) -> dict[str, Any]:
    """`live_state` in the form of a state file (docs/planning.md)."""
    document: dict[str, Any] = json.loads(state_json(live_state(brain, now_ms)))
    return document
