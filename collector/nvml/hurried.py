"""NVML read whole on request: what is otherwise asked once a minute, such as the errors of links."""

from __future__ import annotations

from tocsin.collector.nvml.source import NvmlSource


class HurriedNvml(NvmlSource):
    """An `NvmlSource` that can be told to ask everything with the next reading, for looks that are a second apart."""

    def hurry(self) -> None:
        """Belongs to the thread of `read`."""
        for device in self._devices.values():
            device.hurry()
