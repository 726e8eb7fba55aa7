"""What actions do to the simulated fleet, so that what follows them can be verified."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.decision import (
    ActionParameters,
    RestoreParameters,
    ScaleParameters,
    ThrottleKind,
    ThrottleParameters,
)
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.fragmentation import repack
from tocsin.sim import load
from tocsin.sim import memory as mig
from tocsin.sim.faultline import FaultLine
from tocsin.sim.jobs import POOLS, asked_for
from tocsin.sim.world import SimWorld

THROTTLE_STEP = 0.075
THROTTLE_FLOOR = 0.60
"""One step of a power cap and the lowest, as shares of the default limit (own choice)."""
COOL_MARGIN_C = 13.0
"""How far below its slowdown temperature a throttle for heat brings a GPU (own choice, below where rules clear)."""
SCALE_STEP = 8.0
CORDON_GRACE_MS = 15 * MINUTE
"""How long running work keeps a cordoned GPU; real work takes its own time (own choice)."""


def _limit_of(parameters: ActionParameters) -> float | None:
    """The power limit in watts that is asked for; None where none is."""
    return parameters.power_limit_watts if isinstance(parameters, ThrottleParameters | RestoreParameters) else None


def pool_named(name: str) -> str:
    """The pool `name`; InputError with the nearest where there is none."""
    if name not in POOLS:
        close = difflib.get_close_matches(name, POOLS, n=1, cutoff=0.0)[0]
        raise InputError("pool", name, "no such pool", f"nearest is {close}; known: {', '.join(POOLS)}")
    return name


class FleetActions:
    """Carries out actions on one world."""

    def __init__(self, world: SimWorld, faults: FaultLine) -> None:
        self._world = world
        self._faults = faults
        self._verbs: dict[ActionKind, Callable[[int], bool]] = {
            ActionKind.DEFRAGMENT: self._defragment,
            ActionKind.RESET_GPU: self._reset,
            ActionKind.REBOOT_NODE: self._reboot,
            ActionKind.PLACE_ELSEWHERE: self._place_elsewhere,
            ActionKind.MIGRATE: self._migrate,
            ActionKind.CORDON_GPU: self._place_elsewhere,
            ActionKind.UNCORDON_GPU: self._uncordon_gpu,
            ActionKind.CORDON: self._cordon,
            ActionKind.DRAIN: self._drain,
            ActionKind.UNCORDON: self._uncordon,
        }

    def on_gpu(self, action: ActionKind, gpu: int, parameters: ActionParameters) -> bool:
        """Do `action` to a GPU, or to its host where that is the action's scope; whether anything could be done.

        Notifications, checkpoints and tickets change nothing in the fleet and always succeed.
        """
        if action is ActionKind.THROTTLE:
            return self._throttle(gpu, parameters)
        if action is ActionKind.RESTORE:
            return self._restore(gpu, parameters)
        verb = self._verbs.get(action)
        return True if verb is None else verb(gpu)

    def on_pool(self, action: ActionKind, pool: str, parameters: ActionParameters) -> bool:
        """Scale a pool out or in by `gpus` of the parameters, 8 where they have none; in by no more than what has been
        added and what nobody asks for now."""
        extra = self._world.state.extra_capacity
        asked = parameters.gpus if isinstance(parameters, ScaleParameters) else None
        step = float(asked or SCALE_STEP)
        before = extra.get(pool, 0.0)
        size = int(np.asarray(getattr(self._world.inventory, pool)).sum())
        unasked = max(0.0, size - asked_for(pool, size, self._world.state.now_ms))
        extra[pool] = before + step if action is ActionKind.SCALE_OUT else max(min(before, -unasked), before - step)
        return extra[pool] != before

    def _answers(self, gpu: int) -> bool:
        return not self._world.state.lost[gpu]

    def _throttle(self, gpu: int, parameters: ActionParameters) -> bool:
        state, model = self._world.state, self._world.inventory.model_of[gpu]
        floor = max(model.min_power_w, THROTTLE_FLOOR * model.default_power_w)
        wanted = float(state.power_limit[gpu]) - THROTTLE_STEP * model.default_power_w
        limit = max(floor, _limit_of(parameters) or wanted)
        if not self._answers(gpu) or limit >= state.power_limit[gpu]:
            return False
        state.power_limit[gpu] = limit
        if parameters.throttle_kind is ThrottleKind.HEAT:
            state.cooled[gpu] = min(model.slowdown_at_c, model.ceiling_c) - COOL_MARGIN_C
        return True

    def advance(self) -> None:
        """Thermal control goes on: each GPU that is throttled for heat gets a lower limit while it is too hot."""
        state = self._world.state
        for gpu, most_c in state.cooled.items():
            if state.temperature[gpu] > most_c:
                model, now_w = self._world.inventory.model_of[gpu], float(state.power_limit[gpu])
                floor = max(model.min_power_w, THROTTLE_FLOOR * model.default_power_w)
                state.power_limit[gpu] = min(now_w, max(floor, now_w - THROTTLE_STEP * model.default_power_w))

    def _restore(self, gpu: int, parameters: ActionParameters) -> bool:
        self._world.state.cooled.pop(gpu, None)
        model = self._world.inventory.model_of[gpu]
        limit = _limit_of(parameters) or model.default_power_w
        self._world.state.power_limit[gpu] = min(max(limit, model.min_power_w), model.max_power_w)
        return self._answers(gpu)

    def _defragment(self, gpu: int) -> bool:
        cured = self._faults.cure(ActionKind.DEFRAGMENT, [gpu], self._world.state.now_ms)
        if layout := self._world.state.layouts[gpu]:
            self._world.state.layouts[gpu] = repack([name for name, _ in layout], mig.DEMAND)
        return cured > 0 or self._answers(gpu)

    def _reset(self, gpu: int) -> bool:
        if not self._answers(gpu):
            return False
        now_ms = self._world.state.now_ms
        if not self._faults.cure(ActionKind.RESET_GPU, [gpu], now_ms):
            self._world.reset(gpu, now_ms)
        self._world.kill_job(gpu, now_ms)
        return True

    def _reboot(self, gpu: int) -> bool:
        mates = self._world.host_mates(gpu)
        now_ms = self._world.state.now_ms
        self._faults.cure(ActionKind.REBOOT_NODE, mates.tolist(), now_ms)
        for mate in mates.tolist():
            self._world.kill_job(mate, now_ms)
            self._world.reset(mate, now_ms)
            self._world.emit(EventKind.GPU_FOUND, mate, now_ms, message="the host was rebooted")
        return True

    def _place_elsewhere(self, gpu: int) -> bool:
        self._world.state.unschedulable[gpu] = True
        return True

    def _migrate(self, gpu: int) -> bool:
        """The job on the GPU goes on elsewhere; where there is no place for it, it ends, as an eviction does."""
        state, slot = self._world.state, int(self._world.inventory.gang[gpu])
        if not self._leave(slot, frozenset()):
            self._faults.cure(ActionKind.MIGRATE, [gpu], state.now_ms)
            load.end_job(state, self._world.inventory, gpu, state.now_ms)
        return True

    def _leave(self, slot: int, hosts: frozenset[str]) -> bool:
        """Move the job of a gang slot to a free one of its pool and size, on one of `hosts` where any are named."""
        inventory, state = self._world.inventory, self._world.state
        members = np.flatnonzero(inventory.gang == slot)
        sizes = np.bincount(inventory.gang, minlength=inventory.gangs)
        if not state.work.busy[slot]:
            return False
        for other in np.flatnonzero(load.is_free(state, inventory) & (sizes == len(members))).tolist():
            there = inventory.gpus[int(np.flatnonzero(inventory.gang == other)[0])]
            if there.pool == inventory.gpus[members[0]].pool and (not hosts or there.host in hosts):
                load.move_job(state, slot, other, state.now_ms)
                # What a fault held running is gone with its process.
                state.effects.pinned[members] = False
                self._faults.cure(ActionKind.MIGRATE, members.tolist(), state.now_ms)
                return True
        return False

    def move(self, job: int, hosts: frozenset[str]) -> bool:
        """Move the job with number `job` to one of `hosts`, anywhere where none is named; whether it moved."""
        work = self._world.state.work
        found = np.flatnonzero(work.busy & (work.number == job))
        return bool(found.size) and self._leave(int(found[0]), hosts)

    def _cordon(self, gpu: int) -> bool:
        state, mates = self._world.state, self._world.host_mates(gpu)
        state.unschedulable[mates] = True
        slots = self._world.inventory.gang[mates]
        state.work.until_ms[slots] = np.minimum(state.work.until_ms[slots], state.now_ms + CORDON_GRACE_MS)
        return True

    def _drain(self, gpu: int) -> bool:
        mates = self._world.host_mates(gpu)
        self._faults.cure(ActionKind.DRAIN, mates.tolist(), self._world.state.now_ms)
        state, gangs = self._world.state, self._world.inventory.gang
        state.unschedulable[mates] = True
        for slot in np.unique(gangs[mates]).tolist():
            # What finds no place is requeued, as a manager would.
            if not self._leave(slot, frozenset()):
                load.end_job(state, self._world.inventory, int(np.flatnonzero(gangs == slot)[0]), state.now_ms)
        state.drained[mates] = True
        return True

    def _uncordon_gpu(self, gpu: int) -> bool:
        self._world.state.unschedulable[gpu] = False
        return True

    def _uncordon(self, gpu: int) -> bool:
        mates = self._world.host_mates(gpu)
        self._world.state.unschedulable[mates] = False
        self._world.state.drained[mates] = False
        return True
