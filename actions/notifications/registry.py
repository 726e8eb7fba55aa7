"""What channels are built from, and how one is found by its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from tocsin.actions.notifications.protocol import Channel
from tocsin.actions.notifications.text import Links
from tocsin.config.notify import ChannelSettings
from tocsin.domain.clock import Clock, SystemClock
from tocsin.plugins import Kind, load


@dataclass(frozen=True, slots=True)
class ChannelDependencies:
    """What a channel is built from."""

    settings: ChannelSettings
    links: Links = field(default_factory=Links)
    clock: Clock = field(default_factory=SystemClock)


Factory = Callable[[ChannelDependencies], Channel]
"""What a plug-in of kind `channel` is: a class or a function."""


def build_channel(dependencies: ChannelDependencies) -> Channel:
    """The channel that its settings describe; raises InputError where a file that they name cannot be read."""
    factory = cast("Factory", load(Kind.CHANNEL, dependencies.settings.kind, "notify.channels.kind"))
    return factory(dependencies)
