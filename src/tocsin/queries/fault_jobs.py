"""How many GPUs the job had that a fault ended: looked up in the store once, for what has happened changes no more."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.actions.model.ranks import work_on
from tocsin.domain.clock import MINUTE
from tocsin.domain.event import Event
from tocsin.domain.reading import Gpu
from tocsin.store.port import Store

BEFORE_MS = 15 * MINUTE
"""The job of a GPU is the one that held it at its last reading within so long before the fault."""
_ROUND_MS = MINUTE
"""Each GPU is read at least once in this time."""
KEPT = 1_000
"""Faults whose jobs are remembered."""
BUDGET_S = 3.0
"""How long one request looks through the fleet; the next goes on from there."""


class FaultJobs:
    """GPUs of the jobs that faults ended. Safe to use from several threads: at worst two look up the same."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._known: dict[str, int] = {}

    def look(self) -> Callable[[Event], int]:
        """A look-up for one request: GPUs of the job on the GPU of a fault; 1 where no job is known.

        So it is where the budget of the request is spent, until a later request. Raises StoreUnavailable.
        """
        until_s = self._monotonic() + BUDGET_S

        def gpus(fault: Event) -> int:
            if fault.id not in self._known and self._monotonic() < until_s:
                self._known = dict([*self._known.items(), (fault.id, gpus_of_job(self._store, fault))][-KEPT:])
            return self._known.get(fault.id, 1)

        return gpus


def gpus_of_job(store: Store, fault: Event) -> int:
    """Physical GPUs that the job held which the GPU of `fault` worked for; 1 where no single job is known there."""
    own = [one for one in store.readings(fault.at_ms - BEFORE_MS, fault.at_ms, {fault.gpu}) if one.owners]
    if not own:
        return 1
    last = own[-1]
    job = work_on(last.gpu.host, last.owners).job
    if not job:
        return 1
    around = store.readings(last.at_ms - _ROUND_MS, last.at_ms + 1)
    return len({_card(one.gpu) for one in around if one.owners and work_on(one.gpu.host, one.owners).job == job})


def _card(gpu: Gpu) -> str:
    return gpu.parent or gpu.uuid
