"""The sources that an agent can read, by name. A source is one entry here."""

from __future__ import annotations

import ctypes
import difflib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from tocsin.collector.source import Source
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

if TYPE_CHECKING:
    from tocsin.collector.nvml.device import Place

_log = logger("sources")


def _place(settings: Settings) -> Place:
    from tocsin.collector.nvml.device import Place

    wanted = settings.agent
    return Place(wanted.host or socket.gethostname(), wanted.pool, wanted.rack, wanted.labels)


def _nvml(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    from tocsin.collector.nvml.library import PynvmlLibrary
    from tocsin.collector.nvml.source import DEADLINE_SECONDS, NvmlSource
    from tocsin.collector.release import ReleaseRequest

    deadline = min(DEADLINE_SECONDS, settings.agent.interval_seconds)
    released = ReleaseRequest(settings.agent.release_file, clock)
    return NvmlSource(PynvmlLibrary(), _place(settings), deadline, clock=clock, own=own, released=released)


def _nvidia_smi(settings: Settings, _clock: Clock, _own: OwnMetrics) -> Source:
    from tocsin.collector.nvidia_smi.source import NvidiaSmiSource, SmiProgram

    return NvidiaSmiSource(SmiProgram(settings.agent.nvidia_smi_command), _place(settings))


def _nvml_loads() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _auto(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    """NVML; nvidia-smi only where no NVML library loads. A library without a driver is a fault to be told, not hidden:
    nvidia-smi would meet the same."""
    if _nvml_loads():
        return _nvml(settings, clock, own)
    try:
        source = _nvidia_smi(settings, clock, own)
    except Unavailable as error:
        raise Unavailable(
            "no NVML library loads (libnvidia-ml.so.1): install the NVIDIA driver, or give the container the driver "
            f"with NVIDIA_DRIVER_CAPABILITIES=utility; nor is there an nvidia-smi to stand in for it: {error}; "
            "to try it without a GPU: --source simulated"
        ) from None
    _log.warning("no NVML library loads: reading by nvidia-smi, which is slower and sees less")
    return source


def _dcgm_exporter(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    from tocsin.collector.dcgm.exporter import open_dcgm_exporter

    return open_dcgm_exporter(settings, clock, own)


def _dcgmi(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    from tocsin.collector.dcgm.dcgmi import open_dcgmi

    return open_dcgmi(settings, clock, own)


def _simulated(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    from tocsin.collector.simulated import from_settings

    return from_settings(settings.simulation, clock.now_ms())


def _replay(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    from tocsin.collector.replay.source import ReplaySource, read_recording

    paths = settings.agent.replay
    if not paths:
        raise InputError("agent.replay", [], "names nothing to replay", "name files of recorded telemetry")
    return ReplaySource(read_recording(paths), origin_ms=clock.now_ms(), speed=settings.agent.replay_speed)


Opener = Callable[[Settings, Clock, OwnMetrics], Source]

SOURCES: dict[str, Opener] = {
    "auto": _auto,
    "nvml": _nvml,
    "nvidia_smi": _nvidia_smi,
    "dcgm_exporter": _dcgm_exporter,
    "dcgmi": _dcgmi,
    "simulated": _simulated,
    "replay": _replay,
}
"""Name, as in setting ``agent.source``, to what opens it. Imports are inside: one source must not load another's."""


def open_source(name: str, settings: Settings, clock: Clock, own: OwnMetrics | None = None) -> Source:
    """The source called `name`, or the one that ``auto`` comes to: its own `name` says which.

    Raises InputError for an unknown name, and Unavailable where what it reads from is not there.
    """
    opener = SOURCES.get(name)
    if opener is None:
        close = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError("agent.source", name, "is no source", f"{hint}known are {', '.join(sorted(SOURCES))}")
    return opener(settings, clock, own if own is not None else OwnMetrics())
