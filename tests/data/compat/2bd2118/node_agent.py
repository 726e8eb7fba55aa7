"""`tocsin` of the wheel beside it on a node whose driver is in memory: only the opening of NVML for limits is replaced.

Runs with that wheel on PYTHONPATH alone: it names its modules.
"""

from __future__ import annotations

from typing import Any

from tocsin.cli.main import main
from tocsin.domain.power import ClockRange, Heat, PowerLimits
from tocsin.runtime import actuator


_LIMITS_MW: dict[str, int] = {}
"""What is set, by GPU: it outlives an opening of the library, as in a driver."""


class Driver:
    """The limits of the node's GPUs; those with ``hot`` in their names are at the brink."""

    def limits(self, gpu: str) -> PowerLimits:
        now = _LIMITS_MW.get(gpu, 400_000)
        return PowerLimits(now, now, 400_000, 100_000, 400_000)

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        _LIMITS_MW[gpu] = milliwatts

    def heat(self, gpu: str) -> Heat:
        return Heat(88.0 if "hot" in gpu else 60.0, 300.0, slowdown_c=89.0)

    def clocks(self, _gpu: str) -> ClockRange:
        return ClockRange(210, 1410, 1350)

    def lock_clocks(self, _gpu: str, _low_mhz: int, _high_mhz: int) -> None:
        """Nothing is locked by this test."""

    def unlock_clocks(self, _gpu: str) -> None:
        """Nothing was locked."""

    def release(self) -> None:
        """Nothing is open."""


def _opened() -> Any:
    return Driver()


if __name__ == "__main__":
    actuator._open_port = _opened
    main()
