"""What GPUs say of an NVLink fault at another one ends with that fault: the far end of a link is not reset itself."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.domain.clock import SECOND
from tocsin.domain.reading import NVLINK_DOMAIN
from tocsin.rules.episodes import QUIET_MS, Episode, Episodes
from tocsin.rules.frame import Frame

FELT_MS = 5 * SECOND
"""How long after the fault its far ends report it (own choice, as for what explains what)."""


class RemoteEnds:
    """Ends episodes of `felt` whose fault, an episode of `faults` on another GPU, has ended.

    An episode is the far end of a fault where it began within FELT_MS behind it, on a GPU of the same host or NVLink
    domain, and where nothing came after the burst. Who reported first stands for the fault: were it at another end,
    the reset of the first would not keep it from coming back.
    """

    def __init__(self, frame: Frame, faults: Episodes, felt: Episodes) -> None:
        self._frame = frame
        self._faults = faults
        self._felt = felt

    def update(self) -> None:
        """Follow the faults; `felt` must have been brought up to date before."""
        self._faults.update()
        for row, fault in self._faults.ended:
            self._felt.forget([far for far, felt in self._felt.rows.items() if self._is_far(row, fault, far, felt)])

    def forget(self, rows: Iterable[int]) -> None:
        self._faults.forget(rows)

    def _is_far(self, row: int, fault: Episode, far: int, felt: Episode) -> bool:
        if not 0 < felt.started_ms - fault.started_ms <= FELT_MS or felt.last_ms > fault.burst_ms + QUIET_MS:
            return False
        gpus = self._frame.roster.gpus
        one, other = gpus[row], gpus[far]
        domain = one.labels.get(NVLINK_DOMAIN, "")
        return one.host == other.host or (bool(domain) and domain == other.labels.get(NVLINK_DOMAIN, ""))
