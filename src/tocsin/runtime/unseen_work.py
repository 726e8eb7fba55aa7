"""Work that is seen by what it does and not by whose it is: it stays where it is in every plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.actions.planning.state import FleetState, GpuMode, Hold, Work
from tocsin.domain.reading import Reading
from tocsin.rules.fleet import idle

_TOLD_BY = ("gpu_utilization_ratio", "gpu_processes", "gpu_memory_used_ratio")


def with_unseen(state: FleetState, readings: Sequence[Reading]) -> FleetState:
    """`state` with a piece of unmovable work on each GPU that is not idle and that no known work holds.

    Without it a fleet whose agents cannot tell owners would look empty to a planner. A GPU of unknown utilisation is
    taken as at work.
    """
    whole = [one for one in readings if one.gpu.uuid in state.gpus]
    columns = [np.array([one.values.get(name, np.nan) for one in whole], np.float64) for name in _TOLD_BY]
    unseen = [
        one.gpu.uuid
        for one, is_idle in zip(whole, idle(*columns).tolist(), strict=True)
        if not is_idle and one.gpu.uuid not in state.on_gpu and state.gpus[one.gpu.uuid].mode is not GpuMode.MIG
    ]
    return state.with_works(
        Work(f"unseen/{uuid}", holds=(Hold(uuid),), model=state.gpus[uuid].model, movable=False) for uuid in unseen
    )
