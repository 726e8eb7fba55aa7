"""What executors are built from, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from tocsin.actions.model.executor import Executor
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.section import Section
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.decision import ActionParameters
from tocsin.domain.finding import ActionKind
from tocsin.plugins import Kind, load, plugins
from tocsin.sim.jobs import SimulatedJob
from tocsin.telemetry.metrics import OwnMetrics

S = TypeVar("S", bound=Section)


class SimulatedPort(Protocol):
    """What executor `simulated` needs of `tocsin.sim.fleet.SimulatedFleet`."""

    def apply(self, action: ActionKind, gpu: str, parameters: ActionParameters) -> bool:
        """Do `action` to a GPU, or to a pool by name; whether it could be done. Raises InputError."""

    def schedulable(self) -> Mapping[str, bool]:
        """Whether each host takes new work."""

    def move(self, job: str, hosts: Collection[str]) -> bool:
        """Move a job, by its name at its manager, to one of `hosts`; whether it moved."""

    def closed(self) -> Collection[str]:
        """UUIDs of the GPUs that take no new work."""

    def gpu_on(self, host: str) -> str:
        """One GPU of a host; empty where there is no such host."""

    def jobs(self) -> Sequence[SimulatedJob]:
        """The jobs that run now."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What executors are built from; `sender` is None where no receiver is set, `orders` where no agent is served."""

    sender: WebhookSender | None = None
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=SystemClock)
    orders: OrderQueue | None = None
    fleet: SimulatedPort | None = None
    own: OwnMetrics | None = None
    epoch: int = 0
    """Of the brain's journal; 0 where no brain asks."""

    def section(self, settings: S) -> S:
        """An executor's own section of the settings, in which ``actions.dry_run`` counts as its own."""
        return settings.model_copy(update={"dry_run": True}) if self.settings.actions.dry_run else settings


Factory = Callable[[Dependencies], Executor]
"""What a plug-in of kind `executor` is: a class or a function."""


def executors() -> tuple[str, ...]:
    """Name of every executor."""
    return tuple(plugins(Kind.EXECUTOR))


def build_executor(name: str, dependencies: Dependencies) -> Executor:
    """The executor that settings name; raises InputError where there is none of that name."""
    return cast("Factory", load(Kind.EXECUTOR, name, "actions.executors"))(dependencies)
