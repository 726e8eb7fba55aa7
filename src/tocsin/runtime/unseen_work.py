"""Work that is seen by what it does and not by whose it is: it stays where it is in every plan."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.actions.planning.state import FleetState, GpuMode, Hold, Work
from tocsin.domain.reading import Reading
from tocsin.runtime.idle_gpus import free_now


def with_unseen(state: FleetState, readings: Sequence[Reading]) -> FleetState:
    """`state` with a piece of unmovable work on each GPU that is not idle and that no known work holds.

    Without it a fleet whose agents cannot tell owners would look empty to a planner. A GPU of unknown utilisation is
    taken as at work.
    """
    whole = [one for one in readings if one.gpu.uuid in state.gpus]
    unseen = [
        one.gpu.uuid
        for one, is_idle in zip(whole, free_now(whole).tolist(), strict=True)
        if not is_idle and one.gpu.uuid not in state.on_gpu and state.gpus[one.gpu.uuid].mode is not GpuMode.MIG
    ]
    return state.with_works(
        Work(f"unseen/{uuid}", holds=(Hold(uuid),), model=state.gpus[uuid].model, movable=False) for uuid in unseen
    )
