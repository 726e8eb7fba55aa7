"""The sources that an agent can read, by name. A source is one entry here."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Callable

from tocsin.collector.source import Source
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError


def _nvml(settings: Settings, _clock: Clock) -> Source:
    from tocsin.collector.nvml import DEADLINE_SECONDS, NvmlSource
    from tocsin.collector.nvml_device import Place
    from tocsin.collector.nvml_library import PynvmlLibrary

    wanted = settings.agent
    place = Place(wanted.host or socket.gethostname(), wanted.pool, wanted.rack, wanted.labels)
    return NvmlSource(PynvmlLibrary(), place, min(DEADLINE_SECONDS, wanted.interval_seconds))


def _simulated(settings: Settings, clock: Clock) -> Source:
    from tocsin.collector.simulated import from_settings

    return from_settings(settings.simulation, clock.now_ms())


def _replay(settings: Settings, clock: Clock) -> Source:
    from tocsin.collector.replay import ReplaySource, read_recording

    paths = settings.agent.replay
    if not paths:
        raise InputError("agent.replay", [], "names nothing to replay", "name files of recorded telemetry")
    return ReplaySource(read_recording(paths), origin_ms=clock.now_ms(), speed=settings.agent.replay_speed)


SOURCES: dict[str, Callable[[Settings, Clock], Source]] = {
    "nvml": _nvml,
    "simulated": _simulated,
    "replay": _replay,
}
"""Name, as in setting ``agent.source``, to what opens it. Imports are inside: one source must not load another's."""


def open_source(name: str, settings: Settings, clock: Clock) -> Source:
    """The source called `name`.

    Raises InputError for an unknown name, and Unavailable where what it reads from is not there.
    """
    opener = SOURCES.get(name)
    if opener is None:
        close = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError("agent.source", name, "is no source", f"{hint}known are {', '.join(sorted(SOURCES))}")
    return opener(settings, clock)
