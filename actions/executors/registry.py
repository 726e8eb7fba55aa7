"""Executors by name, found among the modules of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import tocsin.actions.executors as package
from tocsin.actions.model.executor import Executor
from tocsin.actions.node.order_queue import OrderQueue
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.settings import Settings
from tocsin.domain.action_parameters import ActionParameters
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind
from tocsin.sim.jobs import SimulatedJob
from tocsin.telemetry.metrics import OwnMetrics


class SimulatedPort(Protocol):
    """What executor `simulated` needs of `tocsin.sim.fleet.SimulatedFleet`."""

    def apply(self, action: ActionKind, gpu: str, parameters: ActionParameters) -> bool:
        """Do `action` to a GPU, or to a pool by name; whether it could be done. Raises InputError."""

    def schedulable(self) -> Mapping[str, bool]:
        """Whether each host takes new work."""

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


Factory = Callable[[Dependencies], Executor]
_REGISTER: dict[str, Factory] = {}


def executor(name: str) -> Callable[[Factory], Factory]:
    """Enter the decorated factory into the register as executor `name`."""

    def enter(factory: Factory) -> Factory:
        _REGISTER[name] = factory
        return factory

    return enter


def executors() -> dict[str, Factory]:
    """Every executor's factory by name."""
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "registry":
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTER.items()))


def build_executor(name: str, dependencies: Dependencies) -> Executor:
    """The executor that settings name; raises InputError where there is none of that name."""
    known = executors()
    if name not in known:
        raise InputError("actions.executors", name, "no executor has this name", f"use one of {', '.join(known)}")
    return known[name](dependencies)
