"""`tocsin` of the wheel beside it on a node whose driver is in memory: only the opening of NVML for limits is replaced.

Runs with that wheel on PYTHONPATH alone: it names its modules.
"""

from __future__ import annotations

from typing import Any

from tocsin.cli.main import main
from tocsin.domain.power import ClockRange, Heat, PowerLimits
from tocsin.runtime import actuator


class Driver:
    """The limits of one GPU."""

    def __init__(self) -> None:
        self.limit_mw = 400_000

    def limits(self, _gpu: str) -> PowerLimits:
        return PowerLimits(self.limit_mw, self.limit_mw, 400_000, 100_000, 400_000)

    def set_limit(self, _gpu: str, milliwatts: int) -> None:
        self.limit_mw = milliwatts

    def heat(self, _gpu: str) -> Heat:
        return Heat(60.0, 300.0, slowdown_c=89.0)

    def clocks(self, _gpu: str) -> ClockRange:
        return ClockRange(210, 1410, 1350)

    def lock_clocks(self, _gpu: str, _low_mhz: int, _high_mhz: int) -> None:
        """Nothing is locked by this test."""

    def unlock_clocks(self, _gpu: str) -> None:
        """Nothing was locked."""

    def release(self) -> None:
        """Nothing is open."""


_DRIVER: Any = Driver()

if __name__ == "__main__":
    actuator._open_port = lambda: _DRIVER
    main()
