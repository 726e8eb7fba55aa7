"""A brain reduced to what takes over: the real succession, journal, lease and loop over a fleet that never heals."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import structlog

from tocsin.actions.loop.execution import Threads
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.decision_log import LEDGER_PART
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.view import Confirmations
from tocsin.config.cell import CellSettings
from tocsin.config.settings import JournalSettings, Settings
from tocsin.domain.clock import SECOND, SystemClock
from tocsin.domain.decision import Decision
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind
from tocsin.runtime.brain import succession
from tocsin.runtime.brain.brain import CHECKPOINT_ENTRIES
from tocsin.runtime.brain.periodic import Periodic
from tocsin.runtime.brain.succession import SharedJournal, Succession
from tocsin_testing.action_world import FakeExecutor, World, finding, settings, subject_of
from tocsin_testing.cells_world import cell_gpus

HOSTS = 8
MOST_AT_ONCE = 4
"""Of all cells together."""
STEP_SECONDS = 0.05
EXECUTE_SECONDS = 0.05


class WorldExecutor(FakeExecutor):
    """Writes each call into a file that all brains share, which is the world: what stands there was done."""

    def __init__(self, calls: Path, epoch: int) -> None:
        super().__init__()
        self._calls = calls
        self._epoch = epoch
        self._never = threading.Event()

    def execute(self, decision: Decision) -> ExecutionResult:
        line = f"{decision.key} {self._epoch} {os.getpid()}\n"
        handle = os.open(self._calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        self._never.wait(EXECUTE_SECONDS)
        return ExecutionResult(True, "reset", lasting=False)


class LightTurn(World):
    """A turn of the succession."""

    def __init__(self, place: SharedJournal, cell: str, calls: Path, fault_seconds: int) -> None:
        self.place = place
        self._fault_ms = fault_seconds * SECOND
        self.clock = SystemClock()  # type: ignore[assignment]
        self.gpus = cell_gpus(cell, HOSTS)
        self.faults, self.stale, self.sick, self.elsewhere = {}, set(), set(), set()
        self.alert_silences = AlertSilences()
        self.nodes, self.values, self.active = {}, {}, True
        wide = settings(
            settle_seconds=0.0,
            limits={
                "max_concurrent": MOST_AT_ONCE,
                "attempts_per_day": 1_000_000,
                "attempts_per_host_per_day": 1_000_000,
            },
            breaker_root_causes=1_000_000,
        )
        self.policy = Policy(wide)
        self._begun, self._confirmations, self.turns = self.clock.monotonic(), Confirmations(), 0
        journal = place.journal
        if journal.leads:
            journal.append(EntryKind.SERVICE_STARTED, {"epoch": journal.epoch, "pid": os.getpid()})
            if place.doubt:
                journal.append(EntryKind.PAUSE, {"reason": place.doubt})
        self.loop = ActionLoop(
            journal, [WorldExecutor(calls, journal.epoch)], self.clock, self.policy, None, Threads(4),
            may_act=place.lease.held, leads=journal.leads, budget=place.budget,
        )  # fmt: skip
        self._periodic = Periodic("evaluate", self._step, STEP_SECONDS, self.clock)
        if journal.leads:
            self._periodic.start()

    def evaluations(self) -> int:
        return self.turns

    def follow(self) -> None:
        while entries := self.place.journal.follow():
            self.loop.follow(entries)

    def handover(self) -> None:
        """It has seen nothing of a fleet."""

    def stop(self) -> None:
        self._periodic.stop()
        self.loop.close()
        self.place.journal.close()

    def _step(self) -> None:
        self.turns += 1
        started_ms = self.clock.now_ms() // self._fault_ms * self._fault_ms
        self.faults = {
            uuid: finding(subject_of(gpu), started_ms, action=ActionKind.RESET_GPU) for uuid, gpu in self.gpus.items()
        }
        self.active = self.place.lease.held()
        view = self.view()
        self.loop.step(view, view.incidents, [])
        self._checkpoint()

    def _checkpoint(self) -> None:
        """As a brain does it, so that the next one reads only what follows."""
        journal = self.place.journal
        saved = journal.checkpoint
        if journal.head - (saved.seq if saved else 0) >= CHECKPOINT_ENTRIES:
            with self.loop.held():
                seq, ledger = journal.head, self.loop.folded()
            journal.save(seq, {LEDGER_PART: ledger})


def run(url: str, cell: str, fleet: str, lease_seconds: float, calls: Path, fault_seconds: int) -> None:
    """A brain of a cell of `fleet` until it is killed. A lease below what settings allow makes many of them.

    A fault stands for `fault_seconds`; then each GPU has another one, with a key of its own.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    succession.LEASE_LOOK_SECONDS = min(0.25, lease_seconds / 20)
    journal = JournalSettings.model_validate({"url": url, "cell": cell})
    journal = journal.model_copy(update={"lease_seconds": lease_seconds})
    place = CellSettings.model_validate({"fleet": fleet, "url": f"http://{cell}.test"})
    wanted = Settings().model_copy(update={"journal": journal, "cell": place})
    Succession(wanted, SystemClock(), threading.Event(), lambda turn: LightTurn(turn, cell, calls, fault_seconds)).run()
