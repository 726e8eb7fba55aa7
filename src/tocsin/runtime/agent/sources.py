"""How the agent opens the sources that Tocsin brings. Imports are inside: one source must not load another's."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable
from typing import cast

from tocsin.collector.source import NodeIdentity, Settles, Source
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.plugins import Kind, load
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("sources")

Opener = Callable[[Settings, Clock, OwnMetrics], Source]
"""What a plug-in of kind `source` is."""


def _node(settings: Settings) -> NodeIdentity:
    wanted = settings.agent
    return NodeIdentity(wanted.host or socket.gethostname(), wanted.pool, wanted.rack, wanted.labels)


def open_nvml(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    """The driver's library."""
    from tocsin.collector.nvml.library import PynvmlLibrary
    from tocsin.collector.nvml.source import DEADLINE_SECONDS, NvmlSource
    from tocsin.collector.release import ReleaseFile

    deadline = min(DEADLINE_SECONDS, settings.agent.interval_seconds)
    released = ReleaseFile(settings.agent.release_file, clock)
    return NvmlSource(PynvmlLibrary(), _node(settings), deadline, clock=clock, own=own, released=released)


def open_nvidia_smi(settings: Settings, _clock: Clock, _own: OwnMetrics) -> Source:
    """The program nvidia-smi."""
    from tocsin.collector.nvidia_smi.source import NvidiaSmiSource
    from tocsin.collector.smi_program import SmiProgram

    return NvidiaSmiSource(SmiProgram(settings.agent.nvidia_smi_command), _node(settings))


def open_amdsmi(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    """AMD's library."""
    from tocsin.collector.amdsmi.library import AmdSmiLibrary
    from tocsin.collector.amdsmi.source import DEADLINE_SECONDS, AmdSmiSource

    deadline = min(DEADLINE_SECONDS, settings.agent.interval_seconds)
    return AmdSmiSource(AmdSmiLibrary(), _node(settings), clock, settings.agent.sys, deadline)


def open_npu_smi(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    """The program npu-smi of Ascend NPUs."""
    from tocsin.collector.npu_smi.source import NpuSmiSource
    from tocsin.collector.smi_program import SmiProgram

    wanted = settings.agent
    return NpuSmiSource(SmiProgram(wanted.npu_smi_command), _node(settings), clock, wanted.npu_faults)


def _nvml_loads() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def open_auto(settings: Settings, clock: Clock, own: OwnMetrics) -> Source:
    """NVML; only where no NVML library loads nvidia-smi, AMD's library or Ascend's npu-smi, the first that answers. A
    library without a driver is a fault to be told, not hidden: nvidia-smi would meet the same."""
    if _nvml_loads():
        return open_nvml(settings, clock, own)
    problems: list[str] = []
    stand_ins: dict[str, Opener] = {"nvidia_smi": open_nvidia_smi, "amdsmi": open_amdsmi, "npu_smi": open_npu_smi}
    for name, opener in stand_ins.items():
        try:
            source = opener(settings, clock, own)
        except Unavailable as error:
            problems.append(f"{name}: {error}")
            continue
        _log.warning(_INSTEAD[name])
        return source
    raise Unavailable(
        "no NVML library loads (libnvidia-ml.so.1): install the NVIDIA driver, or give the container the driver "
        "with NVIDIA_DRIVER_CAPABILITIES=utility; nor does anything else answer that could stand in for it: "
        f"{'; '.join(problems)}; to try it without a GPU: --source simulated"
    )


_INSTEAD = {
    "nvidia_smi": "no NVML library loads: reading by nvidia-smi, which is slower and sees less",
    "amdsmi": "no NVML library loads: reading AMD GPUs by amdsmi",
    "npu_smi": "no NVML library loads: reading Ascend NPUs by npu-smi",
}


def open_simulated(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    """A simulated fleet."""
    from tocsin.collector.simulated import from_settings

    return from_settings(settings.simulation, clock.now_ms())


def open_replay(settings: Settings, clock: Clock, _own: OwnMetrics) -> Source:
    """Recorded telemetry; raises InputError where none is named."""
    from tocsin.collector.replay.source import ReplaySource, read_recording

    paths = settings.agent.replay
    if not paths:
        raise InputError("agent.replay", [], "names nothing to replay", "name files of recorded telemetry")
    return ReplaySource(read_recording(paths), origin_ms=clock.now_ms(), speed=settings.agent.replay_speed)


def open_source(name: str, settings: Settings, clock: Clock, own: OwnMetrics | None = None) -> Source:
    """The source called `name`, or the one that ``auto`` comes to: its own `name` says which.

    Raises InputError for an unknown name, and Unavailable where what it reads from is not there.
    """
    opener = cast("Opener", load(Kind.SOURCE, name, "agent.source"))
    return opener(settings, clock, own if own is not None else OwnMetrics())


def open_settled(name: str, settings: Settings, clock: Clock, own: OwnMetrics | None = None) -> Source:
    """`open_source` for one who reads but once or twice: waits for what the source still opens."""
    source = open_source(name, settings, clock, own)
    if isinstance(source, Settles):
        try:
            source.settle()
        except Unavailable:
            source.close()
            raise
    return source
