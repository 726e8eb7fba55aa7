"""Channels by kind, found among the modules of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field

import tocsin.actions.notifications as package
from tocsin.actions.notifications.protocol import Channel
from tocsin.actions.notifications.text import Links
from tocsin.config.notify import ChannelSettings
from tocsin.domain.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class ChannelDependencies:
    """What a channel is built from."""

    settings: ChannelSettings
    links: Links = field(default_factory=Links)
    clock: Clock = field(default_factory=SystemClock)


Factory = Callable[[ChannelDependencies], Channel]
_REGISTER: dict[str, Factory] = {}


def channel(kind: str) -> Callable[[Factory], Factory]:
    """Enter the decorated factory into the register for channels of `kind`."""

    def enter(factory: Factory) -> Factory:
        _REGISTER[kind] = factory
        return factory

    return enter


def channels() -> dict[str, Factory]:
    """Every channel's factory by kind."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTER.items()))


def build_channel(dependencies: ChannelDependencies) -> Channel:
    """The channel that its settings describe; raises InputError where a file that they name cannot be read."""
    return channels()[dependencies.settings.kind](dependencies)
